"""Expert parallelism: each rank has some of the experts of a mixture, and tokens travel to their experts and back.

Lepikhin et al. 2020 ("GShard"); Fedus et al. 2021. It adds no ranks: the ranks that see other data share the experts out among
themselves. Around the experts of a layer tokens are exchanged all to all, to their experts (dispatch) and home (combine), in
the forward pass and, with gradients, in the backward pass; after each exchange a copy puts them in order. How many go from
where to where is drawn (``triosim.extrapolators.expert.expert_loads``), for each layer and iteration. So ranks at different
places of a
group run different programs: each computes the rows that its own experts get, and those with few wait for the busiest in the
combine. Experts are sharded, and their gradients reduced, among the ranks that have the same ones alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import numpy.typing as npt

from triosim.compute.pricing.repricing import estimated
from triosim.config import Option
from triosim.errors import OptionError
from triosim.extrapolators.core.extrapolator import EXPERT_ORDER, Extrapolator
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Block, BlockItem, Communicate, Program
from triosim.extrapolators.expert.expert_loads import LOADS, Routing
from triosim.extrapolators.expert.moe_layers import Mixture, Mixtures
from triosim.sharding.placements import Shard
from triosim.trace import Operator, Tensor


class ExpertParallel(Extrapolator):
    """``ep``."""

    axis = "ep"
    level = "operators"
    order = EXPERT_ORDER
    adds_ranks = False
    options = (
        Option(
            "load",
            "choice",
            LOADS[0],
            "ep: how tokens are spread over experts; all but balanced are drawn at random.",
            choices=LOADS,
            own_flag=False,
        ),
        Option("skew", "number", 1.0, "ep, load zipf: the exponent of the distribution.", own_flag=False),
        Option("seed", "whole", 0, "ep: the seed of the drawn loads.", least=0, own_flag=False),
        Option(
            "capacity",
            "number",
            None,
            "ep: tokens that an expert takes, as a multiple of the mean; the others are dropped. By default all.",
            own_flag=False,
        ),
    )
    _mixtures: Mixtures | None = None  # of the program that was transformed last
    _exchanges: dict[tuple[int, int], Exchanged]

    @property
    def identical_ranks(self) -> bool:  # type: ignore[override]  # it depends on the options
        """Where all experts get as many tokens."""
        return not self.is_random

    @property
    def is_random(self) -> bool:
        """Whether each iteration is another: its tokens are drawn anew."""
        return self._routing().load != "balanced"

    @property
    def differs_along_axis(self) -> bool:
        """Where experts get as many tokens as are drawn for them."""
        return self.is_random and self.size > 1

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program of a rank with its share of the experts."""
        routing = self._routing()
        if self.config.dp_style == "replicate":
            raise OptionError(
                "experts cannot be divided where each step copies all parameters", where=self.axis, fix="use ddp"
            )
        if self.size == 1:
            return program
        if self._mixtures is None or self._mixtures.program.stages is not program.stages:
            self._mixtures, self._exchanges = Mixtures(program, self.axis, self.size), {}
        drawn = [
            self._drawn(program.iteration, number, mixture, routing)
            for number, mixture in enumerate(self._mixtures.found)
        ]
        program = _Division(program, self._mixtures, drawn, program.coordinate(self.axis)).program()
        return program.noted(*self._notes(routing, drawn))

    def _drawn(self, iteration: int, number: int, mixture: Mixture, routing: Routing) -> Exchanged:
        """How many rows of a layer go where, the same for all places."""
        key = (iteration, number)
        if key not in self._exchanges:
            rows, lost = routing.tokens(self.size, mixture.experts, mixture.rows, layer=number, iteration=iteration)
            self._exchanges[key] = Exchanged(rows, lost)
        return self._exchanges[key]

    def _notes(self, routing: Routing, drawn: Sequence[Exchanged]) -> Iterable[str]:
        if routing.load != "balanced":
            skewed = "" if routing.load == "uniform" else f", skew {routing.skew:g}"
            yield f"{self.axis}: tokens go to experts by chance: {routing.load}{skewed}, seed {routing.seed}"
        dropped = sum(one.dropped for one in drawn)
        if dropped:
            sent = sum(one.kept for one in drawn) + dropped
            factor = f"with a capacity factor of {routing.capacity:g}"
            yield f"{self.axis}: {factor}, {dropped / sent:.1%} of the tokens are dropped"

    def _routing(self) -> Routing:
        return Routing(self.config.load, self.config.skew, self.config.seed, self.config.capacity)


class Exchanged:
    """How many rows go from each rank of a group to each, of those that are for each expert, and how many are ``dropped``."""

    def __init__(self, rows: npt.NDArray[np.float64], dropped: float) -> None:
        ranks = len(rows)
        self.dropped = dropped
        self.kept = float(rows.sum())
        self._sent = rows.reshape(ranks, ranks, -1).sum(axis=2)
        self._loads = rows.sum(axis=0).reshape(ranks, -1).sum(axis=1)
        self._shares: dict[tuple[float, bool], tuple[float, ...]] = {}

    def rows(self, at: int | None) -> int:
        """Return how many rows come to a place of the group, one at least; for None the mean of all places."""
        return max(1, round(float(self._loads.mean() if at is None else self._loads[at])))

    def nbytes(self, row: float) -> float:
        """Return what a rank sends, the mean of all: rows of so many bytes."""
        return sum(float(load) / len(self._loads) * row for load in self._loads)

    def shares(self, row: float, *, home: bool) -> tuple[float, ...] | None:
        """Return the bytes from each to each: to their experts, or ``home``. None where all are equal."""
        if (self._sent == self._sent[0, 0]).all():
            return None
        if (row, home) not in self._shares:  # one object, though each place asks
            sent = self._sent.T if home else self._sent
            self._shares[row, home] = tuple((sent * row).ravel().tolist())
        return self._shares[row, home]


