"""Expert parallelism: each rank has some of the experts of a mixture, and tokens travel to their experts and back.

Lepikhin et al. 2020 ("GShard"); Fedus et al. 2021. It adds no ranks: the ranks that see other data share the experts out among
themselves. Around the experts of a layer tokens are exchanged all to all, to their experts (dispatch) and home (combine), in
the forward pass and, with gradients, in the backward pass; after each exchange a copy puts them in order. How many go where is
drawn (``triosim.extrapolators.routing``), for each layer and iteration. Every rank is charged what the busiest of its group has
to do: the others wait for it in the combine. Experts are sharded, and their gradients reduced, among the ranks that have the
same ones alone.

Experts are grouped products (``_grouped_mm``) of rows and stacked weights; what stands between two of them treats rows
separately, and has as many of them as come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from triosim.compute.features import base_name
from triosim.compute.pricing import estimated
from triosim.errors import OptionError, TraceError
from triosim.extrapolators.axes import Axes, Mark
from triosim.extrapolators.base import EXPERT_ORDER, Extrapolator
from triosim.extrapolators.carried import Carried
from triosim.extrapolators.dataflow import Dataflow, owners, parameter_storages
from triosim.extrapolators.mesh import Mesh
from triosim.extrapolators.program import Block, Communicate, Item, Program
from triosim.extrapolators.routing import LOADS, Routing
from triosim.trace import Operator, Tensor

_GROUPED = ("grouped_mm", "scaled_grouped_mm")


class ExpertParallel(Extrapolator):
    """``ep``."""

    axis = "ep"
    place = "shard"
    order = EXPERT_ORDER
    adds_ranks = False
    extra_options = ("load", "skew", "seed", "capacity")

    @property
    def draws(self) -> bool:
        """Whether each iteration is another: its tokens are drawn anew."""
        return self._routing().load != "balanced"

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program of a rank with its share of the experts."""
        routing = self._routing()
        if self.options.dp_style == "replicate":
            raise OptionError(
                "experts cannot be divided where each step copies all parameters", where=self.axis, fix="use ddp"
            )
        if self.size == 1:
            return program
        return _Division(program, self.axis, self.size, routing, self.iteration).program()

    def _routing(self) -> Routing:
        capacity = self.positive("capacity", None)
        skew = self.positive("skew", 1.0)
        assert skew is not None
        return Routing(self.choice("load", LOADS), skew, self.number("seed", 0), capacity)


@dataclass(slots=True)
class _Mixture:
    """The experts of a layer: the grouped products that begin and that end, and every operator between, with its rows."""

    first: list[Operator] = field(default_factory=list)
    last: list[Operator] = field(default_factory=list)
    marks: dict[int, Mapping[int, Mark]] = field(default_factory=dict)  # by forward operator: of rows, by tensor

    @property
    def rows(self) -> int:
        """How many rows come in."""
        return self.first[0].inputs[0].shape[0]


