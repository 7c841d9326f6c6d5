"""The ring: every rank sends to its neighbour only (Patarasuk and Yuan 2009).

Reduce-scatter and all-gather take N - 1 steps, in each of which every rank passes one chunk of N on; an all-reduce is
one after the other. Broadcast and reduce go along the ring, as NCCL's do, also in N chunks. Gather, scatter and
all-to-all would only carry data past ranks that do not want it, and go straight: see
:mod:`triosim.networks.collectives.algorithms.direct`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from triosim.networks.collectives.algorithm import (
    CollectiveOperation,
    Edge,
    OperationAlgorithm,
    SteadyState,
    Transfer,
    latency_of,
)
from triosim.networks.collectives.algorithms import direct
from triosim.networks.collectives.ring_order import ring_order, rooted
from triosim.networks.topology import Topology
from triosim.tasks import CollectiveKind

Action = Literal["copy", "reduce"]


class Ring(OperationAlgorithm):
    """Collectives on a ring that is laid along short, disjoint links of the topology.

    In steps, a rank sends one chunk at a time: the next goes when its own data came in and the last one is through.
    """

    proportional = True

    def transfers_of(self, operation: CollectiveOperation, topology: Topology) -> Iterator[Transfer]:
        """Yield the transfers of a collective."""
        kind, ranks, nbytes, root, _ = operation
        if kind in ("gather", "scatter"):
            return direct.gather_or_scatter(operation)
        if kind == "all_to_all":
            return direct.all_to_all(operation)
        ring = ring_order(topology, ranks)
        if kind in ("broadcast", "reduce"):
            return _along(_chain(kind, ring, root), nbytes, "copy" if kind == "broadcast" else "reduce")
        place = {rank: chunk for chunk, rank in enumerate(ranks)}
        return _around(kind, ring, [place[rank] for rank in ring], operation.chunk_sizes)

    def steady_state(self, operation: CollectiveOperation, topology: Topology) -> SteadyState:
        """Return the steady state, in closed form: the transfers of a large ring are too many to add up."""
        kind, ranks, nbytes, root, _ = operation
        if kind in ("gather", "scatter", "all_to_all"):
            return super().steady_state(operation, topology)
        ring = ring_order(topology, ranks)
        if kind in ("broadcast", "reduce"):
            chain = _chain(kind, ring, root)
            hops = list(pairwise(chain))
            return SteadyState(
                tuple(Edge(source, destination, nbytes) for source, destination in hops),
                math.fsum(latency_of(topology, source, destination) for source, destination in hops),
            )
        sizes = dict(zip(ranks, operation.chunk_sizes, strict=True))
        hops = list(zip(ring, (*ring[1:], ring[0]), strict=True))
        latencies = [latency_of(topology, source, destination) for source, destination in hops]
        # A rank passes on all chunks but its own in a reduce-scatter, all but its neighbour's in an all-gather; a
        # chunk's way is all round but for the edge out of its rank, or into it.
        edges = []
        for source, destination in hops:
            scattered = nbytes - sizes[source] if kind != "all_gather" else 0.0
            gathered = nbytes - sizes[destination] if kind != "reduce_scatter" else 0.0
            edges.append(Edge(source, destination, max(scattered + gathered, 0.0)))
        if kind == "all_reduce":
            left_out = [into + out for into, out in zip((latencies[-1], *latencies[:-1]), latencies, strict=True)]
        else:
            left_out = latencies
        rounds = 2 if kind == "all_reduce" else 1
        return SteadyState(tuple(edges), max(math.fsum([*latencies * rounds, -min(left_out)]), 0.0))


def _chain(kind: CollectiveKind, ring: Sequence[int], root: int | None) -> Sequence[int]:
    """Return the ring, cut so that it begins with the root of a broadcast or ends with the root of a reduce."""
    chain = rooted(ring, root)
    return chain if kind == "broadcast" or root is None else (*chain[1:], chain[0])


def _along(chain: Sequence[int], nbytes: float, action: Action) -> Iterator[Transfer]:
    """Pass N chunks from rank to rank along a chain."""
    hops = len(chain) - 1
    size = nbytes / len(chain)
    for chunk in range(len(chain)):
        for hop in range(hops):
            number = chunk * hops + hop
            own = (number - hops,) if chunk else ()
            incoming = (number - 1,) if hop else ()
            yield Transfer(chain[hop], chain[hop + 1], chunk, size, action, own + incoming)


def _around(
    kind: CollectiveKind, ring: Sequence[int], chunk_at: Sequence[int], sizes: Sequence[float]
) -> Iterator[Transfer]:
    """Pass each chunk all the way round, once or twice; ``chunk_at`` is the chunk of the rank at each place."""
    n = len(ring)
    steps = 2 * (n - 1) if kind == "all_reduce" else n - 1
    first = 0 if kind == "all_gather" else 1  # a reduce-scatter begins with the chunk of the rank before
    for step in range(steps):
        action: Action = "copy" if kind == "all_gather" or step >= n - 1 else "reduce"
        for place in range(n):
            chunk = chunk_at[(place - first - step) % n]
            own, incoming = (step - 1) * n + place, (step - 1) * n + (place - 1) % n
            after = (own, incoming) if step else ()
            yield Transfer(ring[place], ring[(place + 1) % n], chunk, sizes[chunk], action, after)