class _Division:
    """Divides the experts of all mixtures of a program, for a rank ``at`` a place of the group."""

    def __init__(self, program: Program, mixtures: Mixtures, drawn: Sequence[Exchanged], at: int | None) -> None:
        self._program = program
        self._mixtures = mixtures
        self._drawn = drawn
        self._at = at
        self._operators = count(mixtures.last_operator + 1)
        self._tensors = count(mixtures.last_tensor + 1)
        self._ahead: dict[int, list[BlockItem]] = {}
        self._after: dict[int, list[BlockItem]] = {}
        self._copied: list[Operator] = []
        self._copies: dict[int, Operator] = {}  # the same with their times, by id

    def program(self) -> Program:
        """Return the program of a rank."""
        axis, ranks = self._mixtures.axis, self._mixtures.ranks
        shapes: dict[int, Operator] = {}
        for mixture, drawn in zip(self._mixtures.found, self._drawn, strict=True):
            shapes |= self._divided(mixture, drawn)
        shapes |= self._mixtures.weights_shared
        self._copies = {one.id: one for one in estimated(self._copied, self._program.model, self._program.gpu)}
        note = f"operator times are predicted for each GPU's experts ({axis} on {ranks} GPUs)"
        program = self._program.reshaped(shapes, note=note).rewritten(self._items)
        return replace(program, experts=frozenset(self._mixtures.weights), expert_axis=axis)

    def _divided(self, mixture: Mixture, drawn: Exchanged) -> dict[int, Operator]:
        """The operators of a mixture with the rows that come to a rank, and the exchanges around them."""
        rows = drawn.rows(self._at)
        coming, going = mixture.coming, mixture.going
        reads = [(one.inputs[0], one) for one in mixture.first] + coming
        writes = [(one.outputs[0], one) for one in mixture.last] + going
        there = _Renamed({tensor.storage for tensor, _ in (*reads, *writes)}, self._tensors)
        found: dict[int, Operator] = {}
        for op in mixture.operators:
            placements = mixture.placements[op.id if op.phase == "forward" else op.forward or 0]
            found[op.id] = self._share(op, placements, rows, there)
        exchanged = {t.id: t for op in found.values() for t in (*op.inputs, *op.outputs)}
        for tensor, op in reads:
            if tensor.id in there.ids:
                other = exchanged[there.ids.pop(tensor.id)]
                self._ahead.setdefault(op.id, []).extend(self._exchange(op, tensor, other, drawn, home=False))
        for tensor, op in writes:
            other = exchanged[there.ids[tensor.id]]
            self._after.setdefault(op.id, []).extend(self._exchange(op, tensor, other, drawn, home=True))
        return found

    def _share(self, operator: Operator, placements: Mapping[int, Shard], rows: int, there: _Renamed) -> Operator:
        grouped = "grouped" in operator.name.lower()

        def share(tensor: Tensor) -> Tensor:
            shape = list(tensor.shape)
            shard = placements.get(tensor.id)
            if shard is not None:
                shape[shard.dim] = shape[shard.dim] // shard.size * rows
            elif len(shape) == 3 and (grouped or self._mixtures.is_stacked(tensor)):  # groups stand first
                shape[0] //= self._mixtures.ranks
            return there.of(replace(tensor, shape=tuple(shape)))

        return replace(operator, inputs=tuple(map(share, operator.inputs)), outputs=tuple(map(share, operator.outputs)))

    def _exchange(
        self, operator: Operator, here: Tensor, there: Tensor, drawn: Exchanged, *, home: bool
    ) -> list[BlockItem]:
        """An all-to-all, and the copy that puts rows in order: of a rank's own, or of what comes to its experts."""
        row = here.nbytes / here.shape[0]
        given, taken = (there, here) if home else (here, there)
        copied = Operator(next(self._operators), "aten::index", operator.phase, operator.layer, (given,), (taken,), 0.0)
        self._copied.append(copied)
        exchange = Communicate(
            *("all_to_all", drawn.nbytes(row), self._mixtures.axis),
            operator=copied.id,
            tensors=(here.id,),  # which all ranks have as many rows of
            shares=drawn.shares(row, home=home),
        )
        return [exchange, copied]

    def _items(self, block: Block) -> Iterable[BlockItem]:
        for item in block.items:
            if isinstance(item, Operator):
                yield from self._exchanges(self._ahead, item)
                yield item
                yield from self._exchanges(self._after, item)
            else:
                yield item

    def _exchanges(self, around: Mapping[int, list[BlockItem]], operator: Operator) -> Iterable[BlockItem]:
        for item in around.get(operator.id, ()):
            yield self._copies[item.id] if isinstance(item, Operator) else item


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
