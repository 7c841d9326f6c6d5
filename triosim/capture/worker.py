"""One process of a ``triosim.capture.process_pool``: captures a rank, and sends a summary and, when asked, the trace."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from triosim.capture.process_pool import CaptureJob, RankSummary, progress_file
from triosim.errors import CaptureError, TriosimError
from triosim.trace import Trace
from triosim.tracer.distributed.rank_messages import RankMessages
from triosim.tracer.distributed.singled_out import script_sources, singled_out
from triosim.tracer.distributed.wrappers.uneven_shards import uneven_positions
from triosim.tracer.fake_device import FakeDevice
from triosim.tracer.patches import Patches
from triosim.tracer.recorder.script_lines import script_line
from triosim.tracer.script_runner import run_script
from triosim.tracer.stand_ins import finder as stand_ins
from triosim.tracer.surroundings import write_protection
from triosim.tracer.surroundings.file_overlay import FileOverlay


def capture_rank(job: CaptureJob, rank: int, connection: Connection, folder: Path, *, shown: bool) -> None:
    """Capture a rank, send a summary of it, and its trace when the pool asks for it.

    With ``shown`` the script's output goes where this process's goes, otherwise into a file in ``folder``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool ends this process
    try:
        if not shown:
            _hide_output(folder / f"{rank}.out")
        trace, summary = _captured(job, rank, connection, folder)
        connection.send(summary)
        while connection.recv() == "trace":  # until the pool is gone
            connection.send(trace)
    except TriosimError as error:
        sys.stderr.flush()
        connection.send(error)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the pool is gone
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        connection.send(CaptureError(f"{type(error).__name__}: {error}"))


def _captured(job: CaptureJob, rank: int, connection: Connection, folder: Path) -> tuple[Trace, RankSummary]:
    messages = RankMessages(folder, rank, connection.send)
    files = None if job.files is None else FileOverlay(job.files, shared=(folder,))
    if files is not None:
        write_protection.protect(files)
    os.environ.update(job.script.environment)
    with (
        FakeDevice(
            job.gpu,
            devices=job.local,
            world=job.world,
            rank=rank,
            messages=messages,
            files=files,
            limited=job.files is not None,
            routing=job.script.routing,
        ) as device,
        Patches() as patches,
    ):
        stand_ins.install(patches, job.script.stand_ins, device.recorder.note)
        _tell_progress(device, progress_file(folder, rank))
        observed = run_script(
            job.script.path,
            job.script.arguments_of(rank % device.devices),
            device,
            skip=job.skip,
            steps=1,
            least=0 if job.whole else None,
            batch_size=job.batch_size,
            module=job.script.module,
        )
        if not device.traces:
            device.step_ends(0, observed)
        trace, groups = device.traces[0], device.groups
        uneven = {} if observed.model is None else uneven_positions(observed.model.parameters())
        named = singled_out(script_sources(job.script.path, module=job.script.module), job.world, device.devices)
    assert groups is not None
    return trace, RankSummary(digest(trace), groups.groups, groups.sample_axes, uneven, named)


def _tell_progress(device: FakeDevice, file: Path) -> None:
    """Let this process write what it has launched, and its line, into a file when it is sent SIGUSR1."""

    def tell(*_: object) -> None:
        step = device.recorder.step
        unfinished = file.with_suffix(".part")
        unfinished.write_text(f"{id(step)}-{len(step.operators)}-{len(step.marks)} {script_line()}", encoding="utf-8")
        unfinished.rename(file)

    signal.signal(signal.SIGUSR1, tell)


def _hide_output(file: Path) -> None:
    with open(file, "wb") as out:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)


def digest(trace: Trace) -> str:
    """Return a digest that is equal for two ranks that compute, communicate and allocate the same."""
    found = hashlib.sha256()
    for operator in trace.operators:
        tensors = [(one.shape, one.dtype, one.category) for one in (*operator.inputs, *operator.outputs)]
        attributes = sorted(operator.attributes.items())
        what = (operator.name, operator.phase, operator.stream, operator.communication, attributes, tensors)
        found.update(repr(what).encode())
    numbers: dict[int | None, int] = {}  # of events, in order of their first use
    for mark in trace.marks:
        number = numbers.setdefault(mark.number, len(numbers))
        found.update(repr((mark.position, mark.kind, mark.stream, number)).encode())
    for storage in trace.storages:
        found.update(repr((storage.nbytes, storage.category, storage.operator, storage.last_operator)).encode())
    return found.hexdigest()
