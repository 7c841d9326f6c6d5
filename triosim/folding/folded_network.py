"""Ranks that do the same are simulated once: their streams run for one of them, and the network carries what shares its links.

Which ranks do the same is said by the plan (``triosim.extrapolators.core.symmetry``). What the simulated ranks send stands for
its copies. Of copies that a rotation of the ranks turns into each other, links and all, one is simulated
(``triosim.networks.topology.link_symmetry``). Of the others, one whose links, directly or through others, are not those of
the simulated ranks goes its own way at the same speed, and is left out; the rest are sent too. What one communicator has for
itself is simulated once for all times that it comes (``triosim.folding.uncontended``). All this is exact; where it would not
be, ``AsymmetryError`` says so:

- before the run, where the links of what is left out do not correspond one to one to those of what is simulated;
- during the run, where a copy is through at another time than what it is a copy of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import simpy

from triosim.engine.engine import Engine
from triosim.engine.recording import Recording
from triosim.errors import AsymmetryError
from triosim.extrapolators.core.symmetry import Orbit, Symmetry
from triosim.folding.dry_run import Foreseen, Foresight, Kind, foresee
from triosim.folding.shared_links import Moved, SharedLinks
from triosim.folding.uncontended import Lone
from triosim.garbage_collector import without_collecting
from triosim.networks.base import Network
from triosim.networks.extensions import ContentionFree, FigureReporter, FoldableNetwork, LinkCounter
from triosim.networks.topology import NodeRef
from triosim.networks.topology.link_symmetry import LinkClasses, LinkPermutations, Rotation
from triosim.tasks import CollectiveKind, Communicator, TaskStream

WORTH_IT = 16  # ranks; what fewer do is quickly simulated
_SAME = 1e-9  # by what part of a transfer's time copies may differ


@dataclass(slots=True)
class _Traffic:
    """What one kind of transfer or collective sends, of a byte, and the copies of it that are simulated."""

    copies: Orbit
    edges: tuple[tuple[NodeRef, NodeRef], ...]
    sent: list[tuple[int, ...]] = field(default_factory=list)


def repays(asked: bool | None, world: int) -> bool:
    """Whether ranks are to be folded: as the user says, or where there are many."""
    return world >= WORTH_IT if asked is None else asked


@without_collecting()
def run(
    symmetry: Symmetry,
    tasks: Callable[[int], TaskStream],
    new_network: Callable[[], Network],
    engine_on: Callable[[Network, Symmetry], Engine],
) -> tuple[Recording, Network]:
    """Run the streams of the ranks that stand for others; return the recording of all, and the network as they left it.

    Where what is sent along one axis is not alike, ranks stand for others along the rest. Raises ``AsymmetryError``.
    """
    why = None
    for tried in (symmetry, *symmetry.without_one_axis()):
        try:
            return _run(tried, tasks, new_network, engine_on)
        except AsymmetryError as found:
            why = why or found
    assert why is not None
    raise why


def _run(
    symmetry: Symmetry,
    tasks: Callable[[int], TaskStream],
    new_network: Callable[[], Network],
    engine_on: Callable[[Network, Symmetry], Engine],
) -> tuple[Recording, Network]:
    ranks = symmetry.representatives
    foresight = foresee({rank: tasks(rank) for rank in ranks})
    _check_received(foresight, symmetry)
    folded = FoldedNetwork(new_network, symmetry, foresight.kinds)
    tapes = foresight.tapes
    streams = {rank: tapes[rank].stream() if rank in tapes else tasks(rank) for rank in ranks}
    recording = engine_on(folded, symmetry).run(streams)
    represented: dict[int, list[int]] = {}
    for rank in range(symmetry.world):
        represented.setdefault(symmetry.representative(rank), []).append(rank)
    return recording.expanded(represented), folded


def _check_received(foresight: Foresight, symmetry: Symmetry) -> None:
    """What the ranks that stand for others wait for must be what they send, or a copy of it."""
    sent = {kind.ranks for kind in foresight.kinds if kind.collective is None}
    if {symmetry.representative_transfer(*pair) for pair in foresight.received} != sent:
        raise AsymmetryError("what ranks receive is not what those like them send")


class _Copy(NamedTuple):
    """One of the copies of what is sent: by which move it comes from the one that is simulated."""

    kind: Kind
    move: tuple[int, ...]


class FoldedNetwork(Network, LinkCounter, FigureReporter):
    """A network on which what the simulated ranks send is joined by those of its copies that share its links."""

    def __init__(self, new_network: Callable[[], Network], symmetry: Symmetry, kinds: Mapping[Kind, Foreseen]) -> None:
        network = new_network()
        super().__init__(network.env, network.topology)
        if not isinstance(network, (FoldableNetwork, ContentionFree)):
            raise AsymmetryError(
                f"the network {type(network).__name__} does not say over which links a collective goes"
            )
        self._network = network
        self._symmetry = symmetry
        self._images: list[dict[str, str]] = []  # links of what is simulated, and those of copies that are left out
        self._still: list[Rotation] = []  # axes along which nothing has copies, because link classes stand for them
        self._copies = {kind: self._copies_of(kind) for kind in kinds}
        self.link_classes: LinkClasses | None = None
        if isinstance(network, FoldableNetwork):
            self.link_classes = self._find_link_classes(network, kinds)
            network.use_link_classes(self.link_classes)
        self._traffic = {kind: self._traffic_of(kind, foreseen.nbytes) for kind, foreseen in kinds.items()}
        links = SharedLinks(network.topology, self.link_classes)
        alone = self._choose(links, kinds)
        idle = new_network() if alone else network
        if self.link_classes is not None and idle is not network and isinstance(idle, FoldableNetwork):
            idle.use_link_classes(self.link_classes)
        self._lone = Lone(network.env, idle, alone)
        self._alone = frozenset(alone)

    def transfer(self, source: NodeRef, destination: NodeRef, nbytes: float) -> simpy.Event:
        """Send bytes between two ranks, and between their copies."""
        assert isinstance(source, int)
        assert isinstance(destination, int)
        kind = Kind(None, (source, destination))

        def start(move: Sequence[int]) -> simpy.Event:
            moved = self._moved(kind, move) or int
            return self._network.transfer(moved(source), moved(destination), nbytes)

        return self._all(kind, start)

    def collective(
        self,
        kind: CollectiveKind,
        group: Sequence[int] | Communicator,
        nbytes: float,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> simpy.Event:
        """Run a collective of a group, and of its copies."""
        ranks = group.ranks if isinstance(group, Communicator) else tuple(group)

        what = Kind(kind, ranks, root, shares is not None)

        def start(move: Sequence[int], network: Network = self._network) -> simpy.Event:
            moved = self._moved(what, move)
            group = ranks if moved is None else tuple(map(moved, ranks))
            to = root if root is None or moved is None else moved(root)
            return network.collective(kind, group, nbytes, root=to, shares=shares)

        if what in self._alone:
            return self._lone.run(what, nbytes, lambda idle: start((), idle))
        return self._all(what, start)

    def _all(self, kind: Kind, start: Callable[[Sequence[int]], simpy.Event]) -> simpy.Event:
        traffic = self._traffic.get(kind)
        if traffic is None:
            raise AsymmetryError(f"{kind} was not foreseen")
        event = start(())
        if len(traffic.sent) > 1:
            _Together(self.env, event, [start(move) for move in traffic.sent[1:]])
            if isinstance(self._network, ContentionFree):  # so that what was alike once stays so
                del traffic.sent[1:]
        return event

    def _moved(self, kind: Kind, move: Sequence[int]) -> Moved | None:
        """Where a move takes the ranks of a kind; None where they stay."""
        if not any(move):
            return None
        if kind.collective is None:
            return partial(self._symmetry.shifted, shift=move)
        return self._symmetry.rank_offset(move).__add__

    # ---- which copies are simulated -----------------------------------------------------------------------------

    def _copies_of(self, kind: Kind) -> Orbit:
        of = self._symmetry.orbit(kind.ranks) if kind.collective else self._symmetry.transfer_orbit(*kind.ranks)
        if of is None:
            raise AsymmetryError(f"{kind.ranks} are no block of the mesh")
        return of

    def _find_link_classes(self, network: FoldableNetwork, kinds: Mapping[Kind, Foreseen]) -> LinkClasses | None:
        """By what rotations of the ranks what is sent stays the same, links and all; along axes by themselves, or by digits.

        The axes with most ranks come first.
        """
        permutations = LinkPermutations(self._network.topology, self._symmetry.world)
        found: LinkClasses | None = None
        for axis in sorted(self._symmetry.rotations, key=lambda one: -one.size):
            for rotations in ((axis,), tuple(axis.prime_factors())):
                turned = {rotation: permutations.of(rotation) for rotation in rotations}
                known = {rotation: links for rotation, links in turned.items() if links is not None}
                if len(known) < len(turned):
                    continue
                tried = LinkClasses(self._network.topology, (found.permutations if found else {}) | known)
                network.use_link_classes(tried)
                if self._stays(tried, kinds):
                    found = tried
                    self._still.append(axis)
                    break
        return found

    def _stays(self, tried: LinkClasses, kinds: Mapping[Kind, Foreseen]) -> bool:
        """Whether what is sent is turned into itself."""
        digits = [rotation for rotation in tried.permutations if rotation not in self._symmetry.rotations]
        with suppress(AsymmetryError):
            for kind, foreseen in kinds.items():
                if kind.collective is None and any(len(set(map(digit.position, kind.ranks))) > 1 for digit in digits):
                    return False  # of a ring, which goes round as a whole alone
                if kind.unequal and tried.spans(kind.ranks):
                    return False
                for edge in self._edges(kind, foreseen.nbytes):
                    tried.route(*edge)
            return True
        return False

    def _edges(self, kind: Kind, nbytes: float) -> tuple[tuple[NodeRef, NodeRef], ...]:
        """From where to where a kind is sent; where link classes stand for all, of some of them."""
        if kind.collective is None:
            return ((kind.ranks[0], kind.ranks[1]),)
        assert isinstance(self._network, FoldableNetwork)
        return tuple(self._network.collective_edges(kind.collective, kind.ranks, nbytes, root=kind.root))

    def _traffic_of(self, kind: Kind, nbytes: float) -> _Traffic:
        return _Traffic(
            self._copies[kind], () if isinstance(self._network, ContentionFree) else self._edges(kind, nbytes)
        )

    def _moves(self, kind: Kind) -> Iterator[tuple[int, ...]]:
        return self._symmetry.shifts(self._copies[kind], self._still)

    def _choose(self, links: SharedLinks, kinds: Mapping[Kind, Foreseen]) -> dict[Kind, list[str]]:
        """Find the copies that share links with what is simulated; the others must be images of it.

        Where nothing shares links, all are simulated, the first time.

        Return the kinds that one communicator has all of their links for itself, with these links.
        """
        if isinstance(self._network, ContentionFree):
            for kind, traffic in self._traffic.items():
                traffic.sent = sorted(self._moves(kind))
            return {}
        ways = {
            _Copy(kind, move): links.of(traffic.edges, self._moved(kind, move))
            for kind, traffic in self._traffic.items()
            for move in self._moves(kind)
        }
        for way in ways.values():
            links.join(way)
        components: dict[int, list[_Copy]] = {}
        for copy, way in ways.items():
            if way:
                components.setdefault(links.root(way[0]), []).append(copy)
        simulated = {links.root(way[0]) for copy, way in ways.items() if way and not any(copy.move)}
        for root, members in components.items():
            if root in simulated:
                for copy in members:
                    self._traffic[copy.kind].sent.append(copy.move)
            else:
                self._check_image(members[0], components, ways, links)
        for kind, traffic in self._traffic.items():
            traffic.sent.sort()
            if not traffic.sent:  # what shares no link goes its own way
                traffic.sent.append(tuple(0 for _ in traffic.copies.steps))
            for move in self._moves(kind):
                self._check_route(kind, move, ways, links)
        return {
            copy.kind: [links.names[link] for link in ways[copy]]
            for root in simulated
            if self._has_for_itself(components[root], kinds)
            for copy in components[root]
        }

    def _has_for_itself(self, copies: Sequence[_Copy], kinds: Mapping[Kind, Foreseen]) -> bool:
        """Whether one communicator, which does one thing after the other, does all that is sent over some links.

        What has copies that share links with others is none such.
        """
        by = set().union(*(kinds[copy.kind].by for copy in copies))
        apart = any(c.kind.collective is None or c.kind.unequal or self._traffic[c.kind].sent[1:] for c in copies)
        return not apart and len(by) == 1

    def _check_image(
        self,
        one: _Copy,
        components: Mapping[int, Sequence[_Copy]],
        ways: Mapping[_Copy, list[int]],
        links: SharedLinks,
    ) -> None:
        """What is left out must be what is simulated, moved: link by link, with the same flows on it."""
        original = _Copy(one.kind, tuple(0 for _ in one.move))
        image: dict[int, int] = {}
        origin: dict[int, int] = {}
        simulated = components[links.root(ways[original][0])]
        if len(simulated) != len(components[links.root(ways[one][0])]):
            raise AsymmetryError(f"other flows share the links of a copy of {one.kind.ranks}")
        for copy in simulated:
            to = _Copy(copy.kind, self._symmetry.combined_shift(copy.move, one.move, self._traffic[copy.kind].copies))
            if len(ways[copy]) != len(ways[to]):
                raise AsymmetryError(f"the routes of copies of {copy.kind.ranks} differ")
            for first, second in zip(ways[copy], ways[to], strict=True):
                if image.setdefault(first, second) != second or origin.setdefault(second, first) != first:
                    raise AsymmetryError(f"copies of {copy.kind.ranks} share other links")
        self._images.append({links.names[link]: links.names[to] for link, to in image.items()})

    def _check_route(
        self, kind: Kind, move: tuple[int, ...], ways: Mapping[_Copy, list[int]], links: SharedLinks
    ) -> None:
        """Each link of a copy's has the bandwidth and latency of the one that it stands for."""
        start = ways[_Copy(kind, tuple(0 for _ in move))]
        way = ways[_Copy(kind, move)]
        if len(start) != len(way) or not all(map(links.alike, start, way)):
            raise AsymmetryError(f"the routes of copies of {kind.ranks} differ")

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that each link carried; on those of copies that were left out, what their originals' did."""
        carried = self._network.bytes_by_link() if isinstance(self._network, LinkCounter) else {}
        if carried:
            carried.update(self._lone.bytes_by_link())
            for image in self._images:
                carried.update({to: carried[link] for link, to in image.items()})
        return carried if self.link_classes is None else self.link_classes.expanded(carried)

    def figures(self) -> Mapping[str, float]:
        """Return what the network has counted."""
        return self._network.figures() if isinstance(self._network, FigureReporter) else {}


class _Together:
    """Looks whether copies are through when what they are copies of is."""

    def __init__(self, env: simpy.Environment, event: simpy.Event, copies: Sequence[simpy.Event]) -> None:
        self._env = env
        self._began = env.now
        self._ends: list[float] = []
        for one in (event, *copies):
            one.callbacks.append(self._ended)

    def _ended(self, _: simpy.Event) -> None:
        now = self._env.now
        self._ends.append(now)
        if now - self._ends[0] > _SAME * (now - self._began):
            raise AsymmetryError("copies take different times")
