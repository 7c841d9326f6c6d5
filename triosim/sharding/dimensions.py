"""The logical axes of tensors' dimensions: the batch, the sequence, heads, a parameter's features, or products of these.

As in Flax and einops, an axis has a meaning and a dimension a position: a batch and a sequence folded into one are the
product ``(batch, sequence)``, the outermost axis first, and a dimension of size 1 is ``()``. Axes that turn out to be the same
are joined (union-find), so that what is learnt late, at an addition say, holds for everything before it: the positions that
``arange`` made are the sequence's once their embedding is added to the words'. (Axes of the device mesh are another thing.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")
AxisKind = Literal["batch", "sequence"]
AXIS_KINDS: tuple[AxisKind, ...] = ("batch", "sequence")


@dataclass(slots=True, eq=False, repr=False)
class LogicalAxis:
    """A logical axis; ``kind`` is set where its size is that of the batch or of the sequence.

    ``owner`` is the parameter (its tensor id) and the dimension that the axis was first met in: a parameter's axis never
    follows the batch. An axis may be made of others: the sum of ``terms`` and ``offset`` (a concatenation, a slice), a
    ``share`` of an axis (a chunk: the axis, and the number of chunks), or the product of ``factors`` (a dimension that was met
    as one before a view split it). ``heads`` says that it counts heads of attention, ``tracked`` that a slice of it must be
    known as one. ``split_into`` are the parts that a view last split a parameter's axis into: it stays one axis, since other
    views may split it otherwise.
    """

    size: int
    kind: AxisKind | None = None
    owner: tuple[int, int] | None = None
    heads: bool = False
    tracked: bool = False
    terms: tuple[Dim, ...] = ()
    offset: int = 0
    share: tuple[LogicalAxis, int] | None = None
    factors: Dim | None = None
    split_into: Dim | None = None
    _same: LogicalAxis | None = None

    @property
    def root(self) -> LogicalAxis:
        """The representative of all axes that were joined with this one."""
        found = self
        while found._same is not None:
            if found._same._same is not None:
                found._same = found._same._same
            found = found._same
        return found

    @property
    def is_plain(self) -> bool:
        """Whether nothing is known of the axis but its size."""
        return not (self.kind or self.owner or self.terms or self.share or self.factors)

    def join(self, other: LogicalAxis) -> bool:
        """Join two axes of one size. Return whether they can be the same: a batch is no parameter's features."""
        first, second = self.root, other.root
        if first is second:
            return True
        if second.is_plain:
            first, second = second, first
        if first.is_plain:
            if first in leaves((second,)):
                return True
            second.heads |= first.heads
            second.tracked |= first.tracked
            first._same = second
            return True
        if first.kind and second.kind:
            if first.kind != second.kind:
                return False
            first._same = second
        elif (first.kind and second.owner) or (second.kind and first.owner):
            return False
        elif first.owner and second.owner:
            second.heads |= first.heads
            first._same = second
        return True


#: A dimension: a product of axes, the outermost first.
Dim = tuple[LogicalAxis, ...]
#: The dimensions of a tensor.
Dims = tuple[Dim, ...]


def size(dim: Iterable[LogicalAxis]) -> int:
    """Return how many elements a dimension has."""
    return math.prod(axis.size for axis in dim)


def axes_of(dim: Iterable[LogicalAxis]) -> Dim:
    """Return the axes that a dimension is the product of, as far as is known."""
    found: list[LogicalAxis] = []
    for axis in dim:
        root = axis.root
        if root.factors is not None:
            found.extend(axes_of(root.factors))
        elif root.size != 1 or not root.is_plain:
            found.append(root)
    return tuple(found)


def leaves(dim: Iterable[LogicalAxis]) -> set[LogicalAxis]:
    """Return the axes that a dimension is made of and that are made of no others."""
    found: set[LogicalAxis] = set()
    todo = list(dim)
    while todo:
        axis = todo.pop().root
        parts = [part for term in axis.terms for part in term]
        parts += [axis.share[0]] if axis.share is not None else []
        parts += axis.factors or ()
        todo += parts
        if not parts:
            found.add(axis)
    return found


def follows(dim: Iterable[LogicalAxis], kind: AxisKind) -> bool:
    """Whether a dimension's size changes with the batch (or the sequence)."""
    return any(axis.kind == kind for axis in leaves(dim))


def kind_of_axis(axis: LogicalAxis) -> AxisKind | None:
    """Return which of batch and sequence an axis' size changes with, if any."""
    return next((kind for kind in AXIS_KINDS if follows((axis,), kind)), None)


