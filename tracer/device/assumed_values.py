"""What a tensor without contents is taken to hold where a script looks into it: one number that stands for all of them.

Only what is made of known numbers (zeros, ones, a comparison of such, positions less positions) has one; everything else is
taken to be 1. So a loss is not NaN, a gradient scaler finds no overflow, and a mask masks nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from triosim.tracer.device import consecutive_values as fake_counting

Value = float | int | bool
_NAME = "_triosim_value"


def is_known(tensor: torch.Tensor) -> bool:
    """Whether a tensor's contents follow from numbers that the script gave, and not from what was never computed."""
    return _found(tensor)[1]


def _found(tensor: torch.Tensor) -> tuple[Value, bool]:
    """Return the number, and whether it is known; a single real one is what it is."""
    found: tuple[Value, bool] | None = getattr(tensor, _NAME, None)
    if found is not None:
        return found
    if tensor.dim() or hasattr(tensor, "fake_device"):
        return 1.0, False
    with torch._C._DisableTorchDispatch():
        return tensor.item(), True


def value(tensor: Any) -> Value:
    """Return the number that stands for a tensor's contents, in its dtype; of a number, itself."""
    if not isinstance(tensor, torch.Tensor):
        return tensor  # type: ignore[no-any-return]
    number = _found(tensor)[0]
    if tensor.dtype == torch.bool:
        return bool(number)
    return float(number) if tensor.dtype.is_floating_point else int(number)


def learn(name: str, arguments: tuple[Any, ...], result: torch.Tensor) -> None:
    """Note what a call's result holds, as far as its arguments tell. ``name`` is bare: ``add`` of ``aten::add_``."""
    difference = fake_counting.learn(name, arguments, result)
    if difference is not None:
        setattr(result, _NAME, (difference, True))
        return
    rule = _RULES.get(name)
    given = [one for one in arguments if isinstance(one, torch.Tensor)]
    if rule is None or not (name in _ALWAYS or any(_says_something(one) for one in given)):
        if hasattr(result, _NAME):  # changed in place, by something that is not followed
            delattr(result, _NAME)
        return
    try:
        found = rule(*arguments)
    except (TypeError, ValueError, ArithmeticError, IndexError):
        return
    if name in _ANEW:  # whatever was there before
        given = given[1:]
    setattr(result, _NAME, (found, all(is_known(one) for one in given)))


def _says_something(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, _NAME) or not (tensor.dim() or hasattr(tensor, "fake_device"))


def _of_two(function: Callable[[Any, Any], Any]) -> Callable[..., Value]:
    return lambda first, second, *_: function(value(first), value(second))


def _none(number: Value) -> Value:
    """Sums of nothing are nothing; others differ from place to place. Raises ``ValueError`` for those."""
    if number:
        raise ValueError(number)
    return 0


def _same(first: Any, *_: Any) -> Value:
    return value(first)


#: What makes its result anew, or from its second argument.
_ANEW = frozenset(("zeros_like", "ones_like", "full_like", "fill", "zero", "copy", "new_zeros", "new_ones", "new_full"))
#: What says something of unknown numbers too.
_ALWAYS = _ANEW - {"copy"} | {
    "zeros",
    "ones",
    "full",
    "ne",
    "eq",
    "lt",
    "le",
    "gt",
    "ge",
    "isnan",
    "isinf",
    "logical_not",
}
_RULES: Mapping[str, Callable[..., Value]] = {
    **{name: _of_two(getattr(operator, name)) for name in ("ne", "eq", "lt", "le", "gt", "ge")},
    **{name: _of_two(getattr(operator, name)) for name in ("add", "sub", "mul")},
    **dict.fromkeys(("clone", "detach", "view", "_to_copy", "any", "all", "max", "min", "alias", "expand"), _same),
    **dict.fromkeys(("squeeze", "unsqueeze", "select", "slice", "lift_fresh", "amax", "amin", "mean"), _same),
    "copy": lambda target, source, *_: value(source),
    "div": _of_two(operator.truediv),
    "abs": lambda one: abs(value(one)),
    "logical_not": lambda one: not value(one),
    "bitwise_not": lambda one: not value(one),
    "logical_and": lambda first, second: bool(value(first) and value(second)),
    "bitwise_and": lambda first, second: bool(value(first) and value(second)),
    "logical_or": lambda first, second: bool(value(first) or value(second)),
    "bitwise_or": lambda first, second: bool(value(first) or value(second)),
    **{name: (lambda *_: 0) for name in ("zeros", "zeros_like", "zero", "new_zeros", "isinf", "isnan")},
    **{name: (lambda *_: 1) for name in ("ones", "ones_like", "new_ones")},
    **{name: (lambda first, second, *_: value(second)) for name in ("full", "full_like", "fill")},
    "cumsum": lambda one, *_: _none(value(one)),
    "new_full": lambda first, shape, second, *_: value(second),
}
