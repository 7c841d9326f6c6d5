"""What the dimensions of tensors stand for: the batch, the sequence, a parameter's features, or a product of such axes.

An axis is one thing that a dimension can count. Axes that turn out to be the same are joined (union-find), so that what is
learnt late, at an addition say, holds for everything before it: the positions that ``arange`` made are the sequence's once
their embedding is added to the words'. A dimension is a product of axes, the outermost first: a batch and a sequence folded
into one are ``(batch, sequence)``, a dimension of size 1 is ``()``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

T = TypeVar("T")
Kind = Literal["batch", "sequence"]


class Axis:
    """Something that dimensions count; ``kind`` is set where it follows the batch or the sequence.

    ``owner`` names the parameter and its dimension for a parameter's axis: such an axis never follows the batch. An axis may
    be made of others: ``terms`` added, plus ``offset`` (a concatenation, a slice), a ``share`` of one (a chunk: the axis, and
    into how many), or ``factors`` multiplied (a dimension that was seen whole before it was seen in parts). ``heads`` says that
    it counts the heads of attention, ``followed`` that a slice of it is to be known as one. ``seen_as`` are the parts in which
    a parameter's axis was last seen: it stays one axis, since others may see it in other parts.
    """

    __slots__ = (
        "_same",
        "factors",
        "followed",
        "heads",
        "kind",
        "offset",
        "owner",
        "seen_as",
        "share",
        "size",
        "terms",
    )

    def __init__(self, size: int, kind: Kind | None = None, owner: tuple[int, int] | None = None) -> None:
        self.size = size
        self.kind = kind
        self.owner = owner
        self.heads = False
        self.followed = False
        self.terms: tuple[Dim, ...] = ()
        self.offset = 0
        self.share: tuple[Axis, int] | None = None
        self.factors: Dim | None = None
        self.seen_as: Dim | None = None
        self._same: Axis | None = None

    @property
    def root(self) -> Axis:
        """The axis that stands for all that were joined with this one."""
        found = self
        while found._same is not None:
            if found._same._same is not None:
                found._same = found._same._same
            found = found._same
        return found

    @property
    def is_plain(self) -> bool:
        """Whether nothing is known of it but its size."""
        return not (self.kind or self.owner or self.terms or self.share or self.factors)

    def follows(self, kind: Kind) -> bool:
        """Whether its size changes with the batch (or the sequence)."""
        return any(axis.kind == kind for axis in leaves((self,)))

    def join(self, other: Axis) -> bool:
        """Take two axes of one size to be the same. Return whether they can be: a batch is no parameter's features."""
        first, second = self.root, other.root
        if first is second:
            return True
        if second.is_plain:
            first, second = second, first
        if first.is_plain:
            if first in leaves((second,)):
                return True
            second.heads |= first.heads
            second.followed |= first.followed
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
Dim = tuple[Axis, ...]
#: The dimensions of a tensor.
Dims = tuple[Dim, ...]


def size(dim: Iterable[Axis]) -> int:
    """Return how many elements a dimension has."""
    return math.prod(axis.size for axis in dim)


def expanded(dim: Iterable[Axis]) -> Dim:
    """Return a dimension as the axes that it is known to be the product of."""
    found: list[Axis] = []
    for axis in dim:
        root = axis.root
        if root.factors is not None:
            found.extend(expanded(root.factors))
        elif root.size != 1 or not root.is_plain:
            found.append(root)
    return tuple(found)


def leaves(dim: Iterable[Axis]) -> set[Axis]:
    """Return the axes that a dimension is made of in the end."""
    found: set[Axis] = set()
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


def follows(dim: Iterable[Axis], kind: Kind) -> bool:
    """Whether a dimension's size changes with the batch (or the sequence)."""
    return any(axis.kind == kind for axis in leaves(dim))


def fresh(*sizes: int) -> Dims:
    """Return dimensions of which nothing is known but their sizes."""
    return tuple((Axis(one),) if one != 1 else () for one in sizes)


