"""Runs of triosim as processes, with the time and memory that they take."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Spent:
    """Seconds of a process and of those that it started, and the most megabytes that one of them had."""

    wall: float
    processor: float
    megabytes: float


def run(*arguments: str) -> Spent:
    """Run triosim once; what it says is shown only when it fails."""
    command = [sys.executable, "-W", "ignore", "-m", "triosim", *arguments]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            said.seek(0)
            raise SystemExit(said.read().decode(errors="replace"))
    return Spent(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)  # kilobytes on Linux
