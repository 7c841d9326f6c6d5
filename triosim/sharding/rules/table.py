"""The rule for each operator, by its bare name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triosim.operators.features import base_name, is_attention
from triosim.sharding.dimensions import Dims, shape_of
from triosim.sharding.rules import indexing, matrix, pointwise, reductions, spatial, views
from triosim.sharding.rules.attention import attention
from triosim.sharding.rules.common import Rule
from triosim.trace import Operator

_RULES: Mapping[str, Rule] = {
    name: rule
    for module in (views, matrix, spatial, reductions, indexing, pointwise)
    for rule, names in module.RULES.items()
    for name in names.split()
}


def output_dims(operator: Operator, inputs: Sequence[Dims]) -> list[Dims]:
    """Return the dimensions of an operator's first outputs, as far as its semantics tell."""
    name = base_name(operator.name)
    rule = attention if is_attention(name) else _RULES.get(name.removeprefix("foreach_"))
    found = rule(operator, inputs) if rule is not None else None
    if found is None and rule not in (pointwise.creation, indexing.embedding):
        found = pointwise.broadcast(operator, inputs)
    shapes = [tensor.shape for tensor in operator.outputs]
    fitting = []
    for dims, shape in zip(found or [], shapes, strict=False):
        if shape_of(dims) != shape:
            break
        fitting.append(dims)
    return fitting


def is_elementwise(name: str) -> bool:
    """Whether an operator's inputs and outputs have the same dimensions, as far as is known of it: no rule says otherwise."""
    return not is_attention(name) and name.removeprefix("foreach_") not in _RULES
