"""Collectives on idle, homogeneous systems, against their closed forms (Thakur, Rabenseifner and Gropp 2005; Chan et al. 2007).

With N ranks, S bytes (nccl-tests' larger side), B bytes per second of a link and L seconds from one rank to the next:

    all-reduce                        2(N-1)/N S/B + 2(N-1) L
    all-gather, reduce-scatter         (N-1)/N S/B +  (N-1) L
    broadcast, reduce    pipelined             S/B +  (N-1) L         as many chunks as one likes
                         steps        2(N-1)/N S/B + 2(N-1) L         N chunks
    gather, scatter      on a switch   (N-1)/N S/B +        L         all through the root's link
    all-to-all           on a switch   (N-1)/N S/B +        L         pipelined: all pairs at once
                                       (N-1)/N S/B +  (N-1) L         steps: one partner at a time

The mesh has an even side, so that the ring on it uses direct links only, and is as fast as a ring of its own.

What goes straight on a ring or a mesh shares links. Without latency, all at once, the busiest link sets the time: with k
flows of S/N bytes on it, k S/N/B. On a ring of odd N, k is (N-1)/2 into or out of the root and (N^2-1)/8 for all-to-all; on
a mesh of a columns and b <= a rows (a even), routed along its rows first, a (b-1) into the root in the corner, (a-1) b out
of it, and a^2 b/4 through the middle of a row for all-to-all (Dally and Towles 2004, chapters 3 and 8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import simpy

from triosim import Topology
from triosim.networks import PacketNetwork
from triosim.networks.collectives.lowering import Form
from triosim.tasks import CollectiveKind
from validation.report import Row, relative

B, L, S = 10e9, 2e-6, 64e6

#: Factor of S/B and of L, from the number of ranks.
CostModel = Callable[[int], tuple[float, float]]

RING: dict[tuple[CollectiveKind, str], CostModel] = {
    ("all_reduce", "both"): lambda n: (2 * (n - 1) / n, 2 * (n - 1)),
    ("all_gather", "both"): lambda n: ((n - 1) / n, n - 1),
    ("reduce_scatter", "both"): lambda n: ((n - 1) / n, n - 1),
    ("broadcast", "pipelined"): lambda n: (1, n - 1),
    ("reduce", "pipelined"): lambda n: (1, n - 1),
    ("broadcast", "steps"): lambda n: (2 * (n - 1) / n, 2 * (n - 1)),
    ("reduce", "steps"): lambda n: (2 * (n - 1) / n, 2 * (n - 1)),
}
STRAIGHT: dict[tuple[CollectiveKind, str], CostModel] = {
    ("gather", "both"): lambda n: ((n - 1) / n, 1),
    ("scatter", "both"): lambda n: ((n - 1) / n, 1),
    ("all_to_all", "pipelined"): lambda n: ((n - 1) / n, 1),
    ("all_to_all", "steps"): lambda n: ((n - 1) / n, n - 1),
}
#: Number of flows on the busiest link, from the numbers of columns and rows (a ring has one row).
BUSIEST: dict[str, dict[CollectiveKind, Callable[[int, int], float]]] = {
    "ring": {
        "gather": lambda n, _: (n - 1) / 2,
        "scatter": lambda n, _: (n - 1) / 2,
        "all_to_all": lambda n, _: (n * n - 1) / 8,
    },
    "mesh": {
        "gather": lambda a, b: a * (b - 1),
        "scatter": lambda a, b: (a - 1) * b,
        "all_to_all": lambda a, b: a * a * b / 4,
    },
}
SIZES = {"ring": ((3, 1), (5, 1), (9, 1), (17, 1)), "mesh": ((2, 2), (4, 2), (4, 4), (6, 3))}

SYSTEMS = {
    "ring": ("ring({n}, bandwidth=10 GB/s, latency=2 us)", (3, 4, 8, 16), RING),
    "switch": ("switch({n}, bandwidth=10 GB/s, latency=1 us)", (3, 4, 8, 16), RING | STRAIGHT),
    "mesh": ("mesh({n}x2, bandwidth=10 GB/s, latency=2 us)", (2, 3, 4, 8), RING),
}


def rows() -> list[Row]:
    found = []
    for system, (name, sizes, costs) in SYSTEMS.items():
        for form in get_args(Form):
            errors = []
            for (kind, forms), cost in costs.items():
                if forms in ("both", form):
                    errors += [error(Topology.load(name.format(n=n)), kind, form, cost) for n in sizes]
            found.append(Row(f"collectives on a {system}, {form}", "closed forms", len(errors), max(errors), 1e-9))
    return found + [shared(system) for system in BUSIEST]


def shared(system: str) -> Row:
    """Compare what goes straight between all GPUs of a system without latency."""
    errors = []
    for kind, busiest in BUSIEST[system].items():
        for columns, rows_ in SIZES[system]:
            shape = f"{columns}x{rows_}" if system == "mesh" else str(columns)
            topology = Topology.load(f"{system}({shape}, bandwidth=10 GB/s, latency=0 s)")

            def cost(n: int, k: float = busiest(columns, rows_)) -> tuple[float, float]:
                return k / n, 0

            errors.append(error(topology, kind, "pipelined", cost))
    return Row(f"gather, scatter, all-to-all on a {system}", "busiest link", len(errors), max(errors), 1e-9)


def error(topology: Topology, kind: CollectiveKind, form: Form, cost: CostModel) -> float:
    """Return how far one collective of all GPUs is from its closed form."""
    env = simpy.Environment()
    network = PacketNetwork(env, topology, algorithm="ring", form=form)
    ranks = range(len(topology.gpus))
    env.run(network.collective(kind, ranks, S))
    bytes_factor, latency_factor = cost(len(topology.gpus))
    return relative(env.now, bytes_factor * S / B + latency_factor * L)
