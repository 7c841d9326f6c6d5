"""A captured trace as a script: what its rank issues, step by step, whatever groups the rank is in.

Operators between which nothing else happens are one step. Events and works are resolved to the steps that they stand for, so
that a wait names what it waits for, and one that waits for nothing new is left out. A collective that its stream does not
wait for at once runs on its communicator's stream; one that it waits for runs on the issuing stream itself, as in PyTorch's
ProcessGroupNCCL. A batch of sends and receives runs on the communicator's stream, a send or receive alone on its pair's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from triosim.errors import TraceError
from triosim.tasks import Compute, Layers
from triosim.trace import Communication, Mark, Operator, Trace

#: So many operators are one task at most, so that the host, 1,024 launches ahead, does not wait for a single task.
MOST_JOINED = 256


@dataclass(frozen=True, slots=True)
class Meet:
    """A collective of the rank's group of a family; it waits for what stands at the tail of ``issuer``."""

    asked: Communication
    stream: str
    issuer: str | None
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """Sends and receives that go together, or one of them alone."""

    parts: tuple[Communication, ...]
    stream: str
    issuer: str | None
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class Await:
    """A stream waits for steps of the script, by index."""

    steps: tuple[int, ...]
    stream: str


@dataclass(frozen=True, slots=True)
class HostAwait:
    """The host waits for steps, by index; without any, for all that was issued."""

    steps: tuple[int, ...]


Step = Compute | Meet | Exchange | Await | HostAwait


def script(trace: Trace, alone: frozenset[str] = frozenset()) -> tuple[Step, ...]:
    """Return the steps of a trace. In the groups of the families ``alone`` there is nobody else to communicate with.

    Raises ``TraceError`` where a mark waits for a work that nothing before it began.
    """
    writer = _Writer(trace, alone)
    marks = iter((*trace.marks, Mark(len(trace.operators) + 1, "synchronize")))
    mark = next(marks)
    for position, operator in enumerate(trace.operators):
        while mark.position <= position:
            writer.mark(mark)
            mark = next(marks)
        writer.operator(operator)
    while mark.position <= len(trace.operators):
        writer.mark(mark)
        mark = next(marks)
    return writer.finished()


