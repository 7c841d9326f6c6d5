"""The time and memory of ``triosim simulate`` as a whole process, start-up included: medians of interleaved runs.

Speed is the machine's as much as the program's, so an empty Python process is timed in the same rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

TRACES = Path(__file__).resolve().parent.parent / "examples" / "traces"
RESNET = str(TRACES / "resnet50_a100_fake.json.gz")
VGG = str(TRACES / "vgg13_a100_fake.json.gz")
SWITCH = "switch({}, bandwidth=300 GB/s, latency=1 us)"
MESH = "mesh(12x7, bandwidth=60.5 GB/s, latency=500 ns)"


def cases() -> dict[str, tuple[list[str], float | None]]:
    """Return the command lines by name, each with the seconds that it should stay below."""
    data = os.environ.get("TRIOSIM_DATA")
    h100 = Path(data) / "traces" / "h100_vgg13_bs128" if data else None
    vgg = str(h100) if h100 and h100.exists() else VGG
    found: dict[str, tuple[list[str], float | None]] = {
        "VGG-13, 8 GPUs, ddp": ([vgg, "--parallel", "ddp", "--topology", "dgx-h100"], 1.0)
    }
    for gpus, ddp, tp in ((8, 0.8, 0.8), (32, 1.2, 1.2), (84, 5.0, 3.0)):
        switch = ["--topology", SWITCH.format(gpus)]
        found[f"ResNet-50, {gpus} GPUs, ddp, steps"] = (
            [RESNET, "--parallel", "ddp", *switch, "--collective-form", "steps"],
            ddp,
        )
        found[f"ResNet-50, {gpus} GPUs, tp, pipelined"] = ([RESNET, "--parallel", "tp", *switch], tp)
    found["ResNet-50, 84 GPUs, 12 x 7 mesh, dp, steps"] = (
        [RESNET, "--parallel", "dp", "--topology", MESH, "--collective-form", "steps"],
        5.0,
    )
    for gpus in (8, 16, 32, 64, 128, 256, 512, 1024):
        found[f"ResNet-50, {gpus} GPUs, ddp, pipelined"] = (
            [RESNET, "--parallel", "ddp", "--topology", SWITCH.format(gpus)],
            10.0 if gpus == 1024 else None,
        )
    return found


def run(command: list[str]) -> tuple[float, float]:
    """Return the wall-clock seconds and the peak resident megabytes of one process."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return seconds, usage.ru_maxrss / 1024  # kilobytes on Linux


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", help="draw the growth from 8 to 1,024 GPUs into this picture")
    options = parser.parse_args()
    commands = {"empty Python process": ([sys.executable, "-c", "pass"], None)}
    triosim = [sys.executable, "-m", "triosim", "simulate"]
    for name, (arguments, target) in cases().items():
        commands[name] = ([*triosim, *arguments], target)
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, (command, _target) in commands.items():
            measured[name].append(run(command))
    print("| case | median s | fastest s | asked for | peak MB |\n|---|--:|--:|--:|--:|")
    for name, figures in measured.items():
        target = commands[name][1]
        seconds = [figure[0] for figure in figures]
        peak = max(figure[1] for figure in figures)
        asked = f"{target:g}" if target else ""
        print(f"| {name} | {statistics.median(seconds):.2f} | {min(seconds):.2f} | {asked} | {peak:.0f} |")
    if options.plot:
        draw({name: statistics.median(one[0] for one in figures) for name, figures in measured.items()}, options.plot)


def draw(medians: dict[str, float], path: str) -> None:
    """Draw the whole process' time over the number of GPUs (ddp, pipelined)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    points = [(int(name.split()[1]), seconds) for name, seconds in medians.items() if name.endswith("ddp, pipelined")]
    gpus, seconds = zip(*sorted(points), strict=True)
    figure, axes = plt.subplots(figsize=(6, 3.5))
    axes.plot(gpus, seconds, marker="o")
    axes.axhline(medians["empty Python process"], color="grey", linestyle="--", label="empty Python process")
    axes.set_xscale("log", base=2)
    axes.set_xticks(gpus, [str(one) for one in gpus])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("whole process (s)")
    axes.set_title("triosim simulate, ResNet-50, ddp, pipelined")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
