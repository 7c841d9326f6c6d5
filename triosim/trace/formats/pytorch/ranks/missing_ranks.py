"""Ranks without a profile: the groups that they communicate in, and the rank whose profile stands for theirs.

Groups of an axis of a mesh are equally large, and their ranks equally far apart, so that one of them tells the others. A
missing rank is taken to run what the rank runs that has the same position as it in most groups; of several, the nearest before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triosim.errors import TraceError
from triosim.trace.group_families import WORLD, Ranks
from triosim.trace.trace import Trace
from triosim.units import format_ranks

Groups = Mapping[str, tuple[Ranks, ...]]


def completed(groups: Groups, world: int) -> Groups:
    """Return families with all their groups, where the known ones are of an axis of a mesh; others as they are."""
    return {family: _axis_of(known, world) or known for family, known in groups.items()}


def stand_ins(traces: Mapping[int, Trace], groups: Groups, world: int, where: str) -> tuple[int, ...]:
    """Return for each rank the one of ``traces`` whose operators it runs.

    Raises ``TraceError`` where the groups of a missing rank, or the ranks that it sends to, cannot be known.
    """
    missing = [rank for rank in range(world) if rank not in traces]
    if missing and any(_has_messages(trace) for trace in traces.values()):
        raise _unknown(missing, "others send to single ranks", where)
    positions = _positions({family: found for family, found in groups.items() if family != WORLD}, world)
    uses = {rank: _families(trace) - {WORLD} for rank, trace in traces.items()}
    found = []
    for rank in range(world):
        fitting = [known for known in sorted(traces) if uses[known] <= positions[rank].keys()]
        if rank in traces:
            found.append(rank)
        elif fitting:
            found.append(_closest(rank, fitting, positions))
        else:
            raise _unknown(missing, "their groups cannot be known", where)
    return tuple(found)


def _unknown(missing: Sequence[int], why: str, where: str) -> TraceError:
    of = "profiles of ranks" if len(missing) > 1 else "the profile of rank"
    are = "are" if len(missing) > 1 else "is"
    return TraceError(f"{of} {format_ranks(missing)} {are} missing, and {why}", where=where, fix="write all ranks")


def _closest(rank: int, known: Sequence[int], positions: Sequence[Mapping[str, int]]) -> int:
    def closeness(other: int) -> tuple[int, bool, int]:
        same = sum(positions[other].get(family) == at for family, at in positions[rank].items())
        return same, other <= rank, other if other <= rank else -other

    return max(known, key=closeness)


def _axis_of(groups: tuple[Ranks, ...], world: int) -> tuple[Ranks, ...] | None:
    """Return all groups of the axis that some are of; None where they are of none."""
    size = len(groups[0])
    stride = groups[0][1] - groups[0][0] if size > 1 else 1
    if stride < 1 or world % (size * stride):
        return None
    firsts = (first for first in range(world) if first // stride % size == 0)
    axis = tuple(tuple(range(first, first + size * stride, stride)) for first in firsts)
    return axis if set(groups) <= set(axis) else None


def _positions(groups: Groups, world: int) -> list[dict[str, int]]:
    """Return the position of each rank in its group of each family."""
    found: list[dict[str, int]] = [{} for _ in range(world)]
    for family, known in groups.items():
        for group in known:
            for position, rank in enumerate(group):
                found[rank][family] = position
    return found


def _families(trace: Trace) -> set[str]:
    return {one.communication.group for one in trace.operators if one.communication is not None}


def _has_messages(trace: Trace) -> bool:
    return any(one.communication is not None and one.communication.peer is not None for one in trace.operators)
