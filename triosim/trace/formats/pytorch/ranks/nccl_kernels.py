"""What PyTorch's profiler says of the kernels of NCCL: the collective, its bytes and its group, or the messages of a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triosim.errors import TraceError
from triosim.trace.group_families import WORLD, GroupFamilies, Ranks
from triosim.trace.trace import Communication, CommunicationKind
from triosim.units import MOST_BYTES, format_ranks

_KINDS: Mapping[str, CommunicationKind] = {
    **dict.fromkeys(("allreduce", "allreduce_coalesced", "all_reduce"), "all_reduce"),
    **dict.fromkeys(("_allgather_base", "allgather", "all_gather", "allgather_into_tensor_coalesced"), "all_gather"),
    **dict.fromkeys(("_reduce_scatter_base", "reduce_scatter", "reduce_scatter_tensor_coalesced"), "reduce_scatter"),
    **dict.fromkeys(("all_to_all", "all_to_allv", "alltoall", "alltoall_base"), "all_to_all"),
    **dict.fromkeys(("broadcast", "broadcastOop", "_broadcast_oop"), "broadcast"),
    **dict.fromkeys(("reduce", "_reduce_oop"), "reduce"),
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}
_BYTES = {
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int", "UInt32"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    "ComplexDouble": 16,
}
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class Part:
    """A collective, or one message, of a rank; ``peer`` is a rank of the world."""

    kind: CommunicationKind
    members: Ranks
    group: str
    nbytes: float
    peer: int | None = None
    root: int | None = None
    shares: tuple[float, ...] | None = None

    def as_communication(
        self, families: GroupFamilies, purposes: Mapping[str, str], work: int | None, batch: int | None
    ) -> Communication:
        """Return what an operator asks for; messages are those of the world, with one ``batch`` where they go together.

        ``purposes`` are what groups are for. ``work`` is the number that is waited for, None where the issuing stream waits at
        once.
        """
        if self.peer is not None:
            return Communication(self.kind, WORLD, self.nbytes, peer=self.peer, work=work, batch=batch)
        name = "" if len(self.members) == 0 else self.group
        family = families.of(name, self.members, purposes.get(self.group, ""))
        return Communication(self.kind, family, self.nbytes, root=self.root, work=work, shares=self.shares)


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one kernel carries: a collective, or the messages of a batch."""

    parts: tuple[Part, ...]


def purposes_of(distributed: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what process groups are for, by their names, as the top of a profile describes them."""
    rows = distributed.get("pg_config")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    described = {str(row.get("pg_name")): str(row.get("pg_desc") or "") for row in found}
    return {name: purpose for name, purpose in described.items() if purpose not in ("", "undefined")}


def transfer_of(
    stated: Mapping[str, Any],
    calls: Sequence[Mapping[str, Any]],
    groups: Mapping[str, Ranks],
    rank: int,
    world: int,
    where: str,
) -> Transfer:
    """Return what a kernel carries, by what is stated of it, or else of the ``calls`` since the kernel before it.

    Raises ``TraceError`` where neither says.
    """
    name = stated.get("Collective name")
    if name in ("send", "recv"):
        return Transfer((_message(stated, world, where),))
    if name not in _KINDS:  # a batch, of which each call says its own part
        calls = [call for call in calls if call.get("Collective name") in _KINDS]
        messages = tuple(_message(call, world, where) for call in calls if call["Collective name"] in ("send", "recv"))
        if messages:
            return Transfer(messages)
        if not calls:
            what = f"a kernel of NCCL does not say what it does ({name})"
            raise TraceError(
                what, where=where, fix="profile with PyTorch 2.3 or later, with ProfilerActivity.CPU and CUDA"
            )
        stated = calls[-1]
    return Transfer((_collective(stated, groups, rank, world, where),))


def _message(stated: Mapping[str, Any], world: int, where: str) -> Part:
    kind = _KINDS[stated["Collective name"]]
    peer = stated.get("Dst Rank" if kind == "send" else "Src Rank")
    if not isinstance(peer, int):
        raise TraceError(f"a {kind} does not say its other rank", where=where, fix="profile with PyTorch 2.4 or later")
    if not 0 <= peer < world:
        raise TraceError(f"a {kind} is to or from rank {peer}", where=where, fix=f"there are ranks 0-{world - 1}")
    return Part(kind, (), "", max(_sizes(stated, where)), peer=peer)


def _collective(stated: Mapping[str, Any], groups: Mapping[str, Ranks], rank: int, world: int, where: str) -> Part:
    kind = _KINDS[stated["Collective name"]]
    group = str(stated.get("Process Group Name", ""))
    members = _members(stated, groups, group)
    if len({*members}) < len(members) or not all(0 <= one < world for one in members):
        what = f"{kind} in group '{group}' is between ranks {format_ranks(members)}"
        raise TraceError(what, where=where, fix=f"its ranks are some of the {world}, each once")
    if rank not in members:
        raise TraceError(
            f"{kind} in group '{group}', whose ranks are not known",
            where=where,
            fix="profile with PyTorch 2.4 or later",
        )
    given, got = _sizes(stated, where)
    nbytes = {
        "all_gather": max(got, given * len(members)),
        "gather": max(got, given * len(members)),
        "reduce_scatter": max(given, got * len(members)),
        "scatter": max(given, got * len(members)),
        "all_to_all": given or got,
        "barrier": 4.0,
    }.get(kind, max(given, got))
    root = stated.get("Rank") if kind in _ROOTED else None
    if kind in _ROOTED and not (isinstance(root, int) and 0 <= root < len(members)):
        root = 0
    return Part(
        kind, members, group, nbytes, root=root, shares=_shares(stated, given) if kind == "all_to_all" else None
    )


def _members(stated: Mapping[str, Any], groups: Mapping[str, Ranks], group: str) -> Ranks:
    """Return the ranks of a group: the list, which is cut short where it is long; its pattern; or the top of the file's."""
    listed = _numbers(stated.get("Process Group Ranks"))
    size, start, stride = (stated.get(key) for key in ("Group size", "Global rank start", "Global rank stride"))
    if listed and size in (None, len(listed)):
        return listed
    if group in groups:
        return groups[group]
    if isinstance(size, int) and isinstance(start, int) and isinstance(stride, int) and stride > 0:
        return tuple(range(start, start + size * stride, stride))
    return ()


def _numbers(value: object) -> tuple[int, ...]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return ()
    return tuple(found) if isinstance(found, list) and all(isinstance(one, int) for one in found) else ()


def _sizes(stated: Mapping[str, Any], where: str) -> tuple[float, float]:
    """Return the bytes that go in and come out."""
    each = _BYTES.get(str(stated.get("dtype")), 1)
    given, got = (stated.get(key) or 0 for key in ("In msg nelems", "Out msg nelems"))
    for count in (given, got):
        if not isinstance(count, (int, float)) or not 0 <= count * each <= MOST_BYTES:
            raise TraceError(f"a kernel of NCCL has {count!r} elements", where=where, fix="give a count from 0 on")
    return float(given * each), float(got * each)


def _shares(stated: Mapping[str, Any], given: float) -> tuple[float, ...] | None:
    """Return what is sent to each rank, where the parts are not equal."""
    split = _numbers(stated.get("In split size"))
    total = sum(split)
    return tuple(given * one / total for one in split) if total and len(set(split)) > 1 else None
