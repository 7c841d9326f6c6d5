"""A distributed step as it was captured, run by every rank: no parallelism is put on top of it.

Each captured rank's trace becomes a script once (``triosim.extrapolators.captured.script``); the ranks that are like it run the
same script, each in groups of its own. What is the same for several ranks, a computation or a collective, is one object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import cast

from triosim.errors import OptionError, TraceError
from triosim.extrapolators.captured.script import Await, Exchange, Meet, Step, script
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.tasks import (
    COLLECTIVES,
    Batch,
    Collective,
    CollectiveKind,
    Communicator,
    Compute,
    Handle,
    Iteration,
    Recv,
    Send,
    Synchronize,
    Task,
    TaskStream,
    Wait,
)
from triosim.trace import Communication
from triosim.trace.task_streams import TaskStreams

#: A barrier is an all-reduce of one float (PyTorch, ProcessGroupNCCL::barrier).
BARRIER_BYTES = 4.0

#: Tags of families of groups are kept apart by multiples of this, because two ranks may be peers in several.
_TAGS_OF_A_FAMILY = 2**31


#: The bytes that each member of a group sends to each.
_Sent = tuple[tuple[float, ...], ...]


class Captured:
    """Task streams, ready to be run by any rank."""

    parallel = "captured"
    known_options: tuple[str, ...] = ()
    training = True
    pipeline_axis: str | None = None

    def __init__(self, streams: TaskStreams, *, iterations: int = 1) -> None:
        if iterations < 1:
            raise OptionError(f"{iterations} is less than 1", where="iterations", fix="give 1 or more")
        self.streams = streams
        self.iterations = iterations
        self.world = streams.world
        self.notes = tuple(_notes(streams))
        self.symmetry = _symmetry(streams)  # of ranks that do the same
        self.global_batch_size = streams.global_batch_size or _sum_of_batches(streams)
        self.work = tuple((trace, float(streams.like.count(rank))) for rank, trace in streams.traces.items())
        self._groups = _communicators(streams)
        self._tags = {family: number * _TAGS_OF_A_FAMILY for number, family in enumerate(streams.groups)}
        self._scripts = {
            rank: script(trace, frozenset(name for name, group in self._groups[rank].items() if len(group.ranks) == 1))
            for rank, trace in streams.traces.items()
        }
        self._collectives: dict[tuple[int, int, Communicator], Collective] = {}
        self._places = {rank: _places(steps) for rank, steps in self._scripts.items()}
        self._sent = self._uneven()

    def tasks(self, rank: int) -> TaskStream:
        """Return the task stream of one rank. Raises ``TraceError`` where it communicates in a group that it is not in."""
        model = self.streams.like[rank]
        for _ in range(self.iterations):
            handles: list[Handle] = []
            for index, step in enumerate(self._scripts[model]):
                task: Task
                if isinstance(step, Compute):
                    task = step
                elif isinstance(step, Await):
                    task = Wait(tuple([handles[other] for other in step.steps]), step.stream)
                elif isinstance(step, Meet):
                    key = (self._group(rank, step.asked), self._places[model][index])
                    sent = self._sent.get(key)
                    task = (
                        self._collective(rank, model, index, step) if sent is None else self._spread(rank, step, sent)
                    )
                elif isinstance(step, Exchange):
                    task = self._exchange(rank, step)
                else:
                    task = Synchronize(tuple([handles[other] for other in step.steps]))
                handles.append((yield task))
            yield Iteration()

    def _collective(self, rank: int, model: int, index: int, step: Meet) -> Collective:
        group = self._group(rank, step.asked)
        key = (model, index, group)
        task = self._collectives.get(key)
        if task is None:
            asked = step.asked
            kind = "all_reduce" if asked.kind == "barrier" else asked.kind
            task = self._collectives[key] = COLLECTIVES[cast(CollectiveKind, kind)](
                max(asked.nbytes, BARRIER_BYTES) if asked.kind == "barrier" else asked.nbytes,
                group,
                step.stream,
                step.issuer,
                None if asked.root is None else group.ranks[asked.root],
                asked.shares,
                layers=step.layers,
            )
        return task

    def _uneven(self) -> dict[tuple[Communicator, int], _Sent]:
        """Return, by group and place in its order, all-to-alls that are not of equal parts: who sends whom how much."""
        by_family = {
            rank: {
                family: [step.asked for step in steps if isinstance(step, Meet) and step.asked.group == family]
                for family in self.streams.groups
            }
            for rank, steps in self._scripts.items()
        }
        found: dict[tuple[Communicator, int], _Sent] = {}
        for group in dict.fromkeys(group for known in self._groups for group in known.values()):
            members = [by_family[self.streams.like[rank]][group.name] for rank in group.ranks]
            for place, together in enumerate(zip(*members, strict=False)):
                if any(one.kind != "all_to_all" for one in together):
                    continue
                if any(one.shares for one in together) or len({one.nbytes for one in together}) > 1:
                    found[group, place] = tuple([_to_each(one, len(group.ranks)) for one in together])
        return found

    def _spread(self, rank: int, step: Meet, sent: _Sent) -> Batch:
        """Return an all-to-all of unequal parts as NCCL does it: sends and receives that go together, none of no bytes."""
        family = step.asked.group
        group = self._group(rank, step.asked)
        own = group.ranks.index(rank)
        tag = -1 - self._tags[family]  # no send of the script has such a tag
        parts: list[Send | Recv] = []
        for place, other in enumerate(group.ranks):
            if place == own:
                continue
            if sent[own][place]:
                parts.append(Send(other, sent[own][place], tag, step.stream, step.issuer, family, layers=step.layers))
            if sent[place][own]:
                parts.append(Recv(other, tag, step.stream, step.issuer, family))
        return Batch(tuple(parts), step.stream, step.issuer, family, step.layers)

    def _exchange(self, rank: int, step: Exchange) -> Task:
        parts = tuple([self._part(rank, asked, step) for asked in step.parts])
        return parts[0] if len(parts) == 1 else Batch(parts, step.stream, step.issuer, step.parts[0].group, step.layers)

    def _part(self, rank: int, asked: Communication, step: Exchange) -> Send | Recv:
        assert asked.peer is not None
        peer = self._group(rank, asked).ranks[asked.peer]
        tag = asked.tag + self._tags[asked.group]
        if asked.kind == "send":
            return Send(peer, asked.nbytes, tag, step.stream, step.issuer, asked.group, step.layers)
        return Recv(peer, tag, step.stream, step.issuer, asked.group)

    def _group(self, rank: int, asked: Communication) -> Communicator:
        group = self._groups[rank].get(asked.group)
        if group is None:
            raise TraceError(
                f"rank {rank} communicates in '{asked.group}', of which it is in no group",
                where=self.streams.source or None,
            )
        return group


def _communicators(streams: TaskStreams) -> list[dict[str, Communicator]]:
    """Return each rank's communicators by family; one object for all members of a group."""
    found: list[dict[str, Communicator]] = [{} for _ in range(streams.world)]
    for family, groups in streams.groups.items():
        for ranks in groups:
            communicator = Communicator(ranks, family)
            for rank in ranks:
                found[rank][family] = communicator
    return found