def join(first: Dim, second: Dim) -> bool:
    """Take two dimensions of one size to be the same."""
    one, two = expanded(first), expanded(second)
    if [axis.size for axis in one] == [axis.size for axis in two]:
        joined = [a.join(b) for a, b in zip(one, two, strict=True)]
        return all(joined)
    for whole, parts in ((one, two), (two, one)):
        if len(whole) == 1 and len(parts) > 1 and whole[0].is_plain and whole[0] not in leaves(parts):
            whole[0].factors = parts
            return True
    return True


def join_if(first: Dim, second: Dim) -> None:
    """Join two dimensions if they have one size."""
    if size(first) == size(second):
        join(first, second)


def joined(first: Dims, second: Dims) -> Dims:
    """Return two tensors' dimensions joined, aligned at the end, as broadcasting does."""
    length = max(len(first), len(second))
    one, two = ((*(((),) * (length - len(dims))), *dims) for dims in (first, second))
    found: list[Dim] = []
    for a, b in zip(one, two, strict=True):
        if size(a) == size(b):
            join(a, b)
        found.append(a if size(b) == 1 or (size(a) > 1 and expanded(a)) else b)
    return tuple(found)


def name_heads(dims: Dims) -> None:
    """Of each dimension, what is no batch or sequence counts heads: those of keys, and how many of queries share each."""
    for dim in dims:
        for axis in expanded(dim):
            if not follows((axis,), "batch") and not follows((axis,), "sequence"):
                axis.heads = True


def added(dims: Sequence[Dim], offset: int = 0) -> Dim:
    """Return what a concatenation counts: the sum of some dimensions; equal ones are a multiple."""
    parts = [expanded(dim) for dim in dims]
    if not offset and len(parts) > 1 and all(part == parts[0] for part in parts):
        return (Axis(len(parts)), *parts[0])
    if not offset and len(parts) == 1:
        return parts[0]
    whole = Axis(sum(size(part) for part in parts) + offset)
    whole.terms, whole.offset = tuple(parts), offset
    return (whole,) if whole.size > 0 else (Axis(whole.size),)


