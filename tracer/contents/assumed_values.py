"""The value that all elements of a fake tensor are assumed to have where a script reads it.

Contents of small tensors are known by themselves (``triosim.tracer.contents.storage_contents``). Of larger ones the value is
known where they are made of one known number (zeros, ones, comparisons of such, differences of positions). Everything else is
assumed to be 1, and its sums and means follow from that. So a loss is not NaN, a gradient scaler finds no overflow, and a mask
masks nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from triosim.tracer.contents import consecutive_values, storage_contents
from triosim.tracer.contents.storage_contents import note, noted

Value = float | int | bool
_NAME = "_triosim_value"
_TRUTH = "_triosim_truth"
#: How often in a row a loop finds it true, unknown, that any element is, and that a comparison holds.
_ANY_IN_A_ROW, _COMPARED_IN_A_ROW = 4, 100
_IN_A_ROW = {"any": _ANY_IN_A_ROW, "_is_any_true": _ANY_IN_A_ROW, "all": None, "_is_all_true": None}


def is_known(tensor: torch.Tensor) -> bool:
    """Whether a tensor's value follows from numbers that the script gave, and not from data that was never computed."""
    return _found(tensor)[1]


def _found(tensor: torch.Tensor) -> tuple[Value, bool]:
    """Return the value, and whether it is known; that of a real tensor with one element is its own."""
    contents = None if tensor.numel() != 1 else storage_contents.of(tensor)
    if contents is not None:
        with torch._C._DisableTorchDispatch():
            return contents.item(), True
    by_element = storage_contents.assumed(tensor) if tensor.numel() == 1 and storage_contents.is_fake(tensor) else None
    if by_element is not None:
        with torch._C._DisableTorchDispatch():
            return by_element.item(), False
    return noted(tensor, _NAME) or (1.0, False)


def value(tensor: Any) -> Value:
    """Return the value of a tensor's elements, in its dtype; of a number, itself."""
    if not isinstance(tensor, torch.Tensor):
        return tensor  # type: ignore[no-any-return]
    number = _found(tensor)[0]
    if tensor.dtype == torch.bool:
        return bool(number)
    return float(number) if tensor.dtype.is_floating_point else int(number)


def assume(tensor: torch.Tensor, number: Value) -> None:
    """Assume a value of all elements of a fake tensor, until it is written to."""
    if storage_contents.is_fake(tensor):
        note(tensor, _NAME, (number, False))


def most_in_a_row(tensor: torch.Tensor) -> int | None:
    """Return how often in a row a loop is told that an unknown truth is true; None for always.

    What waits for no element to be left then ends. That all elements are finite, for example, stays true.
    """
    return _IN_A_ROW.get(noted(tensor, _TRUTH), _COMPARED_IN_A_ROW)


def may_learn(name: str, given: Iterable[torch.Tensor]) -> bool:
    """Whether ``learn`` may find a value of a call on these fake tensors, beside forgetting those of what it changes."""
    if name in _ALWAYS_LEARNT:
        return True
    if name not in _RULES and name not in consecutive_values.LEARNED:
        return False
    return any(_NAME in vars(one) or consecutive_values.NAME in vars(one) for one in given)


def learn(name: str, arguments: tuple[Any, ...], result: Any, changed: Iterable[torch.Tensor] = ()) -> None:
    """Note the value of a call's result, as far as its arguments tell, and forget those of tensors that it changed.

    ``name`` is bare: ``add`` of ``aten::add_``.
    """
    found = None
    alone = isinstance(result, torch.Tensor) and storage_contents.is_fake(result)
    if alone:
        first, difference = consecutive_values.learn(name, arguments, result)
        found = _value_of(name, arguments) if difference is None else (difference, True)
    for one in changed:
        storage_contents.was_written(one)
    if name in _LEFT:
        position, left = _LEFT[name]
        note(arguments[position], _NAME, (left, True))
    if not alone:
        return
    if name in _IN_A_ROW:
        note(result, _TRUTH, name)
    if first is not None:
        note(result, consecutive_values.NAME, first)
    if found is not None:
        note(result, _NAME, found)


