"""The rendezvous of ranks: collectives wait for all members, sends and receives for their partner.

Members of a collective are matched by communicator and order of issue, as in NCCL; sends and receives by pair, tag and
order. The network delivers what is matched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import simpy

from triosim.engine.copy_engines import StartTransfer
from triosim.engine.intervals import Intervals, length
from triosim.engine.rank_state import Channel, RankState, TransferEnd, add_dependency
from triosim.engine.recording import Recording
from triosim.errors import AsymmetryError, SimulationError
from triosim.networks.extensions import GatheringNetwork, TransportNetwork
from triosim.tasks import Batch, Collective, Communicator, Handle, Recv, Send, Task

if TYPE_CHECKING:
    from triosim.extrapolators.core.symmetry import Symmetry
    from triosim.networks.base import Network


def assign_sequence_numbers(rank: RankState, handle: Handle, task: Task) -> None:
    """Number a task that is issued within its communicator or channels; a collective waits for the one before it."""
    if isinstance(task, Collective):
        group = task.group
        previous = rank.last_collectives.get(group)
        if previous is not None:
            add_dependency(handle, previous)
        elif rank.index not in group.ranks:
            raise SimulationError(
                f"rank {rank.index} issued {task.kind} in a group that it does not belong to: {list(group.ranks)}"
            )
        rank.last_collectives[group] = handle
        handle.sequence_numbers = (_next(rank.issue_counts, group),)
    elif isinstance(task, (Send, Recv)):
        handle.sequence_numbers = (_next(rank.issue_counts, _channel(rank.index, task)),)
    elif isinstance(task, Batch):
        handle.sequence_numbers = tuple(_next(rank.issue_counts, _channel(rank.index, part)) for part in task.parts)


class Rendezvous:
    """Matches collectives, sends and receives, and starts them; ``finish`` is called for each rank when one ends.

    ``start_transfer`` is called with each that starts. With a ``symmetry`` only the representatives are simulated: a collective
    starts when these have arrived, a receive is matched with the send of a representative, and each transfer counts as often
    as the symmetry says.
    """

    def __init__(
        self,
        network: Network,
        ranks: Mapping[int, RankState],
        recording: Recording,
        finish: Callable[[RankState, Handle], None],
        start_transfer: StartTransfer,
        symmetry: Symmetry | None = None,
    ) -> None:
        self.arriving: dict[tuple[Communicator, int], list[Handle]] = {}  # collectives that miss members
        self.posted: dict[tuple[Channel, int], TransferEnd] = {}  # sends and receives without a partner
        self._env = network.env
        self._network = network
        self._ranks = ranks
        self._recording = recording
        self._finish = finish
        self._start_transfer = start_transfer
        self._symmetry = symmetry
        self._simulated_members: dict[Communicator, int] = {}

    def collective(self, rank: RankState, handle: Handle, task: Collective) -> None:
        """Take a rank's arrival at a collective; the last member starts it."""
        handle.arrived = self._env.now
        group = task.group
        key = (group, handle.sequence_numbers[0])
        members = self.arriving.setdefault(key, [])
        members.append(handle)
        if len(members) < (len(group.ranks) if self._symmetry is None else self._count_simulated(group)):
            return
        del self.arriving[key]
        now = self._env.now
        task = self._agreed(handle, members)
        for member in members:
            member.started = now

        def done(_: simpy.Event) -> None:
            key = (task.kind, task.label or group.name, len(group.ranks), task.nbytes)
            multiplicity = 1 if self._symmetry is None else self._symmetry.group_multiplicity(group.ranks)
            self._recording.count_transfer(key, self._env.now - now, multiplicity)
            for member in members:
                self._finish(self._ranks[member.rank], member)

        if task.transport is not None and isinstance(self._network, TransportNetwork):
            event = self._network.exchange(task.transport, group.ranks)
        elif task.memory is not None and isinstance(self._network, GatheringNetwork):
            event = self._network.gather_from(task.memory, group.ranks, task.nbytes)
        else:
            event = self._network.collective(task.kind, group.ranks, task.nbytes, root=task.root, shares=task.shares)
        self._start_transfer(task.kind, group.ranks, event, done)

    def _agreed(self, handle: Handle, members: Sequence[Handle]) -> Collective:
        """Return the collective that the members issued; of an all-to-all of unequal parts what each sends to each.

        Raises ``SimulationError`` where they issued different ones.
        """
        task = _collective_of(handle)
        unequal = task.kind == "all_to_all" and any(_collective_of(one).shares is not None for one in members)
        for member in members:
            _check_same(handle, member, parts=not unequal)
        if not unequal or all(_what(task) == _what(_collective_of(one)) for one in members):
            return task
        sent, ranks = {one.rank: _collective_of(one) for one in members}, task.group.ranks
        senders = ranks if self._symmetry is None else [self._symmetry.representative(rank) for rank in ranks]
        if any(one not in sent for one in senders):
            raise AsymmetryError(f"an all-to-all of unequal parts{_at(task)} is between ranks that are folded")
        rows = [_parts(sent[one], len(ranks)) for one in senders]
        shares = tuple(chain.from_iterable(rows))
        return replace(task, nbytes=math.fsum(shares) / len(ranks), shares=shares)

    def _count_simulated(self, group: Communicator) -> int:
        if group not in self._simulated_members:
            self._simulated_members[group] = sum(rank in self._ranks for rank in group.ranks)
        return self._simulated_members[group]

    def transfer(self, rank: RankState, handle: Handle, task: Send | Recv) -> None:
        """Take a rank's arrival at a send or a receive."""
        handle.arrived = self._env.now
        self._match(TransferEnd(rank, handle, task, self._transferred), handle.sequence_numbers[0])

    def _transferred(self, end: TransferEnd) -> None:
        self._finish(end.rank, end.handle)

    def batch(self, rank: RankState, handle: Handle, task: Batch) -> None:
        """Take a rank's arrival at a batch of sends and receives; it ends when all of them have ended.

        Each part is recorded by itself: one may still wait for its partner when another has ended.
        """
        arrived = handle.arrived = self._env.now
        missing, moving = len(task.parts), Intervals()
        if not missing:
            handle.started = self._env.now
            self._finish(rank, handle)

        def part_done(end: TransferEnd) -> None:
            nonlocal missing
            missing -= 1
            layers = handle.layers or task.layers
            rank.record.communication.add(arrived, end.started, self._env.now, task.label, layers)
            moving.add(end.started, self._env.now)
            if missing == 0:
                rank.record.waiting_seconds += self._env.now - arrived - length(moving.merged())
                self._finish(rank, handle)

        for part, number in zip(task.parts, handle.sequence_numbers, strict=True):
            self._match(TransferEnd(rank, handle, part, part_done), number)

    def _match(self, end: TransferEnd, number: int) -> None:
        """Match a send with its receive; the second of them to arrive starts the transfer."""
        channel = _channel(end.rank.index, end.task)
        if self._symmetry is not None:
            pair = self._symmetry.representative_transfer(channel.source, channel.destination)
            channel = Channel(*pair, channel.tag)
        other = self.posted.pop((channel, number), None)
        if other is None:
            self.posted[(channel, number)] = end
            return
        now = self._env.now
        for one in (other, end):
            one.started = now
            if one.handle.started is None:
                one.handle.started = now
                if isinstance(one.handle.task, Recv) and one.handle.task.preposted:
                    one.handle.arrived = now
        send = end.task if isinstance(end.task, Send) else other.task
        assert isinstance(send, Send)
        other.handle.layers = end.handle.layers = send.layers  # the receiver does not know whose tensors arrive
        (other if send is end.task else end).handle.received += send.nbytes

        def done(_: simpy.Event) -> None:
            multiplicity = 1
            if self._symmetry is not None:
                multiplicity = self._symmetry.transfer_multiplicity(channel.source, channel.destination)
            self._recording.count_transfer(("send", send.label, 2, send.nbytes), self._env.now - now, multiplicity)
            other.finish(other)
            end.finish(end)

        event = self._network.transfer(channel.source, channel.destination, send.nbytes)
        self._start_transfer("send", (channel.source, channel.destination), event, done)