def new_dim(length: int) -> Dim:
    """Return a dimension of a new axis, of which nothing is known but its size."""
    return (LogicalAxis(length),) if length != 1 else ()


def new_dims(*sizes: int) -> Dims:
    """Return dimensions of new axes."""
    return tuple(map(new_dim, sizes))


def shape_of(dims: Dims) -> tuple[int, ...]:
    """Return the shape of a tensor with some dimensions."""
    return tuple(map(size, dims))


def kept_where_equal(dims: Dims, shape: Sequence[int]) -> Dims:
    """Return the dimensions of a tensor of a shape: those of another tensor where the sizes are equal, and new ones."""
    return tuple(dim if size(dim) == length else new_dim(length) for dim, length in zip(dims, shape, strict=True))


def join(first: Dim, second: Dim) -> bool:
    """Join two dimensions of one size, axis by axis. Return whether they can be the same."""
    one, two = axes_of(first), axes_of(second)
    if [axis.size for axis in one] == [axis.size for axis in two]:
        broadcast = [a.join(b) for a, b in zip(one, two, strict=True)]
        return all(broadcast)
    for whole, parts in ((one, two), (two, one)):
        if len(whole) == 1 and len(parts) > 1 and whole[0].is_plain and whole[0] not in leaves(parts):
            whole[0].factors = parts
            return True
    return True


def join_equal_sizes(first: Dim, second: Dim) -> None:
    """Join two dimensions if they have one size."""
    if size(first) == size(second):
        join(first, second)


def broadcast_dims(first: Dims, second: Dims) -> Dims:
    """Return the dimensions of two tensors that are broadcast to each other; those of equal sizes are joined."""
    length = max(len(first), len(second))
    one, two = ((*(((),) * (length - len(dims))), *dims) for dims in (first, second))
    found: list[Dim] = []
    for a, b in zip(one, two, strict=True):
        if size(a) == size(b):
            join(a, b)
        found.append(a if size(b) == 1 or (size(a) > 1 and axes_of(a)) else b)
    return tuple(found)


def name_heads(dims: Dims) -> None:
    """Say that what is neither batch nor sequence in some dimensions counts heads of attention.

    In grouped-query attention these are two axes: the heads of keys, and the heads of queries that share each.
    """
    for dim in dims:
        for axis in axes_of(dim):
            if not follows((axis,), "batch") and not follows((axis,), "sequence"):
                axis.heads = True


def concatenated(dims: Sequence[Dim], offset: int = 0) -> Dim:
    """Return the dimension of a concatenation: the sum of some dimensions, or a multiple where they are equal."""
    parts = [axes_of(dim) for dim in dims]
    if not offset and len(parts) > 1 and all(part == parts[0] for part in parts):
        return (LogicalAxis(len(parts)), *parts[0])
    if not offset and len(parts) == 1:
        return parts[0]
    length = sum(map(size, parts)) + offset
    return (LogicalAxis(length, terms=tuple(parts), offset=offset) if length > 0 else LogicalAxis(length),)


