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
from triosim.tracer.contents.storage_contents import MOST_ELEMENTS, note, noted

_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


class AssumedContents:
    """The contents that tensors of a fake device are assumed to have."""

    def __init__(self) -> None:
        self._exist = False

    def may_follow(self, name: str) -> bool:
        """Whether ``follow`` may have anything to do for an operator of this name."""
        return self._exist or name in _COMPARISONS

    def follow(
        self,
        name: str,
        function: Any,
        given: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        """Note what the result of an operator is assumed to hold, if that follows; ``name`` is bare."""
        compares = name in _COMPARISONS and len(given) > 1
        if (
            not (compares or self._exist)
            or not isinstance(result, torch.Tensor)
            or not storage_contents.is_fake(result)
        ):
            return
        if any(one.numel() > MOST_ELEMENTS for one in (*given, result)) or all(map(storage_contents.is_known, given)):
            return
        found = {id(one): _contents(one) for one in given}
        if compares and any(map(storage_contents.is_known, given)):
            found = {id(one): _of_one_number(one) if found[id(one)] is None else found[id(one)] for one in given}
        elif not any(noted(one, assumed_values.BY_ELEMENT) is not None for one in given):
            return
        if any(one is None for one in found.values()):
            return
        with torch._C._DisableTorchDispatch():
            found = {key: one.clone() for key, one in found.items() if one is not None}  # some operators change them
            try:
                made = function(*_replaced(args, found), **{key: _replaced(one, found) for key, one in kwargs.items()})
            except (RuntimeError, IndexError, ValueError, TypeError):
                return
            if isinstance(made, torch.Tensor) and made.shape == result.shape and made.dtype == result.dtype:
                note(result, assumed_values.BY_ELEMENT, made)
                self._exist = True


def _contents(tensor: torch.Tensor) -> torch.Tensor | None:
    assumed = noted(tensor, assumed_values.BY_ELEMENT) if storage_contents.is_fake(tensor) else None
    return storage_contents.of(tensor) if assumed is None else assumed


def _of_one_number(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C._DisableTorchDispatch():
        return torch.full((), assumed_values.value(tensor), dtype=tensor.dtype).expand(tensor.size())


def _replaced(value: Any, found: Mapping[int, Any]) -> Any:
    """Return an argument with the contents of tensors, and the host for the device."""
    if isinstance(value, torch.Tensor):
        return found[id(value)]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(_replaced(one, found) for one in value)
    return value
