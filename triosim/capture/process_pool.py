"""A pool of processes that each capture one rank of a distributed script, as many at once as there are processors.

The processes are forked from one that has imported PyTorch, because that takes longer than a small capture: from this one,
or, if it imported PyTorch before and so may have started autograd's threads, from a fork server. Each process
(``triosim.capture.worker``) sends the number of each rank that it waits for, then a summary of its own rank, and the trace when
it is asked for it; or the error that ended the capture. The script's output is shown for the first rank alone; that of another
rank when it fails.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from triosim.capture.child_processes import ChildProcess, end
from triosim.errors import CaptureError, ScriptError, SimulationError, TriosimError
from triosim.gpus import Gpu
from triosim.trace import Trace
from triosim.trace.sample_axes import SampleAxes
from triosim.tracer.pytorch_version import require_torch
from triosim.tracer.script_runner import Script

#: What runs in each process. It is loaded by name, because it imports PyTorch.
_WORKER = "triosim.capture.worker"
_PROCESSES = os.cpu_count() or 1
#: How long a process that hangs has to say where.
_ANSWER_SECONDS = 5.0
StartMethod = Literal["fork", "forkserver"]
_imported_here: set[str] = set()  # "torch", where we imported it, so that nothing has started its threads


@dataclass(frozen=True, slots=True)
class CaptureJob:
    """A script, to be captured as any rank of a world.

    Captured is the first step after ``skip``, on a GPU; with ``whole`` all that the script does, where it trains no step. What
    the script writes goes into the folder ``files``, if there is one, and its memory is then that of the GPU, as where it runs
    live. ``local`` ranks are on a machine, by default up to 8.
    Where no rank launches anything for ``patience`` seconds of real time, the script hangs; None: it never does.
    """

    script: Script
    gpu: Gpu
    world: int
    skip: int
    batch_size: int | None
    files: str | None = None
    local: int | None = None
    whole: bool = False
    patience: float | None = None


@dataclass(frozen=True, slots=True)
class RankSummary:
    """The step that a rank runs, as a ``digest`` that is equal for ranks that run the same, and its process groups by axis.

    ``sample_axes`` say which samples it has. ``uneven`` are, by the size of an axis, the positions along it where shards of
    parameters become smaller. ``singled_out`` are ranks that the script names together.
    """

    digest: str
    groups: dict[str, tuple[tuple[int, ...], ...]]
    sample_axes: SampleAxes
    uneven: dict[int, tuple[int, ...]] = field(default_factory=dict)
    singled_out: tuple[tuple[int, ...], ...] = ()


@dataclass(slots=True)
class _Worker:
    """A child process; it ``waits`` while it needs a message from a rank that has not sent it yet."""

    child: ChildProcess
    waits: bool = False
    summary: RankSummary | None = None


@dataclass(slots=True)
class RankPool:
    """A pool that captures ranks on request. On leaving, all processes end.

    ``folder`` is for the files of this run alone; with ``quiet`` no rank's output is shown, unless it fails.
    """

    job: CaptureJob
    folder: Path
    quiet: bool = False
    _method: StartMethod = "fork"
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _todo: list[int] = field(default_factory=list)
    _exchanges: set[tuple[int, int]] = field(default_factory=set)
    _seen: dict[int, str] = field(default_factory=dict)  # what ranks that do not answer had launched

    def __enter__(self) -> RankPool:
        self._method = start_method(_WORKER)
        return self

    def __exit__(self, *_: object) -> None:
        end([worker.child for worker in self._workers.values()])

    @property
    def captured(self) -> tuple[int, ...]:
        """The ranks that have been captured so far."""
        return tuple(sorted(rank for rank, worker in self._workers.items() if worker.summary is not None))

    @property
    def exchanges(self) -> tuple[tuple[int, int], ...]:
        """The ranks from which another one needed a message, and which one."""
        return tuple(sorted(self._exchanges))

    @property
    def _awaited(self) -> tuple[int, ...]:
        return tuple(sorted({sender for sender, _ in self._exchanges}))

    def summaries(self, ranks: Iterable[int]) -> list[RankSummary]:
        """Capture some ranks, and return what was found. Raises ``CaptureError`` where a capture fails."""
        wanted = list(ranks)
        self._todo += [rank for rank in wanted if rank not in self._workers and rank not in self._todo]
        self._fill()
        while any(rank not in self._workers or self._workers[rank].summary is None for rank in wanted):
            self._listen()
            self._fill()
        return [found for found in (self._workers[rank].summary for rank in wanted) if found is not None]

    def trace(self, rank: int) -> Trace:
        """Return the trace of a rank. Raises ``CaptureError`` where its capture fails."""
        self.summaries([rank])
        self._workers[rank].child.connection.send("trace")
        trace: Trace = self._answer(rank)
        return trace

    def _fill(self) -> None:
        """Start processes while there are ranks to capture and idle processors."""
        while self._todo and sum(one.summary is None and not one.waits for one in self._workers.values()) < _PROCESSES:
            self._start(self._todo.pop(0))

    def _start(self, rank: int) -> None:
        shown = not (self._workers or self.quiet)
        beside = [worker.child for worker in self._workers.values()]
        child = ChildProcess.start(self._method, _run_worker, self.job, rank, self.folder, shown, beside=beside)
        self._workers[rank] = _Worker(child)

    def _listen(self) -> None:
        """Wait until a rank answers."""
        by_connection = {one.child.connection: rank for rank, one in self._workers.items() if one.summary is None}
        answered = wait(list(by_connection), self.job.patience)
        if not answered:
            self._check_progress(by_connection.values())
        for ready in answered:
            rank = by_connection[ready]  # type: ignore[index]
            answer = self._answer(rank)
            if isinstance(answer, RankSummary):
                self._workers[rank].summary = answer
                continue
            self._workers[rank].waits = True
            self._exchanges.add((answer, rank))
            if answer not in self._workers:
                self._todo = [answer, *(one for one in self._todo if one != answer)]

    def _check_progress(self, ranks: Iterable[int]) -> None:
        """Raise ``SimulationError`` where none of the ranks has launched anything since they were asked before."""
        before, self._seen = self._seen, {}
        line: str | None = None
        for rank in ranks:
            self._seen[rank], line = self._progress(rank)
        if before == self._seen:
            raise SimulationError(
                f"rank {min(before)} has launched nothing for {self.job.patience:g} seconds: the script hangs",
                where=line,
                fix="end the loop that never ends, or give it more time: --patience",
            )

    def _progress(self, rank: int) -> tuple[str, str | None]:
        """Return what a rank has launched so far, and the line that it is at; None where its process does not say."""
        pid, file = self._workers[rank].child.process.pid, progress_file(self.folder, rank)
        file.unlink(missing_ok=True)
        if pid is not None:
            os.kill(pid, signal.SIGUSR1)
        end = time.monotonic() + _ANSWER_SECONDS
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.05)
        launched, _, line = file.read_text(encoding="utf-8").partition(" ") if file.exists() else ("", "", "")
        return launched, line or None

    def _answer(self, rank: int) -> Any:
        """Return a rank's next answer. Raises ``CaptureError`` when its capture failed, or its process died."""
        try:
            answer = self._workers[rank].child.connection.recv()
        except (EOFError, ConnectionResetError):
            died = ScriptError("the process that captured it died", where=self.job.script.path)
            raise _of_rank(rank, died, self._awaited) from None
        if isinstance(answer, TriosimError):
            output = self.folder / f"{rank}.out"
            if output.exists():
                sys.stderr.write(output.read_text(encoding="utf-8", errors="replace"))
            raise _of_rank(rank, answer, self._awaited)
        return answer


