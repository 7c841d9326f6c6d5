"""Over which links the bytes of a calibrated collective go: as many on each as the algorithm sends that was priced.

Inside a node as many as a ring needs, the switch's reduction (NVLS), or all links of a GPU where pairs have links of their own;
between nodes every GPU sends over its own network card what the chosen algorithm, ring or tree, sends over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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
        edges = algorithm.steady_state(operation, self._topology).edges
        if self._shape == "hybrid_cube_mesh":
            near = [edge for node in nodes.values() for edge in self._over_links(operation, node)]
            edges = (*near, *filter(self._crosses, edges))
        if crossing is not None:
            edges = self._on_cards(edges, card_share(kind, crossing, len(nodes), len(operation.ranks)))
        inside = len(operation.ranks) // len(nodes)
        if kind != "all_reduce" or not self._reduces or inside < 2:
            return edges
        reduced = min(1.0, (inside + 1) / (2.0 * (inside - 1)))  # by those of a ring
        return _scaled(edges, lambda edge: 1.0 if self._crosses(edge) else reduced)

    def of_one_node(self, edges: Sequence[Edge]) -> Iterator[Edge]:
        """Yield the edges from and to one node: where all nodes do the same, its links are as busy as those of any other."""
        node = self._node(edges[0].source)
        return (edge for edge in edges if node in (self._node(edge.source), self._node(edge.destination)))

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

    def _on_cards(self, edges: tuple[Edge, ...], share: float) -> tuple[Edge, ...]:
        """Return edges with those between nodes scaled: a card sends, or receives, at most a ``share`` of a byte."""
        cards: dict[tuple[NodeRef, bool], float] = {}
        for edge in filter(self._crosses, edges):
            for card in ((edge.source, True), (edge.destination, False)):
                cards[card] = cards.get(card, 0.0) + edge.nbytes
        factor = share / max(cards.values(), default=share)
        return _scaled(edges, lambda edge: factor if self._crosses(edge) else 1.0)

    def _node(self, place: NodeRef) -> int | None:
        """Return the node of a rank; None for a switch, which is inside one."""
        return place // self._per_node if isinstance(place, int) else None

    def _crosses(self, edge: Edge) -> bool:
        """Return whether an edge leaves a node."""
        source, destination = self._node(edge.source), self._node(edge.destination)
        return source != destination and source is not None and destination is not None


def _scaled(edges: tuple[Edge, ...], factor: Callable[[Edge], float]) -> tuple[Edge, ...]:
    return tuple([edge._replace(nbytes=edge.nbytes * factor(edge)) for edge in edges])
