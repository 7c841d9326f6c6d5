"""The communicators of captured ranks, and the symmetry of those that run the same commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from triosim.errors import AsymmetryError
from triosim.extrapolators.captured.rank_classes import GroupUse, RankClasses
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.tasks import SHARED_MEMORY_STREAM, Communicator
from triosim.trace import Communication
from triosim.trace.task_streams import TaskStreams


def communicators(streams: TaskStreams) -> list[dict[str, Communicator]]:
    """Return each rank's communicators by family; one object for all members of a group."""
    found: list[dict[str, Communicator]] = [{} for _ in range(streams.world)]
    for family, groups in streams.groups.items():
        for ranks in groups:
            communicator = Communicator(ranks, family)
            for rank in ranks:
                found[rank][family] = communicator
    return found


def symmetry_of(streams: TaskStreams) -> Symmetry | None:
    """Return the symmetry of ranks that run the same commands; None where there is none.

    It is known where the groups of each family form the axes of a mesh: groups of equal size, whose ranks are equally far
    apart. Ranks that share a memory take turns, so that they are not alike.
    """
    if _share_memory(streams):
        return None
    bounds = {1, streams.world}
    for groups in streams.groups.values():
        found = {_stride(ranks) for ranks in groups if len(ranks) > 1}
        if not found:
            continue
        stride, size = found.pop() or (0, 0)
        if found or not stride or size * len(groups) != streams.world or any(r[0] // stride % size for r in groups):
            return None
        bounds |= {stride, stride * size}
    ordered = sorted(bounds)
    if any(outer % inner for inner, outer in pairwise(ordered)):
        return None
    sizes = {f"of {inner}": outer // inner for inner, outer in pairwise(ordered)}
    if not sizes:
        return None
    mesh = Mesh.of(**sizes)
    symmetric = [
        axis
        for axis in sizes
        if all(model == streams.like[mesh.neighbour(axis, rank, 0)] for rank, model in enumerate(streams.like))
    ]
    return Symmetry(mesh, symmetric) if symmetric else None


def classes_of(streams: TaskStreams, like: Sequence[int] | None = None) -> RankClasses:
    """Return the classes of ranks that do the same, and of their groups. Raises ``AsymmetryError`` where they are not known.

    ``like`` is the model of each rank, where that is not the streams' own.
    """
    if _share_memory(streams):
        raise AsymmetryError("ranks that share a memory take turns")
    used = {family: GroupUse(family, groups) for family, groups in streams.groups.items()}
    classes = RankClasses(streams.like if like is None else like, [*used.values(), *_sends(streams)])
    if classes.has_copies and any(one.shares is not None for one in _communications(streams)):
        raise AsymmetryError("parts of a collective that are unequal may differ from group to group")
    return classes


def communicate_as_one_world(streams: TaskStreams) -> bool:
    """Whether all ranks communicate with all others at once, and in no other way."""
    sizes = {len(ranks) for groups in streams.groups.values() for ranks in groups}
    return sizes <= {1, streams.world} and all(one.kind not in ("send", "recv") for one in _communications(streams))


def _communications(streams: TaskStreams) -> Iterator[Communication]:
    for trace in streams.traces.values():
        for one in trace.operators:
            if one.communication is not None:
                yield one.communication


def _share_memory(streams: TaskStreams) -> bool:
    return any(
        one.stream.startswith(SHARED_MEMORY_STREAM) for trace in streams.traces.values() for one in trace.operators
    )


def _sends(streams: TaskStreams) -> Iterator[GroupUse]:
    """Yield sender and receiver of what ranks send, by the family of groups and the receiver's position in its group."""
    for family in streams.groups:
        peers = {
            rank: {
                one.communication.peer
                for one in trace.operators
                if one.communication is not None
                and (one.communication.kind, one.communication.group) == ("send", family)
            }
            for rank, trace in streams.traces.items()
        }
        for peer in sorted({peer for found in peers.values() for peer in found if peer is not None}):
            pairs = [
                (rank, streams.group(family, rank)[peer])
                for rank, model in enumerate(streams.like)
                if peer in peers[model]
            ]
            yield GroupUse(("send", family, peer), tuple(pairs))


def _stride(ranks: tuple[int, ...]) -> tuple[int, int] | None:
    """Return how far apart the ranks of a group are, and how many they are; None where they are not equally far apart."""
    stride = ranks[1] - ranks[0]
    regular = stride > 0 and ranks == tuple(range(ranks[0], ranks[-1] + 1, stride))
    return (stride, len(ranks)) if regular else None
