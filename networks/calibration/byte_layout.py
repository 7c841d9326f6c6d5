"""Over which links the bytes of a calibrated collective go: as many on each as the algorithm sends that was priced.

Inside a node as many as a ring needs, the switch's reduction (NVLS), or all links of a GPU where pairs have links of their own;
between nodes every GPU sends over its own network card what the chosen algorithm, ring or tree, sends over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triosim.errors import OptionError
from triosim.networks.calibration.curves import Algorithm, sent
from triosim.networks.calibration.internode import card_share
from triosim.networks.collectives.algorithm import CollectiveAlgorithm, CollectiveOperation, Edge, Ranks
from triosim.networks.collectives.algorithms.direct import Direct
from triosim.networks.collectives.algorithms.hierarchical import Hierarchical
from triosim.networks.collectives.algorithms.ring import Ring
from triosim.networks.topology import NodeRef, Topology

_FROM_OR_TO_ALL = ("all_to_all", "gather", "scatter")  # of whose bytes each GPU has a share for each other one


class ByteLayout:
    """The edges of collectives on a topology whose nodes have ``gpus_per_node`` GPUs."""

    def __init__(self, topology: Topology, gpus_per_node: int) -> None:
        self._topology = topology
        self._per_node = gpus_per_node
        self._ring, self._direct, self._by_card = Ring(), Direct(), Hierarchical()
        spec = None if topology.outline is None else topology.outline.spec
        self._shape = "" if spec is None else spec.topology
        self._reduces = spec is not None and spec.in_switch_reduction

    def by_node(self, ranks: Ranks) -> dict[int, list[int]]:
        """Return the ranks by the node that they are on."""
        found: dict[int, list[int]] = {}
        for rank in ranks:
            found.setdefault(rank // self._per_node, []).append(rank)
        return found

    def edges(self, operation: CollectiveOperation, crossing: Algorithm | None) -> tuple[Edge, ...]:
        """Return the edges of a collective of one byte, whose algorithm between nodes is ``crossing``.

        A broadcast or reduce uses all cards and links at once, as the all-gather or reduce-scatter of as many bytes does.
        """
        kind, nodes = operation.kind, self.by_node(operation.ranks)
        algorithm = self.algorithm(operation.ranks)
        if algorithm is not self._ring and kind in ("broadcast", "reduce"):
            operation = operation._replace(kind="all_gather" if kind == "broadcast" else "reduce_scatter", root=None)
        near: Sequence[Edge] = algorithm.steady_state(operation, self._topology).edges
        far: Sequence[Edge] = ()
        if crossing is not None:
            home: dict[NodeRef, int] = {rank: node for node, ranks in nodes.items() for rank in ranks}
            edges, near, far = near, [], []
            for edge in edges:
                (near if home[edge.source] == home[edge.destination] else far).append(edge)
            far = _scaled(far, card_share(kind, crossing, len(nodes), len(home)) / _most_on_a_card(far))
        if self._shape == "hybrid_cube_mesh":
            near = [edge for node in nodes.values() for edge in self._over_links(operation, node)]
        inside = len(operation.ranks) // len(nodes)
        if kind == "all_reduce" and self._reduces and inside > 3:
            near = _scaled(near, (inside + 1) / (2 * inside - 2))  # by those of a ring
        return (*near, *far)

    def of_one_node(self, edges: Sequence[Edge], ranks: Ranks) -> Iterator[Edge]:
        """Yield the edges from and to one node: where all nodes do the same, its links are as busy as those of any other."""
        node = {*next(iter(self.by_node(ranks).values()))}
        return (edge for edge in edges if edge.source in node or edge.destination in node)

    def uniform(self, operation: CollectiveOperation) -> bool:
        """Return whether all nodes of a collective do the same."""
        return operation.root is None and self.algorithm(operation.ranks) is self._by_card

    def algorithm(self, ranks: Ranks) -> CollectiveAlgorithm:
        """Return the algorithm over whose edges the bytes go, but for how many there are on each."""
        if len({rank // self._per_node for rank in ranks}) > 1:
            try:
                self._by_card.grid(ranks, self._topology)
            except OptionError:
                return self._ring
            return self._by_card
        return self._direct if self._shape in ("fully_connected", "hybrid_cube_mesh") else self._ring

    def _over_links(self, operation: CollectiveOperation, node: Sequence[int]) -> Iterator[Edge]:
        """Yield the edges among the GPUs of a node, each sending over its links in proportion to their bandwidths."""
        kind, root = operation.kind, operation.root
        each = sent(kind, len(node)) * (len(node) / len(operation.ranks) if kind in _FROM_OR_TO_ALL else 1.0)
        for rank in node if root is None else {root}.intersection(node):
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


def _most_on_a_card(edges: Sequence[Edge]) -> float:
    """Return the most bytes that a GPU sends, or receives, over edges between nodes."""
    sent_by: dict[NodeRef, float] = {}
    received_by: dict[NodeRef, float] = {}
    for source, destination, nbytes in edges:
        sent_by[source] = sent_by.get(source, 0.0) + nbytes
        received_by[destination] = received_by.get(destination, 0.0) + nbytes
    return max(*sent_by.values(), *received_by.values())


def _scaled(edges: Sequence[Edge], factor: float) -> list[Edge]:
    return [Edge(source, destination, nbytes * factor) for source, destination, nbytes in edges]
