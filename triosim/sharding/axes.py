"""Where an axis that is divided among ranks occurs: in an operator's tensors, and in those of what differentiates it.

A mark says which dimension of a tensor a rank has a share of. It is carried through an operator by what the operator does to
dimensions (``triosim.sharding.dimension_rules``), never by comparing sizes: each operator is followed apart from the rest of
the
step, so that axes which are one elsewhere (the two sides of a square weight around which a residual goes) are two here.
Batch, sequence and heads are told from the whole step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from triosim.sharding.dimensions import Axis, Dim, Dims, Kind, expanded, follows, fresh, leaves, size, viewed
from triosim.sharding.propagation import Propagation
from triosim.trace import Operator, Tensor

_KINDS: tuple[Kind, ...] = ("batch", "sequence")


@dataclass(frozen=True, slots=True)
class Mark:
    """What of a tensor is divided: in dimension ``dim`` the factor of ``size`` entries that stands inside ``outer`` others.

    Of 3 x 12 x 64 features in one dimension, the 12 heads are ``Mark(dim, size=12, outer=3)``.
    """

    dim: int
    size: int
    outer: int = 1

    def share(self, shape: Sequence[int], ranks: int) -> tuple[int, ...]:
        """Return the shape of a rank's share; where it does not divide, of the largest."""
        found = list(shape)
        found[self.dim] = shape[self.dim] // self.size * -(-self.size // ranks)
        return tuple(found)

    def covers(self, outer: int, length: int) -> bool:
        """Whether a factor of the same dimension is part of what is divided."""
        return self.outer <= outer and outer * length <= self.outer * self.size

    def meets(self, outer: int, length: int) -> bool:
        """Whether a factor of the same dimension has a part in what is divided."""
        return outer < self.outer * self.size and self.outer < outer * length


Marks = Mapping[int, Mark]


@dataclass(frozen=True, slots=True)
class Spread:
    """What is divided of an operator and of those that differentiate it, by tensor; ``dims`` are a tensor's dimensions."""

    marks: Marks
    dims: Callable[[Tensor], Dims]

    def are_alike(self, first: Tensor, second: Tensor) -> bool:
        """Whether two tensors have the same dimensions, in whatever order."""
        one, two = (sorted((id(a), a.size) for dim in self.dims(t) for a in leaves(dim)) for t in (first, second))
        return bool(one) and one == two

    def of(self, other: Mapping[int, Tensor], tensors: Mapping[int, Tensor]) -> Spread:
        """Return what is divided of operators that look the same, whose tensors have other ids.

        ``other`` are theirs, and ``tensors`` one's own, by number.
        """
        numbers = {tensor.id: number for number, tensor in tensors.items()}
        marks = {other[numbers[number]].id: mark for number, mark in self.marks.items()}
        own = {tensor.id: tensors[number] for number, tensor in other.items()}
        return Spread(marks, lambda tensor: self.dims(own.get(tensor.id, tensor)))


class HeadsDoNotDivideError(Exception):
    """What is divided are the heads of attention, and they are no multiple of the ranks."""

    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        self.heads = heads


