"""Keeps contents known through collectives: every rank of a group is assumed to hold what this one holds.

So a sum is the value times the size of the group, a gathered tensor repeats it, and of a scattered one or an all-to-all this
rank gets its own part. What is not known makes the result unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ProcessGroup

from triosim.trace import CommunicationKind
from triosim.tracer.device import known_contents
from triosim.tracer.device.known_contents import flat

#: What equal contributions of so many ranks come to, by the name of the reduction.
_REDUCED: Mapping[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda value, ranks: value * ranks,
    "product": lambda value, ranks: value**ranks,
    **dict.fromkeys(("avg", "min", "max", "band", "bor"), lambda value, ranks: value),
    "bxor": lambda value, ranks: value * (ranks % 2),
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective: its kind, its reduction, if any, and whether all parts have one size."""

    kind: CommunicationKind
    reduction: str | None
    equal: bool


def follow(exchange: Exchange, given: Any, results: Any, group: ProcessGroup) -> None:
    """Write into the results of a collective what this rank gets, or forget what they held.

    ``given`` are its tensors and ``results`` those that it writes, as lists where it has several.
    """
    sent, got = list(flat(given)), list(flat(results))
    found = None
    if exchange.equal and all(one.numel() <= known_contents.MOST_ELEMENTS for one in sent):
        values = [one for one in map(known_contents.of, sent) if one is not None]
        with torch._C._DisableTorchDispatch():
            if len(values) == len(sent):
                found = _received(exchange.kind, values, exchange.reduction, group.size(), group.rank())
    if found is None or sum(one.numel() for one in found) != sum(one.numel() for one in got):
        if exchange.kind != "send":
            for one in got:
                known_contents.forget(one)
        return
    _write(found, got)


def _received(
    kind: str, values: Sequence[torch.Tensor], reduction: str | None, ranks: int, position: int
) -> Sequence[torch.Tensor] | None:
    """Return what a rank gets; None where that does not follow."""
    if kind == "broadcast":
        return values
    if kind in ("all_gather", "gather"):
        return [value for value in values for _ in range(ranks)]
    reduced = values
    if kind in ("all_reduce", "reduce", "reduce_scatter"):
        if reduction is None or reduction not in _REDUCED:
            return None
        reduced = [_REDUCED[reduction](value, ranks) for value in values]
    if kind in ("all_reduce", "reduce"):
        return reduced
    if kind in ("reduce_scatter", "all_to_all", "scatter"):
        parts = list(reduced) if len(reduced) == ranks else _parts(reduced, ranks)
        if parts is None:
            return None
        return [parts[position]] * (ranks if kind == "all_to_all" else 1)
    return None


def _parts(values: Sequence[torch.Tensor], ranks: int) -> list[torch.Tensor] | None:
    """Return the equal parts of one tensor for each rank; None where there are none."""
    if len(values) != 1 or not values[0].dim() or values[0].shape[0] % ranks:
        return None
    return list(values[0].chunk(ranks))


def _write(found: Iterable[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Write contents one after another into tensors of as many elements."""
    with torch._C._DisableTorchDispatch():
        row = torch.cat([one.reshape(-1) for one in found])
    at = 0
    for one in results:
        with torch._C._DisableTorchDispatch():
            part = row[at : at + one.numel()]
        known_contents.write(one, part)
        at += one.numel()
