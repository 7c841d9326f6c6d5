"""One process of a ``triosim.capture.process_pool``: captures a rank, and answers with a summary and, if asked, the trace."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from triosim.capture.process_pool import CaptureJob
from triosim.errors import TriosimError
from triosim.trace import Trace
from triosim.trace.formats import write
from triosim.tracer.distributed.rank_messages import RankMessages
from triosim.tracer.fake_device import FakeDevice
from triosim.tracer.script_runner import run_script


def capture_rank(job: CaptureJob, rank: int, connection: Connection, folder: Path, *, shown: bool) -> None:
    """Capture a rank, send a summary of it, and write its trace into ``folder`` when the pool asks for it.

    With ``shown`` the script's output goes where this process's goes, otherwise into a file.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool ends this process
    try:
        if not shown:
            _hide_output(folder / f"{rank}.out")
        trace, summary = _captured(job, rank, connection, folder)
        _answer(connection, summary)
        if connection.recv_bytes() == b"write":
            write(trace, folder / f"{rank}.json")
            _answer(connection, {})
            connection.recv_bytes()  # until the pool is gone
    except TriosimError as error:
        sys.stderr.flush()
        _answer(connection, {"error": [error.what, error.where, error.fix]})
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the pool is gone
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        _answer(connection, {"error": [f"{type(error).__name__}: {error}", None, None]})


def _captured(job: CaptureJob, rank: int, connection: Connection, folder: Path) -> tuple[Trace, dict[str, Any]]:
    messages = RankMessages(folder, rank, lambda other: _answer(connection, {"waits_for": other}))
    with FakeDevice(job.gpu, world=job.world, rank=rank, messages=messages) as device:
        run_script(job.path, job.arguments, device, skip=job.skip, steps=1)
        trace, groups, notes = device.traces[0], device.groups, device.notes
    assert groups is not None
    return trace, {
        "digest": digest(trace),
        "batch_size": trace.batch_size,
        "groups": groups.groups,
        "data_parallel": sorted(groups.data_parallel),
        "notes": notes,
    }


def _answer(connection: Connection, value: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(value).encode())


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
