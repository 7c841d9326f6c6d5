"""Keeps contents known through collectives: what a rank gets follows from what the members of its group have sent.

What ranks that run beside this one have sent is exchanged (``RankExchange``). All others are assumed to hold what this one
holds: then a sum is the value times the size of the group, a gathered tensor repeats it, and of a scattered one or an
all-to-all this rank gets its own part. What any member does not know makes the result unknown.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from triosim.trace import CommunicationKind
from triosim.tracer.contents import assumed_contents, assumed_values, storage_contents
from triosim.tracer.device.operators.operator_info import flat
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
#: What all members of a group exchange. Others send to one rank alone (``send``, ``receive``).
_OF_ALL = (*_IN_PARTS, "all_reduce", "reduce", "all_gather", "gather", "broadcast")
#: Of fractions that one rank sends to another, the most elements that are known there.
_MOST_FRACTIONS = 1024


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective: its kind, its reduction, if any, the sizes of the parts that this rank sends, if given, and its root."""

    kind: CommunicationKind
    reduction: str | None
    splits: tuple[int, ...] | None = None
    root: int | None = None


_POINT_TO_POINT = Exchange("send", None)


def follow(asked: Exchange, given: Any, results: Any, group: ProcessGroup, ranks: RankExchange) -> None:
    """Write into the results of a collective what this rank gets, or forget what they held.

    ``given`` are its tensors and ``results`` those that it writes, as lists where it has several.
    """
    sent, got = list(flat(given)), list(flat(results))
    found = masks = None
    small = all(one.numel() <= storage_contents.MOST_ELEMENTS for one in (*sent, *got))
    assumed = _assumed(asked, sent, dist.get_process_group_ranks(group), ranks) if small else None
    if asked.kind in _OF_ALL and (small or asked.kind == "all_to_all"):  # whose sizes differ by rank
        members = dist.get_process_group_ranks(group)
        every = _contributions(asked, _contribution(asked, sent, len(members)) if small else None, members, ranks)
        held, known = zip(*[(None, None) if one is None else (one.values, one.masks) for one in every], strict=True)
        position = members.index(ranks.rank)
        with torch._C._DisableTorchDispatch():
            found = _received(asked, held, position)
            masks = _received(replace(asked, reduction="min"), known, position)  # known if it is on every rank
    if found is None or masks is None or sum(one.numel() for one in found) != sum(one.numel() for one in got):
        if asked.kind != "send":
            values = {assumed_values.value(one) for one in sent}
            for one in got:
                storage_contents.forget(one)
                if len(values) == 1:
                    assumed_values.assume(one, next(iter(values)) * (group.size() if asked.reduction == "sum" else 1))
    else:
        _write(found, masks, got)
    if assumed is not None:
        _assume(assumed, got)


def send(given: Any, receiver: int, subject: str, ranks: RankExchange) -> None:
    """Tell a rank that runs beside this one what is known of the tensors that it is sent."""
    sent = list(flat(given))
    if all(map(_is_told, sent)):
        ranks.tell(receiver, subject, _written(_contribution(_POINT_TO_POINT, sent, 1)))


def receive(results: Any, sender: int, subject: str, ranks: RankExchange) -> Callable[[], None]:
    """Return a function that writes into tensors what a rank that runs beside this one knows of what it sends, once it has."""
    got = list(flat(results))
    told = ranks.told(sender, subject) if all(map(_is_told, got)) else lambda: None

    def write() -> None:
        found = _read(told())
        if found is not None and [one.numel() for one in found.values] == [one.numel() for one in got]:
            _write(found.values, found.masks, got)

    return write


def _is_told(tensor: torch.Tensor) -> bool:
    """Whether a rank waits, as one that reads it would, for what is known of a tensor that it is sent.

    Of fractions these are few: more are activations, which nobody knows, and whose receiver goes on at once.
    """
    return tensor.numel() <= (_MOST_FRACTIONS if tensor.is_floating_point() else storage_contents.MOST_ELEMENTS)


Parts = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """What a rank sends, in parts where each member gets its own, and which elements of it are known."""

    values: Parts
    masks: Parts


