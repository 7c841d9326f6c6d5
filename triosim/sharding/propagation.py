"""Propagates shardings from the operators that produce tensors to those that read them, including through views.

``ShardingPropagator`` asks of one operator: if its inputs are sharded so, how are its output and the tensors of its backward
operators? What the operator does to dimensions (``triosim.sharding.rules``) answers, and sizes are never compared. Each
operator is followed apart from the rest of the step, so that logical axes which are one elsewhere (the two sides of a square
weight around which a residual goes) are two here; batch, sequence and heads are told from the whole step.
``ForwardPlacements`` goes through the forward pass, and keeps what each operator was found to produce for its readers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from triosim.sharding.dataflow import Dataflow, StoredValue
from triosim.sharding.dimensions import (
    AXIS_KINDS,
    AxisKind,
    Dim,
    Dims,
    LogicalAxis,
    axes_of,
    follows,
    guessed_view,
    kind_of_axis,
    leaves,
)
from triosim.sharding.placements import Placements, Shard, axes_around, sharded_axes, shards_of
from triosim.sharding.step_dimensions import StepDimensions
from triosim.trace import Operator, Tensor


@dataclass(frozen=True, slots=True)
class OperatorSharding:
    """The placements of the tensors of an operator and of its backward operators; ``dims`` gives a tensor's dimensions."""

    placements: Placements
    dims: Callable[[Tensor], Dims]

    def have_same_axes(self, first: Tensor, second: Tensor) -> bool:
        """Whether two tensors have the same logical axes, in whatever order."""
        one, two = (Counter(axis for dim in self.dims(t) for axis in leaves(dim)) for t in (first, second))
        return bool(one) and one == two

    def renamed(self, tensors: Mapping[int, Tensor], own: Mapping[int, Tensor]) -> OperatorSharding:
        """Return the sharding of equal operators whose tensors have other ids.

        ``tensors`` are theirs, and ``own`` this sharding's, by position.
        """
        positions = {tensor.id: position for position, tensor in own.items()}
        placements = {tensors[positions[number]].id: shard for number, shard in self.placements.items()}
        original = {tensor.id: own[position] for position, tensor in tensors.items()}
        return OperatorSharding(placements, lambda tensor: self.dims(original.get(tensor.id, tensor)))


class HeadsDoNotDivideError(Exception):
    """Raised where attention is sharded by heads, and neither heads nor ranks are a multiple of the other."""

    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        self.heads = heads


