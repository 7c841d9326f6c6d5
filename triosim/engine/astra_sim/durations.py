"""How many ns a node takes by its own duration, or by the roofline of its FLOPs and bytes."""

from __future__ import annotations

from triosim.chakra.graph import RankGraph
from triosim.chakra.inputs.system_file import Compute
from triosim.chakra.nodes import Node
from triosim.engine.astra_sim.faults import NeverEnds


def replayed(node: Node) -> int:
    """Return the duration that the node has; one without any takes a nanosecond."""
    return node.duration_us * 1000 or 1


def by_roofline(graph: RankGraph, node: Node, compute: Compute) -> int | None:
    """Return the ns of a computation, or None where it has no bytes and is skipped.

    Raises ``NeverEnds`` for one without operations, which in ASTRA-sim, where it is 0 divided by 0, never ends.
    """
    operations, size = float(graph.whole(node, "num_ops")), float(graph.whole(node, "tensor_size"))
    if size == 0:
        return None
    rate = min(compute.memory_bandwidth * (operations / size), compute.peak)
    if not rate:
        raise NeverEnds(f"{graph.where(node)}: no operations, or a peak-perf of 0, by which ASTRA-sim divides")
    return int(operations / rate * 1e9)
