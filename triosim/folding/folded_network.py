"""The network of a folded run: it simulates the representatives' transfers and the copies that share links with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import simpy

from triosim.errors import AsymmetryError
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.folding.copy_selection import CopySelection, Shift, orbit_of, rank_map, shifted_ranks
from triosim.folding.dry_run import PatternUse, TransferPattern
from triosim.folding.edges import memory_edges, pattern_edges
from triosim.folding.link_folding import find_link_classes
from triosim.folding.quotient_network import QuotientNetwork, StartCollective
from triosim.folding.shared_links import SharedLinks
from triosim.folding.uncontended import UncontendedCollectives
from triosim.networks.base import Network
from triosim.networks.extensions import (
    ContentionFree,
    FoldableNetwork,
    GatheringNetwork,
    LinkCounter,
    RankCopies,
    TransportNetwork,
)
from triosim.networks.topology import NodeRef
from triosim.networks.topology.link_symmetry import LinkClasses
from triosim.tasks import DeepEP, Tier

_TOLERANCE = 1e-9  # by what part of its time the end of a copy may differ from the original's


class FoldedNetwork(QuotientNetwork, TransportNetwork, GatheringNetwork, RankCopies):
    """A network that simulates only what influences the representatives. ``patterns`` is what they send.

    Raises ``AsymmetryError`` where the times of what is left out are not known to be the same.
    """

    def __init__(
        self, new_network: Callable[[], Network], symmetry: Symmetry, patterns: Mapping[TransferPattern, PatternUse]
    ) -> None:
        network = new_network()
        self._symmetry = symmetry
        self._link_classes: LinkClasses | None = None
        self._images: list[dict[str, str]] = []
        self._shifts: dict[TransferPattern, list[Shift]]
        uncontended: Mapping[TransferPattern, list[str]] = {}
        idle = network
        if isinstance(network, FoldableNetwork):
            classes, folded_axes = find_link_classes(network, network.topology, symmetry, patterns)
            between = {pattern: use for pattern, use in patterns.items() if not pattern.reaches_memory}
            edges = {pattern: pattern_edges(network, pattern, use.nbytes) for pattern, use in between.items()}
            links = SharedLinks(network.topology, classes)
            selection = CopySelection(symmetry, patterns, edges, folded_axes, links)
            self._link_classes = classes
            self._images, self._shifts, uncontended = selection.images, selection.shifts, selection.uncontended
            if uncontended:
                idle = new_network()
                if classes is not None and isinstance(idle, FoldableNetwork):
                    idle.use_link_classes(classes)
        elif isinstance(network, ContentionFree):
            self._shifts = {pattern: sorted(symmetry.shifts(orbit_of(symmetry, pattern))) for pattern in patterns}
        else:
            raise AsymmetryError(f"the network {type(network).__name__} does not tell which links a collective uses")
        super().__init__(network, idle)
        self._uncontended = UncontendedCollectives(network.env, idle, uncontended)

    def transfer(self, source: NodeRef, destination: NodeRef, nbytes: float) -> simpy.Event:
        """Send bytes between two ranks, and between those of the simulated copies."""
        assert isinstance(source, int)
        assert isinstance(destination, int)
        pattern = TransferPattern(None, (source, destination))

        def start(shift: Sequence[int]) -> simpy.Event:
            mapped = rank_map(self._symmetry, pattern, shift) or int
            return self._network.transfer(mapped(source), mapped(destination), nbytes)

        return self._start_copies(pattern, start)

    def _run(self, pattern: TransferPattern, nbytes: float, start: StartCollective) -> simpy.Event:
        if pattern in self._uncontended:
            return self._uncontended.run(pattern, nbytes, lambda idle: start(idle, pattern.ranks))
        return self._start_copies(
            pattern, lambda shift: start(self._network, shifted_ranks(self._symmetry, pattern, shift))
        )

    def copy(self, rank: int, source: str, destination: str, nbytes: float) -> simpy.Event:
        """Copy bytes between memories of a rank, and between those of the ranks whose copies are simulated with it."""
        pattern = TransferPattern(None, (rank,), copy=(source, destination))

        def start(shift: Sequence[int]) -> simpy.Event:
            ranks = shifted_ranks(self._symmetry, pattern, shift)
            ((from_node, to_node),) = memory_edges(self.topology, pattern, ranks)
            return self._network.transfer(from_node, to_node, nbytes)

        return self._start_copies(pattern, start)

    def gather_from(self, tier: Tier, ranks: tuple[int, ...], nbytes: float) -> simpy.Event:
        """Load a tensor from a memory whose switches gather it, in a group and in its simulated copies."""
        pattern = TransferPattern("all_gather", ranks, memory=tier)

        def start(network: Network, members: Sequence[int]) -> simpy.Event:
            assert isinstance(network, GatheringNetwork), "as is the network of the plan"
            return network.gather_from(tier, tuple(members), nbytes)

        return self._run(pattern, nbytes, start)

    def exchange(self, transport: DeepEP, ranks: tuple[int, ...]) -> simpy.Event:
        """Run an all-to-all of a group by its transport, and those of the simulated copies of the group."""
        if not isinstance(self._network, TransportNetwork):
            raise AsymmetryError(f"the network {type(self._network).__name__} knows no transports")
        pattern = TransferPattern("all_to_all", ranks, None, transport.rows is not None, transport.with_rows(None))

        def start(shift: Sequence[int], network: Network = self._network) -> simpy.Event:
            assert isinstance(network, TransportNetwork)
            return network.exchange(transport, shifted_ranks(self._symmetry, pattern, shift))

        if pattern in self._uncontended:
            return self._uncontended.run(pattern, transport.tokens, lambda idle: start((), idle))
        return self._start_copies(pattern, start)

    def _start_copies(self, pattern: TransferPattern, start: Callable[[Sequence[int]], simpy.Event]) -> simpy.Event:
        shifts = self._shifts.get(pattern)
        if shifts is None:
            raise AsymmetryError(f"the first iteration had no {pattern}")
        event = start(())
        if len(shifts) > 1:
            _check_equal_ends(self.env, [event, *(start(shift) for shift in shifts[1:])])
            if isinstance(self._network, ContentionFree):  # copies that took the same time once always do
                del shifts[1:]
        return event

    def flows_under_way(self) -> int | None:
        """Return how many flows are simulated now: fewer than there are, since each stands for those of its class."""
        return self._network.flows_under_way() if isinstance(self._network, LinkCounter) else None

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that went over each link; over those of copies that are left out, as many as over the originals'."""
        found = self.simulated_bytes_by_link()
        if found:
            found.update(self._uncontended.bytes_by_link())
            for image in self._images:
                found.update({to: found[link] for link, to in image.items()})
        return found if self._link_classes is None else self._link_classes.expanded(found)


def _check_equal_ends(env: simpy.Environment, events: Iterable[simpy.Event]) -> None:
    """Raise ``AsymmetryError`` during the run if transfers that begin now do not end together."""
    start = env.now
    first_end: float | None = None

    def ended(_: simpy.Event) -> None:
        nonlocal first_end
        if first_end is None:
            first_end = env.now
        if env.now - first_end > _TOLERANCE * (env.now - start):
            raise AsymmetryError("copies of a transfer take different times")

    for event in events:
        event.callbacks.append(ended)
