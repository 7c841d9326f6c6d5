"""Rules for products: which dimensions of their factors are one, and which of these the result has."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.operators.features import base_name
from triosim.operators.products import named
from triosim.sharding.dimensions import Dim, Dims, broadcast_dims, join, join_equal_sizes, name_heads, new_dims, size
from triosim.sharding.rules.common import Rules
from triosim.trace import Operator


def matmul(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """``matmul``, ``mm``, ``bmm``: the last of the first with the last but one of the second."""
    if len(inputs) < 2 or not inputs[0] or not inputs[1]:
        return None
    a, b = inputs[0], inputs[1]
    if size(a[-1]) != size(b[-2] if len(b) > 1 else b[-1]):
        return None
    if not any(tensor.category == "parameter" for tensor in operator.inputs):  # what attention multiplies
        name_heads(a[:-2])
        name_heads(b[:-2])
    join(a[-1], b[-2] if len(b) > 1 else b[-1])
    batch = broadcast_dims(a[:-2], b[:-2])
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    return [(*batch, *rows, *columns)]


def addmm(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """A product plus a tensor that broadcasts to it."""
    found = matmul(operator, inputs[1:3]) if len(inputs) > 2 else None
    if found:
        broadcast_dims(found[0], inputs[0])
    return found


def summed(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """``addbmm``: a batch of products, added up over the batch."""
    found = matmul(operator, inputs[1:3]) if len(inputs) > 2 else None
    return [found[0][-2:]] if found else None


def grouped(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """Rows, columns or depths of groups one after the other: (t, k) by (g, k, n), (g, m, k) by (k, t), (m, t) by (t, n)."""
    if len(inputs) < 2 or not {len(inputs[0]), len(inputs[1])} <= {2, 3} or size(inputs[0][-1]) != size(inputs[1][-2]):
        return None
    a, b = inputs[:2]
    join(a[-1], b[-2])
    if len(a) == len(b) == 3:
        return [(*broadcast_dims(a[:1], b[:1]), a[1], b[2])]
    if len(a) == len(b) == 2:
        return [(*new_dims(operator.outputs[0].shape[0]), a[0], b[1])]
    return [(a[-2], b[-1])]


def bilinear(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """(..., i), (..., j) and a weight (o, i, j)."""
    if len(inputs) < 3 or len(inputs[2]) != 3 or not inputs[0] or not inputs[1]:
        return None
    join_equal_sizes(inputs[0][-1], inputs[2][1])
    join_equal_sizes(inputs[1][-1], inputs[2][2])
    for dims in inputs[3:4]:
        if len(dims) == 1:
            join_equal_sizes(dims[0], inputs[2][0])
    return [(*broadcast_dims(inputs[0][:-1], inputs[1][:-1]), inputs[2][0])]


def outer(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """Two vectors."""
    return [(inputs[0][0], inputs[1][0])] if len(inputs) > 1 and len(inputs[0]) == len(inputs[1]) == 1 else None


def linear(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """(..., k) by (n, k): a weight as ``torch.nn.Linear`` has it; ``cdist`` has a batch of both."""
    if len(inputs) < 2 or not inputs[0] or not inputs[1] or size(inputs[0][-1]) != size(inputs[1][-1]):
        return None
    join(inputs[0][-1], inputs[1][-1])
    made = (*inputs[0][:-1], *inputs[1][:-1])
    if base_name(operator.name) == "cdist":
        made = (*broadcast_dims(inputs[0][:-2], inputs[1][:-2]), *inputs[0][-2:-1], *inputs[1][-2:-1])
    for bias in inputs[2:3]:
        broadcast_dims(made, bias)
    return [made]


def einsum(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """Dimensions with one letter are one."""
    equation = str(operator.attributes.get("equation", "")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or [len(term) for term in terms] != [len(dims) for dims in inputs]:
        return None
    letters: dict[str, Dim] = {}
    for term, dims in zip(terms, inputs, strict=True):
        for letter, dim in zip(term, dims, strict=True):
            if size(letters.setdefault(letter, dim)) == size(dim):
                join(letters[letter], dim)
            elif size(letters[letter]) == 1:
                letters[letter] = dim
    return [tuple(letters[letter] for letter in right)] if set(right) <= letters.keys() else None


RULES: Rules = {
    matmul: named("matrix"),
    addmm: named("added"),
    summed: named("summed"),
    linear: named("rows"),
    grouped: named("grouped"),
    bilinear: "bilinear",
    outer: "outer ger",
    einsum: "einsum",
}