def _next(issue_counts: dict[Communicator | Channel, int], key: Communicator | Channel) -> int:
    number = issue_counts.get(key, 0)
    issue_counts[key] = number + 1
    return number


def _channel(rank: int, task: Send | Recv) -> Channel:
    if isinstance(task, Send):
        return Channel(rank, task.destination, task.tag)
    return Channel(task.source, rank, task.tag)


def _collective_of(handle: Handle) -> Collective:
    assert isinstance(handle.task, Collective)
    return handle.task


def _what(task: Collective, *, parts: bool = True) -> tuple[object, ...]:
    return task.kind, task.root, task.transport, task.memory, *((task.nbytes, task.shares) if parts else ())


def _parts(task: Collective, ranks: int) -> Sequence[float]:
    """Return what a rank sends to each one in an all-to-all."""
    return task.shares or (task.nbytes / ranks,) * ranks


def _at(task: Collective) -> str:
    return f" at {task.line}" if task.line else ""


def _described(task: Collective) -> str:
    return f"{task.kind} of {task.nbytes:g} bytes{_at(task)}"


def _check_same(first: Handle, second: Handle, *, parts: bool = True) -> None:
    """Check that two members issued the same collective; on a GPU, NCCL would hang or corrupt data."""
    one, two = _collective_of(first), _collective_of(second)
    if one is not two and _what(one, parts=parts) != _what(two, parts=parts):
        raise SimulationError(
            f"ranks {first.rank} and {second.rank} meet in collective {first.sequence_numbers[0]} of communicator "
            f"'{one.group.name or list(one.group.ranks)}' with {_described(one)} and {_described(two)}",
            fix="members of a communicator issue the same collectives in the same order",
        )
