"""The nodes that a rank can issue, by the resource that each holds: a CPU, a GPU's computing, and its communication.

After each completion ASTRA-sim walks the free nodes in order of id and issues those whose resource is free. Nodes that become
free during a walk wait for the next one. A receive holds no resource.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import IntEnum

from triosim.chakra.graph import RankGraph
from triosim.chakra.nodes import Node, NodeType
from triosim.engine.astra_sim.readiness import Readiness


class Resource(IntEnum):
    """What a node holds while it runs, one node at a time; a receive holds nothing."""

    CPU = 0
    COMPUTE = 1
    COMMUNICATION = 2
    NOTHING = 3


class Issuing:
    """Which nodes of a rank are free, and which resources."""

    def __init__(self, graph: RankGraph) -> None:
        self._graph, self._ready = graph, Readiness(graph)
        self._free: list[list[tuple[int, Node]]] = [[] for _ in Resource]
        self._held = [False for _ in Resource]

    @property
    def is_over(self) -> bool:
        """Whether nothing is free or runs."""
        return self._ready.is_over

    def walk(self) -> Iterator[Node]:
        """Yield the nodes that are issued now; each holds its resource from then on."""
        for node in self._ready.freed():
            heapq.heappush(self._free[self._resource(node)], (node.id, node))
        while True:
            heads = [
                (free[0][0], resource) for resource, free in enumerate(self._free) if free and not self._held[resource]
            ]
            if not heads:
                return
            _, resource = min(heads)
            self._held[resource] = resource != Resource.NOTHING
            yield heapq.heappop(self._free[resource])[1]

    def release(self, node: Node) -> None:
        """Note that a node holds its resource no longer."""
        self._held[self._resource(node)] = False

    def finish(self, node: Node) -> None:
        """Note that a node is over."""
        self.release(node)
        self._ready.finish(node)

    def _resource(self, node: Node) -> Resource:
        if self._graph.on_cpu(node):
            return Resource.CPU
        if node.type == NodeType.COMP:
            return Resource.COMPUTE
        return Resource.NOTHING if node.type == NodeType.COMM_RECV else Resource.COMMUNICATION
