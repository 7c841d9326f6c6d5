"""The speed of the analytical network on 65,536 GPUs: a thousand collectives, each of another size or group.

The system is named; loading it is given apart. ``first`` is the first all-reduce of all GPUs, ``all`` a thousand of them of
different sizes, ``kinds`` a thousand of all kinds, ``groups`` one of each of a thousand groups of a line of GPUs each.

    python benchmarks/analytical.py [--quick]
"""

from __future__ import annotations

import sys
import time
from typing import get_args

import simpy

from triosim.networks import AnalyticalNetwork, Topology
from triosim.tasks import CollectiveKind

FAST, SLOW = "bandwidth=100 GB/s, latency=500 ns", "bandwidth=50 GB/s, latency=1 us"
SYSTEMS = {
    "Ring(16)_FC(16)_Ring(16)_Switch(16)": f"Ring(16, {FAST})_FC(16, {FAST})_Ring(16, {SLOW})_Switch(16, {SLOW})",
    "Switch(8)_Switch(8192)": f"Switch(8, {FAST})_Switch(8192, {SLOW})",
    "dgx-h100": "dgx-h100(gpus=65536)",
    "torus": f"torus(64x32x32, {SLOW})",
}


def measure(name: str) -> dict[str, float]:
    """Return the seconds of each part."""
    found = {}
    began = time.perf_counter()
    topology = Topology.load(name)
    world = range(len(topology.gpus))
    found["load"] = time.perf_counter() - began
    network = AnalyticalNetwork(simpy.Environment(), topology)

    def run(part: str, collectives: list[tuple[CollectiveKind, range, float]]) -> None:
        began = time.perf_counter()
        for kind, group, nbytes in collectives:
            network.env.run(network.collective(kind, group, nbytes))
        found[part] = time.perf_counter() - began

    run("first", [("all_reduce", world, 1e6)])
    run("all", [("all_reduce", world, 1e6 * size) for size in range(1, 1001)])
    kinds = get_args(CollectiveKind)
    run("kinds", [(kinds[number % len(kinds)], world, 1e6 * number) for number in range(1000)])
    run("groups", [("all_reduce", range(8 * number, 8 * number + 8), 1e6) for number in range(1000)])
    return found


def main() -> None:
    names = list(SYSTEMS)[: 2 if "--quick" in sys.argv else None]
    print(f"{'65,536 GPUs, seconds':37}{'load':>8}{'first':>8}{'all':>8}{'kinds':>8}{'groups':>8}")
    for name in names:
        print(f"{name:37}" + "".join(f"{seconds:8.2f}" for seconds in measure(SYSTEMS[name]).values()), flush=True)


if __name__ == "__main__":
    main()