class _Division:
    """Divides the experts of all mixtures of a program."""

    def __init__(self, program: Program, axis: str, ranks: int, routing: Routing, iteration: int) -> None:
        self._program = program
        self._axis = axis
        self._ranks = ranks
        self._routing = routing
        self._iteration = iteration
        self._flow = Dataflow(program.operators)
        self._axes = Axes(program.operators, program.batch_size, self._flow.backward, ranks, once=program.once)
        tensors = {t.id: t for operator in program.operators for t in (*operator.inputs, *operator.outputs)}
        self._operators = count(max(operator.id for operator in program.operators) + 1)
        self._tensors = count(max(max(tensors), *(tensor.storage for tensor in tensors.values())) + 1)
        self._parameters = parameter_storages(program.operators)
        self._weights: set[int] = set()  # storages of stacked parameters, and of their copies in another dtype
        self._owners = owners((op for op in program.operators if op.phase == "optimizer"), self._parameters)
        self._ahead: dict[int, list[Item]] = {}
        self._after: dict[int, list[Item]] = {}

    def program(self) -> Program:
        """Return the program of a rank."""
        mixtures = self._mixtures()
        if not mixtures:
            raise TraceError(
                "the trace has no experts: no grouped product (aten::_grouped_mm) of rows and stacked weights",
                where=self._axis,
                fix="use a model whose experts run as grouped products, or leave ep out",
            )
        shapes: dict[int, Operator] = {}
        sent = dropped = 0.0
        for number, mixture in enumerate(mixtures):
            loads, lost = self._loads(mixture, number)
            sent, dropped = sent + mixture.rows * self._ranks, dropped + lost
            shapes |= self._divided(mixture, loads)
        shapes |= self._weights_shared(shapes)
        note = f"operator times are predicted for each GPU's experts ({self._axis} on {self._ranks} GPUs)"
        program = self._program.reshaped(shapes, note=note).rewritten(self._items).noted(*self._notes(sent, dropped))
        return replace(program, experts=frozenset(self._weights), expert_parts=self._axis)

    def _notes(self, sent: float, dropped: float) -> Iterable[str]:
        routing = self._routing
        if routing.load != "balanced":
            skewed = "" if routing.load == "uniform" else f", skew {routing.skew:g}"
            yield (
                f"{self._axis}: tokens go to experts by chance: {routing.load}{skewed}, seed {routing.seed}; each GPU is "
                "charged what the busiest of its group has to do"
            )
        if dropped:
            factor = f"with a capacity factor of {routing.capacity:g}"
            yield f"{self._axis}: {factor}, {dropped / sent:.1%} of the tokens are dropped"

    # ---- where the experts are ----------------------------------------------------------------------------------

    def _mixtures(self) -> list[_Mixture]:
        """The mixtures, in the order of the forward pass."""
        found: list[_Mixture] = []
        carried = Carried(self._flow, self._axes)
        for operator in self._flow.forward:
            inside = carried.read(operator)
            if not (inside or self._is_grouped(operator)):
                continue
            data = operator.inputs[0]
            begins = self._is_grouped(operator) and data.id not in inside
            if begins and (not found or found[-1].last):
                found.append(_Mixture())
            marks = {data.id: Mark(0, data.shape[0])} if begins else inside
            spread = self._axes.spread(operator, marks)
            if spread is None or (operator.outputs and operator.outputs[0].id not in spread.marks):
                raise TraceError(
                    f"the rows of experts cannot be followed through {operator.name} of {operator.layer}",
                    where=self._axis,
                )
            found[-1].marks[operator.id] = spread.marks
            if self._is_grouped(operator):
                self._note_weight(operator)
            if self._is_grouped(operator) and not begins:
                found[-1].last.append(operator)
            else:
                (found[-1].first.append(operator) if begins else None)
                carried.write(operator, spread)
        return [mixture for mixture in found if mixture.last]

    def _is_grouped(self, operator: Operator) -> bool:
        """Whether it is the product of rows and stacked weights."""
        shapes = [tensor.shape for tensor in operator.inputs[:2]]
        return base_name(operator.name) in _GROUPED and len(shapes) == 2 and list(map(len, shapes)) == [2, 3]

    def _note_weight(self, operator: Operator) -> None:
        """Remember the parameter that a grouped product multiplies with, or a copy of it in another dtype."""
        weight = operator.inputs[1]
        while weight.storage not in self._parameters.values():
            datum = self._flow.datum(operator, weight)
            if datum is None:
                raise TraceError(f"the experts of {operator.layer} are no parameter", where=self._axis)
            operator = self._flow.by_id[datum.maker]
            weight = operator.inputs[0]
            self._weights.add(datum.storage)
        experts = weight.shape[0]
        if experts % self._ranks:
            raise OptionError(
                f"the {experts} experts of {operator.layer} do not divide by {self._ranks}",
                where=self._axis,
                fix="use a size that divides them",
            )
        self._weights.add(weight.storage)

    # ---- a rank's share -----------------------------------------------------------------------------------------

    def _loads(self, mixture: _Mixture, number: int) -> tuple[list[float], float]:
        """How many rows each rank of a group gets, and how many are dropped in all."""
        experts = mixture.first[0].inputs[1].shape[0]
        loads, lost = self._routing.tokens(self._ranks, experts, mixture.rows, layer=number, iteration=self._iteration)
        return [float(load) for load in loads], lost

    def _divided(self, mixture: _Mixture, loads: Sequence[float]) -> dict[int, Operator]:
        """The operators of a mixture with the rows of the busiest rank, and the exchanges around them."""
        rows = max(1, round(max(loads)))
        differentiating = [
            op for op in self._program.operators if op.phase == "backward" and op.forward in mixture.marks
        ]
        coming, going = self._ends(mixture, differentiating)
        reads = [(one.inputs[0], one) for one in mixture.first] + coming
        writes = [(one.outputs[0], one) for one in mixture.last] + going
        there = _Renamed({tensor.storage for tensor, _ in (*reads, *writes)}, self._tensors)
        found: dict[int, Operator] = {}
        for op in (*(self._flow.by_id[number] for number in mixture.marks), *differentiating):
            marks = mixture.marks[op.id if op.phase == "forward" else op.forward or 0]
            found[op.id] = self._share(op, marks, rows, there)
        exchanged = {t.id: t for op in found.values() for t in (*op.inputs, *op.outputs)}
        for tensor, op in reads:
            if tensor.id in there.ids:
                other = exchanged[there.ids.pop(tensor.id)]
                self._ahead.setdefault(op.id, []).extend(self._exchange(op, tensor, other, loads, first=True))
        for tensor, op in writes:
            other = exchanged[there.ids[tensor.id]]
            self._after.setdefault(op.id, []).extend(self._exchange(op, tensor, other, loads, first=False))
        return found

    def _ends(
        self, mixture: _Mixture, differentiating: Sequence[Operator]
    ) -> tuple[list[tuple[Tensor, Operator]], list[tuple[Tensor, Operator]]]:
        """The gradients that come to a mixture and those that leave it, with the operators that read and make them."""
        made = {t.storage for op in differentiating for t in op.outputs if not _shows(op, t)}
        read = {t.storage for op in differentiating for t in op.inputs}
        coming: dict[int, tuple[Tensor, Operator]] = {}
        going = []
        first = {one.id for one in mixture.first}
        for op in differentiating:
            marks = mixture.marks[op.forward or 0]
            for t in op.inputs:
                if t.category == "gradient" and t.storage not in made and t.id in marks:
                    coming.setdefault(t.storage, (t, op))
            if op.forward in first:
                ends = (t for t in op.outputs if t.parameter is None and t.id in marks and t.storage not in read)
                going += [(t, op) for t in ends]
        return list(coming.values()), going

    def _share(self, operator: Operator, marks: Mapping[int, Mark], rows: int, there: _Renamed) -> Operator:
        grouped = "grouped" in operator.name.lower()

        def share(tensor: Tensor) -> Tensor:
            shape = list(tensor.shape)
            mark = marks.get(tensor.id)
            if mark is not None:
                shape[mark.dim] = shape[mark.dim] // mark.size * rows
            elif len(shape) == 3 and (grouped or self._is_stacked(tensor)):  # groups stand first
                shape[0] //= self._ranks
            return there.of(replace(tensor, shape=tuple(shape)))

        return replace(operator, inputs=tuple(map(share, operator.inputs)), outputs=tuple(map(share, operator.outputs)))

    def _exchange(
        self, operator: Operator, here: Tensor, there: Tensor, loads: Sequence[float], *, first: bool
    ) -> list[Item]:
        """An all-to-all, and the copy that puts rows in order: of a rank's own, or of what comes to its experts.

        Rows come home as they went, the other way round, which takes as long.
        """
        row = here.nbytes / here.shape[0]
        shares = tuple(load / self._ranks * row for load in loads)
        equal = len(set(shares)) == 1
        given, taken = (here, there) if first else (there, here)
        copied = Operator(next(self._operators), "aten::index", operator.phase, operator.layer, (given,), (taken,), 0.0)
        exchange = Communicate(
            *("all_to_all", sum(shares), self._axis),
            operator=copied.id,
            tensors=(given.id,),
            shares=None if equal else shares,
        )
        return [exchange, *estimated([copied], self._program.model, self._program.gpu)]

    def _weights_shared(self, shapes: Mapping[int, Operator]) -> dict[int, Operator]:
        """What shows, casts, or updates stacked weights, or turns their gradients, does so for a rank's experts."""

        def share(tensor: Tensor) -> Tensor:
            if len(tensor.shape) != 3 or not self._is_stacked(tensor):
                return tensor
            return replace(tensor, shape=(tensor.shape[0] // self._ranks, *tensor.shape[1:]))

        found: dict[int, Operator] = {}
        for op in self._program.operators:
            if op.id not in shapes:
                inputs, outputs = tuple(map(share, op.inputs)), tuple(map(share, op.outputs))
                found[op.id] = replace(op, inputs=inputs, outputs=outputs)
        return found

    def _is_stacked(self, tensor: Tensor) -> bool:
        """Whether a tensor is the experts' weights, or their gradient or state."""
        storage = self._owners.get(tensor.id, tensor.storage)
        about = storage if tensor.parameter is None else self._parameters.get(tensor.parameter, storage)
        return about in self._weights

    def _items(self, block: Block) -> Iterable[Item]:
        for item in block.items:
            if isinstance(item, Operator):
                yield from self._ahead.get(item.id, ())
                yield item
                yield from self._after.get(item.id, ())
            else:
                yield item


class _Renamed:
    """What tensors of some storages are where their experts are: as they come there, not as they are at home."""

    def __init__(self, storages: set[int], numbers: Iterator[int]) -> None:
        self._storages = {storage: next(numbers) for storage in sorted(storages)}
        self._numbers = numbers
        self.ids: dict[int, int] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """Return a tensor under the id and storage that it has there."""
        storage = self._storages.get(tensor.storage)
        if storage is None:
            return tensor
        if tensor.id not in self.ids:
            self.ids[tensor.id] = next(self._numbers)
        return replace(tensor, id=self.ids[tensor.id], storage=storage)


def _shows(operator: Operator, made: Tensor) -> bool:
    """Whether what an operator returns is something that it was given."""
    return any(tensor.storage == made.storage for tensor in operator.inputs)
