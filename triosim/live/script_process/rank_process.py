"""The process of a running rank: runs the script on a fake GPU, and tells the simulation what it launches."""

from __future__ import annotations

import atexit
import ctypes
import io
import math
import multiprocessing
import multiprocessing.util
import os
import random
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import dataloader

from triosim.errors import CaptureError, CaptureWarning
from triosim.live.items import At, Awaited, KeptTraces, Posted, Said
from triosim.live.job import LiveJob
from triosim.live.script_process import clock, endings, profiler
from triosim.live.script_process.task_feed import TaskFeed
from triosim.trace import Trace
from triosim.trace.formats.pytorch.kineto_file import ProfiledRank
from triosim.trace.sample_axes import SampleAxes
from triosim.tracer.distributed.rank_messages import RankMessages
from triosim.tracer.fake_device import FakeDevice
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.recorder.script_lines import script_line
from triosim.tracer.script_runner import EnoughSteps, execute
from triosim.tracer.stand_ins import finder as stand_ins
from triosim.tracer.steps import StepCounter, StepObservations, module_calls, optimizer_steps
from triosim.tracer.surroundings import write_protection
from triosim.tracer.surroundings.file_overlay import FileOverlay

#: Of so many different steps a trace is kept. Steps of most scripts are of one kind after the first two.
_KEPT_TRACES = 8
#: So many steps tell the batch size, the first of which may do more than the others. Observing each call takes time.
_OBSERVED = 2
_NO_END = 2**62
#: So many lines of the script are named in one of ours.
_SHOWN_LINES = 5
_PR_SET_PDEATHSIG = 1


def run_rank(
    job: LiveJob, rank: int, like: Sequence[int], alike: Sequence[int], connection: Connection, folder: str
) -> None:
    """Run the script as one rank; answer then with the traces of steps that the simulation asks for.

    ``like`` says which running rank stands for each of the world. Ranks with one number in ``alike`` run the same.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends this process
    _end_with_parent()
    configured: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    configured.update(daemon=False, tempdir=folder)  # a script may start processes, whose sockets need short paths
    atexit._clear()
    ends: Any = multiprocessing.util
    atexit.register(ends._exit_function)  # the script's own processes end, and what they share
    feed = TaskFeed(connection)
    os.register_at_fork(after_in_child=feed.detach)
    steps = _Steps(feed, job.steps)
    signal.signal(signal.SIGUSR1, lambda *_: feed.tell(At(script_line())))
    signal.signal(signal.SIGUSR2, lambda *_: feed.tell(steps.kept()))
    sys.stdout, sys.stderr = _output(feed, "out"), _output(feed, "err")
    try:
        messages = _Messages(Path(folder), rank, feed, like, alike)
        with Patches() as patches:
            patches.make([_exit(feed, steps, connection), _notes(feed)])
            status = _status_of(job, messages, feed, steps)
        sys.stdout.flush()
        sys.stderr.flush()
        _end(feed, steps, connection, status)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the simulation is over
    finally:
        os._exit(0)


def _end(feed: TaskFeed, steps: _Steps, connection: Connection, status: int) -> None:
    """Say that the script ended, and send the traces that the simulation asks for, until it ends this process."""
    feed.end(status)
    while (asked := connection.recv()) is not None:
        kept = steps.kept()
        connection.send((kept.of(asked), kept.sample_axes))


def _exit(feed: TaskFeed, steps: _Steps, connection: Connection) -> Patch:
    """Return a patch by which the simulation learns of a script that leaves by ``os._exit``."""
    leave = os._exit

    def _exit(status: int) -> None:
        try:
            if not feed.is_detached:
                _end(feed, steps, connection, status)
        finally:
            leave(status)

    return Patch(os, "_exit", _exit)


def _status_of(job: LiveJob, messages: _Messages, feed: TaskFeed, steps: _Steps) -> int:
    """Run the script; return its exit status, and show the error that it ended with."""
    os.environ.update(job.script.environment)
    random.seed(0)
    torch.manual_seed(0)
    files = None if job.files is None else FileOverlay(job.files, shared=(messages.folder,))
    if files is not None:
        tempfile.gettempdir()  # found by writing into folders, which is refused from now on
        write_protection.protect(files)
    try:
        _run_script(job, messages, feed, steps, files)
    except BaseException as error:
        return endings.status_of(error, files, feed)
    return 0


def _run_script(job: LiveJob, messages: _Messages, feed: TaskFeed, steps: _Steps, files: FileOverlay | None) -> None:
    """Run the script on fake devices, on which its clocks, profiles and loaders are simulated."""
    script = job.script
    with FakeDevice(
        job.gpu,
        devices=job.local,
        world=job.world,
        rank=messages.rank,
        messages=messages,
        limited=True,
        files=files,
        launched=job.distributed,
        routing=script.routing,
    ) as device:
        steps.device = device
        device.recorder.listener, feed.groups = feed, device.groups
        with Patches() as patches, steps.counted():
            clock.install(patches, feed, job.start_time)
            profiler.install(patches, feed, _profiled(device, messages.rank), messages.folder)
            patches.make([_loader(feed, job.loader_seconds)])
            stand_ins.install(patches, script.stand_ins, device.recorder.note)
            try:
                execute(script.path, script.arguments_of(messages.rank % job.local), module=script.module)
            finally:
                atexit._run_exitfuncs()  # in simulated time, and with the files of the overlay
                _say_taken(device, messages, feed)


def _notes(feed: TaskFeed) -> Patch:
    """Return a patch by which our own warnings reach the terminal once for all ranks, and the script's as Python shows them."""
    shown = warnings.showwarning

    def showwarning(message: Any, category: type[Warning], *others: Any, **named: Any) -> None:
        if issubclass(category, CaptureWarning):
            sys.stderr.flush()
            feed.say(Said("note", f"triosim: warning: {' '.join(str(message).split())}\n".encode()))
        else:
            shown(message, category, *others, **named)

    return Patch(warnings, "showwarning", showwarning)


