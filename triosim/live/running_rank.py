"""The simulation's end of the connection to a running rank: turns what the script launches into priced commands."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from triosim.errors import SimulationError
from triosim.extrapolators.captured.commands import Command, CommandWriter
from triosim.live.items import At, Communicated, Groups, HostAction, KeptTraces, NewOperator, StepOver, TimedEvent
from triosim.trace import Mark, Operator, Trace
from triosim.trace.sample_axes import SampleAxes

#: How long a process that hangs has to say where.
_ANSWER_SECONDS = 10.0

#: Gives operators their times: the new ones, given those that were priced before.
Pricer = Callable[[Sequence[Operator], Sequence[Operator]], list[Operator]]


@dataclass(frozen=True, slots=True)
class Issued:
    """A command of a rank, by its number, or an action of its host, by a negative one.

    ``position`` is how many operators and marks the script had issued by then.
    """

    number: int
    what: Command | HostAction
    position: int


@dataclass(slots=True, eq=False)
class RunningRank:
    """A rank whose script runs in a process.

    Each simulated rank that follows it has a queue of what the script has issued and the simulation has not. ``timed`` is
    the position of each timed event, ``kept`` what a script that was interrupted has told.
    """

    rank: int
    process: BaseProcess
    connection: Connection
    pricer: Pricer
    on_groups: Callable[[dict[str, tuple[tuple[int, ...], ...]]], None]
    patience: float
    operators: list[Operator] = field(default_factory=list)
    writer: CommandWriter = field(default_factory=CommandWriter)
    queues: list[deque[Issued]] = field(default_factory=list)
    position: int = 0
    actions: int = 0
    step_starts: deque[int] = field(default_factory=lambda: deque([0], maxlen=3))
    timed: dict[int, int] = field(default_factory=dict)
    kept: KeptTraces | None = None
    _places: list[int] = field(default_factory=list)  # the positions of the commands that are written and not taken

    def queue(self) -> deque[Issued]:
        """Return a new queue of what the script issues from now on."""
        self.queues.append(deque())
        return self.queues[-1]

    def pull(self) -> None:
        """Wait for what the script does next. Raises ``SimulationError`` where its process died, or does nothing."""
        if not self.connection.poll(self.patience):
            raise SimulationError(
                f"rank {self.rank} has launched nothing for {self.patience:g} seconds: the script hangs",
                where=self._line(),
                fix="end the loop that never ends, or give it more time: --patience",
            )
        try:
            items: list[Any] = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            raise SimulationError(f"the process of rank {self.rank} died{_why(self.process)}") from None
        self._price([item.operator for item in items if isinstance(item, NewOperator)])
        issued = list(self._issued(items))
        for queue in self.queues:
            queue.extend(issued)

    def answer(self, value: object) -> None:
        """Answer the question of the script, which waits for it."""
        self.connection.send(value)

    def _line(self) -> str | None:
        """Return the line that the script is at; None where its process does not say."""
        if self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGUSR1)
        while self.connection.poll(_ANSWER_SECONDS):
            for item in self.connection.recv():
                if isinstance(item, At):
                    return item.line
        return None

    def interrupt(self) -> None:
        """Ask a script that still runs for the traces that it has kept: it is not followed any more."""
        if self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGUSR2)
        try:
            while self.kept is None and self.connection.poll(_ANSWER_SECONDS):
                items = self.connection.recv()
                self.kept = next((one for one in items if isinstance(one, KeptTraces)), None)
        finally:
            if self.kept is None:  # it is in a call that does not end
                self.kept = KeptTraces((), {}, SampleAxes())

    def trace(self, step: int) -> tuple[Trace | None, SampleAxes]:
        """Return the trace of a step, of a script that has ended, and the axes that say which samples it has."""
        if self.kept is not None:
            return self.kept.of(step), self.kept.sample_axes
        self.connection.send(step)
        found: tuple[Trace | None, SampleAxes] = self.connection.recv()
        return found

    def _price(self, new: Sequence[Operator]) -> None:
        if new:
            self.operators += self.pricer(new, self.operators)

    def _issued(self, items: Sequence[Any]) -> Iterable[Issued]:
        """Yield the commands and host actions of what was received."""
        writer, operators = self.writer, self.operators
        resolved = [self._operator(item) if isinstance(item, Communicated) else item for item in items]
        writer.expect_batches(one for one in resolved if isinstance(one, Operator))
        for item in resolved:
            if isinstance(item, (int, Operator, Mark, TimedEvent)):
                self.position += 1
            if isinstance(item, int):
                writer.operator(operators[item])
            elif isinstance(item, Operator):
                writer.operator(item)
            elif isinstance(item, Mark):
                writer.mark(item)
            elif isinstance(item, Groups):
                self.on_groups(item.groups)
                writer.alone = {name for name, groups in item.groups.items() if _is_alone(self.rank, groups)}
            elif not isinstance(item, NewOperator):
                yield from self._written()
                yield self._acted(item)
            self._places += [self.position] * (len(writer.commands) - len(self._places))
        yield from self._written()

    def _acted(self, item: HostAction) -> Issued:
        """Return what the host does, and take note of it."""
        self.actions += 1
        if isinstance(item, TimedEvent):
            self.writer.timed_event(item.stream, item.number)
            self.timed[item.number] = self.position
        elif isinstance(item, StepOver):
            self.step_starts.append(self.writer.taken)
            self.writer.forget(self.step_starts[0])
        return Issued(-self.actions, item, self.position)

    def _written(self) -> Iterable[Issued]:
        first = self.writer.taken
        commands = self.writer.take()
        places, self._places = self._places, []
        places += [self.position] * (len(commands) - len(places))
        for number, (command, place) in enumerate(zip(commands, places, strict=True), first):
            yield Issued(number, command, place)

    def _operator(self, item: Communicated) -> Operator:
        return replace(self.operators[item.number], layer=item.layer, communication=item.communication)


def _is_alone(rank: int, groups: Sequence[Sequence[int]]) -> bool:
    return any(len(group) == 1 and rank in group for group in groups)


def _why(process: BaseProcess) -> str:
    code = process.exitcode
    if code is None or code >= 0:
        return "" if not code else f" with status {code}"
    return f" by signal {-code}" + (", as it does when memory runs out" if code == -9 else "")