def _value_of(name: str, arguments: tuple[Any, ...]) -> tuple[Value, bool] | None:
    """Return the value of a call's result and whether it is known; None where no rule says it."""
    rule = _RULES.get(name)
    given = [one for one in arguments if isinstance(one, torch.Tensor)]
    if rule is None or not (name in _ALWAYS or any(map(_has_value, given))):
        return None
    try:
        found = rule(*arguments)
    except (TypeError, ValueError, ArithmeticError, IndexError):
        return None
    if name in _OVERWRITES:  # the first argument's old value does not matter
        given = given[1:]
    return found, all(map(is_known, given))


def _has_value(tensor: torch.Tensor) -> bool:
    return noted(tensor, _NAME) is not None or not (tensor.dim() or storage_contents.is_fake(tensor))


def _of_two(function: Callable[[Any, Any], Any]) -> Callable[..., Value]:
    return lambda first, second, *_: function(value(first), value(second))


def _sum(one: Any, dims: Any = None, *_: Any) -> Value:
    """Return the sum over some dimensions, or all, of equal elements."""
    dims = [dims] if isinstance(dims, int) else dims
    count = math.prod(one.shape[dim] for dim in dims) if dims else one.numel()
    return value(one) * count


def _running_sum(number: Value) -> Value:
    """Return 0 for zeros; other sums differ by element. Raises ``ValueError`` for those."""
    if number:
        raise ValueError(number)
    return 0


def _same(first: Any, *_: Any) -> Value:
    return value(first)


#: Operators whose result does not depend on the value of their first argument.
_OVERWRITES = frozenset(
    ("zeros_like", "ones_like", "full_like", "fill", "zero", "copy", "new_zeros", "new_ones", "new_full")
)
_COMPARISONS = ("ne", "eq", "lt", "le", "gt", "ge")
#: Operators whose rule applies to unknown values too.
_ALWAYS = (_OVERWRITES - {"copy"}).union(
    _COMPARISONS, ("zeros", "ones", "full", "isnan", "isinf", "logical_not", "_amp_update_scale")
)
#: The argument in which an operator leaves what is taken as known: a scaler's gradients are finite.
_LEFT = {"_amp_foreach_non_finite_check_and_unscale": (1, 0.0)}
_RULES: Mapping[str, Callable[..., Value]] = {
    **{name: _of_two(getattr(operator, name)) for name in (*_COMPARISONS, "add", "sub", "mul")},
    **dict.fromkeys(("clone", "detach", "view", "_to_copy", "any", "all", "max", "min", "alias", "expand"), _same),
    **dict.fromkeys(("_is_any_true", "_is_all_true"), _same),
    **dict.fromkeys(("squeeze", "unsqueeze", "select", "slice", "lift_fresh", "amax", "amin", "mean"), _same),
    "_amp_update_scale": _same,
    "copy": lambda target, source, *_: value(source),
    "div": _of_two(operator.truediv),
    "abs": lambda one: abs(value(one)),
    **dict.fromkeys(("logical_not", "bitwise_not"), lambda one: not value(one)),
    **dict.fromkeys(("logical_and", "bitwise_and"), lambda first, second: bool(value(first) and value(second))),
    **dict.fromkeys(("logical_or", "bitwise_or"), lambda first, second: bool(value(first) or value(second))),
    **dict.fromkeys(("zeros", "zeros_like", "zero", "new_zeros", "isinf", "isnan"), lambda *_: 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), lambda *_: 1),
    **dict.fromkeys(("full", "full_like", "fill"), lambda first, second, *_: value(second)),
    **dict.fromkeys(("t", "transpose", "permute", "_unsafe_view", "_reshape_alias"), _same),
    "sum": _sum,
    "count_nonzero": lambda one, *dims: _sum(one, *dims) if value(one) else 0,
    "cumsum": lambda one, *_: _running_sum(value(one)),
    "new_full": lambda first, shape, second, *_: value(second),
}
#: Operators of which something is learnt whatever their arguments are.
_ALWAYS_LEARNT = _ALWAYS | _IN_A_ROW.keys() | _LEFT.keys() | {"arange"}
