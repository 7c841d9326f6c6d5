"""The mixture-of-experts layers of a program: their operators, the rows that these work on, and the experts' weights.

Experts are grouped products (``_grouped_mm``) of rows and stacked weights; operators between two of them treat rows separately,
whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from triosim.errors import OptionError, TraceError
from triosim.extrapolators.core.program import Program
from triosim.operators.features import base_name
from triosim.sharding.dataflow import Dataflow
from triosim.sharding.parameters import owners, parameter_storages
from triosim.sharding.placements import Placements, Shard
from triosim.sharding.propagation import ForwardPlacements, ShardingPropagator
from triosim.trace import Operator, Tensor

_GROUPED = ("grouped_mm", "scaled_grouped_mm")


class Boundary(NamedTuple):
    """A tensor that enters or leaves the experts of a layer, and the operator that reads or makes it there."""

    tensor: Tensor
    operator: Operator


class Routing(NamedTuple):
    """How many experts a token goes to, and of how many groups of experts it keeps how many (1 of 1 without groups)."""

    top_k: int
    groups: int
    kept_groups: int


@dataclass(frozen=True, slots=True)
class MoELayer:
    """The experts of one layer: the grouped products ``first`` and ``last``, and every operator between.

    ``operators`` are all of these, forward and backward; ``placements`` have the dimension of their tensors that counts rows,
    by forward operator id. ``incoming`` and ``outgoing`` are the gradients of the experts' output and of their input.
    """

    first: tuple[Operator, ...]
    last: tuple[Operator, ...]
    placements: dict[int, Placements]
    operators: tuple[Operator, ...]
    incoming: tuple[Boundary, ...]
    outgoing: tuple[Boundary, ...]
    routing: Routing

    @property
    def rows(self) -> int:
        """The number of rows that enter."""
        return self.first[0].inputs[0].shape[0]

    @property
    def experts(self) -> int:
        """The number of experts."""
        return self.first[0].inputs[1].shape[0]

    @property
    def entering(self) -> tuple[Boundary, ...]:
        """The tensors that experts receive: rows in the forward pass, the gradients of their output in the backward pass."""
        return (*(Boundary(one.inputs[0], one) for one in self.first), *self.incoming)

    @property
    def leaving(self) -> tuple[Boundary, ...]:
        """The tensors that experts send back: their output, and in the backward pass the gradients of their input."""
        return (*(Boundary(one.outputs[0], one) for one in self.last), *self.outgoing)

    def rows_of(self, operator: Operator) -> Placements:
        """Return the dimension of an operator's tensors that counts rows."""
        return self.placements[operator.id if operator.phase == "forward" else operator.forward or 0]


@dataclass(slots=True)
class _Forward:
    """The forward operators of a layer's experts that have been found so far."""

    first: list[Operator] = field(default_factory=list)
    last: list[Operator] = field(default_factory=list)
    placements: dict[int, Placements] = field(default_factory=dict)


