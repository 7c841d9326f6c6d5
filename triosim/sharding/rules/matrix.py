"""Rules for products, as equations of einsum: equal letters are one dimension, ``...`` are dimensions that broadcast."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.operators.products import named
from triosim.sharding.dimensions import Dim, Dims, broadcast_dims, join, name_heads, new_dim, size
from triosim.sharding.rules.common import Rule, Rules, output_shape
from triosim.trace import Operator


def product(*equations: str, after_summand: bool = False, of_heads: bool = False) -> Rule:
    """Return the rule of a product: the first of some equations whose factors have as many dimensions as the operator's.

    A tensor after the factors, or before them with ``after_summand``, is added to the product. ``of_heads``: where no factor
    is a parameter, leading dimensions are heads of attention.
    """
    count = equations[0].count(",") + 1

    def rule(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
        factors = inputs[after_summand:][:count]
        added = inputs[:1] if after_summand else inputs[count : count + 1]
        if len(factors) < count:
            return None
        if of_heads and not any(tensor.category == "parameter" for tensor in operator.inputs):
            for dims in factors:
                name_heads(dims[:-2])
        fitting = (_contracted(equation, factors, output_shape(operator)) for equation in equations)
        found = next((dims for dims in fitting if dims is not None), None)
        for dims in added if found is not None else ():
            broadcast_dims(found or (), dims)
        return None if found is None else [found]

    return rule


def einsum(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """``einsum``, without dimensions that broadcast."""
    equation = str(operator.attributes.get("equation", "")).replace(" ", "")
    if "->" not in equation or "." in equation or equation.count(",") != len(inputs) - 1:
        return None
    found = _contracted(equation, inputs, output_shape(operator))
    return None if found is None else [found]


def _contracted(equation: str, factors: Sequence[Dims], shape: Sequence[int]) -> Dims | None:
    """Return the dimensions of a product by an equation; None where it does not fit the factors.

    A letter of the result that no factor has is a new axis, of the size that the result's ``shape`` has there.
    """
    left, _, right = equation.partition("->")
    letters: dict[str, Dim] = {}
    equal: list[tuple[Dim, Dim]] = []
    leading: list[Dims] = []
    for term, dims in zip(left.split(","), factors, strict=True):
        names = term.removeprefix("...")
        start = len(dims) - len(names)
        if start < 0 or (start and names == term):
            return None
        leading.append(dims[:start])
        for letter, dim in zip(names, dims[start:], strict=True):
            known = letters.setdefault(letter, dim)
            if size(known) == size(dim):
                equal.append((known, dim))
            elif size(known) == 1:
                letters[letter] = dim
            elif size(dim) != 1:
                return None
    for known, dim in equal:
        join(known, dim)
    found: Dims = ()
    for dims in leading:
        found = broadcast_dims(found, dims)
    names = right.removeprefix("...")
    sizes = zip(names, shape[len(shape) - len(names) :], strict=False)
    return (*found, *[letters[letter] if letter in letters else new_dim(length) for letter, length in sizes])


_MATRICES = ("...mk,...kn->...mn", "k,...kn->...n", "...mk,k->...m", "k,k->")
RULES: Rules = {
    product(*_MATRICES, of_heads=True): named("matrix"),
    product(*_MATRICES, of_heads=True, after_summand=True): named("added"),
    product("bmk,bkn->mn", of_heads=True, after_summand=True): named("summed"),
    product("...k,nk->...n", "...k,k->..."): " ".join(name for name in named("rows").split() if name != "cdist"),
    product("...mk,...nk->...mn"): "cdist",
    product("tk,gkn->tn", "gmk,kt->mt", "gmk,gkn->gmn", "mt,tn->gmn"): named("grouped"),
    product("...i,...j,oij->...o"): "bilinear",
    product("i,j->ij"): "outer ger",
    einsum: "einsum",
}
