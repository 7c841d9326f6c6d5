"""Mixtures of experts in a program: which operators are theirs, with whose rows, and which parameters are stacked experts.

Experts are grouped products (``_grouped_mm``) of rows and stacked weights; what stands between two of them treats rows
separately, and has as many of them as come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from triosim.errors import OptionError, TraceError
from triosim.extrapolators.core.program import Program
from triosim.operators.features import base_name
from triosim.sharding.dataflow import Dataflow
from triosim.sharding.parameters import owners, parameter_storages
from triosim.sharding.placements import Shard
from triosim.sharding.propagation import ForwardPlacements, ShardingPropagator
from triosim.trace import Operator, Tensor

_GROUPED = ("grouped_mm", "scaled_grouped_mm")


@dataclass(slots=True)
class Mixture:
    """The experts of a layer: the grouped products that begin and that end, and every operator between, with its rows.

    ``operators`` are all of these, and what differentiates them. ``coming`` and ``going`` are the gradients that come to them
    and that leave them, with the operators that read and make them.
    """

    first: list[Operator] = field(default_factory=list)
    last: list[Operator] = field(default_factory=list)
    placements: dict[int, Mapping[int, Shard]] = field(default_factory=dict)  # by forward operator: of rows, by tensor
    operators: tuple[Operator, ...] = ()
    coming: list[tuple[Tensor, Operator]] = field(default_factory=list)
    going: list[tuple[Tensor, Operator]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows come in."""
        return self.first[0].inputs[0].shape[0]

    @property
    def experts(self) -> int:
        """How many experts there are."""
        return self.first[0].inputs[1].shape[0]


