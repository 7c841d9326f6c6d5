"""The plan of a distributed step that runs as it was captured: no parallelism is added.

The trace of each captured rank becomes commands once (``triosim.extrapolators.captured.commands``); the ranks that equal it run
the same commands, each in groups of its own. Computations and collectives that several ranks share are one object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from triosim.errors import OptionError, TraceError
from triosim.extrapolators.captured.commands import Command, CommandWait, GroupCollective, PointToPoint, commands_of
from triosim.extrapolators.captured.groups import communicators, symmetry_of
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


class CapturedPlan:
    """Captured task streams, ready to be run by any rank."""

    parallel = "captured"
    known_options: tuple[str, ...] = ()
    declared = None
    training = True
    pipeline_axis: str | None = None

    def __init__(self, streams: TaskStreams, *, iterations: int = 1) -> None:
        if iterations < 1:
            raise OptionError(f"{iterations} is less than 1", where="iterations", fix="give 1 or more")
        self.streams = streams
        self.iterations = iterations
        self.world = streams.world
        self.notes = tuple(_notes(streams))
        self.symmetry = symmetry_of(streams)
        self.global_batch_size = streams.global_batch_size or _sum_of_batches(streams)
        self.work = tuple((trace, float(streams.like.count(rank))) for rank, trace in streams.traces.items())
        self._groups = communicators(streams)
        self._tags = {family: number * _TAGS_OF_A_FAMILY for number, family in enumerate(streams.groups)}
        self._commands = {
            rank: commands_of(trace, frozenset(n for n, group in self._groups[rank].items() if len(group.ranks) == 1))
            for rank, trace in streams.traces.items()
        }
        self._collectives: dict[tuple[int, int, Communicator], Collective] = {}
        self._orders = {rank: _orders(commands) for rank, commands in self._commands.items()}
        self._positions = {  # of each collective in its communicator's order, by captured rank and index of its command
            (rank, index): position
            for rank, orders in self._orders.items()
            for indices in orders.values()
            for position, index in enumerate(indices)
        }
        self._sent = self._uneven_exchanges()

    def tasks(self, rank: int) -> TaskStream:
        """Return the task stream of one rank. Raises ``TraceError`` where it communicates in a group that it is not in."""
        captured = self.streams.like[rank]
        for _ in range(self.iterations):
            handles: list[Handle] = []
            for index, command in enumerate(self._commands[captured]):
                handles.append((yield self._task(rank, index, command, handles)))
            yield Iteration()

    def _task(self, rank: int, index: int, command: Command, handles: Sequence[Handle]) -> Task:
        """Return a command as a task; ``handles`` are those of the commands before it."""
        if isinstance(command, Compute):
            return command
        if isinstance(command, CommandWait):
            awaited = tuple([handles[other] for other in command.commands])
            return Synchronize(awaited) if command.stream is None else Wait(awaited, command.stream)
        if isinstance(command, GroupCollective):
            captured = self.streams.like[rank]
            group = self._group(rank, command.communication)
            sent = self._sent.get((group, self._positions[captured, index]))
            if sent is not None:
                return self._uneven_exchange(rank, group, command, sent)
            key = (captured, index, group)
            if key not in self._collectives:
                self._collectives[key] = _collective(group, command)
            return self._collectives[key]
        parts = tuple([self._send_or_receive(rank, part, command) for part in command.parts])
        if len(parts) == 1:
            return parts[0]
        return Batch(parts, command.stream, command.issuer, command.parts[0].group, command.layers)

    def _uneven_exchanges(self) -> dict[tuple[Communicator, int], _Sent]:
        """Return the bytes from each member to each of all-to-alls with unequal parts, by group and position in its order."""
        found: dict[tuple[Communicator, int], _Sent] = {}
        for group in dict.fromkeys(group for known in self._groups for group in known.values()):
            members = [self._collectives_of(self.streams.like[rank], group.name) for rank in group.ranks]
            for position, together in enumerate(zip(*members, strict=False)):
                if any(one.kind != "all_to_all" for one in together):
                    continue
                if any(one.shares for one in together) or len({one.nbytes for one in together}) > 1:
                    size = len(group.ranks)
                    found[group, position] = tuple([one.shares or (one.nbytes / size,) * size for one in together])
        return found

    def _collectives_of(self, captured: int, family: str) -> Iterator[Communication]:
        for index in self._orders[captured].get(family, ()):
            command = self._commands[captured][index]
            assert isinstance(command, GroupCollective)
            yield command.communication

    def _uneven_exchange(self, rank: int, group: Communicator, command: GroupCollective, sent: _Sent) -> Batch:
        """Return an all-to-all of unequal parts as NCCL does it: a batch of sends and receives, none of no bytes."""
        family, stream, issuer = command.communication.group, command.stream, command.issuer
        own = group.ranks.index(rank)
        tag = -1 - self._tags[family]  # no captured send has such a tag
        parts: list[Send | Recv] = []
        for index, other in enumerate(group.ranks):
            if index != own and sent[own][index]:
                parts.append(Send(other, sent[own][index], tag, stream, issuer, family, layers=command.layers))
            if index != own and sent[index][own]:
                parts.append(Recv(other, tag, stream, issuer, family))
        return Batch(tuple(parts), stream, issuer, family, command.layers)

    def _send_or_receive(self, rank: int, part: Communication, command: PointToPoint) -> Send | Recv:
        assert part.peer is not None
        peer = self._group(rank, part).ranks[part.peer]
        tag = part.tag + self._tags[part.group]
        if part.kind == "send":
            return Send(peer, part.nbytes, tag, command.stream, command.issuer, part.group, command.layers)
        return Recv(peer, tag, command.stream, command.issuer, part.group)

    def _group(self, rank: int, communication: Communication) -> Communicator:
        group = self._groups[rank].get(communication.group)
        if group is None:
            raise TraceError(
                f"rank {rank} communicates in the group '{communication.group}', of which it is no member",
                where=self.streams.source or None,
            )
        return group


def _collective(group: Communicator, command: GroupCollective) -> Collective:
    communication = command.communication
    barrier = communication.kind == "barrier"
    kind = COLLECTIVES["all_reduce" if barrier else cast(CollectiveKind, communication.kind)]
    return kind(
        max(communication.nbytes, BARRIER_BYTES) if barrier else communication.nbytes,
        group,
        command.stream,
        command.issuer,
        None if communication.root is None else group.ranks[communication.root],
        communication.shares,
        layers=command.layers,
    )


def _orders(commands: tuple[Command, ...]) -> dict[str, list[int]]:
    """Return the indices of the commands that are collectives, in order, by family of groups."""
    found: dict[str, list[int]] = {}
    for index, command in enumerate(commands):
        if isinstance(command, GroupCollective):
            found.setdefault(command.communication.group, []).append(index)
    return found


def _sum_of_batches(streams: TaskStreams) -> int:
    return sum(streams.traces[captured].batch_size for captured in streams.like)


def _notes(streams: TaskStreams) -> Iterator[str]:
    if streams.complete:
        return
    captured, others = sorted(streams.traces), streams.world - len(streams.traces)
    if others:
        each = f"the other {others} ranks are" if others > 1 else "the other rank is"
        if len(captured) == 1:
            yield f"rank {captured[0]} was captured; {each} assumed to run the same operators"
        else:
            listed = ", ".join(map(str, captured))
            yield f"ranks {listed} were captured; {each} assumed to run the same operators as one of them"
    if streams.global_batch_size is None and streams.world > 1:
        yield (
            "the streams do not say the global batch size; each rank is assumed to train on samples of its own, "
            f"{_sum_of_batches(streams)} together"
        )
