"""The commands of a captured rank: the operators, collectives and waits that its host issues, in order.

Consecutive operators of one stream are one command. Waits name the commands of the events and works that they wait for; a wait
for a command that is known to be over is left out. A collective that the issuing stream waits for at once runs on that stream,
any other on its communicator's stream, as in PyTorch's ProcessGroupNCCL. A batch of sends and receives runs on the
communicator's stream, a send or receive outside of a batch on a stream of its pair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from triosim.errors import TraceError
from triosim.tasks import HOST_STREAM, SHARED_MEMORY_STREAM, Compute, Copy, Layers, Record
from triosim.trace import Communication, Mark, Operator, Trace
from triosim.trace.copies import COPIED_BYTES, COPY_LABEL, COPY_STREAM, ends_of, is_host_copy

#: The most operators of one command: more would hold up the host, which runs at most 1,024 launches ahead.
MOST_JOINED = 256


@dataclass(frozen=True, slots=True)
class GroupCollective:
    """A collective of the rank with its group; it waits for the last command on the stream ``issuer``."""

    communication: Communication
    stream: str
    issuer: str | None
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """A batch of sends and receives, or one of them alone."""

    parts: tuple[Communication, ...]
    stream: str
    issuer: str | None
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class CommandWait:
    """A wait of a stream, or of the host (None), for the commands with these indices; the host without any waits for all."""

    commands: tuple[int, ...]
    stream: str | None = None


Command = Compute | Copy | Record | GroupCollective | PointToPoint | CommandWait


class _Issued(NamedTuple):
    """A command that was written: its number and its stream."""

    number: int
    stream: str


def commands_of(trace: Trace, alone: Set[str] = frozenset()) -> tuple[Command, ...]:
    """Return the commands of a trace. In the groups of the families ``alone`` the rank has no partner.

    Raises ``TraceError`` where a mark waits for a work that nothing before it began.
    """
    writer = CommandWriter(alone, trace.source)
    writer.expect_batches(trace.operators)
    marks = deque(trace.marks)
    for position, operator in enumerate((*trace.operators, None)):
        while marks and marks[0].position <= position:
            writer.mark(marks.popleft())
        if operator is not None:
            writer.operator(operator)
    writer.flush()
    return tuple(writer.commands)


class CommandWriter:
    """Turns operators and marks into commands; ``alone`` is as in ``commands_of``, ``source`` names the trace in errors.

    Commands are numbered as they are written. Whoever follows a running script takes those that were written so far
    (``take``), and lets old events be forgotten (``forget``).
    """

    def __init__(self, alone: Set[str] = frozenset(), source: str = "") -> None:
        self.alone = alone
        self.source = source
        self.commands: list[Command] = []
        self.taken = 0  # how many commands were taken before those
        self.tails: dict[str, _Issued] = {}  # by stream: its last command
        self.events: dict[
            int | None, tuple[_Issued, ...]
        ] = {}  # by number: the stream's last command when it was recorded
        self.works: dict[int | None, list[_Issued]] = {}
        self.barriers: set[int] = set()  # works for which the host waits
        self.waited: dict[str, dict[str, int]] = {}  # by stream: up to which command of another stream it has waited
        self.joined: list[Operator] = []  # operators of one stream that are no command yet
        self.batches: dict[int, list[Operator]] = {}

    def expect_batches(self, operators: Iterable[Operator]) -> None:
        """Note which of the operators to come are sends and receives of one batch."""
        self.batches = _batches(operators)

    def take(self) -> list[Command]:
        """Return the commands that were written since they were last taken, all that is joined included."""
        self.flush()
        found, self.commands = self.commands, []
        self.taken += len(found)
        return found

    def forget(self, before: int) -> None:
        """Forget the events and works of commands before this one: they are over."""
        self.events = {key: found for key, found in self.events.items() if any(one.number >= before for one in found)}
        self.works = {key: found for key, found in self.works.items() if any(one.number >= before for one in found)}
        self.barriers &= self.works.keys()

    # ---- operators ----------------------------------------------------------------------------------------------

    def operator(self, operator: Operator) -> None:
        """Write an operator, joined with those before it where it can be."""
        communication = operator.communication
        if communication is None and operator.stream.startswith(COPY_STREAM) and is_host_copy(operator.kernels):
            self.copy(operator)
        elif communication is None:
            if self.joined and (self.joined[0].stream != operator.stream or len(self.joined) == MOST_JOINED):
                self.flush()
            self.joined.append(operator)
            if operator.stream.startswith(SHARED_MEMORY_STREAM):  # others may have their turn before the next
                self.flush()
        elif communication.kind not in ("send", "recv"):
            self.collective(operator, communication)
        elif communication.batch is None:
            direction = "send to" if communication.kind == "send" else "receive from"
            self.exchange([operator], f"{communication.group} {direction} {communication.peer}")
        elif self.batches[communication.batch][-1] is operator:
            self.exchange(self.batches[communication.batch], _own_stream(communication.group))

    def copy(self, operator: Operator) -> None:
        """Issue a copy that was measured, by the engine of its direction; none of the GPU's carries one between memories."""
        self.flush()
        own, said = operator.stream, operator.attributes
        ends = ends_of(operator.kernels[0], own)
        nbytes, label = float(said.get(COPIED_BYTES, 0)), str(said.get(COPY_LABEL, "copies"))
        self.put(Copy(*ends, nbytes, own, None, label, _layers(operator), operator.seconds), own)

    def collective(self, operator: Operator, communication: Communication) -> None:
        """Issue a collective; the issuing stream waits for it where the capture says so."""
        if communication.group in self.alone:
            if communication.work is not None:
                self.works.setdefault(communication.work, [])
            return
        barrier = communication.kind == "barrier"
        at_once = communication.work is None and not barrier
        self.flush(operator.stream)
        stream = operator.stream if at_once else _own_stream(communication.group)
        issuer = None if at_once else operator.stream
        issued = self.put(GroupCollective(communication, stream, issuer, _layers(operator)), stream)
        if communication.work is not None:
            self.works.setdefault(communication.work, []).append(issued)
            if barrier:
                self.barriers.add(communication.work)
        elif barrier:
            self.host_waits((issued,))

    def exchange(self, operators: Sequence[Operator], own: str) -> None:
        """Issue sends and receives; the stream of the first one waits for all, unless something waits for them later."""
        parts = tuple(one.communication for one in operators if one.communication is not None)
        issuer = operators[0].stream
        at_once = all(part.work is None for part in parts)
        self.flush(issuer)
        stream = issuer if at_once else own
        issued = self.put(PointToPoint(parts, stream, None if at_once else issuer, _layers(operators[0])), stream)
        for part in parts:
            if part.work is not None:
                self.works.setdefault(part.work, []).append(issued)

    # ---- marks --------------------------------------------------------------------------------------------------

    def mark(self, mark: Mark) -> None:
        """Write a mark."""
        stream, number = mark.stream, mark.number
        if mark.kind == "synchronize":
            if number is not None:
                self.host_waits(self.events.get(number, ()))
            elif stream is not None:
                self.flush(stream)
                self.host_waits(self.tail(stream))
            else:
                self.flush()
                self.commands.append(CommandWait(()))
            return
        assert stream is not None
        if mark.kind == "record":
            self.flush(stream)
            self.events[number] = self.tail(stream)
        elif mark.kind == "wait":
            self.wait(stream, self.events.get(number, ()))
        else:
            self.wait_work(stream, mark)

    def timed_event(self, stream: str, number: int) -> int:
        """Record an event whose time will be asked for; return the number of its command."""
        self.flush(stream)
        issued = self.put(Record(stream), stream)
        self.events[number] = (issued,)
        return issued.number

    def tail(self, stream: str) -> tuple[_Issued, ...]:
        """Return the last command of a stream; nothing for a stream that is empty."""
        return (self.tails[stream],) if stream in self.tails else ()

    def wait_work(self, stream: str, mark: Mark) -> None:
        """Let a stream wait for a work. Raises ``TraceError`` where no operator before it began that."""
        works = self.works.get(mark.number)
        if works is None:
            what = f"the mark before operator {mark.position} waits for communication {mark.number}"
            raise TraceError(f"{what}, which no earlier operator started", where=self.source or None)
        self.wait(stream, works)
        if mark.number in self.barriers:
            self.host_waits(works)

    def wait(self, stream: str, issued: Iterable[_Issued]) -> None:
        """Let a stream wait for commands, unless it runs after them anyway."""
        known = self.waited.setdefault(stream, {})
        new = []
        for number, other in issued:
            if other != stream and known.get(other, -1) < number:
                known[other] = number
                new.append(number)
        if new:
            self.flush(stream)
            self.put(CommandWait(tuple(new), stream), stream)

    def host_waits(self, issued: Iterable[_Issued]) -> None:
        """Let the host wait for commands, if there are any."""
        numbers = tuple([one.number for one in issued])
        if numbers:
            self.flush()
            self.commands.append(CommandWait(numbers))

    # ---- commands --------------------------------------------------------------------------------------------------

    def put(self, command: Command, stream: str) -> _Issued:
        """Put a command at the end of a stream."""
        self.commands.append(command)
        self.tails[stream] = issued = _Issued(self.taken + len(self.commands) - 1, stream)
        return issued

    def flush(self, stream: str | None = None) -> None:
        """Make a command of the operators that were joined, if they are on this stream (or on any, without one)."""
        if self.joined and stream in (None, self.joined[0].stream):
            own = self.joined[0].stream
            share = 0.0 if own.startswith(HOST_STREAM) else 1.0
            self.put(Compute(tuple(self.joined), own, share), own)
            self.joined = []


def _own_stream(family: str) -> str:
    """Return the name of the stream on which a communicator runs asynchronous collectives."""
    return f"{family} communication"


def _layers(operator: Operator) -> Layers | None:
    return Layers.of(operator.layer) if operator.layer else None


def _batches(operators: Iterable[Operator]) -> dict[int, list[Operator]]:
    """Return the sends and receives of each batch."""
    found: dict[int, list[Operator]] = {}
    for operator in operators:
        communication = operator.communication
        if communication is not None and communication.batch is not None and communication.kind in ("send", "recv"):
            found.setdefault(communication.batch, []).append(operator)
    return found
