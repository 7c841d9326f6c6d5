"""Evaluates points in several processes, which are handed one point at a time, so that whoever draws them may stop.

The processes are forked where the system can: they begin with what this one has described and priced. Each ignores Ctrl-C,
which is for this one to end in what is known so far; on the way out all of them are ended.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from triosim.errors import SimulationError, TriosimError
from triosim.search.outcome import Outcome

One = TypeVar("One")
Task = Callable[[One], Outcome]


def evaluate(task: Task[One], points: Iterable[One], jobs: int = 1) -> Iterator[tuple[One, Outcome]]:
    """Yield each point with what ``task`` finds, as they come; a point is drawn when a process is free for it.

    Where processes are spawned, ``task`` and the points must be what ``multiprocessing`` can send. Raises what ``task`` raises,
    and ``SimulationError`` where a process dies.
    """
    todo = iter(points)
    if jobs == 1:
        for point in todo:
            yield point, task(point)
        return
    with _processes(task, jobs) as idle:
        busy: list[_Worker[One]] = []
        while True:
            for point in islice(todo, len(idle)):
                busy.append(idle.pop())
                busy[-1].start(point)
            if not busy:
                return
            for ready in wait([worker.connection for worker in busy]):
                worker = next(one for one in busy if one.connection is ready)
                found = worker.answer()
                busy.remove(worker)
                idle.append(worker)
                yield found


@dataclass(slots=True)
class _Worker(Generic[One]):
    """A process and the point that it works on."""

    process: BaseProcess
    connection: Connection
    point: One | None = None

    def start(self, point: One) -> None:
        """Hand a point to the process."""
        self.point = point
        try:
            self.connection.send(point)
        except OSError:
            raise self._died() from None

    def answer(self) -> tuple[One, Outcome]:
        """Return the point and what was found."""
        assert self.point is not None
        try:
            found = self.connection.recv()
        except (EOFError, OSError):
            raise self._died() from None
        if isinstance(found, BaseException):
            raise found
        return self.point, found

    def _died(self) -> SimulationError:
        self.process.join(5)
        code = self.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        fix = "give fewer --jobs if memory was short; with --study, the search goes on where it ended"
        return SimulationError(f"the process that simulated it {how}", where=str(self.point), fix=fix)


@contextmanager
def _processes(task: Task[One], jobs: int) -> Iterator[list[_Worker[One]]]:
    """Start processes; at the end, however it comes, all are ended."""
    workers: list[_Worker[One]] = []
    method = "fork" if sys.platform == "linux" else "spawn"  # forks are not safe on macOS, and Windows has none
    context: Any = multiprocessing.get_context(method)
    gc.freeze()  # what is forked is not touched, and so not copied, by a search for garbage
    try:
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            inherited = [worker.connection for worker in workers] + [ours] if method == "fork" else []
            process = context.Process(target=_work, args=(task, theirs, inherited), daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; numpy's hold no locks
                process.start()
            theirs.close()
            workers.append(_Worker(process, ours))
        yield list(workers)
    finally:
        gc.unfreeze()
        for worker in workers:
            worker.process.terminate()
            worker.connection.close()
        for worker in workers:
            worker.process.join()


def _work(task: Task[Any], connection: Connection, inherited: list[Connection]) -> None:
    """Answer each point with its outcome, or with the error that ends the search, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in inherited:  # of which a copy here would keep a dead parent's ends open
        other.close()
    while True:
        try:
            point = connection.recv()
        except (EOFError, OSError):
            return
        try:
            found: object = task(point)
        except TriosimError as error:
            found = error
        connection.send(found)