def _contributions(
    asked: Exchange, mine: _Sent | None, members: Sequence[int], ranks: RankExchange
) -> Sequence[_Sent | None]:
    """Return what each member sends; wait for the others only where what this rank gets can be known."""
    if ranks.is_alone(members):
        if mine is not None:
            ranks.take(members, [members[asked.root or 0]] if asked.kind in _OF_ROOT else None)
        return [mine] * len(members)
    written = _written(mine)
    if asked.kind in _OF_ROOT:
        sent = [ranks.of_root(members, "values", asked.root or 0, written)] * len(members)
    elif mine is None:
        ranks.contribute_nothing(members, "values")
        return [None]
    else:
        sent = ranks.contributions(members, "values", written)
    found = {id(one): _read(one) for one in sent}
    every = [found[id(one)] for one in sent]
    if asked.kind in _OF_ROOT or None in every:
        return every
    values = ranks.of_all(members, [one.values for one in every if one is not None])
    return [_same_or(one, part) for one, part in zip(every, values, strict=True)]


def _same_or(sent: _Sent | None, values: Parts) -> _Sent | None:
    """Return what was sent with other values, or, where these are its own, itself: what is equal is counted."""
    return sent if sent is None or values is sent.values else replace(sent, values=values)


def _contribution(asked: Exchange, sent: Sequence[torch.Tensor], ranks: int) -> _Sent | None:
    """Return what this rank sends; None where nothing of it is known."""
    known = [one for one in map(storage_contents.known_part, sent) if one is not None]
    if len(known) < len(sent):
        return None
    with torch._C._DisableTorchDispatch():
        masks = [torch.ones(values.shape, dtype=torch.bool) if mask is None else mask for values, mask in known]
        in_parts = [_in_parts(asked, parts, ranks) for parts in ([values for values, _ in known], masks)]
    return None if None in in_parts else _Sent(*in_parts)  # type: ignore[arg-type]


def _in_parts(asked: Exchange, values: Parts, ranks: int) -> Parts | None:
    if asked.kind not in _IN_PARTS or len(values) == ranks != 1:
        return values
    if len(values) != 1 or not values[0].dim():
        return None if values else values
    if asked.splits:
        return list(values[0].split(list(asked.splits)))
    return list(values[0].chunk(ranks)) if values[0].shape[0] % ranks == 0 else None


def _received(asked: Exchange, every: Sequence[Parts | None], position: int) -> Parts | None:
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


def _assumed(
    asked: Exchange, sent: Sequence[torch.Tensor], members: Sequence[int], ranks: RankExchange
) -> Parts | None:
    """Return what this rank gets where all send what is assumed of its own elements; None where nothing is."""
    if not any(map(assumed_contents.is_assumed, sent)):
        return None
    held = [found for one in sent if (found := assumed_contents.contents(one)) is not None]
    with torch._C._DisableTorchDispatch():
        parts = _in_parts(asked, held, len(members)) if len(held) == len(sent) else None
        return None if parts is None else _received(asked, [parts] * len(members), members.index(ranks.rank))


def _assume(found: Parts, results: Sequence[torch.Tensor]) -> None:
    """Assume contents one after another of tensors of as many elements."""
    with torch._C._DisableTorchDispatch():
        row = torch.cat([one.reshape(-1) for one in found])
        if row.numel() != sum(one.numel() for one in results):
            return
        for one, part in zip(results, row.split([one.numel() for one in results]), strict=True):
            held = storage_contents.assume_elements(one) if storage_contents.is_fake(one) else None
            if held is not None:
                held.copy_(part.reshape(one.size()))


def _written(sent: _Sent | None) -> Any:
    """Return what a rank sends as JSON; None where nothing of it is known."""
    return None if sent is None else [[_to_json(one) for one in parts] for parts in (sent.values, sent.masks)]


def _read(written: Any) -> _Sent | None:
    return None if written is None else _Sent(*[[_from_json(row) for row in rows] for rows in written])


def _to_json(tensor: torch.Tensor) -> Any:
    with torch._C._DisableTorchDispatch():
        return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.reshape(-1).tolist()


def _from_json(row: Any) -> torch.Tensor:
    dtype, shape, values = row
    with torch._C._DisableTorchDispatch():
        return torch.tensor(values, dtype=getattr(torch, dtype)).reshape(shape)


def _write(found: Iterable[torch.Tensor], masks: Iterable[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Write contents one after another into tensors of as many elements, with masks of those that are known."""
    with torch._C._DisableTorchDispatch():
        row, mask = (torch.cat([one.reshape(-1) for one in parts]) for parts in (found, masks))
        at = 0
        for one in results:
            end = at + one.numel()
            storage_contents.write(one, row[at:end], mask[at:end])
            at = end