def progress_file(folder: Path, rank: int) -> Path:
    """Return the file in which a rank that is sent SIGUSR1 says what it has launched, and the line that it is at."""
    return folder / f"{rank}.progress"


def _of_rank(rank: int, error: TriosimError, awaited: tuple[int, ...]) -> CaptureError:
    """Return an error of a capture that says which rank it was, and from which ranks messages were needed."""
    what = f"rank {rank}: {error.what}"
    kind = ScriptError if isinstance(error, ScriptError) else CaptureError
    found = kind(what, where=error.where, fix=error.fix)
    found.rank, found.awaited = rank, awaited
    return found


def start_method(worker: str) -> StartMethod:
    """Return how processes that run a module are started, and prepare for it: they are forked where that is safe."""
    if "torch" in sys.modules and "torch" not in _imported_here:
        multiprocessing.get_context("forkserver").set_forkserver_preload([__name__, worker])
        return "forkserver"
    _import_worker(worker)
    _imported_here.add("torch")
    return "fork"


def _import_worker(module: str) -> None:
    """Import a module that needs PyTorch, which takes long, without looking for garbage in what stays here or in forks."""
    collects = gc.isenabled()
    gc.disable()
    try:
        require_torch()
        importlib.import_module(module)
    finally:
        if collects:
            gc.enable()
    gc.freeze()


def _run_worker(connection: Connection, job: CaptureJob, rank: int, folder: Path, shown: bool) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until it can answer
    importlib.import_module(_WORKER).capture_rank(job, rank, connection, folder, shown=shown)
