"""A script's own log on two real processes over gloo, against its log under ``triosim run --gpu CPU``.

Both run ``validation/scripts/sleeping_ranks.py``, unchanged: sleeps of known length in the place of computation, and
all-reduces that they hide, or do not. The two processes are in network namespaces joined by a link of a known rate, as in
``validation.real_cluster``, which measures its bandwidth and latency.

``python -m validation.live_gloo`` needs root (for the namespaces), Linux with ``ip`` and ``tc``, and torch.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from validation.real_cluster import PRIORITY, both_say, namespaces, on_both
from validation.report import DataAbsent, Row, relative

#: A minute, as root: ``python -m validation`` runs this only where it is asked for.
TAKES_LONG = True

SCRIPT = Path(__file__).resolve().parent / "scripts" / "sleeping_ranks.py"
RATE = "1gbit"
CLAIM = 0.05
CASES = {
    "all-reduces hidden but for the last": "",
    "all-reduces longer than the sleeps": "--elements 1048576",
    "a rank that is late in every second step": "--late 0.1",
}
_LOGGED = re.compile(r"step (\d+): ([\d.]+)")


class Found(NamedTuple):
    """The median seconds of the even or the odd steps of a case, in the log of the real ranks and in that of the simulated."""

    case: str
    measured: float
    logged: float


def rows() -> list[Row]:
    found = list(compared())
    worst = max(relative(one.logged, one.measured) for one in found)
    return [Row("seconds of a step in a live run's log", "two gloo processes' own log", len(found), worst, CLAIM)]


def compared() -> Iterator[Found]:
    """Run each case on real processes and simulated, and yield its even and its odd steps, without the first two."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise DataAbsent("torch is not installed") from None
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        raise DataAbsent("it makes network namespaces, for which it needs root, ip and tc")
    os.nice(PRIORITY)
    with namespaces(RATE), tempfile.TemporaryDirectory(prefix="triosim-") as folder:
        short, long = on_both("link", folder)
        topology = f"ring(2, bandwidth={16 * 2**20 / (long - short):.0f} B/s, latency={short:.6f} s)"
        for case, options in CASES.items():
            script = [str(SCRIPT), *options.split()]
            simulated = [
                sys.executable,
                "-m",
                "triosim",
                "run",
                "--gpu",
                "CPU",
                "--world",
                "2",
                "--topology",
                topology,
                "-q",
            ]
            said = subprocess.run([*simulated, *script], cwd=folder, capture_output=True, text=True, check=True).stdout
            real = max(both_say([sys.executable, *script]), key=lambda one: sum(_seconds(one, 1)))
            for odd in (0, 1):
                yield Found(
                    f"{case}, {'odd' if odd else 'even'} steps",
                    median(_seconds(real, odd)),
                    median(_seconds(said, odd)),
                )


def _seconds(log: str, odd: int) -> list[float]:
    """Return the seconds of the even or the odd steps that a log names, without the first two."""
    steps = [(int(step), float(seconds)) for step, seconds in _LOGGED.findall(log)]
    return [seconds for step, seconds in steps if step > 1 and step % 2 == odd]


def main() -> None:
    print("| case | two processes over gloo | triosim run | off |")
    print("|---|--:|--:|--:|")
    for one in compared():
        off = f"{100 * (one.logged / one.measured - 1):+.1f}%"
        print(f"| {one.case} | {one.measured * 1e3:.1f} ms | {one.logged * 1e3:.1f} ms | {off} |", flush=True)


if __name__ == "__main__":
    main()
