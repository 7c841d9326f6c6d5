"""One all-reduce, as a whole process: its predicted time beside a closed form, and the time of the prediction itself.

Systems of 8 to 16,384 GPUs, on ``packet`` (flows) and ``analytical``. The closed form is that of ASTRA-sim 2.0 (IV-B) with 64
chunks and the latencies of all hops, worked out here from the figures of the system. ``never`` is ``packet`` without folding.

    python benchmarks/collectives.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

CHUNKS = 64
LINK, FAST, SLOW = (50e9, 500e-9), (100e9, 500e-9), (25e9, 500e-9)  # bandwidth, latency
Dimensions = list[tuple[str, int, tuple[float, float]]]

SYSTEMS: dict[str, Dimensions] = {
    "ring 8": [("Ring", 8, LINK)],
    "switch 8": [("Switch", 8, LINK)],
    "torus 4x4x4": [("Ring", 4, LINK)] * 3,
    "torus 16x16x16": [("Ring", 16, LINK)] * 3,
    "Ring(16)_FC(8)_Switch(4)": [("Ring", 16, FAST), ("FC", 8, LINK), ("Switch", 4, SLOW)],
}
LARGE: dict[str, tuple[Dimensions, float, float]] = {  # bytes, seconds asked for
    "torus 16x16x16": (SYSTEMS["torus 16x16x16"], 1e6, 2.0),
    "Ring(16)_FC(8)_Ring(8)_Switch(4)": (
        [("Ring", 16, FAST), ("FC", 8, FAST), ("Ring", 8, LINK), ("Switch", 4, SLOW)],
        2.0**30,
        2.0,
    ),
    "Ring(16)_FC(8)_Switch(128)": ([("Ring", 16, FAST), ("FC", 8, LINK), ("Switch", 128, SLOW)], 1e9, 5.0),
}

PROCESS = """
import sys, simpy
from triosim.networks import AnalyticalNetwork, PacketNetwork, Topology
name, network, nbytes = sys.argv[1:]
env, topology = simpy.Environment(), Topology.load(name)
if network == "analytical":
    made = AnalyticalNetwork(env, topology, algorithm="hierarchical")
else:
    made = PacketNetwork(env, topology, algorithm="hierarchical", fold=network)
env.run(made.collective("all_reduce", range(len(topology.gpus)), float(nbytes)))
print(env.now)
"""


def written(dimensions: Dimensions) -> str:
    """Return the name of a system."""
    return "_".join(
        f"{block}({size}, bandwidth={bandwidth / 1e9:g} GB/s, latency={latency * 1e9:g} ns)"
        for block, size, (bandwidth, latency) in dimensions
    )


def closed_form(dimensions: Dimensions, nbytes: float) -> float:
    """Return max t_d + sum of t_j/C before it + the latencies, with 2 (n - 1)/n of what is left of the data on each."""
    took, latency, left = [], 0.0, nbytes
    for block, size, (bandwidth, hop) in dimensions:
        took.append(2 * (size - 1) / size * left / bandwidth)
        hops = {"Ring": size - 1, "FC": 1, "Switch": 2 * (size - 1).bit_length()}[block]
        latency += 2 * hops * hop
        left /= size
    slowest = took.index(max(took))
    return took[slowest] + sum(took[:slowest]) / CHUNKS + latency


def run(name: str, network: str, nbytes: float) -> tuple[float, float, float]:
    """Return the predicted time, the wall-clock time of the whole process, both in seconds, and its peak megabytes."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", PROCESS, name, network, str(nbytes)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    predicted = float(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{name} on {network} failed")
    return predicted, time.perf_counter() - began, usage.ru_maxrss / 1024


def measured(dimensions: Dimensions, network: str, nbytes: float, rounds: int) -> tuple[float, float, float]:
    """Return the prediction, the median of the wall-clock times, and the peak memory."""
    found = [run(written(dimensions), network, nbytes) for _ in range(rounds)]
    return found[0][0], statistics.median(one[1] for one in found), max(one[2] for one in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print("| system | bytes | closed form us | packet us | s | MB | analytical us | s | MB |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, dimensions in SYSTEMS.items():
        for nbytes in (1e6, 64e6, 1e9):
            cells = [f"{closed_form(dimensions, nbytes) * 1e6:.3f}"]
            for network in ("auto", "analytical"):
                predicted, seconds, peak = measured(dimensions, network, nbytes, rounds)
                cells += [f"{predicted * 1e6:.3f}", f"{seconds:.2f}", f"{peak:.0f}"]
            print(f"| {name} | {nbytes:g} | {' | '.join(cells)} |", flush=True)
    print("\n| system | GPUs | bytes | network | us | s | asked for | MB |\n|---|--:|--:|---|--:|--:|--:|--:|")
    for name, (dimensions, nbytes, asked) in LARGE.items():
        gpus = 1
        for _, size, _ in dimensions:
            gpus *= size
        for network, label in (("auto", "packet"), ("never", "packet, unfolded"), ("analytical", "analytical")):
            predicted, seconds, peak = measured(dimensions, network, nbytes, rounds)
            print(
                f"| {name} | {gpus:,} | {nbytes:g} | {label} | {predicted * 1e6:.3f} | {seconds:.2f} | "
                f"{'' if network == 'never' else f'{asked:g}'} | {peak:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
