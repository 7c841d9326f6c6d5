"""The shared parts of the rules: their type, output shapes, broadcasting, and dimensions counted from the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from triosim.sharding.dimensions import Dims
from triosim.trace import Operator

Shape = tuple[int, ...]
Rule = Callable[[Operator, Sequence[Dims]], list[Dims] | None]
#: Rules, each with the bare names of the operators that it is for.
Rules = Mapping[Rule, str]


def output_shape(operator: Operator) -> Shape:
    """Return the shape of the first output, or () where there is none."""
    return operator.outputs[0].shape if operator.outputs else ()


def broadcasts_to(shape: Shape, into: Shape) -> bool:
    """Whether a shape broadcasts to another, as PyTorch does it."""
    tail = into[len(into) - len(shape) :]
    return len(shape) <= len(into) and all(one in (1, other) for one, other in zip(shape, tail, strict=True))


def wrapped_dim(value: object, count: int) -> int:
    """Return a dimension counted from the front, of one that may be counted from the end."""
    number = value if isinstance(value, int) else 0
    return number % count if count else 0