class ShardingPropagator:
    """Propagates the placements of an operator's inputs to its output and to the operators of its backward pass.

    ``backward`` are the backward operators of each forward operator, ``step`` the dimensions of the whole step. With
    ``deduplicate``, operators that are equal but for the ids of their tensors are propagated once.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        batch_size: int,
        backward: Mapping[int, Sequence[Operator]],
        ranks: int,
        *,
        deduplicate: bool = True,
    ) -> None:
        self.step = StepDimensions(operators, batch_size)
        self._backward = backward
        self._ranks = ranks
        self._deduplicate = deduplicate
        self._known: dict[Hashable, tuple[OperatorSharding | None, dict[int, Tensor]]] = {}
        self._structures: dict[int, tuple[Hashable, tuple[LogicalAxis, ...]]] = {}
        self._kinds: dict[LogicalAxis, AxisKind | None] = {}

    def is_network_input(self, tensor: Tensor) -> bool:
        """Whether a tensor is fed to the network: an input that has an entry for each sample, where that is known."""
        return tensor.category == "input" and (not self.step.has_batch or bool(self.step.follows(tensor, "batch")))

    def propagate(
        self, operator: Operator, placements: Placements, *, by_heads: bool = False
    ) -> OperatorSharding | None:
        """Return how an operator is sharded if its inputs have these placements.

        The first output is not sharded where the operator reduces over what is. None where the placements of its inputs do not
        go together. ``by_heads`` keeps heads of attention whole, and raises ``HeadsDoNotDivideError`` where that cannot be.
        """
        operators = (operator, *self._backward.get(operator.id, ()))
        if not self._deduplicate:
            return self._propagate(operators, placements, by_heads=by_heads)
        tensors, signature = self._signature(operators)
        key = (signature, tuple([placements.get(tensor.id) for tensor in operator.inputs]), by_heads)
        known = self._known.get(key)
        if known is not None:  # a network repeats its layers
            return None if known[0] is None else known[0].renamed(tensors, known[1])
        found = self._propagate(operators, placements, by_heads=by_heads)
        self._known[key] = found, tensors
        return found

    def propagate_from_output(self, operator: Operator, output: Tensor, shard: Shard) -> OperatorSharding:
        """Return how an operator that expands its input is sharded if its output is."""
        operators = (operator, *self._backward.get(operator.id, ()))
        given = {one.id: self._with_own_axes(self.step[one], None)[0] for one in operator.inputs}
        step = StepDimensions(operators, given=given, within=self.step)
        return self._sharded_by(sharded_axes(step[output], shard), operators, step, by_heads=False)

    def through_view(self, base: Tensor, shard: Shard, view: Tensor, *, by_heads: bool) -> Shard | None:
        """Return the shard of a view that no operator made, of a tensor that is sharded."""
        dims, axis = self._with_own_axes(self.step[base], shard)
        wanted = _followed_kinds(self.step[view])
        found = guessed_view(dims, view.shape, lambda new: _followed_kinds(new) == wanted)
        if found is None or axis is None:
            return None
        return self._choose(view, shards_of(found, leaves((axis,))), by_heads)

    def _signature(self, operators: Sequence[Operator]) -> tuple[dict[int, Tensor], Hashable]:
        """Return the tensors of operators by position, and all that their dimensions depend on but for the tensors' ids."""
        every = [tensor for one in operators for tensor in (*one.inputs, *one.outputs)]
        tensors: dict[int, Tensor] = {}
        for tensor in every:
            tensors.setdefault(tensor.id, tensor)
        positions = {number: position for position, number in enumerate(tensors)}
        indices: dict[int | None, int] = {one.id: index for index, one in enumerate(operators)}
        calls = [
            (*(one.name, one.phase, repr(one.attributes), indices.get(one.forward)), len(one.inputs), len(one.outputs))
            for one in operators
        ]
        storages: dict[int, int] = {}
        met: dict[LogicalAxis, int] = {}
        described = [
            (
                *(positions[t.id], storages.setdefault(t.storage, len(storages)), t.shape, t.dtype, t.category),
                *(-1 if t.parameter is None else positions.get(t.parameter, -2), structure),
                *[met.setdefault(axis, len(met)) for axis in axes],
            )
            for t, (structure, axes) in zip(every, map(self._structure, every), strict=True)
        ]
        return dict(enumerate(tensors.values())), (tuple(calls), tuple(described))

    def _structure(self, tensor: Tensor) -> tuple[Hashable, tuple[LogicalAxis, ...]]:
        """The sizes and kinds of a tensor's axes, as the step has them, and the axes."""
        found = self._structures.get(tensor.id)
        if found is None:
            dims = [axes_of(dim) for dim in self.step[tensor]]
            sizes = tuple([tuple([(axis.size, self._kind(axis), axis.heads) for axis in dim]) for dim in dims])
            found = self._structures[tensor.id] = sizes, tuple([axis for dim in dims for axis in dim])
        return found

    def _kind(self, axis: LogicalAxis) -> AxisKind | None:
        if axis not in self._kinds:
            self._kinds[axis] = kind_of_axis(axis)
        return self._kinds[axis]

    def _propagate(
        self, operators: Sequence[Operator], placements: Placements, *, by_heads: bool
    ) -> OperatorSharding | None:
        operator = operators[0]
        given: dict[int, Dims] = {}
        sharded: list[LogicalAxis] = []
        for tensor in operator.inputs:
            if tensor.id not in given:
                given[tensor.id], axis = self._with_own_axes(self.step[tensor], placements.get(tensor.id))
                sharded += [axis] if axis is not None else []
        step = StepDimensions(operators, given=given, within=self.step)
        of_inputs = [leaves((axis,)) for axis in sharded]
        axes = set().union(*of_inputs)
        if operator.outputs:
            output = self._shard_by(axes, step, operator.outputs[0], by_heads)
            if output is not None:
                axes &= sharded_axes(step[operator.outputs[0]], output)
                if not all(own & axes for own in of_inputs):
                    return None
        return self._sharded_by(axes, operators, step, by_heads=by_heads)

    def _sharded_by(
        self, axes: set[LogicalAxis], operators: Iterable[Operator], step: StepDimensions, *, by_heads: bool
    ) -> OperatorSharding:
        """The placements of all tensors of some operators, of which some axes are sharded."""
        found: dict[int, Shard] = {}
        for one in operators:
            for tensor in (*one.inputs, *one.outputs):
                shard = self._shard_by(axes, step, tensor, by_heads)
                if shard is not None:
                    found[tensor.id] = shard
        return OperatorSharding(found, step.__getitem__)

    def _shard_by(self, axes: set[LogicalAxis], step: StepDimensions, tensor: Tensor, by_heads: bool) -> Shard | None:
        return self._choose(tensor, shards_of(step[tensor], axes), by_heads) if axes else None

    def _choose(self, tensor: Tensor, candidates: Sequence[Shard], by_heads: bool) -> Shard | None:
        """Choose a shard of a tensor: that of the heads, or else the first whose size divides.

        Where there are fewer heads than ranks, each rank has one head, if every head is on as many ranks.
        """
        if not candidates:
            return None
        for shard in candidates if by_heads else ():
            outer = 1
            axes = axes_of(self.step[tensor][shard.dim])
            for index, axis in enumerate(axes):
                if axis.heads and shard.contains(outer, axis.size):
                    heads = math.prod(one.size for one in takewhile(lambda one: one.heads, axes[index:]))
                    if heads % self._ranks and self._ranks % heads:
                        raise HeadsDoNotDivideError(heads)
                    return Shard(shard.dim, heads, outer)
                outer *= axis.size
        return next((shard for shard in candidates if shard.size % self._ranks == 0), candidates[0])

    def _with_own_axes(self, dims: Dims, shard: Shard | None) -> tuple[Dims, LogicalAxis | None]:
        """Equal dimensions of new axes, of the same sizes and kinds; and the new axis that is sharded."""
        found: list[Dim] = []
        sharded: LogicalAxis | None = None
        for index, dim in enumerate(dims):
            axes = axes_of(dim)
            if shard is None or shard.dim != index:
                found.append(_copied(axes))
                continue
            before, after = axes_around(axes, shard)
            sharded = LogicalAxis(shard.size, tracked=True)
            found.append((*_copied(before), sharded, *_copied(after)))
        return tuple(found), sharded


