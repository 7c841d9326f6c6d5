"""The log of a live run against published steps: Llama 3.1 8B by a script like torchtitan, compiled layer by layer or not.

``triosim run`` runs ``examples/train/fsdp2.py`` as the rows of PyTorch's team; compared are the tokens a second that the script
itself prints, and the most memory that its allocator reserved. No constant was fitted to these rows with a live run.
``python -m validation.live_steps`` prints each.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from validation.report import DataAbsent, Row, data, relative

#: Minutes, with PyTorch: ``python -m validation`` runs this only where it is asked for.
TAKES_LONG = True

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "train" / "fsdp2.py"
BOARD = "H100(power=500 W, bandwidth=2.4 TB/s, capacity=96 GB)"
STEPS = 4
_LOGGED = re.compile(r"tps: ([\d,]+), memory: ([\d.]+) GiB")


class Published(NamedTuple):
    """A published row: ``batch`` samples of a GPU, tokens a second of a GPU, and GiB."""

    gpus: int
    batch: int
    sequence: int
    compiled: bool
    tokens: float
    memory: float

    @property
    def name(self) -> str:
        """What the tables call it."""
        return f"Llama 3.1 8B, FSDP2 on {self.gpus}{', compiled' if self.compiled else ''}"


class Found(NamedTuple):
    """A row: tokens a second of a GPU and GiB, as published and as logged."""

    name: str
    tokens: float
    memory: float
    logged_tokens: float
    logged_memory: float


def rows() -> list[Row]:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise DataAbsent("torch is not installed") from None
    return judged(list(compared()), "the log of a script like torchtitan")


def judged(found: list[Found], what: str) -> list[Row]:
    """Return the largest errors of a log's tokens a second and memory."""
    against = "torchtitan, 8 and 128 H100"
    tokens = max(relative(one.logged_tokens, one.tokens) for one in found)
    memory = max(relative(one.logged_memory, one.memory) for one in found)
    return [
        Row(f"tokens a second in {what}", against, len(found), tokens, 0.10),
        Row(f"reserved memory in {what}", against, len(found), memory, 0.10),
    ]


def published() -> Iterator[Published]:
    """Yield the rows that were not in float8."""
    with open(data("end_to_end/torchtitan_llama3_h100.csv"), encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["float8"] == "no":
                sizes = int(row["gpus"]), int(row["local_batch"]), int(row["sequence_length"])
                figures = float(row["tokens_per_second_per_gpu"]), float(row["memory_gib"])
                yield Published(*sizes, row["compile"] == "yes", *figures)


def compared() -> Iterator[Found]:
    """Run each row, and yield what its script logs last."""
    for row in published():
        tokens, memory = logged(row)
        yield Found(row.name, row.tokens, row.memory, tokens, memory)


def logged(row: Published) -> tuple[float, float]:
    """Run the script, and return the last tokens a second and GiB that it prints."""
    system = ["--gpu", BOARD, "--world", str(row.gpus), "--topology", f"dgx-h100(gpus={row.gpus})", "-q"]
    sizes = ["--model", "8b", "--batch-size", str(row.batch), "--sequence", str(row.sequence), "--steps", str(STEPS)]
    how = ["--checkpoint", "selective", *["--compile"] * row.compiled]
    command = [sys.executable, "-m", "triosim", "run", *system, str(SCRIPT), *sizes, *how]
    with tempfile.TemporaryDirectory(prefix="triosim-") as folder:
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    tokens, memory = _LOGGED.findall(said)[-1]
    return float(tokens.replace(",", "")), float(memory)


def print_found(found: Iterable[Found]) -> None:
    """Print each row as it comes, as a table of the documentation."""
    print("| row | published tokens/s | logged | off | published GiB | logged | off |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for one in found:
        off = [f"{100 * (ours / theirs - 1):+.1f}%" for ours, theirs in ((one[3], one[1]), (one[4], one[2]))]
        tokens, memory = f"{one.tokens:,.0f} | {one.logged_tokens:,.0f}", f"{one.memory} | {one.logged_memory}"
        print(f"| {one.name} | {tokens} | {off[0]} | {memory} | {off[1]} |", flush=True)


if __name__ == "__main__":
    print_found(compared())