class Mixtures:
    """What is ``found`` in a program: its mixtures, in the order of the forward pass, to be divided among ``ranks``.

    ``weights`` are the storages of stacked parameters, and of their copies in another dtype. Raises ``TraceError`` where there
    are no experts, or their rows cannot be followed, ``OptionError`` where the experts do not divide.
    """

    def __init__(self, program: Program, axis: str, ranks: int) -> None:
        self.program = program
        self.axis = axis
        self.ranks = ranks
        self._flow = Dataflow(program.operators)
        self._propagator = ShardingPropagator(
            program.operators, program.batch_size, self._flow.backward, ranks, once=program.deduplicate
        )
        tensors = {t.id: t for operator in program.operators for t in (*operator.inputs, *operator.outputs)}
        self.last_operator = max(operator.id for operator in program.operators)
        self.last_tensor = max(max(tensors), *(tensor.storage for tensor in tensors.values()))
        self._parameters = parameter_storages(program.operators)
        self.weights: set[int] = set()
        self._owners = owners((op for op in program.operators if op.phase == "optimizer"), self._parameters)
        self.found = self._found()
        if not self.found:
            raise TraceError(
                "the trace has no experts: no grouped product (aten::_grouped_mm) of rows and stacked weights",
                where=self.axis,
                fix="use a model whose experts run as grouped products, or leave ep out",
            )
        for mixture in self.found:
            self._finish(mixture)

    def is_stacked(self, tensor: Tensor) -> bool:
        """Whether a tensor is the experts' weights, or their gradient or state."""
        storage = self._owners.get(tensor.id, tensor.storage)
        about = storage if tensor.parameter is None else self._parameters.get(tensor.parameter, storage)
        return about in self.weights

    @cached_property
    def weights_shared(self) -> dict[int, Operator]:
        """What shows, casts, or updates stacked weights, or turns their gradients, for a rank's experts, by id."""

        def share(tensor: Tensor) -> Tensor:
            if len(tensor.shape) != 3 or not self.is_stacked(tensor):
                return tensor
            return replace(tensor, shape=(tensor.shape[0] // self.ranks, *tensor.shape[1:]))

        inside = {op.id for mixture in self.found for op in mixture.operators}
        found: dict[int, Operator] = {}
        for op in self.program.operators:
            inputs, outputs = tuple(map(share, op.inputs)), tuple(map(share, op.outputs))
            if op.id not in inside and (inputs, outputs) != (op.inputs, op.outputs):
                found[op.id] = op.with_tensors(inputs, outputs)
        return found

    def _found(self) -> list[Mixture]:
        """The mixtures, in the order of the forward pass."""
        found: list[Mixture] = []
        placed = ForwardPlacements(self._flow, self._propagator)
        for operator in self._flow.forward:
            inside = placed.of_inputs(operator)
            if not (inside or self._is_grouped(operator)):
                continue
            data = operator.inputs[0]
            begins = self._is_grouped(operator) and data.id not in inside
            if begins and (not found or found[-1].last):
                found.append(Mixture())
            placements = {data.id: Shard(0, data.shape[0])} if begins else inside
            sharding = self._propagator.propagate(operator, placements)
            if sharding is None or (operator.outputs and operator.outputs[0].id not in sharding.placements):
                raise TraceError(
                    f"the rows of experts cannot be followed through {operator.name} of {operator.layer}",
                    where=self.axis,
                )
            found[-1].placements[operator.id] = sharding.placements
            if self._is_grouped(operator):
                self._note_weight(operator)
            if self._is_grouped(operator) and not begins:
                found[-1].last.append(operator)
            else:
                (found[-1].first.append(operator) if begins else None)
                placed.record(operator, sharding)
        return [mixture for mixture in found if mixture.last]

    def _finish(self, mixture: Mixture) -> None:
        """Add what differentiates the experts of a mixture."""
        differentiating = [
            op for op in self.program.operators if op.phase == "backward" and op.forward in mixture.placements
        ]
        mixture.operators = (*(self._flow.by_id[number] for number in mixture.placements), *differentiating)
        mixture.coming, mixture.going = _ends(mixture, differentiating)

    def _is_grouped(self, operator: Operator) -> bool:
        """Whether it is the product of rows and stacked weights."""
        shapes = [tensor.shape for tensor in operator.inputs[:2]]
        return base_name(operator.name) in _GROUPED and len(shapes) == 2 and list(map(len, shapes)) == [2, 3]

    def _note_weight(self, operator: Operator) -> None:
        """Remember the parameter that a grouped product multiplies with, or a copy of it in another dtype."""
        weight = operator.inputs[1]
        while weight.storage not in self._parameters.values():
            value = self._flow.read_by(operator, weight)
            if value is None:
                raise TraceError(f"the experts of {operator.layer} are no parameter", where=self.axis)
            operator = self._flow.by_id[value.producer]
            weight = operator.inputs[0]
            self.weights.add(value.storage)
        experts = weight.shape[0]
        if experts % self.ranks:
            raise OptionError(
                f"the {experts} experts of {operator.layer} do not divide by {self.ranks}",
                where=self.axis,
                fix="use a size that divides them",
            )
        self.weights.add(weight.storage)


def _ends(
    mixture: Mixture, differentiating: Sequence[Operator]
) -> tuple[list[tuple[Tensor, Operator]], list[tuple[Tensor, Operator]]]:
    """The gradients that come to a mixture and those that leave it, with the operators that read and make them."""
    made = {t.storage for op in differentiating for t in op.outputs if not _shows(op, t)}
    read = {t.storage for op in differentiating for t in op.inputs}
    coming: dict[int, tuple[Tensor, Operator]] = {}
    going = []
    first = {one.id for one in mixture.first}
    for op in differentiating:
        placements = mixture.placements[op.forward or 0]
        for t in op.inputs:
            if t.category == "gradient" and t.storage not in made and t.id in placements:
                coming.setdefault(t.storage, (t, op))
        if op.forward in first:
            ends = (t for t in op.outputs if t.parameter is None and t.id in placements and t.storage not in read)
            going += [(t, op) for t in ends]
    return list(coming.values()), going


def _shows(operator: Operator, made: Tensor) -> bool:
    """Whether what an operator returns is something that it was given."""
    return any(tensor.storage == made.storage for tensor in operator.inputs)
