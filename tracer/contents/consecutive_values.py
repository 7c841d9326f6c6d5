"""Fake tensors whose values are known to count up by one along their last dimension, as positions do (``torch.arange``).

Models compare each position with the one before to see whether several texts are packed into one sample, and choose their
attention by the result. The difference of two such tensors is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from triosim.tracer.contents.storage_contents import noted

NAME = "_triosim_first_value"


def learn(name: str, arguments: tuple[Any, ...], result: torch.Tensor) -> tuple[int | None, int | None]:
    """Return the first value of a result that counts up, and the value of all its elements where it is a known difference."""
    if name == "sub" and len(arguments) == 2:
        first, second = map(_first, arguments)
        if first is not None and second is not None:
            return None, first - second if _last(arguments[0]) == _last(arguments[1]) else None
    rule = _RULES.get(name)
    return None if rule is None else rule(arguments, result), None


def _first(tensor: Any) -> int | None:
    return noted(tensor, NAME) if isinstance(tensor, torch.Tensor) else None


def _last(tensor: torch.Tensor) -> int:
    return tensor.shape[-1] if tensor.dim() else 1


def _arange(arguments: tuple[Any, ...], result: torch.Tensor) -> int | None:
    whole = all(isinstance(one, int) for one in arguments)
    if not whole or not arguments or (len(arguments) > 2 and arguments[2] != 1):
        return None
    return 0 if len(arguments) == 1 else int(arguments[0])


def _same(arguments: tuple[Any, ...], result: torch.Tensor) -> int | None:
    """The last dimension is unchanged."""
    first = _first(arguments[0])
    return first if first is not None and _last(arguments[0]) == _last(result) else None


def _moved(arguments: tuple[Any, ...], sign: int) -> int | None:
    start, by = _first(arguments[0]), arguments[1]
    return start + sign * by if start is not None and type(by) is int else None


def _slice(
    tensor: torch.Tensor, dim: int = 0, begin: int | None = None, end: int | None = None, step: int = 1
) -> int | None:
    start = _first(tensor)
    if start is None or step != 1:
        return None
    if dim % tensor.dim() != tensor.dim() - 1:
        return start
    begin = begin or 0
    return start + (begin if begin >= 0 else max(begin + _last(tensor), 0))


def _cat(arguments: tuple[Any, ...], result: torch.Tensor) -> int | None:
    """Each tensor begins where the one before ends."""
    dim = arguments[1] if len(arguments) > 1 else 0
    if dim % result.dim() != result.dim() - 1:
        return None
    starts = [_first(one) for one in arguments[0]]
    following = starts[0]
    for start, tensor in zip(starts, arguments[0], strict=True):
        if start is None or start != following:
            return None
        following = start + _last(tensor)
    return starts[0]


_RULES: Mapping[str, Callable[[tuple[Any, ...], torch.Tensor], int | None]] = {
    "arange": _arange,
    "add": lambda arguments, _: _moved(arguments, 1),
    "sub": lambda arguments, _: _moved(arguments, -1),
    "slice": lambda arguments, _: _slice(*arguments),
    "cat": _cat,
    **dict.fromkeys(("unsqueeze", "expand", "view", "clone", "detach", "alias", "_to_copy"), _same),
}
#: Operators of which something may be learnt.
LEARNED = frozenset((*_RULES, "sub"))