class Axes:
    """Carries marks through the operators of a step. ``backward`` are those that differentiate each forward operator.

    ``step`` are the dimensions of the whole step. Operators that look the same are followed ``once``, or each.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        batch_size: int,
        backward: Mapping[int, Sequence[Operator]],
        ranks: int,
        *,
        once: bool = True,
    ) -> None:
        self.step = Propagation(operators, batch_size)
        self._backward = backward
        self._ranks = ranks
        self._once = once
        self._known: dict[Hashable, tuple[Spread | None, dict[int, Tensor]]] = {}
        self._structures: dict[int, tuple[Hashable, tuple[Axis, ...]]] = {}
        self._kinds: dict[Axis, Kind | None] = {}

    def is_fed(self, tensor: Tensor) -> bool:
        """Whether a tensor is one that the network is fed: an input that has a place for each sample, where that is known."""
        return tensor.category == "input" and (not self.step.is_fed or bool(self.step.follows(tensor, "batch")))

    def spread(self, operator: Operator, marks: Marks, *, by_heads: bool = False) -> Spread | None:
        """Return what is divided of an operator's tensors if ``marks`` are, of its inputs.

        The first output has no mark where the operator adds up over what is divided; None where its inputs are divided in ways
        that do not go together. ``by_heads`` divides heads whole, and raises ``HeadsDoNotDivideError`` where that cannot be.
        """
        operators = (operator, *self._backward.get(operator.id, ()))
        if not self._once:
            return self._spread(operators, marks, by_heads=by_heads)
        tensors, looks = self._looks(operators)
        key = (looks, tuple([marks.get(tensor.id) for tensor in operator.inputs]), by_heads)
        known = self._known.get(key)
        if known is not None:  # a network repeats its layers
            return None if known[0] is None else known[0].of(tensors, known[1])
        found = self._spread(operators, marks, by_heads=by_heads)
        self._known[key] = found, tensors
        return found

    def _looks(self, operators: Sequence[Operator]) -> tuple[dict[int, Tensor], Hashable]:
        """Return the tensors of some operators by number, and all that their dimensions depend on but for the tensors' ids."""
        every = [tensor for one in operators for tensor in (*one.inputs, *one.outputs)]
        tensors: dict[int, Tensor] = {}
        for tensor in every:
            tensors.setdefault(tensor.id, tensor)
        numbers = {number: place for place, number in enumerate(tensors)}
        places = {one.id: place for place, one in enumerate(operators)}
        storages: dict[int, int] = {}
        calls = [
            (
                *(one.name, one.phase, repr(one.attributes) if one.attributes else ""),
                None if one.forward is None else places.get(one.forward),
            )
            for one in operators
        ]
        counts = [(len(one.inputs), len(one.outputs)) for one in operators]
        met: dict[Axis, int] = {}
        structures = [self._structure(t) for t in every]
        shown = [
            (
                *(numbers[t.id], storages.setdefault(t.storage, len(storages)), t.shape, t.dtype, t.category),
                *(-1 if t.parameter is None else numbers.get(t.parameter, -2), structure),
                *[met.setdefault(axis, len(met)) for axis in axes],
            )
            for t, (structure, axes) in zip(every, structures, strict=True)
        ]
        return dict(enumerate(tensors.values())), (tuple(calls), tuple(counts), tuple(shown))

    def _structure(self, tensor: Tensor) -> tuple[Hashable, tuple[Axis, ...]]:
        """What the step knows of a tensor's dimensions: the sizes and kinds of their axes, and these."""
        found = self._structures.get(tensor.id)
        if found is None:
            dims = [expanded(dim) for dim in self.step[tensor]]
            sizes = tuple([tuple([(axis.size, self._kind(axis), axis.heads) for axis in dim]) for dim in dims])
            found = self._structures[tensor.id] = sizes, tuple([axis for dim in dims for axis in dim])
        return found

    def _kind(self, axis: Axis) -> Kind | None:
        if axis not in self._kinds:
            self._kinds[axis] = _kind(axis)
        return self._kinds[axis]

    def _spread(self, operators: Sequence[Operator], marks: Marks, *, by_heads: bool) -> Spread | None:
        operator = operators[0]
        given: dict[int, Dims] = {}
        divided: list[Axis] = []
        for tensor in operator.inputs:
            if tensor.id not in given:
                given[tensor.id], axis = self._copied(self.step[tensor], marks.get(tensor.id))
                divided += [axis] if axis is not None else []
        labels = Propagation(operators, given=given, within=self.step)
        parts = [leaves((axis,)) for axis in divided]
        wanted = set().union(*parts)
        if operator.outputs:
            main = self._mark(labels, operator.outputs[0], wanted, by_heads)
            if main is not None:
                wanted &= _leaves_at(labels[operator.outputs[0]], main)
                if not all(part & wanted for part in parts):
                    return None
        return self._reached(operators, labels, wanted, by_heads=by_heads)

    def _reached(
        self, operators: Iterable[Operator], labels: Propagation, wanted: set[Axis], *, by_heads: bool
    ) -> Spread:
        found: dict[int, Mark] = {}
        for one in operators:
            for tensor in (*one.inputs, *one.outputs):
                mark = self._mark(labels, tensor, wanted, by_heads)
                if mark is not None:
                    found[tensor.id] = mark
        return Spread(found, labels.__getitem__)

    def shown(self, operator: Operator, tensor: Tensor, mark: Mark) -> Spread:
        """Return what is divided of an operator that shows its input several times, if ``mark`` is, of what it shows."""
        backward = self._backward.get(operator.id, ())
        given = {one.id: self._copied(self.step[one], None)[0] for one in operator.inputs}
        labels = Propagation((operator, *backward), given=given, within=self.step)
        return self._reached((operator, *backward), labels, _leaves_at(labels[tensor], mark), by_heads=False)

    def seen_as(self, shown: Tensor, mark: Mark, tensor: Tensor, *, by_heads: bool) -> Mark | None:
        """Return the mark of a view that no operator of the trace made, of a tensor that has one."""
        dims, axis = self._copied(self.step[shown], mark)
        wanted = _kinds_of(self.step[tensor])
        found = viewed(dims, tensor.shape, lambda new: _kinds_of(new) == wanted)
        if found is None or axis is None:
            return None
        runs = _runs(found, leaves((axis,)))
        return self._chosen(tensor, runs, by_heads)

    def _mark(self, labels: Propagation, tensor: Tensor, wanted: set[Axis], by_heads: bool) -> Mark | None:
        return self._chosen(tensor, _runs(labels[tensor], wanted), by_heads) if wanted else None

    def _chosen(self, tensor: Tensor, runs: Sequence[Mark], by_heads: bool) -> Mark | None:
        """Of what a divided axis has become: the heads, or else the outermost that divides.

        Of fewer heads than ranks, each rank has one, if as many ranks have each.
        """
        if not runs:
            return None
        for run in runs if by_heads else ():
            outer = 1
            axes = expanded(self.step[tensor][run.dim])
            for place, axis in enumerate(axes):
                if axis.heads and run.covers(outer, axis.size):
                    heads = math.prod(one.size for one in takewhile(lambda one: one.heads, axes[place:]))
                    if heads % self._ranks and self._ranks % heads:
                        raise HeadsDoNotDivideError(heads)
                    return Mark(run.dim, heads, outer)
                outer *= axis.size
        return next((run for run in runs if run.size % self._ranks == 0), runs[0])

    def _copied(self, dims: Dims, mark: Mark | None) -> tuple[Dims, Axis | None]:
        """Dimensions of axes of their own, of the same sizes and kinds; and the one of them that is divided."""
        found: list[Dim] = []
        divided: Axis | None = None
        for place, dim in enumerate(dims):
            axes = expanded(dim)
            if mark is None or mark.dim != place:
                found.append(tuple(_copy(axis) for axis in axes))
                continue
            before, after = _around(axes, mark)
            divided = Axis(mark.size)
            divided.followed = True
            found.append((*before, divided, *after))
        return tuple(found), divided


