"""The ranks of a distributed script, each captured in a process of its own, as many at once as there are processors.

The processes are forked from one that has imported PyTorch, which takes longer than a small capture: from this one, or, where
it may have run PyTorch's autograd before, which has threads, from one that is made for it. They say in JSON what
they found: a digest of the step, by which ranks that do the same are told, and on request the trace, as a file. The script's
output is shown for the first rank alone; that of another one when it fails.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

from triosim.errors import CaptureError, TriosimError
from triosim.gpus import Gpu
from triosim.trace import Trace
from triosim.trace.formats import read_trace, write

#: What takes long to import, and is imported once.
_SLOW = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.pipelining")


@dataclass(frozen=True, slots=True)
class Job:
    """What is captured of each rank: a script with its arguments, on a GPU, in a world."""

    path: str
    arguments: tuple[str, ...]
    gpu: Gpu
    world: int
    skip: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What the capture of a rank found: a digest of its step, its groups, and which of them are data-parallel."""

    digest: str
    batch_size: int
    families: dict[str, tuple[tuple[int, ...], ...]]
    data: frozenset[str]
    notes: tuple[str, ...]


class Process(Protocol):
    """What is used of a process."""

    def start(self) -> None:
        """Start it."""

    def terminate(self) -> None:
        """End it."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""


@dataclass(slots=True)
class _Rank:
    process: Process
    connection: Connection
    waits: bool = False
    finding: Finding | None = None


@dataclass(slots=True)
class Fleet:
    """Captures ranks as they are asked for. On leaving, all processes end. ``folder`` is for the files of this run alone."""

    job: Job
    folder: Path
    most: int = field(default_factory=lambda: os.cpu_count() or 1)
    _method: Literal["fork", "forkserver"] = "fork"
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _todo: list[int] = field(default_factory=list)

    def __enter__(self) -> Fleet:
        if "torch" in sys.modules:
            self._method = "forkserver"
            multiprocessing.get_context("forkserver").set_forkserver_preload([*_SLOW, __name__])
        else:
            _import_slow()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for rank in self._ranks.values():
            rank.process.terminate()
            rank.connection.close()
        for rank in self._ranks.values():
            rank.process.join()

    @property
    def compared(self) -> tuple[int, ...]:
        """The ranks of which something was found so far."""
        return tuple(sorted(rank for rank, one in self._ranks.items() if one.finding is not None))

    def findings(self, ranks: Iterable[int]) -> list[Finding]:
        """Return what was found of some ranks. Raises ``CaptureError`` where a capture fails."""
        wanted = list(ranks)
        self._todo += [rank for rank in wanted if rank not in self._ranks and rank not in self._todo]
        self._fill()
        while any(rank not in self._ranks or self._ranks[rank].finding is None for rank in wanted):
            self._listen()
            self._fill()
        return [found for found in (self._ranks[rank].finding for rank in wanted) if found is not None]

    def trace(self, rank: int) -> Trace:
        """Return the trace of a rank. Raises ``CaptureError`` where its capture fails."""
        self.findings([rank])
        one = self._ranks[rank]
        one.connection.send_bytes(b"write")
        self._answer(rank)
        return read_trace(self.folder / f"{rank}.json")

    def _fill(self) -> None:
        """Start processes while there is something to do, and a processor for it."""
        while self._todo and sum(one.finding is None and not one.waits for one in self._ranks.values()) < self.most:
            self._start(self._todo.pop(0))

    def _start(self, rank: int) -> None:
        context: Any = multiprocessing.get_context(self._method)
        ours, theirs = context.Pipe()
        process = context.Process(target=_capture, args=(self.job, rank, theirs, self.folder, not self._ranks))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; PyTorch's hold nothing
            process.start()
        theirs.close()
        self._ranks[rank] = _Rank(process, ours)

    def _listen(self) -> None:
        """Wait until a rank says something."""
        by_connection = {one.connection: rank for rank, one in self._ranks.items() if one.finding is None}
        for ready in wait(list(by_connection)):
            rank = by_connection[ready]  # type: ignore[index]
            said = self._answer(rank)
            if "waits_for" in said:
                self._ranks[rank].waits = True
                other = said["waits_for"]
                if other not in self._ranks:
                    self._todo = [other, *(one for one in self._todo if one != other)]
            else:
                families = {name: tuple(map(tuple, groups)) for name, groups in said["families"].items()}
                self._ranks[rank].finding = Finding(
                    said["digest"], said["batch_size"], families, frozenset(said["data"]), tuple(said["notes"])
                )

    def _answer(self, rank: int) -> dict[str, Any]:
        """Return what a rank says. Raises ``CaptureError`` when it says that it failed, or ends without a word."""
        try:
            said: dict[str, Any] = json.loads(self._ranks[rank].connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise CaptureError(f"the capture of rank {rank} ended without a word", where=self.job.path) from None
        if "error" in said:
            shown = self.folder / f"{rank}.out"
            if shown.exists():
                sys.stderr.write(shown.read_text(encoding="utf-8", errors="replace"))
            what, where, fix = said["error"]
            raise CaptureError(f"rank {rank}: {what}", where=where, fix=fix)
        return said


def _import_slow() -> None:
    """Import what takes long; what it makes stays, so that nobody looks for garbage in it, here or in the forked processes."""
    collects = gc.isenabled()
    gc.disable()
    try:
        for name in _SLOW:
            importlib.import_module(name)
    finally:
        if collects:
            gc.enable()
    gc.freeze()


def _capture(job: Job, rank: int, connection: Connection, folder: Path, shown: bool) -> None:
    """Capture a rank, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that forked this one ends it
    try:
        if not shown:
            _hide_output(folder / f"{rank}.out")
        trace, finding = _captured(job, rank, connection, folder)
        _say(connection, finding)
        if connection.recv_bytes() == b"write":
            write(trace, folder / f"{rank}.json")
            _say(connection, {})
            connection.recv_bytes()  # until there is nobody to ask for more
    except TriosimError as error:
        sys.stderr.flush()
        _say(connection, {"error": [error.what, error.where, error.fix]})
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # nobody wants to know any more
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        _say(connection, {"error": [f"{type(error).__name__}: {error}", None, None]})


