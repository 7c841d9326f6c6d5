"""What products do to dimensions: which of their factors' dimensions are one, and which the result has.

Each takes an operator and the dimensions of its inputs, as the rules of ``triosim.sharding.dimension_rules`` do, and returns
those of what it makes, or None where the shapes do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from triosim.operators.features import base_name
from triosim.operators.products import named
from triosim.sharding.dimensions import Dim, Dims, fresh, join, join_if, joined, name_heads, size
from triosim.trace import Operator


def matmul(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """``matmul``, ``mm``, ``bmm``: the last of the first with the last but one of the second."""
    if len(given) < 2 or not given[0] or not given[1]:
        return None
    a, b = given[0], given[1]
    if size(a[-1]) != size(b[-2] if len(b) > 1 else b[-1]):
        return None
    if not any(tensor.category == "parameter" for tensor in operator.inputs):  # what attention multiplies
        name_heads(a[:-2])
        name_heads(b[:-2])
    join(a[-1], b[-2] if len(b) > 1 else b[-1])
    batch = joined(a[:-2], b[:-2])
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    return [(*batch, *rows, *columns)]


def addmm(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """A product to which something is added that broadcasts to it."""
    found = matmul(operator, given[1:3]) if len(given) > 2 else None
    if found:
        joined(found[0], given[0])
    return found


def summed(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """``addbmm``: a batch of products, added up over the batch."""
    found = matmul(operator, given[1:3]) if len(given) > 2 else None
    return [found[0][-2:]] if found else None


def grouped(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """Rows, columns or depths of groups one after the other: (t, k) by (g, k, n), (g, m, k) by (k, t), (m, t) by (t, n)."""
    if len(given) < 2 or not {len(given[0]), len(given[1])} <= {2, 3} or size(given[0][-1]) != size(given[1][-2]):
        return None
    a, b = given[:2]
    join(a[-1], b[-2])
    if len(a) == len(b) == 3:
        return [(*joined(a[:1], b[:1]), a[1], b[2])]
    if len(a) == len(b) == 2:
        return [(*fresh(operator.outputs[0].shape[0]), a[0], b[1])]
    return [(a[-2], b[-1])]


def bilinear(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """(..., i), (..., j) and a weight (o, i, j)."""
    if len(given) < 3 or len(given[2]) != 3 or not given[0] or not given[1]:
        return None
    join_if(given[0][-1], given[2][1])
    join_if(given[1][-1], given[2][2])
    for dims in given[3:4]:
        if len(dims) == 1:
            join_if(dims[0], given[2][0])
    return [(*joined(given[0][:-1], given[1][:-1]), given[2][0])]


def outer(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """Two vectors."""
    return [(given[0][0], given[1][0])] if len(given) > 1 and len(given[0]) == len(given[1]) == 1 else None


def linear(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """(..., k) by (n, k): a weight as ``torch.nn.Linear`` has it; ``cdist`` has a batch of both."""
    if len(given) < 2 or not given[0] or not given[1] or size(given[0][-1]) != size(given[1][-1]):
        return None
    join(given[0][-1], given[1][-1])
    made = (*given[0][:-1], *given[1][:-1])
    if base_name(operator.name) == "cdist":
        made = (*joined(given[0][:-2], given[1][:-2]), *given[0][-2:-1], *given[1][-2:-1])
    for bias in given[2:3]:
        joined(made, bias)
    return [made]


def einsum(operator: Operator, given: Sequence[Dims]) -> list[Dims] | None:
    """Dimensions with one letter are one."""
    equation = str(operator.attributes.get("equation", "")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or [len(term) for term in terms] != [len(dims) for dims in given]:
        return None
    letters: dict[str, Dim] = {}
    for term, dims in zip(terms, given, strict=True):
        for letter, dim in zip(term, dims, strict=True):
            if size(letters.setdefault(letter, dim)) == size(dim):
                join(letters[letter], dim)
            elif size(letters[letter]) == 1:
                letters[letter] = dim
    return [tuple(letters[letter] for letter in right)] if set(right) <= letters.keys() else None


RULES: Mapping[Callable[[Operator, Sequence[Dims]], list[Dims] | None], str] = {
    matmul: named("matrix"),
    addmm: named("added"),
    summed: named("summed"),
    linear: named("rows"),
    grouped: named("grouped"),
    bilinear: "bilinear",
    outer: "outer ger",
    einsum: "einsum",
}
