"""The time and memory of live runs: how long a step of a distributed script takes to simulate while the script runs.

Each case is ``triosim run`` of a script for few steps and for more; what a step takes after the first two is the difference.
Given are wall-clock and processor seconds of all processes, for processors are shared, and the most memory of one of them.

    python benchmarks/live_run.py [--only 8b] [--steps 10]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from processes import Spent, run

SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "train"
FEW = 2


@dataclass(frozen=True)
class Case:
    """A script on so many GPUs, which so many of them run; without ``processes``, those that differ."""

    what: str
    script: str
    arguments: str
    world: int
    processes: int | None = None

    @property
    def ranks(self) -> str:
        """The ranks that run the script, beside the last one."""
        if self.processes is None:
            return "auto"
        return ",".join(str(rank * (self.world // self.processes)) for rank in range(self.processes - 1))


CASES = {
    "8b": Case("Llama 8B, FSDP2", "fsdp2.py", "--model 8b --sequence 8192", 64),
    "70b": Case(
        "Llama 70B, FSDP2 and tensor parallel",
        "tensor_parallel.py",
        "--model 70b --tensor-parallel 8 --sequence-parallel --batch-size 4 --sequence 8192 --checkpoint",
        128,
    ),
    **{
        f"1024-{processes or 'auto'}": Case(
            "2 layers of Llama 1B, FSDP2", "fsdp2.py", "--model 1b --layers 2 --sequence 512", 1024, processes
        )
        for processes in (None, 2, 8, 64)
    },
}


def measured(case: Case, steps: int) -> tuple[Spent, float]:
    """Run a case for some steps; return what it took, and the simulated seconds of a step."""
    with tempfile.TemporaryDirectory(prefix="triosim-") as folder:
        result = Path(folder) / "result.json"
        system = ["--gpu", "H100", "--world", str(case.world), "--topology", f"dgx-h100(gpus={case.world})"]
        ours = [*system, "--ranks", case.ranks, "--steps", str(steps), "-q", "-o", str(result)]
        spent = run("run", *ours, str(SCRIPTS / case.script), *case.arguments.split(), "--steps", str(steps))
        return spent, json.loads(result.read_text(encoding="utf-8"))["step_time_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, help="this case alone")
    parser.add_argument("--steps", type=int, default=10, help="of the longer run")
    options = parser.parse_args()
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{os.cpu_count()} processors; load before: {load}\n")
    print(
        "| case | GPUs | processes | whole run s | processor s | a step s | processor s | peak MB | simulated step s |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for case in CASES.values() if options.only is None else [CASES[options.only]]:
        (few, _), (more, step) = measured(case, FEW), measured(case, options.steps)
        each = [(getattr(more, kind) - getattr(few, kind)) / (options.steps - FEW) for kind in ("wall", "processor")]
        figures = f"{more.wall:.1f} | {more.processor:.1f} | {each[0]:.2f} | {each[1]:.2f} | {more.megabytes:.0f}"
        print(f"| {case.what} | {case.world} | {case.processes or 'auto'} | {figures} | {step:.3f} |", flush=True)


if __name__ == "__main__":
    main()
