"""Evaluates points in several processes, which are handed some points at a time, so that whoever draws them may stop.

The processes are forked where the system can: they begin with what this one has described and priced, and keep what they have
made from one kind of task to the next. Each ignores Ctrl-C, which is for this one to end in what is known so far; on the way
out all of them are ended.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Protocol, TypeVar

from triosim.capture.child_processes import ChildProcess, end
from triosim.configuration_search.outcome import Outcome
from triosim.errors import SimulationError, TriosimError
from triosim.garbage_collector import collecting_what_is_new

One = TypeVar("One")
Task = Callable[[One], Outcome]

#: How many points that share work one process is handed at once, so that at the end none works for long while others wait.
_MOST_IN_A_RUN = 32


class Evaluate(Protocol[One]):
    """Yields each point with what a task finds, as they come.

    A process that is free draws a point, or those that follow each other and have one ``shared`` key: these share work.
    """

    def __call__(
        self, points: Iterable[One], *, shared: Callable[[One], Hashable] | None = None
    ) -> Iterator[tuple[One, Outcome]]:
        """Raises what the task raises, and ``SimulationError`` where a process dies."""


@contextmanager
def processes(*tasks: Task[One], jobs: int = 1) -> Iterator[Sequence[Evaluate[One]]]:
    """Give what evaluates points by each task, in so many processes; with one job, in this process.

    Where processes are spawned, tasks and points must be what ``multiprocessing`` can send.
    """
    if jobs == 1:
        yield [partial(_alone, task) for task in tasks]
        return
    with _started(tasks, jobs) as workers:
        yield [partial(_together, workers, number) for number in range(len(tasks))]


def _alone(
    task: Task[One], points: Iterable[One], *, shared: Callable[[One], Hashable] | None = None
) -> Iterator[tuple[One, Outcome]]:
    with collecting_what_is_new() as collect:
        for point in points:
            yield point, task(point)
            collect()


def _together(
    workers: Sequence[_Worker[One]],
    task: int,
    points: Iterable[One],
    *,
    shared: Callable[[One], Hashable] | None = None,
) -> Iterator[tuple[One, Outcome]]:
    todo = iter(([point] for point in points) if shared is None else runs(points, shared))
    for worker in workers:
        worker.forget()
    while True:
        for worker in workers:
            if not worker.points and (drawn := next(todo, None)):
                worker.start(task, drawn)
        busy = {worker.child.connection: worker for worker in workers if worker.points}
        if not busy:
            return
        for ready in wait(list(busy)):
            yield busy[ready].answer()  # type: ignore[index]


def runs(points: Iterable[One], shared: Callable[[One], Hashable]) -> Iterator[list[One]]:
    """Yield the points that follow each other and have one key, some at a time."""
    for _, group in groupby(points, shared):
        while run := list(islice(group, _MOST_IN_A_RUN)):
            yield run


@dataclass(slots=True)
class _Worker(Generic[One]):
    """A process, and the points that it works on in their order."""

    child: ChildProcess
    points: deque[One] = field(default_factory=deque)

    def start(self, task: int, points: Sequence[One]) -> None:
        """Hand points to the process."""
        self.points.extend(points)
        try:
            self.child.connection.send((task, points))
        except OSError:
            raise self._died() from None

    def answer(self) -> tuple[One, Outcome]:
        """Return the next point and what was found."""
        try:
            found = self.child.connection.recv()
        except (EOFError, OSError):
            raise self._died() from None
        point = self.points.popleft()
        if isinstance(found, BaseException):
            raise found
        return point, found

    def forget(self) -> None:
        """Wait for what somebody asked for who does not want it any more."""
        while self.points:
            self.answer()

    def _died(self) -> SimulationError:
        self.child.process.join(5)
        code = self.child.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        fix = "give fewer --jobs if memory was short; with --study, the search goes on where it ended"
        return SimulationError(f"the process that simulated it {how}", where=str(self.points[0]), fix=fix)


@contextmanager
def _started(tasks: Sequence[Task[One]], jobs: int) -> Iterator[list[_Worker[One]]]:
    """Start processes; at the end, however it comes, all are ended."""
    children: list[ChildProcess] = []
    method = "fork" if sys.platform == "linux" else "spawn"  # forks are not safe on macOS, and Windows has none
    gc.freeze()  # what is forked is not touched, and so not copied, by a search for garbage
    try:
        for _ in range(jobs):
            children.append(ChildProcess.start(method, _work, tasks, beside=children))
        yield [_Worker(child) for child in children]
    finally:
        gc.unfreeze()
        end(children)


def _work(connection: Connection, tasks: Sequence[Task[Any]]) -> None:
    """Answer each point with its outcome, or with the error that ends the search, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError), collecting_what_is_new() as collect:
        while True:
            task, points = connection.recv()
            for point in points:
                connection.send(answer(tasks[task], point))
                collect()


def answer(task: Task[Any], point: Any) -> object:
    """Return what a task finds, or the error that ends the search."""
    try:
        return task(point)
    except TriosimError as error:
        return error
