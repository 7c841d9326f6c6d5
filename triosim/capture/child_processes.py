"""Child processes that talk to this one: how a pool of them starts and ends."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any


@dataclass(slots=True)
class ChildProcess:
    """A process, and this one's end of the connection to it."""

    process: BaseProcess
    connection: Connection

    @classmethod
    def start(
        cls, method: str, run: Callable[..., None], *arguments: object, beside: Iterable[ChildProcess] = ()
    ) -> ChildProcess:
        """Start a process that runs a function of its end of the connection and of some arguments.

        A fork has copies of our ends of the connections to the processes ``beside``, and closes them: they would keep these
        from noticing that this process has died. It is no daemon, which may have no children of its own: captures do.
        """
        context: Any = multiprocessing.get_context(method)
        ours, theirs = context.Pipe()
        inherited = [ours, *(one.connection for one in beside)] if method == "fork" else []
        process = context.Process(target=_begin, args=(run, theirs, inherited, arguments))
        with warnings.catch_warnings():
            # Of forks beside threads: those of PyTorch and numpy hold no locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return cls(process, ours)


def end(processes: Sequence[ChildProcess]) -> None:
    """End processes, whatever they do."""
    for one in processes:
        one.process.terminate()
        one.connection.close()
    for one in processes:
        one.process.join()


def _begin(
    run: Callable[..., None], connection: Connection, inherited: Iterable[Connection], arguments: Sequence[object]
) -> None:
    for other in inherited:
        other.close()
    run(connection, *arguments)