class _Writer:
    def __init__(self, trace: Trace, alone: frozenset[str]) -> None:
        self.trace = trace
        self.alone = alone
        self.steps: list[Step] = []
        self.tails: dict[str, int] = {}  # by stream, the last step on it
        self.events: dict[int, int | None] = {}  # by number, what stood at the stream's tail
        self.works: dict[int, list[int]] = {}
        self.barriers: set[int] = set()  # works for which the host waits
        self.waited: dict[str, dict[str, int]] = {}  # by stream: of another, up to which step it has waited
        self.joined: list[Operator] = []  # operators of one stream that are no step yet
        self.batch: list[Operator] = []
        self.batches = _last_of_each_batch(trace.operators)

    # ---- operators ----------------------------------------------------------------------------------------------

    def operator(self, operator: Operator) -> None:
        asked = operator.communication
        if asked is None:
            if self.joined and (self.joined[0].stream != operator.stream or len(self.joined) == MOST_JOINED):
                self.flush()
            self.joined.append(operator)
        elif asked.kind not in ("send", "recv"):
            self.collective(operator, asked)
        elif asked.batch is None:
            direction = "send to" if asked.kind == "send" else "receive from"
            self.exchange([operator], f"{asked.group} {direction} {asked.peer}")
        else:
            self.batch.append(operator)
            if self.batches[asked.batch] is operator:
                together, self.batch = (
                    [one for one in self.batch if _batch(one) == asked.batch],
                    [one for one in self.batch if _batch(one) != asked.batch],
                )
                self.exchange(together, _own_stream(asked.group))

    def collective(self, operator: Operator, asked: Communication) -> None:
        """Issue a collective, and let who issued it wait where it does."""
        if asked.group in self.alone:
            if asked.work is not None:
                self.works.setdefault(asked.work, [])
            return
        barrier = asked.kind == "barrier"
        at_once = asked.work is None and not barrier
        self.flush(operator.stream)
        stream = operator.stream if at_once else _own_stream(asked.group)
        place = self.put(Meet(asked, stream, None if at_once else operator.stream, _layers(operator)), stream)
        if asked.work is not None:
            self.works.setdefault(asked.work, []).append(place)
            if barrier:
                self.barriers.add(asked.work)
        elif barrier:
            self.host_waits((place,))

    def exchange(self, operators: Sequence[Operator], own: str) -> None:
        """Issue sends and receives; the stream of the first waits for all where nobody is to wait later."""
        parts = tuple(one.communication for one in operators if one.communication is not None)
        issuer = operators[0].stream
        at_once = all(part.work is None for part in parts)
        self.flush(issuer)
        stream = issuer if at_once else own
        place = self.put(Exchange(parts, stream, None if at_once else issuer, _layers(operators[0])), stream)
        for part in parts:
            if part.work is not None:
                self.works.setdefault(part.work, []).append(place)

    # ---- marks --------------------------------------------------------------------------------------------------

    def mark(self, mark: Mark) -> None:
        if mark.kind == "record":
            assert mark.stream is not None
            assert mark.number is not None
            self.flush(mark.stream)
            self.events[mark.number] = self.tails.get(mark.stream)
        elif mark.kind == "wait":
            assert mark.stream is not None
            self.wait(mark.stream, self.recorded(mark))
        elif mark.kind == "wait_work":
            assert mark.stream is not None
            self.wait_work(mark.stream, mark)
        elif mark.number is not None:
            self.host_waits(self.recorded(mark))
        elif mark.stream is not None:
            self.flush(mark.stream)
            self.host_waits((self.tails[mark.stream],) if mark.stream in self.tails else ())
        else:
            self.flush()
            self.steps.append(HostAwait(()))

    def recorded(self, mark: Mark) -> tuple[int, ...]:
        """Return the step that an event stands for; none where it was recorded before the step, or on an empty stream."""
        assert mark.number is not None
        step = self.events.get(mark.number)
        return () if step is None else (step,)

    def wait_work(self, stream: str, mark: Mark) -> None:
        works = self.works.get(mark.number) if mark.number is not None else None
        if works is None:
            raise TraceError(
                f"the mark before operator {mark.position} waits for work {mark.number}, which nothing before it began",
                where=self.trace.source or None,
            )
        self.wait(stream, works)
        if mark.number in self.barriers:
            self.host_waits(tuple(works))

    def wait(self, stream: str, steps: Iterable[int]) -> None:
        """Let a stream wait for steps, unless it comes after them anyway."""
        known = self.waited.setdefault(stream, {})
        new = []
        for step in steps:
            other = self.stream_of(step)
            if other != stream and known.get(other, -1) < step:
                known[other] = step
                new.append(step)
        if new:
            self.flush(stream)
            self.put(Await(tuple(new), stream), stream)

    def host_waits(self, steps: tuple[int, ...]) -> None:
        if steps:
            self.flush()
            self.steps.append(HostAwait(steps))

    # ---- steps --------------------------------------------------------------------------------------------------

    def put(self, step: Step, stream: str) -> int:
        """Put a step at a stream's tail; return its index."""
        self.steps.append(step)
        self.tails[stream] = len(self.steps) - 1
        return len(self.steps) - 1

    def flush(self, stream: str | None = None) -> None:
        """Make a step of the operators that were joined, if they are on this stream, or on any."""
        if self.joined and stream in (None, self.joined[0].stream):
            own = self.joined[0].stream
            self.put(Compute(tuple(self.joined), own), own)
            self.joined = []

    def stream_of(self, step: int) -> str:
        found = self.steps[step]
        assert not isinstance(found, HostAwait)
        assert found.stream is not None
        return found.stream

    def finished(self) -> tuple[Step, ...]:
        self.flush()
        return tuple(self.steps)


def _own_stream(family: str) -> str:
    """Return the name of the stream on which a communicator runs what nobody waits for at once."""
    return f"{family} communication"


def _layers(operator: Operator) -> Layers | None:
    return Layers.of(operator.layer) if operator.layer else None


def _batch(operator: Operator) -> int | None:
    return None if operator.communication is None else operator.communication.batch


def _last_of_each_batch(operators: Iterable[Operator]) -> dict[int, Operator]:
    found: dict[int, Operator] = {}
    for operator in operators:
        asked = operator.communication
        if asked is not None and asked.batch is not None and asked.kind in ("send", "recv"):
            found[asked.batch] = operator
    return found
