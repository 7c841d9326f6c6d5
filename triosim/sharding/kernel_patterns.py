"""The logical axes of a compiled kernel's tensors, written as a pattern in the manner of einops.

A kernel that a compiler makes of many operators reads and writes tensors of several ranks, folded and turned; their sizes do
not tell which dimension is which. The pattern of ``a b c.d, c.d -> a c b d`` says it: letters are axes, a dot folds axes into
one dimension, a plus puts several one after the other, and a dimension of one entry is ``1``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from triosim.sharding.dimensions import Dim, Dims, LogicalAxis, axes_of, concatenated, join, new_dim, reshaped, size

_ONE, _FOLDED, _ADDED = "1", ".", "+"
#: A dimension: the terms that stand one after the other, each a product of axes.
Terms = tuple[tuple[str, ...], ...]


def pattern_of(inputs: Sequence[Dims], outputs: Sequence[Dims]) -> str:
    """Return the pattern of a kernel's tensors from their dimensions. Axes that never stand apart are one letter.

    An axis that stands twice in one tensor (the queries' tokens, and the keys') is two.
    """
    numbers: dict[tuple[LogicalAxis, int], int] = {}
    tensors = []
    for dims in (*inputs, *outputs):
        seen: Counter[LogicalAxis] = Counter()
        tensors.append([_terms(dim, numbers, seen) for dim in dims])
    products = [term for dims in tensors for terms in dims for term in terms]
    together = _together(products)
    names: dict[int, str] = {}

    def written(terms: Sequence[Sequence[int]]) -> str:
        shown = [[names.setdefault(n, _name(len(names))) for n in term if n not in together] for term in terms]
        return _ADDED.join(_FOLDED.join(term) for term in shown) or _ONE

    patterns = [" ".join(map(written, dims)) for dims in tensors]
    return f"{', '.join(patterns[: len(inputs)])} -> {', '.join(patterns[len(inputs) :])}"


def axes_of_pattern(
    pattern: str, shapes: Sequence[tuple[int, ...]]
) -> tuple[tuple[tuple[Terms, ...], ...], dict[str, int]]:
    """Return the terms of each dimension of a kernel's tensors, and the sizes of the axes, as far as the shapes tell them."""
    tensors = _read(pattern)
    return tensors, _sizes(tensors, shapes)


def dims_by_pattern(pattern: str, shapes: Sequence[tuple[int, ...]], known: Sequence[Dims | None]) -> list[Dims] | None:
    """Return the dimensions of a kernel's inputs and outputs, those that are ``known`` joined with the others.

    None where the pattern is not one of tensors of these shapes.
    """
    tensors = _read(pattern)
    if len(tensors) != len(shapes) or any(len(dims) != len(shape) for dims, shape in zip(tensors, shapes, strict=True)):
        return None
    sizes = _sizes(tensors, shapes)
    found: dict[Terms, Dim] = {}
    for dims, given in zip(tensors, known, strict=True):
        for terms, dim in zip(dims, given or (), strict=False):
            for part, axes in _parts(terms, dim, sizes):
                if part not in found:
                    found[part] = axes
                elif size(found[part]) == size(axes):
                    join(found[part], axes)

    def of(terms: Terms, length: int) -> Dim:
        if terms not in found:
            whole = _put_together(terms, sizes, found)
            found[terms] = whole if whole is not None and size(whole) == length else new_dim(length)
        return found[terms] if size(found[terms]) == length else new_dim(length)

    return [
        tuple(of(terms, length) for terms, length in zip(dims, shape, strict=True))
        for dims, shape in zip(tensors, shapes, strict=True)
    ]


def _terms(dim: Dim, numbers: dict[tuple[LogicalAxis, int], int], seen: Counter[LogicalAxis]) -> list[list[int]]:
    """The numbers of a dimension's axes, a list for each term; ``seen`` counts how often the tensor has each axis."""
    axes = tuple(_split_axes(dim))
    whole = axes[0] if len(axes) == 1 else None
    terms = [tuple(_split_axes(term)) for term in whole.terms] if whole is not None and not whole.offset else []
    found = []
    for term in terms if len(terms) > 1 else [axes]:
        line = []
        for axis in term:
            line.append(numbers.setdefault((axis, seen[axis]), len(numbers)))
            if len(terms) <= 1:
                seen[axis] += 1
        found.append(line)
    return found


def _split_axes(dim: Dim) -> Iterator[LogicalAxis]:
    """Yield a dimension's axes; a parameter's axis in the parts that a view last split it into."""
    for axis in axes_of(dim):
        yield from (axis,) if axis.split_into is None else _split_axes(axis.split_into)


def _together(products: Iterable[Sequence[int]]) -> set[int]:
    """The axes that always stand directly inside the same other axis: the two are one in the pattern."""
    before: dict[int, set[int | None]] = {}
    after: dict[int, set[int | None]] = {}
    for term in products:
        for outer, inner in pairwise((None, *term, None)):
            if outer is not None:
                after.setdefault(outer, set()).add(inner)
            if inner is not None:
                before.setdefault(inner, set()).add(outer)
    return {
        inner
        for inner, outers in before.items()
        if len(outers) == 1 and (outer := next(iter(outers))) is not None and after[outer] == {inner}
    }


def _name(number: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return letters[number % 26] + (str(number // 26) if number >= 26 else "")


@lru_cache(maxsize=4096)
def _read(pattern: str) -> tuple[tuple[Terms, ...], ...]:
    tensors = [side for half in pattern.split(" -> ") for side in half.split(",")]
    return tuple(
        tuple(
            tuple(tuple(name for name in term.split(_FOLDED) if name != _ONE) for term in dim.split(_ADDED))
            for dim in tensor.split()
        )
        for tensor in tensors
    )


def _sizes(tensors: Sequence[Sequence[Terms]], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The sizes of axes: first of those that are a dimension alone, then of the one that is left of a product."""
    dims = [(terms[0], length) for dims, shape in zip(tensors, shapes, strict=True)
            for terms, length in zip(dims, shape, strict=True) if len(terms) == 1]  # fmt: skip
    found = {term[0]: length for term, length in dims if len(term) == 1}
    for _ in dims:
        before = len(found)
        for term, length in dims:
            left = [name for name in term if name not in found]
            rest = math.prod(found[name] for name in term if name in found)
            if len(left) == 1 and rest and length % rest == 0:
                found[left[0]] = length // rest
        if len(found) == before:
            break
    return found


def _parts(terms: Terms, dim: Dim, sizes: dict[str, int]) -> Iterator[tuple[Terms, Dim]]:
    """Yield a dimension, and each axis of a product, with the logical axes that are known of it."""
    yield terms, dim
    if len(terms) == 1 and len(terms[0]) > 1 and all(name in sizes for name in terms[0]):
        shape = [sizes[name] for name in terms[0]]
        parts = reshaped((dim,), shape) if math.prod(shape) == size(dim) else None
        for name, part in zip(terms[0], parts or (), strict=False):
            yield ((name,),), part


def _put_together(terms: Terms, sizes: dict[str, int], found: dict[Terms, Dim]) -> Dim | None:
    """A dimension made of known axes, or of new ones."""
    lines: list[Dim] = []
    for term in terms:
        line: list[LogicalAxis] = []
        for name in term:
            key: Terms = ((name,),)
            if key not in found:
                if name not in sizes:
                    return None
                found[key] = new_dim(sizes[name])
            line += found[key]
        lines.append(tuple(line))
    return lines[0] if len(lines) == 1 else concatenated(lines)