def _captured(job: Job, rank: int, connection: Connection, folder: Path) -> tuple[Trace, dict[str, Any]]:
    from triosim.tracer.device.fake_device import FakeDevice
    from triosim.tracer.distributed.mailbox import Mailbox
    from triosim.tracer.script import run_script

    mailbox = Mailbox(folder, rank, lambda other: _say(connection, {"waits_for": other}))
    with FakeDevice(job.gpu, world=job.world, rank=rank, mailbox=mailbox) as device:
        run_script(job.path, job.arguments, device, skip=job.skip, steps=1)
        trace, groups, notes = device.traces[0], device.groups, device.notes
    assert groups is not None
    return trace, {
        "digest": digest(trace),
        "batch_size": trace.batch_size,
        "families": groups.families,
        "data": sorted(groups.data),
        "notes": notes,
    }


def _say(connection: Connection, value: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(value).encode())


def _hide_output(file: Path) -> None:
    with open(file, "wb") as out:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)


def digest(trace: Trace) -> str:
    """Return what is the same for two ranks that compute, communicate and allocate the same."""
    found = hashlib.sha256()
    for operator in trace.operators:
        tensors = [(one.shape, one.dtype, one.category) for one in (*operator.inputs, *operator.outputs)]
        what = (
            operator.name,
            operator.phase,
            operator.stream,
            operator.communication,
            sorted(operator.attributes.items()),
        )
        found.update(repr((what, tensors)).encode())
    numbers: dict[int | None, int] = {}  # of events, in order of their first use
    for mark in trace.marks:
        number = numbers.setdefault(mark.number, len(numbers))
        found.update(repr((mark.position, mark.kind, mark.stream, number)).encode())
    for storage in trace.storages:
        found.update(repr((storage.nbytes, storage.category, storage.operator, storage.last_operator)).encode())
    return found.hexdigest()
