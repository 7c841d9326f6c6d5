"""The network of a live run whose ranks communicate as one world: it simulates one link of each class of equal ones.

In a ring of the whole world every rank sends the same to the next one, whatever it computes in between. Links that a rotation
of the ranks maps to each other then carry equal flows at equal rates (``triosim.networks.topology.link_symmetry``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import simpy

from triosim.errors import AsymmetryError
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.folding.dry_run import PatternUse, TransferPattern
from triosim.folding.link_folding import find_link_classes
from triosim.folding.quotient_network import QuotientNetwork, StartCollective
from triosim.folding.unforeseen import UnforeseenTransfers
from triosim.live.network.idle_network import IdleNetwork
from triosim.networks.base import Network
from triosim.networks.extensions import FoldableNetwork
from triosim.networks.topology import NodeRef
from triosim.networks.topology.link_symmetry import LinkClasses


def world_network(
    new_network: Callable[[], Network], world: int, sent: Mapping[TransferPattern, Sequence[float]]
) -> Network:
    """Return a network for collectives of a whole world; ``sent`` are the sizes of those that are known, by pattern.

    It is one of ``new_network`` as it is, where those do not use the links of a class alike.
    """
    network = new_network()
    if not isinstance(network, FoldableNetwork):
        return network
    uses = {pattern: PatternUse(sizes[0]) for pattern, sizes in sent.items()}
    classes, _ = find_link_classes(network, network.topology, Symmetry(Mesh.of(world=world), ["world"]), uses)
    if classes is None:
        return network
    found = WorldNetwork(network, classes, world, new_network)
    if all(found.is_symmetric(pattern, nbytes) for pattern, sizes in sent.items() for nbytes in sizes):
        return found
    return new_network()


class WorldNetwork(QuotientNetwork):
    """A network that simulates one link of each of the ``classes`` for collectives in which all ranks of a world do the same.

    Anything else takes the time of an idle network. Raises ``AsymmetryError`` where that runs beside other transfers.
    """

    def __init__(self, network: Network, classes: LinkClasses, world: int, new_network: Callable[[], Network]) -> None:
        super().__init__(network)
        self._classes, self._world = classes, world
        self._symmetric: dict[tuple[TransferPattern, float], bool] = {}
        self._idle = IdleNetwork(network.env, new_network)
        self._unforeseen = UnforeseenTransfers()

    def is_symmetric(self, pattern: TransferPattern, nbytes: float) -> bool:
        """Whether all ranks of the world do the same in a collective."""
        key = (pattern, nbytes)
        if key not in self._symmetric:
            self._symmetric[key] = len(pattern.ranks) == self._world and self._has_classes(pattern, nbytes)
        return self._symmetric[key]

    def _has_classes(self, pattern: TransferPattern, nbytes: float) -> bool:
        if pattern.collective is None or pattern.unequal:
            return False
        assert isinstance(self._network, FoldableNetwork)
        try:
            edges = self._network.collective_edges(pattern.collective, pattern.ranks, nbytes, root=pattern.root)
            for source, destination in edges:
                self._classes.route(source, destination)
        except AsymmetryError:
            return False
        return True

    def transfer(self, source: NodeRef, destination: NodeRef, nbytes: float) -> simpy.Event:
        """Send bytes between two ranks."""
        pattern = TransferPattern(None, (int(source), int(destination)))
        event = self._idle.run(pattern, nbytes, lambda idle: idle.transfer(source, destination, nbytes))
        return self._unforeseen.begins(event, pattern.ranks, nbytes, foreseen=False, apart=True)

    def _run(self, pattern: TransferPattern, nbytes: float, start: StartCollective) -> simpy.Event:
        ranks, together = pattern.ranks, self.is_symmetric(pattern, nbytes)
        if together:
            event = start(self._network, ranks)
        else:
            event = self._idle.run(pattern, nbytes, lambda idle: start(idle, ranks))
        return self._unforeseen.begins(event, ranks, nbytes, foreseen=together, apart=not together)

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that went over each link, by the simulated one of its class."""
        return self._classes.expanded(self.simulated_bytes_by_link())
