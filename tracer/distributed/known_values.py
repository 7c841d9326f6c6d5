"""Keeps contents known through collectives: what a rank gets follows from what the members of its group have sent.

What ranks that run beside this one have sent is exchanged (``RankExchange``). All others are assumed to hold what this one
holds: then a sum is the value times the size of the group, a gathered tensor repeats it, and of a scattered one or an
all-to-all this rank gets its own part. What any member does not know makes the result unknown.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from triosim.trace import CommunicationKind
from triosim.tracer.device import known_contents
from triosim.tracer.device.known_contents import flat
from triosim.tracer.distributed.rank_exchange import RankExchange


def _sum(values: Sequence[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
    return reduce(operator.add, map(operator.mul, values, counts))


#: What contributions, each of so many ranks, come to, by the name of the reduction.
_REDUCED: Mapping[str, Callable[[Sequence[torch.Tensor], Sequence[int]], torch.Tensor]] = {
    "sum": _sum,
    "avg": lambda values, counts: _sum(values, counts) / sum(counts),
    "product": lambda values, counts: reduce(operator.mul, map(operator.pow, values, counts)),
    "min": lambda values, counts: reduce(torch.minimum, values),
    "max": lambda values, counts: reduce(torch.maximum, values),
    "band": lambda values, counts: reduce(torch.bitwise_and, values),
    "bor": lambda values, counts: reduce(torch.bitwise_or, values),
    "bxor": lambda values, counts: reduce(torch.bitwise_xor, map(operator.mul, values, [one % 2 for one in counts])),
}
#: Collectives in which each rank sends a part to each member.
_IN_PARTS = ("reduce_scatter", "all_to_all", "scatter")
#: Those of which each rank gets what one of them, the root, has sent.
_OF_ROOT = ("broadcast", "scatter")
#: What all members of a group exchange. Others send to one rank alone.
_OF_ALL = (*_IN_PARTS, "all_reduce", "reduce", "all_gather", "gather", "broadcast")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective: its kind, its reduction, if any, the sizes of the parts that this rank sends, if given, and its root."""

    kind: CommunicationKind
    reduction: str | None
    splits: tuple[int, ...] | None = None
    root: int | None = None


def follow(asked: Exchange, given: Any, results: Any, group: ProcessGroup, ranks: RankExchange) -> None:
    """Write into the results of a collective what this rank gets, or forget what they held.

    ``given`` are its tensors and ``results`` those that it writes, as lists where it has several.
    """
    sent, got = list(flat(given)), list(flat(results))
    found = None
    small = all(one.numel() <= known_contents.MOST_ELEMENTS for one in (*sent, *got))
    if asked.kind in _OF_ALL and (small or asked.kind == "all_to_all"):  # whose sizes differ by rank
        members = dist.get_process_group_ranks(group)
        every = _contributions(asked, _contribution(asked, sent, len(members)) if small else None, members, ranks)
        with torch._C._DisableTorchDispatch():
            found = _received(asked, every, members.index(ranks.rank))
    if found is None or sum(one.numel() for one in found) != sum(one.numel() for one in got):
        if asked.kind != "send":
            for one in got:
                known_contents.forget(one)
        return
    _write(found, got)


Contribution = Sequence[torch.Tensor] | None


def _contributions(
    asked: Exchange, mine: Contribution, members: Sequence[int], ranks: RankExchange
) -> Sequence[Contribution]:
    """Return what each member sends; wait for the others only where what this rank gets can be known."""
    if ranks.is_alone(members):
        return [mine] * len(members)
    written = None if mine is None else [_to_json(one) for one in mine]
    if asked.kind in _OF_ROOT:
        sent = [ranks.of_root(members, "values", asked.root or 0, written)] * len(members)
    elif mine is None:
        ranks.contribute_nothing(members, "values")
        return [None]
    else:
        sent = ranks.contributions(members, "values", written)
    found = {id(one): None if one is None else [_from_json(row) for row in one] for one in sent}
    return [found[id(one)] for one in sent]


def _contribution(asked: Exchange, sent: Sequence[torch.Tensor], ranks: int) -> Contribution:
    """Return what this rank sends, in parts where each member gets its own; None where it is unknown."""
    values = [one for one in map(known_contents.of, sent) if one is not None]
    if len(values) < len(sent):
        return None
    with torch._C._DisableTorchDispatch():
        if asked.kind not in _IN_PARTS or len(values) == ranks != 1:
            return values
        if len(values) != 1 or not values[0].dim():
            return None if values else values
        if asked.splits:
            return list(values[0].split(list(asked.splits)))
        return list(values[0].chunk(ranks)) if values[0].shape[0] % ranks == 0 else None


def _received(asked: Exchange, every: Sequence[Contribution], position: int) -> Sequence[torch.Tensor] | None:
    """Return what the rank at a position gets of what each has sent; None where that does not follow."""
    if asked.kind in _OF_ROOT:
        sent = every[asked.root or 0]
        return [sent[position]] if asked.kind == "scatter" and sent else sent
    known = [one for one in every if one is not None]
    if len(known) < len(every) or len({len(one) for one in known}) > 1:
        return None
    if asked.kind in ("all_gather", "gather"):
        return [one for same in zip(*known, strict=True) for one in same]
    if asked.kind == "all_to_all":
        return [one[position] for one in known]
    combine = _REDUCED.get(asked.reduction or "")
    if combine is None:
        return None
    counts = Counter(map(id, known))
    different = list({id(one): one for one in known}.values())
    if asked.kind == "reduce_scatter":
        different = [[one[position]] for one in different]
    if len({tuple([part.shape for part in one]) for one in different}) > 1:
        return None  # a mistake of the script, which the simulation finds
    return [combine(same, list(counts.values())) for same in zip(*different, strict=True)]


def _to_json(tensor: torch.Tensor) -> Any:
    with torch._C._DisableTorchDispatch():
        return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.reshape(-1).tolist()


def _from_json(row: Any) -> torch.Tensor:
    dtype, shape, values = row
    with torch._C._DisableTorchDispatch():
        return torch.tensor(values, dtype=getattr(torch, dtype)).reshape(shape)


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
