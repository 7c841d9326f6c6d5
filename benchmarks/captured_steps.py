"""The time from a distributed training script to its predicted step, without a GPU, start-up included.

Each case is ``triosim capture --fake`` and then ``triosim simulate``, and is given with wall-clock and processor seconds of
both, for processors are shared: the ranks that are compared are captured at the same time, as many as there are processors.
Llama 70B is the last row of TorchSim's table 18 (FSDP and tensor parallelism over 128 GPUs, 4 samples of 8,192 tokens on each,
all activations computed again), for which its authors state 30.59 s.

    python benchmarks/captured_steps.py [--rounds 3] [--only 8b]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from processes import Spent, run

SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "train"


@dataclass(frozen=True)
class Case:
    """A script on so many GPUs, and the seconds from it to the step time that the project set itself."""

    what: str
    script: str
    arguments: str
    world: int
    asked: float


CASES = {
    "8b": Case("Llama 8B, FSDP2", "fsdp2.py", "--model 8b --sequence 8192", 64, 15.0),
    "70b": Case(
        "Llama 70B, FSDP2 and tensor parallel",
        "tensor_parallel.py",
        "--model 70b --tensor-parallel 8 --sequence-parallel --batch-size 4 --sequence 8192 --checkpoint",
        128,
        60.0,
    ),
}


def measured(case: Case, folder: Path) -> tuple[Spent, Spent, float]:
    """Return what capture and simulation took, and the predicted seconds of a step."""
    streams, result = str(folder / "streams.json.gz"), folder / "result.json"
    script = [str(SCRIPTS / case.script), *case.arguments.split()]
    captured = run("capture", "--fake", "--gpu", "H100", "--world", str(case.world), "-o", streams, *script)
    simulated = run("simulate", streams, "--topology", f"dgx-h100(gpus={case.world})", "-o", str(result))
    return captured, simulated, float(json.loads(result.read_text(encoding="utf-8"))["step_time_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, help="this case alone")
    parser.add_argument("--rounds", type=int, default=1, help="of which the medians are given")
    options = parser.parse_args()
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{os.cpu_count()} processors; load before: {load}\n")
    print(
        "| case | GPUs | capture s | processor s | simulate s | processor s | together s | asked for | peak MB | step s |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for case in CASES.values() if options.only is None else [CASES[options.only]]:
        with tempfile.TemporaryDirectory(prefix="triosim-") as folder:
            rounds = [measured(case, Path(folder)) for _ in range(options.rounds)]
        first, second = ([one[place] for one in rounds] for place in (0, 1))
        seconds = [
            median(getattr(one, kind) for one in each) for each in (first, second) for kind in ("wall", "processor")
        ]
        together = median(one.wall + other.wall for one, other in zip(first, second, strict=True))
        peak = max(one.megabytes for one in (*first, *second))
        figures = " | ".join(f"{one:.1f}" for one in (*seconds, together))
        print(
            f"| {case.what} | {case.world} | {figures} | {case.asked:g} | {peak:.0f} | {rounds[0][2]:.3f} |", flush=True
        )


if __name__ == "__main__":
    main()
