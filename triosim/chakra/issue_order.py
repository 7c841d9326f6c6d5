"""The order in which each rank issues its nodes: as they become ready, by id, while the GPU computes one at a time.

Communication takes no time here: the order is that of dependence on all ranks together, so that in-order streams cannot wait
for each other in a circle.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from triosim.chakra.graph import RankGraph
from triosim.chakra.links import Place
from triosim.chakra.nodes import Node, NodeType
from triosim.errors import TraceError

_TOGETHER = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)


def issue_order(
    graphs: Sequence[RankGraph], seconds: Sequence[Mapping[int, float]], links: Sequence[Sequence[Place]]
) -> list[list[Node]]:
    """Return the nodes of each rank in order of issue; ``seconds`` are those of each rank's nodes.

    Raises ``TraceError`` where ranks wait for each other, and nothing can go on.
    """
    clock = _Order(graphs, seconds, links)
    clock.run()
    return clock.orders


class _Order:
    def __init__(
        self, graphs: Sequence[RankGraph], seconds: Sequence[Mapping[int, float]], links: Sequence[Sequence[Place]]
    ) -> None:
        self._graphs, self._seconds = graphs, seconds
        self._waiting = [{node.id: len(node.parents) for node in graph.nodes.values()} for graph in graphs]
        self._children = [_children(graph) for graph in graphs]
        self._link = {place: number for number, places in enumerate(links) for place in places}
        self._links = links
        self._missing = [len(places) for places in links]
        self._ready: list[list[int]] = [[] for _ in graphs]
        self._busy = [False for _ in graphs]
        self._ends: list[tuple[float, int, int]] = []
        self._wave: list[Place] = []
        self._now = 0.0
        self.orders: list[list[Node]] = [[] for _ in graphs]

    def run(self) -> None:
        for rank, waiting in enumerate(self._waiting):
            for identity, number in waiting.items():
                if not number:
                    self._free(rank, identity)
        self._start_wave(range(len(self._graphs)))
        while self._ends:
            self._now = self._ends[0][0]
            ended: set[int] = set()
            while self._ends and self._ends[0][0] == self._now:
                _, rank, identity = heapq.heappop(self._ends)
                ended.add(rank)
                if self._computes(rank, identity):
                    self._busy[rank] = False
                self._finish(rank, identity)
            self._start_wave(ended)
        self._check()

    def _free(self, rank: int, identity: int) -> None:
        """Take a node that waits for none: a computation queues, a message or collective waits for its others."""
        link = self._link.get((rank, identity))
        if link is not None:
            self._missing[link] -= 1
            if not self._missing[link]:
                self._wave += self._links[link]
        elif self._computes(rank, identity):
            heapq.heappush(self._ready[rank], identity)
        else:
            self._wave.append((rank, identity))

    def _start_wave(self, ranks: Iterable[int]) -> None:
        """Start what became ready at one moment by id, so that ranks with equal graphs have one order."""
        for rank in ranks:
            if self._ready[rank] and not self._busy[rank]:
                self._busy[rank] = True
                self._wave.append((rank, heapq.heappop(self._ready[rank])))
        wave, self._wave = sorted(self._wave, key=lambda place: place[1]), []
        for rank, identity in wave:
            self.orders[rank].append(self._graphs[rank].nodes[identity])
            heapq.heappush(self._ends, (self._now + self._seconds[rank].get(identity, 0.0), rank, identity))

    def _finish(self, rank: int, identity: int) -> None:
        waiting = self._waiting[rank]
        for child in self._children[rank].get(identity, ()):
            waiting[child] -= 1
            if not waiting[child]:
                self._free(rank, child)

    def _computes(self, rank: int, identity: int) -> bool:
        graph = self._graphs[rank]
        node = graph.nodes[identity]
        return node.type == NodeType.COMP and not graph.on_cpu(node)

    def _check(self) -> None:
        for rank, (graph, order) in enumerate(zip(self._graphs, self.orders, strict=True)):
            if len(order) == len(graph.nodes):
                continue
            issued = {node.id for node in order}
            for node in graph.nodes.values():
                if node.type in _TOGETHER and node.id not in issued and not self._waiting[rank][node.id]:
                    others = [
                        place for place in self._links[self._link[rank, node.id]] if self._waiting[place[0]][place[1]]
                    ]
                    named = f"node {others[0][1]} of rank {others[0][0]}" if others else "another rank"
                    what = f"it waits for {named}, which waits for it in turn"
                    raise TraceError(what, where=graph.where(node), fix="take out the dependency between them")


def _children(graph: RankGraph) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for node in graph.nodes.values():
        for parent in node.parents:
            found.setdefault(parent, []).append(node.id)
    return found