def _say_taken(device: FakeDevice, messages: _Messages, feed: TaskFeed) -> None:
    """Say at which lines the script has used numbers of ranks that do not run."""
    lines = list(device.exchange.taken)
    if not lines or messages.like is None:
        return
    shown = ", ".join(lines[:_SHOWN_LINES]) + (
        f" and {len(lines) - _SHOWN_LINES} more" if len(lines) > _SHOWN_LINES else ""
    )
    absent = sum(one != rank for rank, one in enumerate(messages.like))
    what = (
        f"at {shown} numbers of the {absent} ranks that do not run are taken to be those of ranks that do, or to grow evenly "
        "with the rank; --ranks all runs them"
    )
    feed.say(Said("note", f"triosim: note: {what}\n".encode()))


def _profiled(device: FakeDevice, rank: int) -> ProfiledRank:
    """Return the rank as its profiles name it."""
    return ProfiledRank(rank, device.world or 1, device.gpu.name, torch.cuda.current_device())


def _loader(feed: TaskFeed, seconds: float) -> Patch:
    """Return a patch by which the host waits so long for each batch of a loader."""
    original = dataloader._BaseDataLoaderIter.__next__

    def __next__(self: Any) -> Any:  # noqa: N807
        batch = original(self)
        if seconds:
            feed.work(seconds, script_line())
        return batch

    return Patch(dataloader._BaseDataLoaderIter, "__next__", __next__)


def _end_with_parent() -> None:
    """Let this process end when the one that started it does, whatever ends that; only Linux can (``man 2 prctl``)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(slots=True)
class _Steps:
    """The steps of a running script, of which the traces of different ones are kept. It is told of them as an observer."""

    feed: TaskFeed
    most: int | None
    device: FakeDevice | None = None
    fingerprints: list[int] = field(default_factory=list)  # of each step
    traces: dict[int, Trace] = field(default_factory=dict)  # by fingerprint

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Follow the steps of the script that runs inside. Raises ``EnoughSteps`` in it after the last one."""
        observed = StepObservations()
        counter = StepCounter(self, observed, 0, _NO_END)

        def over(optimizer: Any) -> None:
            counter.over(optimizer)
            if counter.number == _OBSERVED:
                calls.close()
            if counter.number == self.most:
                raise EnoughSteps

        with optimizer_steps(over, observed), ExitStack() as calls:
            calls.enter_context(module_calls(observed))
            counter.begin()
            yield

    def step_begins(self, number: int, observed: StepObservations) -> None:
        """Record a step."""
        assert self.device is not None
        self.device.step_begins(number, observed)

    def step_ends(self, number: int, observed: StepObservations) -> None:
        """Tell the simulation of the end of a step, and keep the trace of the first of its kind."""
        assert self.device is not None
        found = self.feed.step_over()
        self.fingerprints.append(found)
        if found not in self.traces and len(self.traces) < _KEPT_TRACES:
            try:
                self.device.step_ends(number, observed)
            except CaptureError:
                return  # a step without a model or without operators has no trace
            self.traces[found] = self.device.traces.pop()

    def kept(self) -> KeptTraces:
        """Return the traces of the steps so far."""
        groups = None if self.device is None else self.device.groups
        sample_axes = SampleAxes() if groups is None else groups.sample_axes
        return KeptTraces(tuple(self.fingerprints), dict(self.traces), sample_axes)


class _Messages(RankMessages):
    """Messages between running ranks, of which the simulation is told, so that a rank waits in simulated time too."""

    def __init__(self, folder: Path, rank: int, feed: TaskFeed, like: Sequence[int], alike: Sequence[int]) -> None:
        super().__init__(
            folder, rank, patience=math.inf, like=like, alike=alike
        )  # the simulation finds who waits for ever
        self._feed = feed

    def deliver(self, path: Path, value: Any) -> None:
        super().deliver(path, value)
        self._feed.send(Posted(path.name))

    def collect(self, path: Path, sender: int) -> Any:
        self._feed.send(Awaited(path.name))
        self._feed.flush()
        return super().collect(path, sender)


class _Pipe(io.RawIOBase):
    """A standard output that goes to the simulation, which writes it when the simulated time has come."""

    def __init__(self, feed: TaskFeed, stream: Literal["out", "err"], fileno: int) -> None:
        self._feed, self._stream, self._fileno = feed, stream, fileno

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        text = bytes(data)
        self._feed.say(Said(self._stream, text))
        return len(text)

    def fileno(self) -> int:
        return self._fileno

    def isatty(self) -> bool:
        return os.isatty(self._fileno)


def _output(feed: TaskFeed, stream: Literal["out", "err"]) -> io.TextIOWrapper:
    """Return a standard output whose lines go to the simulation."""
    pipe = _Pipe(feed, stream, 1 if stream == "out" else 2)
    return io.TextIOWrapper(io.BufferedWriter(pipe), encoding="utf-8", errors="replace", line_buffering=True)
