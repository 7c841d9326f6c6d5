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
from triosim.live.items import At, Communicated, Groups, HostAction, NewOperator, StepOver, TimedEvent
from triosim.trace import Mark, Operator, Trace

#: How long a process that hangs has to say where.
_ANSWER_SECONDS = 5.0

#: Gives operators their times: the new ones, given those that were priced before.
Pricer = Callable[[Sequence[Operator], Sequence[Operator]], list[Operator]]


@dataclass(frozen=True, slots=True)
class Issued:
    """A command of a rank, by its number, or an action of its host, by a negative one."""

    number: int
    what: Command | HostAction


@dataclass(slots=True, eq=False)
class RunningRank:
    """A rank whose script runs in a process.

    Each simulated rank that follows it has a queue of what the script has issued and the simulation has not; ``lines`` are the
    script's lines of its collectives, by group and order, ``line`` is that of its last communication.
    """

    rank: int
    process: BaseProcess
    connection: Connection
    pricer: Pricer
    on_groups: Callable[[dict[str, tuple[tuple[int, ...], ...]]], None]
    patience: float
    has_ended: bool = False
    operators: list[Operator] = field(default_factory=list)
    writer: CommandWriter = field(default_factory=CommandWriter)
    queues: list[deque[Issued]] = field(default_factory=list)
    actions: int = 0
    step_starts: deque[int] = field(default_factory=lambda: deque([0], maxlen=3))
    timed: dict[int, int] = field(default_factory=dict)  # the command of each timed event

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

    def trace(self, step: int) -> tuple[Trace | None, frozenset[str]]:
        """Return the trace of a step, of a script that has ended, and the axes over which it reduces gradients."""
        self.connection.send(step)
        found: tuple[Trace | None, frozenset[str]] = self.connection.recv()
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
            if type(item) is int:
                writer.operator(operators[item])
            elif isinstance(item, Operator):
                writer.operator(item)
            elif isinstance(item, Mark):
                writer.mark(item)
            elif isinstance(item, Groups):
                self.on_groups(item.groups)
                alone = {name for name, groups in item.groups.items() if _is_alone(self.rank, groups)}
                writer.alone = alone
            elif not isinstance(item, NewOperator):
                yield from self._written()
                self.actions += 1
                if isinstance(item, TimedEvent):
                    yield Issued(-self.actions, item)
                    self.timed[item.number] = writer.timed_event(item.stream, item.number)
                    continue
                if isinstance(item, StepOver):
                    self.step_starts.append(writer.taken)
                    writer.forget(self.step_starts[0])
                yield Issued(-self.actions, item)
        yield from self._written()

    def _written(self) -> Iterable[Issued]:
        first = self.writer.taken
        for number, command in enumerate(self.writer.take(), first):
            yield Issued(number, command)

    def _operator(self, item: Communicated) -> Operator:
        return replace(self.operators[item.number], communication=item.communication)


def _is_alone(rank: int, groups: Sequence[Sequence[int]]) -> bool:
    return any(len(group) == 1 and rank in group for group in groups)


def _why(process: BaseProcess) -> str:
    code = process.exitcode
    if code is None or code >= 0:
        return ""
    return f" by signal {-code}" + (", as it does when memory runs out" if code == -9 else "")
