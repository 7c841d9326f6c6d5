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
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from validation.report import DataAbsent, Row, data, relative

#: Minutes, with PyTorch: ``python -m validation`` runs this only where it is asked for.
TAKES_LONG = True

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "train" / "fsdp2.py"
BOARD = "H100(power=500 W, bandwidth=2.4 TB/s, capacity=96 GB)"
STEPS = 4
_LOGGED = re.compile(r"tps: ([\d,]+), memory: ([\d.]+) GiB")


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
    found = list(compared())
    against = "torchtitan, 8 and 128 H100"
    tokens = max(relative(one.logged_tokens, one.tokens) for one in found)
    memory = max(relative(one.logged_memory, one.memory) for one in found)
    return [
        Row("tokens a second of a live run's log", against, len(found), tokens, 0.10),
        Row("reserved memory of a live run's log", against, len(found), memory, 0.10),
    ]


def compared() -> Iterator[Found]:
    """Run each row that was not compiled, and yield what its script logs last."""
    with open(data("end_to_end/torchtitan_llama3_h100.csv"), encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["float8"] == "no":
                how = ["--compile"] * (row["compile"] == "yes")
                tokens, memory = logged(int(row["gpus"]), int(row["local_batch"]), int(row["sequence_length"]), *how)
                published = float(row["tokens_per_second_per_gpu"]), float(row["memory_gib"])
                name = f"Llama 3.1 8B, FSDP2 on {row['gpus']}{', compiled' if how else ''}"
                yield Found(name, *published, tokens, memory)


def logged(world: int, batch: int, sequence: int, *how: str) -> tuple[float, float]:
    """Run the script, and return the last tokens a second and GiB that it prints; ``how`` are more of its arguments."""
    system = ["--gpu", BOARD, "--world", str(world), "--topology", f"dgx-h100(gpus={world})", "-q"]
    sizes = ["--model", "8b", "--batch-size", str(batch), "--sequence", str(sequence), "--steps", str(STEPS), *how]
    command = [sys.executable, "-m", "triosim", "run", *system, str(SCRIPT), *sizes, "--checkpoint", "selective"]
    with tempfile.TemporaryDirectory(prefix="triosim-") as folder:
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    tokens, memory = _LOGGED.findall(said)[-1]
    return float(tokens.replace(",", "")), float(memory)


def main() -> None:
    print("| row | published tokens/s | logged | off | published GiB | logged | off |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for one in compared():
        off = [f"{100 * (ours / theirs - 1):+.1f}%" for ours, theirs in ((one[3], one[1]), (one[4], one[2]))]
        tokens, memory = f"{one.tokens:,.0f} | {one.logged_tokens:,.0f}", f"{one.memory} | {one.logged_memory}"
        print(f"| {one.name} | {tokens} | {off[0]} | {memory} | {off[1]} |", flush=True)


if __name__ == "__main__":
    main()
