"""The time to describe a model: the operators of a step from sizes alone, with their predicted times.

python benchmarks/describing.py

Seconds of the processor, the median of several runs after one that loads the compute models; wall-clock beside it.
"""

from __future__ import annotations

import statistics
import time

import triosim
from triosim.models.catalogue import MODELS as NAMED

MODELS = ("gpt2", "llama3-8b", "gpt3-175b", "llama3-405b", "mixtral-8x22b", "deepseek-v3", "resnet50", "densenet201")
REPEATS = 5


def main() -> None:
    triosim.describe("gpt2", layers=1)
    print("| model | layers | operators | CPU s | wall s |\n|---|--:|--:|--:|--:|")
    for name in MODELS:
        cpu, wall = [], []
        for _ in range(REPEATS):
            started = time.process_time(), time.perf_counter()
            trace = triosim.describe(name)
            cpu.append(time.process_time() - started[0])
            wall.append(time.perf_counter() - started[1])
        layers = getattr(NAMED[name], "layers", "")
        print(
            f"| {name} | {layers} | {len(trace.operators):,} | {statistics.median(cpu):.2f} | {statistics.median(wall):.2f} |"
        )


if __name__ == "__main__":
    main()
