"""Over which links the bytes of a calibrated collective go: as many on each as the algorithm sends that was priced.

Inside a node every GPU sends to the next one, or over all its links where pairs have links of their own; between nodes over its
own network card, to the GPU at its place in the next node. Behind a switch only how much a GPU sends and receives counts, and
not to whom: one edge stands for all that NCCL's channels send, and all GPUs do the same, so that they can be folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from triosim.errors import OptionError
from triosim.networks.calibration.curves import Algorithm, sent
from triosim.networks.calibration.internode import card_share
from triosim.networks.collectives.algorithm import CollectiveAlgorithm, CollectiveOperation, Edge, Ranks
from triosim.networks.collectives.algorithms.direct import Direct
from triosim.networks.collectives.algorithms.hierarchical import Hierarchical
from triosim.networks.collectives.algorithms.ring import Ring
from triosim.networks.topology import NodeRef, Topology

_LINKED = ("fully_connected", "hybrid_cube_mesh")  # the shapes of nodes whose GPUs have links to each other
_TO_OR_FROM_ROOT = ("gather", "scatter")  # in which no GPU passes on what it received


class ByteLayout:
    """The edges of collectives on a topology whose nodes have ``gpus_per_node`` GPUs."""

    def __init__(self, topology: Topology, gpus_per_node: int) -> None:
        self._topology = topology
        self._per_node = gpus_per_node
        self._ring, self._direct, self._by_card = Ring(), Direct(), Hierarchical()
        spec = None if topology.outline is None else topology.outline.spec
        self._shape = "" if spec is None else spec.topology
        self._reduces = spec is not None and spec.in_switch_reduction

    def by_node(self, ranks: Ranks) -> list[list[int]]:
        """Return the ranks of each node."""
        found: dict[int, list[int]] = {}
        for rank in sorted(ranks):
            found.setdefault(rank // self._per_node, []).append(rank)
        return list(found.values())

    def edges(self, operation: CollectiveOperation, crossing: Algorithm | None) -> list[Edge]:
        """Return the edges of a collective of one byte, whose algorithm between nodes is ``crossing``."""
        kind, nodes = operation.kind, self.by_node(operation.ranks)
        share = 0.0 if crossing is None else card_share(kind, crossing, len(nodes), len(operation.ranks))
        one_way = kind in _TO_OR_FROM_ROOT and (crossing is not None or self._shape not in _LINKED)
        if one_way or self._shape not in (*_LINKED, "switch", "pcie_tree") or len({len(node) for node in nodes}) > 1:
            return self._of_algorithm(operation, share)
        found = [edge for node in nodes for edge in self._inside(operation, node)]
        if share:
            for node, following in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
                found += [Edge(source, destination, share) for source, destination in zip(node, following, strict=True)]
        if kind == "broadcast":
            return [edge for edge in found if edge.destination != operation.root]
        return [edge for edge in found if edge.source != operation.root] if kind == "reduce" else found

    def algorithm(self, ranks: Ranks) -> CollectiveAlgorithm:
        """Return an algorithm that sends over the links that collectives use, for groups and shares that are not even."""
        if len(self.by_node(ranks)) == 1:
            return self._direct if self._shape in _LINKED else self._ring
        try:
            self._by_card.grid(ranks, self._topology)
        except OptionError:
            return self._ring
        return self._by_card

    def _of_algorithm(self, operation: CollectiveOperation, share: float) -> list[Edge]:
        """Return the edges of such an algorithm, so that a card sends, or receives, at most a ``share`` of a byte."""
        edges = self.algorithm(operation.ranks).steady_state(operation, self._topology).edges
        home: dict[NodeRef, int] = {rank: rank // self._per_node for rank in operation.ranks}
        sends: dict[NodeRef, float] = {}
        receives: dict[NodeRef, float] = {}
        for source, destination, nbytes in edges:
            if home[source] != home[destination]:
                sends[source] = sends.get(source, 0.0) + nbytes
                receives[destination] = receives.get(destination, 0.0) + nbytes
        if not sends:
            return list(edges)
        factor = share / max(*sends.values(), *receives.values())
        return [
            Edge(source, destination, nbytes * (factor if home[source] != home[destination] else 1.0))
            for source, destination, nbytes in edges
        ]

    def _inside(self, operation: CollectiveOperation, node: Sequence[int]) -> Iterator[Edge]:
        """Yield the edges among the GPUs of a node."""
        kind, n = operation.kind, len(node)
        if self._shape in _LINKED:
            yield from self._over_links(operation, node)
        elif kind == "all_to_all" and self._shape == "pcie_tree":  # what crosses between switches shares their links
            yield from (Edge(*ends, 1.0 / n) for ends in permutations(node, 2))
        elif n > 1:
            reduced = (n + 1) / n if kind == "all_reduce" and self._reduces else sent(kind, n)
            each = min(reduced, sent(kind, n))
            yield from (Edge(*ends, each) for ends in zip(node, (*node[1:], node[0]), strict=True))

    def _over_links(self, operation: CollectiveOperation, node: Sequence[int]) -> Iterator[Edge]:
        """Yield edges over all links of each GPU, in proportion to their bandwidths; in a gather or scatter of the root."""
        kind, each = operation.kind, sent(operation.kind, len(node))
        for rank in (operation.first,) if kind in _TO_OR_FROM_ROOT else node:
            linked = self._linked(rank, node)
            for other, bandwidth in linked.items():
                ends = (other, rank) if kind == "gather" else (rank, other)
                yield Edge(*ends, each * bandwidth / sum(linked.values()))

    def _linked(self, rank: int, node: Sequence[int]) -> dict[int, float]:
        """Return the bandwidths of a GPU's links to others of its node; where it has none, those of the ways to them."""
        topology = self._topology.nominal or self._topology
        routes = {other: topology.route(rank, other) for other in node if other != rank}
        straight = {other: route for other, route in routes.items() if len(route) == 1} or routes
        return {other: min(link.bandwidth for link in route) for other, route in straight.items()}
