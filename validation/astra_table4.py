"""A 1 GiB all-reduce on networks of four dimensions, against ASTRA-sim 2.0, Table IV (its caption says all-gather).

Ring_FC_Ring_Switch with 1000, 200, 100 and 50 GB/s, read from files as ASTRA-sim has them (its GB is 2^30 bytes, and those of
a fully connected dimension are of one of its links, where the paper's are of all together). The bytes of each dimension, which
the table gives too, are compared with those that the ranks send.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import simpy

from triosim import Topology
from triosim.networks import AnalyticalNetwork
from triosim.networks.collectives.algorithm import CollectiveOperation
from triosim.networks.collectives.algorithms.hierarchical import Hierarchical
from validation.report import Row, relative

GIB, MIB = 2.0**30, 2.0**20
#: Shape: microseconds, and MB of each dimension.
TABLE = {
    (2, 8, 8, 4): (4392.85, (1024, 896, 112, 12)),
    (2, 8, 8, 8): (4392.85, (1024, 896, 112, 14)),
    (2, 8, 8, 16): (4392.85, (1024, 896, 112, 15)),
    (2, 8, 8, 32): (4392.85, (1024, 896, 112, 15.5)),
    (4, 8, 8, 4): (2212.60, (1536, 448, 56, 6)),
    (8, 8, 8, 4): (1753.48, (1792, 224, 28, 3)),
    (16, 8, 8, 4): (1879.17, (1920, 112, 14, 1.5)),
}


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        systems = {shape: loaded(Path(folder) / "network.yml", shape) for shape in TABLE}
    times = [relative(microseconds(systems[shape]), expected) for shape, (expected, _) in TABLE.items()]
    moved = [
        relative(found, expected)
        for shape, (_, sizes) in TABLE.items()
        if len(systems[shape].gpus) <= 1024
        for found, expected in zip(sent(systems[shape]), sizes, strict=True)
    ]
    return [
        Row("1 GiB all-reduce in four dimensions", "ASTRA-sim 2.0, Table IV", len(times), max(times), 1.5e-2),
        Row("bytes of each dimension", "ASTRA-sim 2.0, Table IV", len(moved), max(moved), 1e-9),
    ]


def loaded(path: Path, shape: tuple[int, ...]) -> Topology:
    path.write_text(
        "topology: [ Ring, FullyConnected, Ring, Switch ]\n"
        f"npus_count: {list(shape)}\n"
        f"bandwidth: [ 1000.0, {200 / (shape[1] - 1)}, 100.0, 50.0 ]  # GB/s\n"
        "latency: [ 0.0, 0.0, 0.0, 0.0 ]  # ns\n",
        encoding="utf-8",
    )
    return Topology.load(path)


def microseconds(topology: Topology) -> float:
    env = simpy.Environment()
    network = AnalyticalNetwork(env, topology)
    env.run(network.collective("all_reduce", range(len(topology.gpus)), GIB))
    return float(env.now) * 1e6


def sent(topology: Topology) -> list[float]:
    """Return the MB that rank 0 sends on each dimension, by the ranks that it sends to."""
    edges = (
        Hierarchical().steady_state(CollectiveOperation("all_reduce", range(len(topology.gpus)), GIB), topology).edges
    )
    by_dimension = [0.0] * len(topology.dimensions)
    for source, destination, nbytes in edges:
        if source == 0:
            dimension, before = 0, 1
            while int(destination) // before % topology.dimensions[dimension].size == 0:
                before *= topology.dimensions[dimension].size
                dimension += 1
            by_dimension[dimension] += nbytes / MIB
    return by_dimension