class ForwardPlacements:
    """The placements of the forward pass's values, by the tensors that show them."""

    def __init__(self, flow: Dataflow, propagator: ShardingPropagator) -> None:
        self._flow = flow
        self._propagator = propagator
        self._sharded: set[StoredValue] = set()
        self._placements: dict[int, Shard] = {}
        self._last_shown: dict[int, Tensor] = {}  # by storage

    def of_inputs(self, operator: Operator, *, by_heads: bool = False) -> dict[int, Shard]:
        """Return the placements of what an operator reads."""
        found: dict[int, Shard] = {}
        for value, tensor in self._flow.reads[operator.id]:
            if value not in self._sharded:
                continue
            shard = self._placements.get(tensor.id)
            if shard is None:  # a view that no operator made
                base = self._last_shown[tensor.storage]
                shard = self._propagator.through_view(base, self._placements[base.id], tensor, by_heads=by_heads)
            if shard is not None:
                found[tensor.id] = shard
        return found

    def record(self, operator: Operator, sharding: OperatorSharding) -> None:
        """Keep the placements of what an operator has produced."""
        produced = self._flow.writes[operator.id]
        self._sharded.update(value for value, tensor in produced if tensor.id in sharding.placements)
        for tensor in operator.outputs:
            if tensor.id in sharding.placements:
                self._placements[tensor.id] = sharding.placements[tensor.id]
                self._last_shown[tensor.storage] = tensor


def _followed_kinds(dims: Dims) -> list[list[bool]]:
    """Whether each dimension follows the batch, and whether the sequence."""
    return [[follows(dim, kind) for kind in AXIS_KINDS] for dim in dims]


def _copied(axes: Iterable[LogicalAxis]) -> Dim:
    """New axes of the same sizes and kinds."""
    return tuple(LogicalAxis(axis.size, kind_of_axis(axis)) for axis in axes)