def sliced(dim: Dim, length: int) -> Dim:
    """Return the dimension of a slice: the dimension less a constant, a fraction of it, or one of its own size."""
    whole = size(dim)
    if length == whole:
        return dim
    if length > 1 and any(axis.tracked for axis in leaves(dim)):
        return concatenated([dim], length - whole)
    if length <= 1 or not any(axis.kind for axis in leaves(dim)):
        return new_dim(length)
    if 2 * length > whole:
        return _shifted(dim, length - whole)
    if whole % length == 0:
        parts = axes_of(dim)
        base = parts[0] if len(parts) == 1 else concatenated([dim, ()], -1)[0]
        return (LogicalAxis(length, share=(base, whole // length)),)
    return new_dim(length)


def padded(dim: Dim, length: int) -> Dim:
    """Return the dimension of a padded tensor: the dimension plus a constant."""
    return dim if length == size(dim) else _shifted(dim, length - size(dim))


def in_proportion(dim: Dim, length: int) -> Dim:
    """Return a dimension whose size stays in proportion to another's: the rows received in an all-to-all, to those sent.

    Where the other is itself in proportion to a dimension of ``length``, this is that dimension: shares of shares would lose
    remainders.
    """
    whole = size(dim)
    if length == whole:
        return dim
    share = dim[0].root.share if len(dim) == 1 else None
    source = share[0].root.factors[1:] if share is not None and share[0].root.factors is not None else ()
    if source and size(source) == length:
        return source
    common = math.gcd(length, whole)
    several = LogicalAxis(length // common * whole, factors=(LogicalAxis(length // common), *dim))
    return (LogicalAxis(length, share=(several, whole // common)),)


def _shifted(dim: Dim, by: int) -> Dim:
    parts = axes_of(dim)
    if len(parts) == 1 and parts[0].terms:  # a slice of a padded dimension: the axis itself where the constants cancel
        by += parts[0].offset
        if not by:
            return parts[0].terms[0] if len(parts[0].terms) == 1 else concatenated(parts[0].terms)
        return concatenated(parts[0].terms, by)
    return concatenated([dim], by) if by else dim


def reshaped(dims: Dims, shape: Sequence[int], divide: Literal["any", "features", "none"] = "any") -> Dims | None:
    """Return the dimensions of the same elements, in the same order, in another shape (``view``, ``reshape``).

    None where the new shape cuts through axes, or splits one that ``divide`` forbids to: with "features" axes of the batch or
    sequence, with "none" any.
    """
    source = [axis for dim in dims for axis in axes_of(dim)]
    if size(source) != math.prod(shape) or 0 in shape:
        return None
    source.reverse()
    found: list[Dim] = []
    for wanted in shape:
        taken: list[LogicalAxis] = []
        while wanted > 1:
            axis = source.pop()
            if wanted % axis.size == 0:
                taken.append(axis)
                wanted //= axis.size
                continue
            outer = math.gcd(wanted, axis.size)
            if outer != wanted or divide == "none" or (divide == "features" and any(a.kind for a in leaves((axis,)))):
                return None
            first, second = _parts(axis, outer, axis.size // outer)
            taken.append(first)
            source.append(second)
            wanted = 1
        found.append(tuple(taken))
    return tuple(found)


def _parts(axis: LogicalAxis, outer: int, inner: int) -> tuple[LogicalAxis, LogicalAxis]:
    """The two axes that an axis is split into; a plain axis is known as their product from now on."""
    if axis.kind or axis.terms or axis.share:
        return LogicalAxis(outer, share=(axis, inner)), LogicalAxis(inner)
    parts = LogicalAxis(outer, owner=axis.owner), LogicalAxis(inner)
    if axis.is_plain:
        axis.factors = parts
    axis.split_into = parts
    return parts


def resized(dim: Dim, new_size: Callable[[LogicalAxis], int]) -> int:
    """Return a dimension's size when its axes have new sizes, which ``new_size`` tells of an axis made of no others."""

    def of(axis: LogicalAxis) -> int:
        root = axis.root
        if root.terms:
            return sum(math.prod(map(of, term)) for term in root.terms) + root.offset
        if root.share is not None:
            return of(root.share[0]) // root.share[1]
        if root.factors is not None:
            return math.prod(map(of, root.factors))
        return new_size(root)

    return math.prod(map(of, dim))


def guessed_view(dims: Dims, shape: Sequence[int], fits: Callable[[Dims], bool] | None = None) -> Dims | None:
    """Return the dimensions of a view that no operator made: elements folded, unfolded, two dimensions swapped.

    Where sizes allow several views, the one that splits the fewest axes, and the batch last of all. ``fits`` chooses the first
    that it accepts, if any, where more is known of the view.
    """
    first: Dims | None = None
    for view in _views(dims, shape):
        if fits is None or fits(view):
            return view
        first = view if first is None else first
    return first


def _views(dims: Dims, shape: Sequence[int]) -> Iterator[Dims]:
    """Yield the views of a tensor in another shape, the likeliest first."""
    allowed: tuple[Literal["none", "features", "any"], ...] = ("none", "features", "any")
    for divide in allowed:
        for one, two in _swaps(len(shape)):  # unfolded, then swapped
            found = reshaped(dims, swapped(shape, one, two), divide)
            if found is not None:
                yield swapped(found, one, two)
        for one, two in _swaps(len(dims))[1:]:  # swapped, then folded
            found = reshaped(swapped(dims, one, two), shape, divide)
            if found is not None:
                yield found


def _swaps(count: int) -> list[tuple[int, int]]:
    """The pairs of dimensions that a view may have swapped, the usual ones first; (0, 0) swaps none, and comes before all."""
    pairs = dict.fromkeys(((0, 0), (1, 2), (count - 2, count - 1), (0, 1), (0, count - 1)))
    return [(one, two) for one, two in pairs if 0 <= one <= two < max(count, 1)]


def swapped(entries: Sequence[T], one: int, two: int) -> tuple[T, ...]:
    """Return dimensions, or the lengths of a shape, with two of them swapped."""
    order = list(entries)
    if order:
        order[one], order[two] = order[two], order[one]
    return tuple(order)
