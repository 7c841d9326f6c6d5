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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import simpy

from triosim import Topology
from triosim.networks import PacketNetwork
from triosim.networks.base import Form
from triosim.tasks import CollectiveKind
from validation.report import Row, relative

B, L, S = 10e9, 2e-6, 64e6

#: Factor of S/B and of L, from the number of ranks.
CostModel = Callable[[int], tuple[float, float]]

RING: dict[tuple[str, str], CostModel] = {
    ("all_reduce", "both"): lambda n: (2 * (n - 1) / n, 2 * (n - 1)),
    ("all_gather", "both"): lambda n: ((n - 1) / n, n - 1),
    ("reduce_scatter", "both"): lambda n: ((n - 1) / n, n - 1),
    ("broadcast", "pipelined"): lambda n: (1, n - 1),
    ("reduce", "pipelined"): lambda n: (1, n - 1),
    ("broadcast", "steps"): lambda n: (2 * (n - 1) / n, 2 * (n - 1)),
    ("reduce", "steps"): lambda n: (2 * (n - 1) / n, 2 * (n - 1)),
}
STRAIGHT: dict[tuple[str, str], CostModel] = {
    ("gather", "both"): lambda n: ((n - 1) / n, 1),
    ("scatter", "both"): lambda n: ((n - 1) / n, 1),
    ("all_to_all", "pipelined"): lambda n: ((n - 1) / n, 1),
    ("all_to_all", "steps"): lambda n: ((n - 1) / n, n - 1),
}
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
    return found


def error(topology: Topology, kind: CollectiveKind, form: Form, cost: CostModel) -> float:
    """Return how far one collective of all GPUs is from its closed form."""
    env = simpy.Environment()
    network = PacketNetwork(env, topology, form=form)
    ranks = range(len(topology.gpus))
    env.run(network.collective(kind, ranks, S))
    bytes_factor, latency_factor = cost(len(topology.gpus))
    return relative(env.now, bytes_factor * S / B + latency_factor * L)
