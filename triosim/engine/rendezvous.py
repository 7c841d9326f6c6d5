"""Where tasks of several ranks meet: collectives gather their members, a send and its receive find each other.

Members of a collective are matched by communicator and order of issue, as NCCL does; a send and its receive by pair, tag and
order. What has met goes to the network, and is through when the network says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import simpy

from triosim.engine.rank import Channel, Rank, Side, follow
from triosim.engine.recording import Recording
from triosim.errors import SimulationError
from triosim.tasks import Batch, Collective, Communicator, Handle, Recv, Send, Task

if TYPE_CHECKING:
    from triosim.extrapolators.core.symmetry import Symmetry
    from triosim.networks.base import Network

#: Told of a transfer that begins to run: its kind, its ranks, when the network is through with it, what to do then.
Watch = Callable[[str, Iterable[int], simpy.Event, Callable[[simpy.Event], None]], None]


def enlist(rank: Rank, handle: Handle, task: Task) -> None:
    """Give a task that is issued its place in the order by which it is matched."""
    if isinstance(task, Collective):
        group = task.group
        previous = rank.communicators.get(group)
        if previous is not None:
            follow(handle, previous)
        elif rank.index not in group.ranks:
            raise SimulationError(
                f"rank {rank.index} issued {task.kind} in a group that it does not belong to: {list(group.ranks)}"
            )
        rank.communicators[group] = handle
        handle.place = (_next(rank.issued, group),)
    elif isinstance(task, (Send, Recv)):
        handle.place = (_next(rank.issued, _channel(rank.index, task)),)
    elif isinstance(task, Batch):
        handle.place = tuple(_next(rank.issued, _channel(rank.index, part)) for part in task.parts)


class Rendezvous:
    """Begins collectives, sends and receives; ``finish`` is called for each rank that is through with one.

    ``watch`` is told of each that begins, and calls back when it is through. Where only some ranks are simulated, ``alike``
    says for how many transfers one between some of them stands, a collective begins with those that are there, and who
    receives finds the sender that stands for its own.
    """

    def __init__(
        self,
        network: Network,
        ranks: Mapping[int, Rank],
        recording: Recording,
        finish: Callable[[Rank, Handle], None],
        watch: Watch,
        alike: Symmetry | None = None,
    ) -> None:
        self.gathering: dict[tuple[Communicator, int], list[Handle]] = {}  # collectives that wait for their last member
        self.posted: dict[tuple[Channel, int], Side] = {}  # sends and receives that wait for the other side
        self._env = network.env
        self._network = network
        self._ranks = ranks
        self._recording = recording
        self._finish = finish
        self._watch = watch
        self._alike = alike
        self._members: dict[Communicator, int] = {}  # how many of a group are simulated

    def collective(self, rank: Rank, handle: Handle, task: Collective) -> None:
        """A rank has arrived at a collective; the last of its group starts it."""
        handle.arrived = self._env.now
        group = task.group
        key = (group, handle.place[0])
        members = self.gathering.setdefault(key, [])
        members.append(handle)
        if len(members) < (len(group.ranks) if self._alike is None else self._simulated(group)):
            return
        del self.gathering[key]
        now = self._env.now
        for member in members:
            _check_same(handle, member)
            member.started = now

        def done(_: simpy.Event) -> None:
            key = (task.kind, task.label or group.name, len(group.ranks), task.nbytes)
            copies = 1 if self._alike is None else self._alike.group_multiplicity(group.ranks)
            self._recording.count(key, self._env.now - now, copies)
            for member in members:
                self._finish(self._ranks[member.rank], member)

        event = self._network.collective(task.kind, group.ranks, task.nbytes, root=task.root, shares=task.shares)
        self._watch(task.kind, group.ranks, event, done)

    def _simulated(self, group: Communicator) -> int:
        """How many members of a group are there to come."""
        if group not in self._members:
            self._members[group] = sum(rank in self._ranks for rank in group.ranks)
        return self._members[group]

    def transfer(self, rank: Rank, handle: Handle, task: Send | Recv) -> None:
        """A rank has arrived at a send or a receive."""
        handle.arrived = self._env.now
        self._exchange(Side(rank, handle, task, self._finish), handle.place[0])

    def batch(self, rank: Rank, handle: Handle, task: Batch) -> None:
        """A rank has arrived at sends and receives that go together; it is through when all of them are."""
        handle.arrived = self._env.now
        missing = len(task.parts)
        if not missing:
            handle.started = self._env.now
            self._finish(rank, handle)

        def part_done(_: Rank, __: Handle) -> None:
            nonlocal missing
            missing -= 1
            if missing == 0:
                self._finish(rank, handle)

        for part, place in zip(task.parts, handle.place, strict=True):
            self._exchange(Side(rank, handle, part, part_done), place)

    def _exchange(self, side: Side, place: int) -> None:
        """Bring a send and its receive together; the second of them to come starts the transfer."""
        channel = _channel(side.rank.index, side.part)
        if self._alike is not None:
            channel = Channel(*self._alike.representative_transfer(channel.source, channel.destination), channel.tag)
        other = self.posted.pop((channel, place), None)
        if other is None:
            self.posted[(channel, place)] = side
            return
        now = self._env.now
        for one in (other, side):
            if one.handle.started is None:
                one.handle.started = now
                if isinstance(one.handle.task, Recv) and one.handle.task.ahead:
                    one.handle.arrived = now
        send = side.part if isinstance(side.part, Send) else other.part
        assert isinstance(send, Send)
        other.handle.layers = side.handle.layers = send.layers  # the receiver does not know whose tensors come

        def done(_: simpy.Event) -> None:
            copies = (
                1 if self._alike is None else self._alike.transfer_multiplicity(channel.source, channel.destination)
            )
            self._recording.count(("send", send.label, 2, send.nbytes), self._env.now - now, copies)
            other.finish(other.rank, other.handle)
            side.finish(side.rank, side.handle)

        event = self._network.transfer(channel.source, channel.destination, send.nbytes)
        self._watch("send", (channel.source, channel.destination), event, done)


def _next(issued: dict[Communicator | Channel, int], key: Communicator | Channel) -> int:
    number = issued.get(key, 0)
    issued[key] = number + 1
    return number


def _channel(rank: int, part: Send | Recv) -> Channel:
    """Return where a send and its receive find each other."""
    if isinstance(part, Send):
        return Channel(rank, part.destination, part.tag)
    return Channel(part.source, rank, part.tag)


def _check_same(first: Handle, second: Handle) -> None:
    """Members of one collective must mean the same; in real life NCCL hangs or corrupts data."""
    one, two = first.task, second.task
    if one is two:
        return
    assert isinstance(one, Collective)
    assert isinstance(two, Collective)
    if (one.kind, one.nbytes, one.root, one.shares) != (two.kind, two.nbytes, two.root, two.shares):
        raise SimulationError(
            f"ranks {first.rank} and {second.rank} meet in collective {first.place[0]} of communicator "
            f"'{one.group.name or list(one.group.ranks)}' with {one.kind} of {one.nbytes:g} bytes and "
            f"{two.kind} of {two.nbytes:g} bytes",
            fix="members of a communicator issue the same collectives in the same order",
        )
