"""The plan of a distributed step that runs as it was captured: no parallelism is added.

The trace of each captured rank becomes commands once (``triosim.extrapolators.captured.commands``); the ranks that equal it run
the same commands, each in groups of its own. Computations and collectives that several ranks share are one object.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from triosim.errors import OptionError, TraceError
from triosim.extrapolators.captured.command_tasks import (
    TAGS_OF_A_FAMILY,
    collective_task,
    exchange_task,
    uneven_exchange,
    wait_task,
)
from triosim.extrapolators.captured.commands import Command, CommandWait, GroupCollective, commands_of
from triosim.extrapolators.captured.groups import communicators, symmetry_of
from triosim.tasks import Collective, Communicator, Compute, Copy, Handle, Iteration, Record, Task, TaskStream
from triosim.trace import Communication
from triosim.trace.task_streams import TaskStreams

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
        self.sample_parts = streams.sample_parts
        self.work = tuple((trace, float(streams.like.count(rank))) for rank, trace in streams.traces.items())
        self._groups = communicators(streams)
        self._tags = {family: number * TAGS_OF_A_FAMILY for number, family in enumerate(streams.groups)}
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
        if isinstance(command, (Compute, Copy, Record)):
            return command
        if isinstance(command, CommandWait):
            return wait_task(command, handles)
        if isinstance(command, GroupCollective):
            captured = self.streams.like[rank]
            group = self._group(rank, command.communication)
            sent = self._sent.get((group, self._positions[captured, index]))
            if sent is not None and self.streams.complete:  # the collective that a graph has
                shares = tuple(chain.from_iterable(sent))
                nbytes = math.fsum(shares) / len(group.ranks)  # of all ranks, which send unequal parts
                return replace(collective_task(group, command), nbytes=nbytes, shares=shares)
            if sent is not None:
                tag = -1 - self._tags[group.name]  # no captured send has such a tag
                return uneven_exchange(rank, group, command, sent, tag)
            key = (captured, index, group)
            if key not in self._collectives:
                self._collectives[key] = collective_task(group, command)
            return self._collectives[key]
        for part in command.parts:
            self._group(rank, part)
        return exchange_task(command, self._groups[rank], self._tags)

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

    def _group(self, rank: int, communication: Communication) -> Communicator:
        group = self._groups[rank].get(communication.group)
        if group is None:
            raise TraceError(
                f"rank {rank} communicates in the group '{communication.group}', of which it is no member",
                where=self.streams.source or None,
            )
        return group


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
    captured, others = sorted(streams.traces), streams.world - len(streams.traces)
    if others and not streams.complete:
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
