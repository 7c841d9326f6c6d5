"""A 1 GB all-reduce on the systems of ASTRA-sim 2.0's Table II: Themis against a wafer of one dimension and equal bandwidth.

Section V-A and Fig. 9: with Themis, conventional systems of several dimensions show the same time for an all-reduce as the
wafer (W-1D) with as much bandwidth a GPU. Both networks simulate it; the wafer's time is the simulated one.
"""

from __future__ import annotations

import simpy

from triosim import Topology
from triosim.networks import AnalyticalNetwork, PacketNetwork
from triosim.networks.collectives.algorithms.hierarchical import Hierarchical
from triosim.networks.collectives.phased.chunk_schedule import ChunkOrder
from validation.report import Row, relative

GB = 1e9
NETWORKS = (AnalyticalNetwork, PacketNetwork)
#: By system: its dimensions (block, GPUs, GB/s), and the GB/s of the wafer of one dimension.
SYSTEMS = {
    "W-2D": ((("Switch", 32, 250), ("Switch", 16, 250)), 500),
    "Conv-3D": ((("Ring", 16, 200), ("FC", 8, 100), ("Switch", 4, 50)), 350),
    "Conv-4D": ((("Ring", 2, 250), ("FC", 8, 200), ("Ring", 8, 100), ("Switch", 4, 50)), 600),
}


def rows() -> list[Row]:
    found = []
    for name, (dimensions, bandwidth) in SYSTEMS.items():
        for network in NETWORKS:
            wafer = seconds(network, (("Switch", 512, bandwidth),), "in-order")
            plain, themis = (seconds(network, dimensions, order) for order in ("in-order", "themis"))
            times = f"{plain / wafer:.2f} times the wafer's time in order, {themis / wafer:.3f} with Themis"
            what = f"{name}, {network.__name__}: {times}"
            found.append(Row(what, f"ASTRA-sim 2.0, W-1D-{bandwidth}", 1, relative(themis, wafer), 0.05))
    return found


def seconds(network: type, dimensions: tuple[tuple[str, int, int], ...], order: ChunkOrder) -> float:
    """Return what a 1 GB all-reduce of all GPUs takes, without latencies."""
    notation = "_".join(f"{block}({size}, bandwidth={rate} GB/s, latency=0 ns)" for block, size, rate in dimensions)
    topology, env = Topology.load(notation), simpy.Environment()
    made = network(env, topology, algorithm=Hierarchical(chunk_schedule=order))
    env.run(made.collective("all_reduce", range(len(topology.gpus)), GB))
    return float(env.now)