def _kinds_of(dims: Dims) -> list[list[bool]]:
    """Which dimensions follow the batch, and which the sequence."""
    return [[follows(dim, kind) for kind in _KINDS] for dim in dims]


def _copy(axis: Axis) -> Axis:
    return Axis(axis.size, _kind(axis))


def _kind(axis: Axis) -> Kind | None:
    return next((kind for kind in _KINDS if follows((axis,), kind)), None)


def _around(axes: Iterable[Axis], mark: Mark) -> tuple[Dim, Dim]:
    """The axes outside and inside of what is divided; of no known structure, where it cuts through axes."""
    before: list[Axis] = []
    after: list[Axis] = []
    outer = whole = 1
    for axis in axes:
        if outer * axis.size <= mark.outer:
            before.append(_copy(axis))
        elif outer >= mark.outer * mark.size:
            after.append(_copy(axis))
        outer *= axis.size
        whole *= axis.size
    inner = whole // (mark.outer * mark.size)
    return (
        tuple(before) if size(before) == mark.outer else fresh(mark.outer)[0],
        tuple(after) if size(after) == inner else fresh(inner)[0],
    )


def _runs(dims: Dims, wanted: set[Axis]) -> list[Mark]:
    """Where some axes stand in a tensor; neighbours in one dimension are one."""
    runs: list[Mark] = []
    for place, dim in enumerate(dims):
        outer = 1
        for axis in expanded(dim):
            if leaves((axis,)) & wanted:
                last = runs[-1] if runs else None
                if last is not None and last.dim == place and last.outer * last.size == outer:
                    runs[-1] = Mark(place, last.size * axis.size, last.outer)
                else:
                    runs.append(Mark(place, axis.size, outer))
            outer *= axis.size
    return runs


def _leaves_at(dims: Dims, mark: Mark) -> set[Axis]:
    """The axes of a tensor that have a part in what is divided."""
    found: set[Axis] = set()
    outer = 1
    for axis in expanded(dims[mark.dim]):
        if mark.meets(outer, axis.size):
            found |= leaves((axis,))
        outer *= axis.size
    return found
