"""What follows, element by element, from the assumption that each unknown element is one number, where it meets known contents.

Predictions are unknown, and labels often are not: whether one equals the other is then assumed for each sample by itself, so
that the script reads the same accuracy however it counts. Such contents go through views, copies, conversions and reductions
until something else that is unknown comes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from triosim.tracer.contents import assumed_values, storage_contents
from triosim.tracer.contents.storage_contents import MOST_ELEMENTS
from triosim.tracer.device.operators.operator_info import OperatorCall

_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
#: Operators that change some elements of the whole tensor that they are given.
_INTO_ELEMENTS = frozenset(
    (
        *("index_add", "index_copy", "index_fill", "index_put", "index_reduce", "masked_fill", "masked_scatter"),
        *("put", "scatter", "scatter_add", "scatter_reduce"),
    )
)


class AssumedContents:
    """The contents that tensors of a fake device are assumed to have."""

    def __init__(self) -> None:
        self._exist = False

    def may_follow(self, name: str, changed: Sequence[torch.Tensor]) -> bool:
        """Whether ``follow`` may have anything to do for an operator of this name that changes these tensors."""
        return self._exist or name in _COMPARISONS or _is_into_a_part(name, changed)

    def follow(self, call: OperatorCall, result: Any, changed: Sequence[torch.Tensor]) -> None:
        """Assume what the result of an operator, or what it changes, holds, if that follows.

        To be called before anything else learns of the operator.
        """
        if changed:
            if not self._is_followed(call, changed):
                for one in filter(storage_contents.is_fake, changed):
                    storage_contents.drop_assumed(one)
            return
        given = call.given
        compares = call.info.bare in _COMPARISONS and len(given) > 1
        if (
            not (compares or self._exist)
            or not isinstance(result, torch.Tensor)
            or not storage_contents.is_fake(result)
            or storage_contents.assumed(result) is not None  # a view
        ):
            return
        if any(one.numel() > MOST_ELEMENTS for one in (*given, result)) or all(map(storage_contents.is_known, given)):
            return
        found = {id(one): contents(one) for one in given}
        if compares and any(map(storage_contents.is_known, given)):
            found = {id(one): _of_one_number(one) if found[id(one)] is None else found[id(one)] for one in given}
        elif not any(map(is_assumed, given)):
            return
        if any(one is None for one in found.values()):
            return
        with torch._C._DisableTorchDispatch():
            made = _called(call, found)
            if isinstance(made, torch.Tensor) and made.shape == result.shape and made.dtype == result.dtype:
                self._assume(result, made)

    def _is_followed(self, call: OperatorCall, changed: Sequence[torch.Tensor]) -> bool:
        """Assume what the one tensor that an operator changes holds then, if it follows; return whether it does.

        It does where something is assumed of a tensor that it is given, or where a part of known contents changes.
        """
        given = call.given
        if len(changed) != 1 or not (_is_into_a_part(call.info.bare, changed) or any(map(is_assumed, given))):
            return False
        target = changed[0]
        if all(map(storage_contents.is_known, given)) or any(one.numel() > MOST_ELEMENTS for one in given):
            return False
        found = {id(one): _of_one_number(one) if (held := contents(one)) is None else held for one in given}
        with torch._C._DisableTorchDispatch():
            made = found[id(target)] = found[id(target)].clone()
            if _called(call, found, keep=id(target)) is None:
                return False
            self._assume(target, made)
        return True

    def _assume(self, tensor: torch.Tensor, made: torch.Tensor) -> None:
        held = storage_contents.assume_elements(tensor)
        if held is not None:
            held.copy_(made)
            self._exist = True


def _is_into_a_part(name: str, changed: Sequence[torch.Tensor]) -> bool:
    """Whether an operator changes a part of a storage of which something is known."""
    if len(changed) != 1 or not storage_contents.is_fake(changed[0]):
        return False
    return storage_contents.has_contents(changed[0]) and (
        name in _INTO_ELEMENTS or not storage_contents.is_whole(changed[0])
    )


def is_assumed(tensor: torch.Tensor) -> bool:
    """Whether single elements of a tensor are assumed to be something."""
    return storage_contents.is_fake(tensor) and storage_contents.assumed(tensor) is not None


def contents(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what a tensor holds, known or, where it is not, assumed; None where something is neither."""
    assumed = storage_contents.assumed(tensor) if storage_contents.is_fake(tensor) else None
    part = storage_contents.known_part(tensor)
    if part is None:
        return assumed
    values, mask = part
    if mask is None or assumed is None:
        return values if mask is None else None
    with torch._C._DisableTorchDispatch():
        return torch.where(mask, values, assumed)


def _of_one_number(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a tensor holds where nothing is assumed of single elements: one number, or what is known."""
    part = storage_contents.known_part(tensor)
    with torch._C._DisableTorchDispatch():
        same = torch.full((), assumed_values.value(tensor), dtype=tensor.dtype).expand(tensor.size())
        return same if part is None or part[1] is None else torch.where(part[1], part[0], same)


def _called(call: OperatorCall, found: Mapping[int, Any], keep: int | None = None) -> Any:
    """Return what an operator returns for contents, which it does not change but for those to ``keep``; None if it fails."""
    given = {key: one if key == keep else one.clone() for key, one in found.items()}
    try:
        kwargs = {key: _replaced(one, given) for key, one in call.kwargs.items()}
        return call.info.function(*_replaced(call.args, given), **kwargs)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None


def _replaced(value: Any, found: Mapping[int, Any]) -> Any:
    """Return an argument with the contents of tensors, and the host for the device."""
    if isinstance(value, torch.Tensor):
        return found[id(value)]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(_replaced(one, found) for one in value)
    return value
