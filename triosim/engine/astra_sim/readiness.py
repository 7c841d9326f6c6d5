"""Which nodes of a graph can be issued: those whose parents are all finished."""

from __future__ import annotations

from triosim.chakra.graph import RankGraph
from triosim.chakra.nodes import Node


class Readiness:
    """Follows a graph while its nodes are taken and finished."""

    def __init__(self, graph: RankGraph) -> None:
        self._nodes = graph.nodes
        self._waiting: dict[int, int] = {}
        self._children: dict[int, list[int]] = {}
        self._freed: list[Node] = []
        self._unfinished = 0
        for node in graph.nodes.values():
            parents = node.parents
            if not parents:
                self._free(node)
                continue
            self._waiting[node.id] = len(parents)
            for parent in parents:
                self._children.setdefault(parent, []).append(node.id)

    @property
    def is_over(self) -> bool:
        """Whether all nodes that became free are finished; those in a cycle never become free."""
        return not self._unfinished

    def freed(self) -> list[Node]:
        """Return the nodes that became free since the last call, by id."""
        found, self._freed = self._freed, []
        return sorted(found, key=lambda node: node.id)

    def finish(self, node: Node) -> None:
        """Note that a node is over, which frees those that waited for it alone."""
        self._unfinished -= 1
        for child in self._children.get(node.id, ()):
            self._waiting[child] -= 1
            if not self._waiting[child]:
                self._free(self._nodes[child])

    def _free(self, node: Node) -> None:
        self._freed.append(node)
        self._unfinished += 1