def _symmetry(streams: TaskStreams) -> Symmetry | None:
    """The ranks that do the same, where the groups of each family stand as on a mesh: of equal size, as far apart."""
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
    alike = [
        axis
        for axis in sizes
        if all(model == streams.like[mesh.neighbour(axis, rank, 0)] for rank, model in enumerate(streams.like))
    ]
    return Symmetry(mesh, alike) if alike else None


def _stride(ranks: tuple[int, ...]) -> tuple[int, int] | None:
    """How far apart the ranks of a group are, and how many they are; None where they are not equally far apart."""
    stride = ranks[1] - ranks[0]
    regular = stride > 0 and ranks == tuple(range(ranks[0], ranks[-1] + 1, stride))
    return (stride, len(ranks)) if regular else None


def _places(steps: tuple[Step, ...]) -> Mapping[int, int]:
    """Return the place of each collective of a script in the order of its communicator, by its index."""
    counts: Counter[str] = Counter()
    found = {}
    for index, step in enumerate(steps):
        if isinstance(step, Meet):
            found[index] = counts[step.asked.group]
            counts[step.asked.group] += 1
    return found


def _to_each(asked: Communication, members: int) -> tuple[float, ...]:
    return asked.shares or (asked.nbytes / members,) * members


def _sum_of_batches(streams: TaskStreams) -> int:
    return sum(streams.traces[model].batch_size for model in streams.like)


def _notes(streams: TaskStreams) -> Iterator[str]:
    if len(streams.traces) < streams.world:
        captured = ", ".join(str(rank) for rank in sorted(streams.traces))
        yield f"captured: rank {captured}; the other ranks of {streams.world} are taken to do the same as one of these"
    if streams.global_batch_size is None and streams.world > 1:
        yield (
            f"the streams do not say how many samples all ranks share: taken are {_sum_of_batches(streams)}, "
            "each rank's own together"
        )
