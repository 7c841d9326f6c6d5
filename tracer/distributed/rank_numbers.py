"""What ranks that do not run would send, where what runs sends numbers that depend on the rank.

Two ranks that run tell a number that grows with the rank (the rank itself, a seed, a position in the data) from one that does
not. One that grows by the same whole number from each rank to the next is known of every rank; of any other, a rank that does
not run is taken to send what the one that it follows does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_WITH_NUMBERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)


class RankNumbers:
    """What ranks that do not run send; ``unclear`` says whether a number differs that cannot be worked out."""

    def __init__(self) -> None:
        self.unclear = False

    def of_rank(self, rank: int, seen: Mapping[int, Any], otherwise: Any) -> Any:
        """Return what a rank sends, after what others have sent by rank: tensors and numbers, or lists and dicts of them.

        ``otherwise`` is what the rank that it follows has sent. The same object is returned where nothing depends on the rank.
        """
        sent = list(seen.values())
        if isinstance(otherwise, torch.Tensor):
            return self._of_tensors(rank, seen, otherwise)
        if type(otherwise) is int and all(type(one) is int for one in sent):
            return self._of_numbers(rank, seen, otherwise)
        if type(otherwise) in (list, tuple) and _same_size(sent, otherwise):
            parts = [
                self.of_rank(rank, {r: one[i] for r, one in seen.items()}, part) for i, part in enumerate(otherwise)
            ]
            changed = any(part is not before for part, before in zip(parts, otherwise, strict=True))
            return type(otherwise)(parts) if changed else otherwise
        if type(otherwise) is dict and all(type(one) is dict and one.keys() == otherwise.keys() for one in sent):
            found = {
                key: self.of_rank(rank, {r: one[key] for r, one in seen.items()}, part)
                for key, part in otherwise.items()
            }
            return found if any(found[key] is not otherwise[key] for key in found) else otherwise
        if not isinstance(otherwise, (str, bytes)):  # names of hosts and the like
            self.unclear = self.unclear or differ(sent)
        return otherwise

    def _of_numbers(self, rank: int, seen: Mapping[int, int], otherwise: int) -> int:
        (first, start), *others = seen.items()
        if all(value == start for _, value in others):
            return otherwise
        step, rest = divmod(others[0][1] - start, others[0][0] - first)
        if rest or any(value != start + step * (r - first) for r, value in others):
            self.unclear = True
            return otherwise
        return start + step * (rank - first)

    def _of_tensors(self, rank: int, seen: Mapping[int, Any], otherwise: torch.Tensor) -> torch.Tensor:
        sent = list(seen.values())
        if not all(_is_like(one, otherwise) for one in sent) or otherwise.dtype not in _WITH_NUMBERS:
            self.unclear = self.unclear or differ(sent)
            return otherwise
        with torch._C._DisableTorchDispatch():
            if all(torch.equal(one, sent[0]) for one in sent[1:]):
                return otherwise
            found, grows = _grown(rank, seen, otherwise.dtype)
            self.unclear = self.unclear or not bool(grows.all())
            return torch.where(grows, found.to(otherwise.dtype), otherwise)


def _grown(rank: int, seen: Mapping[int, torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a rank sends where numbers grow with the rank, and where they do, and stay within their dtype."""
    whole = not dtype.is_floating_point
    (first, start), (second, other), *_ = values = [
        (r, one.to(torch.int64 if whole else torch.float64)) for r, one in seen.items()
    ]
    step = (other - start) // (second - first)
    grows = torch.ones_like(start, dtype=torch.bool)
    for r, one in values:
        grows &= one == start + step * (r - first)
    if whole:
        limits, about = torch.iinfo(dtype), start.double() + step.double() * (rank - first)
        grows &= (about >= limits.min) & (about <= limits.max)
    return start + step * (rank - first), grows


def differ(sent: Sequence[Any]) -> bool:
    """Whether ranks have sent different things, as far as that can be told."""
    first = sent[0]
    if isinstance(first, torch.Tensor):
        with torch._C._DisableTorchDispatch():
            return not all(isinstance(one, torch.Tensor) and torch.equal(one, first) for one in sent[1:])
    if isinstance(first, (list, tuple)):
        return not _same_size(sent, first) or any(differ([one[i] for one in sent]) for i in range(len(first)))
    if isinstance(first, dict):
        same = all(isinstance(one, dict) and one.keys() == first.keys() for one in sent)
        return not same or any(differ([one[key] for one in sent]) for key in first)
    if any(type(one) is not type(first) for one in sent[1:]):
        return True
    return isinstance(first, (int, float, str, bytes)) and any(one != first for one in sent[1:])


def _same_size(sent: Sequence[Any], like: Any) -> bool:
    return all(isinstance(one, (list, tuple)) and len(one) == len(like) for one in sent)


def _is_like(one: Any, other: torch.Tensor) -> bool:
    return isinstance(one, torch.Tensor) and (one.shape, one.dtype) == (other.shape, other.dtype)