def cut(dim: Dim, length: int) -> Dim:
    """Return what a slice of a dimension counts: nearly all of it, a fraction, or a number of its own."""
    whole = size(dim)
    if length == whole:
        return dim
    if length > 1 and any(axis.followed for axis in leaves(dim)):
        return added([dim], length - whole)
    if length <= 1 or not any(axis.kind for axis in leaves(dim)):
        return fresh(length)[0]
    if 2 * length > whole:
        return _shifted(dim, length - whole)
    if whole % length == 0:
        part = Axis(length)
        parts = expanded(dim)
        base = parts[0] if len(parts) == 1 else added([dim, ()], -1)[0]
        part.share = (base, whole // length)
        return (part,)
    return fresh(length)[0]


def grown(dim: Dim, length: int) -> Dim:
    """Return what a padded dimension counts."""
    return dim if length == size(dim) else _shifted(dim, length - size(dim))


def scaled(dim: Dim, length: int) -> Dim:
    """Return what counts a number that is in proportion to a dimension: of what is exchanged, what comes of what goes.

    What is in proportion to that, and of the dimension's own size, is the dimension: shares of shares would lose remainders.
    """
    whole = size(dim)
    if length == whole:
        return dim
    share = dim[0].root.share if len(dim) == 1 else None
    source = share[0].root.factors[1:] if share is not None and share[0].root.factors is not None else ()
    if source and size(source) == length:
        return source
    common = math.gcd(length, whole)
    several, part = Axis(length // common * whole), Axis(length)
    several.factors = (Axis(length // common), *dim)
    part.share = (several, whole // common)
    return (part,)


def _shifted(dim: Dim, by: int) -> Dim:
    parts = expanded(dim)
    if len(parts) == 1 and parts[0].terms:  # a slice of a padded one: back to the same axis where it can be
        by += parts[0].offset
        if not by:
            return parts[0].terms[0] if len(parts[0].terms) == 1 else added(parts[0].terms)
        return added(parts[0].terms, by)
    return added([dim], by) if by else dim


def regrouped(dims: Dims, shape: Sequence[int], divide: Literal["any", "features", "none"] = "any") -> Dims | None:
    """Return the dimensions of the same elements, in the same order, in another shape (``view``, ``reshape``).

    None where that cuts through axes, or divides one that may not be: none, or none of batch and sequence.
    """
    source = [axis for dim in dims for axis in expanded(dim)]
    if size(source) != math.prod(shape) or 0 in shape:
        return None
    source.reverse()
    found: list[Dim] = []
    for wanted in shape:
        taken: list[Axis] = []
        while wanted > 1:
            axis = source.pop()
            if wanted % axis.size == 0:
                taken.append(axis)
                wanted //= axis.size
                continue
            outer = math.gcd(wanted, axis.size)
            if outer != wanted or divide == "none" or (divide == "features" and any(a.kind for a in leaves((axis,)))):
                return None
            inner = axis.size // outer
            first, second = _parts(axis, outer, inner)
            taken.append(first)
            source.append(second)
            wanted = 1
        found.append(tuple(taken))
    return tuple(found)


def _parts(axis: Axis, outer: int, inner: int) -> tuple[Axis, Axis]:
    """The two axes that an axis falls into; a plain one or a parameter's is known as their product from now on."""
    first, second = Axis(outer), Axis(inner)
    if axis.kind or axis.terms or axis.share:
        first.share = (axis, inner)
    else:
        first.owner = axis.owner
        if axis.is_plain:
            axis.factors = (first, second)
        axis.seen_as = (first, second)
    return first, second


def resized(dim: Dim, new_size: Callable[[Axis], int]) -> int:
    """Return a dimension's size, where ``new_size`` says that of a single axis."""

    def of(axis: Axis) -> int:
        root = axis.root
        if root.terms:
            return sum(math.prod(map(of, term)) for term in root.terms) + root.offset
        if root.share is not None:
            return of(root.share[0]) // root.share[1]
        if root.factors is not None:
            return math.prod(map(of, root.factors))
        return new_size(root)

    return math.prod(map(of, dim))


def viewed(dims: Dims, shape: Sequence[int], fits: Callable[[Dims], bool] | None = None) -> Dims | None:
    """Return the dimensions of a view that nobody recorded: of the same elements, folded, unfolded, two of them swapped.

    Of several ways the one that divides the fewest axes, and not the batch if it can be helped; where it is known what they
    should be (equal sizes leave it open), the first that ``fits``, if any does.
    """
    first: Dims | None = None
    for way in _views(dims, shape):
        if fits is None or fits(way):
            return way
        first = way if first is None else first
    return first


def _views(dims: Dims, shape: Sequence[int]) -> Iterator[Dims]:
    """Yield the ways to see a tensor in another shape, the likeliest first."""
    ways: tuple[Literal["none", "features", "any"], ...] = ("none", "features", "any")
    for divide in ways:
        for one, two in _swaps(len(shape)):  # unfolded, then swapped
            found = regrouped(dims, _swapped(shape, one, two), divide)
            if found is not None:
                yield _swapped(found, one, two)
        for one, two in _swaps(len(dims))[1:]:  # swapped, then folded
            found = regrouped(_swapped(dims, one, two), shape, divide)
            if found is not None:
                yield found


def _swaps(count: int) -> list[tuple[int, int]]:
    """Which two of so many dimensions may have been swapped, the usual ones first; none of them the very first."""
    pairs = dict.fromkeys(((0, 0), (1, 2), (count - 2, count - 1), (0, 1), (0, count - 1)))
    return [(one, two) for one, two in pairs if 0 <= one <= two < max(count, 1)]


def _swapped(entries: Sequence[T], one: int, two: int) -> tuple[T, ...]:
    order = list(entries)
    if order:
        order[one], order[two] = order[two], order[one]
    return tuple(order)