class MoELayers:
    """The mixture-of-experts layers that are ``found`` in a program, in the order of the forward pass.

    Their experts are to be divided among ``ranks`` along the mesh axis ``axis``. ``weights`` are the storages of stacked
    parameters, and of their casts to another dtype. Raises ``TraceError`` where there are no experts, or their rows cannot be
    followed, ``OptionError`` where the experts do not divide.
    """

    def __init__(self, program: Program, axis: str, ranks: int) -> None:
        self.program = program
        self.axis = axis
        self.ranks = ranks
        self._flow = Dataflow(program.operators)
        tensors = {t.id: t for operator in program.operators for t in (*operator.inputs, *operator.outputs)}
        self.last_operator = max(operator.id for operator in program.operators)
        self.last_tensor = max(max(tensors), *(tensor.storage for tensor in tensors.values()))
        self._parameters = parameter_storages(program.operators)
        self._owners = owners((op for op in program.operators if op.phase == "optimizer"), self._parameters)
        self.found = tuple(self._with_backward(layer) for layer in self._forward_layers() if layer.last)
        if not self.found:
            what = "the trace has no experts: no grouped product (aten::_grouped_mm) of rows and stacked weights"
            fix = "use a model whose experts run as grouped products, or leave ep out"
            raise TraceError(what, where=self.axis, fix=fix)
        grouped = filter(self._is_grouped, self._flow.forward)
        self.weights = frozenset(tensor.storage for operator in grouped for tensor in self._weights(operator))

    def is_stacked(self, tensor: Tensor) -> bool:
        """Whether a tensor is a stacked weight of experts, or its gradient or optimizer state."""
        storage = self._owners.get(tensor.id, tensor.storage)
        parameter = storage if tensor.parameter is None else self._parameters.get(tensor.parameter, storage)
        return parameter in self.weights

    @cached_property
    def local_weight_operators(self) -> dict[int, Operator]:
        """The operators outside of the experts that view, cast or update stacked weights, for one rank's experts, by id."""

        def local(tensor: Tensor) -> Tensor:
            if len(tensor.shape) != 3 or not self.is_stacked(tensor):
                return tensor
            return replace(tensor, shape=(tensor.shape[0] // self.ranks, *tensor.shape[1:]))

        inside = {op.id for layer in self.found for op in layer.operators}
        found: dict[int, Operator] = {}
        for op in self.program.operators:
            inputs, outputs = tuple(map(local, op.inputs)), tuple(map(local, op.outputs))
            if op.id not in inside and (inputs, outputs) != (op.inputs, op.outputs):
                found[op.id] = op.with_tensors(inputs, outputs)
        return found

    def _forward_layers(self) -> list[_Forward]:
        """Follow the rows of experts, as if they were sharded, from the grouped products that they enter to the last ones."""
        program = self.program
        propagator = ShardingPropagator(
            program.operators, program.batch_size, self._flow.backward, self.ranks, deduplicate=program.deduplicate
        )
        found: list[_Forward] = []
        forward = ForwardPlacements(self._flow, propagator)
        for operator in self._flow.forward:
            rows: Placements = forward.of_inputs(operator)
            is_grouped = self._is_grouped(operator)
            if not (rows or is_grouped):
                continue
            data = operator.inputs[0]
            is_first = is_grouped and data.id not in rows
            if is_first:
                rows = {data.id: Shard(0, data.shape[0])}
                if not found or found[-1].last:
                    found.append(_Forward())
            sharding = propagator.propagate(operator, rows)
            if sharding is None or (operator.outputs and operator.outputs[0].id not in sharding.placements):
                what = f"the rows of experts cannot be followed through {operator.name} of {operator.layer}"
                raise TraceError(what, where=self.axis)
            layer = found[-1]
            layer.placements[operator.id] = sharding.placements
            if is_grouped:
                self._require_divisible(operator)
                (layer.first if is_first else layer.last).append(operator)
            if is_first or not is_grouped:
                forward.record(operator, sharding)
        return found

    def _with_backward(self, layer: _Forward) -> MoELayer:
        """Return a layer with the backward operators of its experts."""
        backward = [op for op in self.program.operators if op.phase == "backward" and op.forward in layer.placements]
        operators = (*(self._flow.by_id[number] for number in layer.placements), *backward)
        ends = (tuple(layer.first), tuple(layer.last))
        incoming, outgoing = map(tuple, _gradients(layer, backward))
        return MoELayer(*ends, layer.placements, operators, incoming, outgoing, self._routing(layer))

    def _routing(self, layer: _Forward) -> Routing:
        """Return how a layer's router chooses: by the last top-k over its experts, and one over groups before it."""
        rows, weights = layer.first[0].inputs[:2]
        chosen, groups, kept, pending = 1, 1, 1, (1, 1)
        for operator in takewhile(lambda one: one.id != layer.first[0].id, self._flow.forward):
            if base_name(operator.name) != "topk" or not operator.outputs or not operator.inputs[0].shape:
                continue
            among, taken = operator.inputs[0].shape[-1], operator.outputs[0].shape[-1]
            if among == weights.shape[0] and rows.shape[0] % taken == 0:
                chosen, groups, kept = taken, *pending
                pending = (1, 1)
            elif len(operator.inputs[0].shape) == 2 and 1 < among < weights.shape[0] and weights.shape[0] % among == 0:
                pending = (among, taken)
        return Routing(chosen, groups, kept)

    def _is_grouped(self, operator: Operator) -> bool:
        """Whether an operator is the product of rows and stacked weights."""
        shapes = [tensor.shape for tensor in operator.inputs[:2]]
        return base_name(operator.name) in _GROUPED and len(shapes) == 2 and list(map(len, shapes)) == [2, 3]

    def _require_divisible(self, operator: Operator) -> None:
        """Raise ``OptionError`` where the ranks cannot have equally many experts of a grouped product."""
        *_, weight = self._weights(operator)
        if weight.shape[0] % self.ranks:
            what = f"the {weight.shape[0]} experts of {operator.layer} are not divisible by {self.ranks}"
            raise OptionError(what, where=self.axis, fix="use a size that divides them")

    def _weights(self, operator: Operator) -> list[Tensor]:
        """Return the stacked weights of a grouped product: casts of the parameter, if any, and last the parameter."""
        found, layer = [operator.inputs[1]], operator.layer
        while found[-1].storage not in self._parameters.values():
            value = self._flow.read_by(operator, found[-1])
            if value is None:
                raise TraceError(f"the weights of the experts of {layer} are not a parameter", where=self.axis)
            operator = self._flow.by_id[value.producer]
            found.append(operator.inputs[0])
        return found


def _gradients(layer: _Forward, backward: Sequence[Operator]) -> tuple[Iterable[Boundary], Iterable[Boundary]]:
    """Return the gradients of the output and of the input of a layer's experts."""
    written = {t.storage for op in backward for t in op.outputs if not _is_view(op, t)}
    read = {t.storage for op in backward for t in op.inputs}
    incoming: dict[int, Boundary] = {}
    outgoing = []
    first = {one.id for one in layer.first}
    for op in backward:
        rows = layer.placements[op.forward or 0]
        for t in op.inputs:
            if t.category == "gradient" and t.storage not in written and t.id in rows:
                incoming.setdefault(t.storage, Boundary(t, op))
        if op.forward in first:
            ends = (t for t in op.outputs if t.parameter is None and t.id in rows and t.storage not in read)
            outgoing += [Boundary(t, op) for t in ends]
    return incoming.values(), outgoing


def _is_view(operator: Operator, output: Tensor) -> bool:
    """Whether an operator's output is a view of one of its inputs."""
    return any(tensor.storage == output.storage for tensor in operator.inputs)
