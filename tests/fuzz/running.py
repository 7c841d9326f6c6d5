"""Runs a command line in a process of its own, within limits of time and memory, and judges how it ended."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triosim import cli

#: Of processor time, in seconds: what other processes do meanwhile does not count.
MOST_SECONDS = 20
MOST_BYTES = 2 * 10**9
LONGEST_LINE = 300

_ESCAPES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its status (negative: the signal), processor seconds, the largest memory, and what it printed."""

    status: int
    seconds: float
    nbytes: int
    output: str
    errors: str


def run(arguments: Sequence[str], folder: Path) -> Ended:
    """Run a command line in a folder; a process that was forked has everything imported already."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _run_child(arguments, folder)
    began = time.monotonic()
    status, usage = 0, None
    while usage is None:
        found, status, seen = os.wait4(child, os.WNOHANG)
        if found:
            usage = seen
        elif time.monotonic() - began > 20 * MOST_SECONDS:  # it sleeps, or waits for somebody
            os.kill(child, signal.SIGKILL)
        else:
            time.sleep(0.005)
    texts = [(folder / name).read_text(encoding="utf-8", errors="replace") for name in (".output", ".errors")]
    for name in (".output", ".errors"):
        (folder / name).unlink()
    return Ended(
        os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, texts[0], texts[1]
    )


def _run_child(arguments: Sequence[str], folder: Path) -> None:
    status = 1
    try:
        os.chdir(folder)
        for name, descriptor in ((".output", 1), (".errors", 2)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115 - until it ends
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS + 5, MOST_SECONDS + 10))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        status = cli.run(list(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def faults(ended: Ended, folder: Path, before: set[str]) -> Iterator[str]:
    """Yield what is wrong with the end of a run: nothing but its whole outputs may be new in the folder."""
    if ended.status not in (0, 2, 3):
        yield f"status {ended.status}"
    if "Traceback" in ended.errors or "internal error" in ended.errors:
        yield "internal error"
    if ended.seconds > MOST_SECONDS:
        yield f"{ended.seconds:.0f} s of processor time"
    if ended.nbytes > MOST_BYTES:
        yield f"{ended.nbytes / 1e9:.1f} GB of memory"
    if ended.status == 2:
        lines = [line for line in ended.errors.splitlines() if line.startswith("triosim: error: ")]
        if len(lines) != 1:
            yield f"{len(lines)} lines of error"
        if any(len(line) > LONGEST_LINE for line in lines):
            yield "a long line of error"
    if _ESCAPES.search(ended.output + ended.errors):
        yield "control characters in the output"
    new = {path.name for path in folder.iterdir()} - before
    if any(name.endswith(".part") for name in new):
        yield "a half-written file"
    if ended.status == 2 and any(name.startswith("out") for name in new):
        yield f"an output of a run that failed: {', '.join(sorted(new))}"
    for name in sorted(new):
        if name.endswith(".json") and ended.status == 0:
            yield from _nonsense(folder / name)


def _nonsense(path: Path) -> Iterator[str]:
    """Yield what no figure of a result can be."""
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        yield f"{path.name} is no JSON: {error}"
        return
    if not str(content.get("schema")).startswith("triosim-result"):
        return
    for name, value in _numbers(content, ""):
        unbounded = math.isnan(value) or math.isinf(value)
        negative = value < -1e-9 and name.endswith(("_s", "bytes", "seconds"))
        endless = (value > 1e9 and name.endswith(("_s", "seconds")) and "per_s" not in name) or value > 1e30
        if unbounded or negative or endless:
            yield f"{name} is {value:g}"
            return


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):
            yield name, float(value)
    entries = (
        value.items() if isinstance(value, dict) else ((None, one) for one in value) if isinstance(value, list) else ()
    )
    for key, one in entries:
        if key != "inputs":
            yield from _numbers(one, name if key is None else str(key))
