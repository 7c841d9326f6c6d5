"""Ranks that do the same are simulated once: their streams run for one of them, and the network carries what shares its links.

Which ranks do the same is said by the plan (``triosim.extrapolators.symmetry``). What the simulated ranks send stands for
its copies. Of copies that a rotation of the ranks turns into each other, links and all, one is simulated
(``triosim.networks.quotient``). Of the others, one whose links, directly or through others, are not those of the simulated
ranks goes its own way at the same speed, and is left out; the rest are sent too. What one communicator has for itself is
simulated once for all times that it comes (``triosim.lone``). All this is exact; where it would not be, ``NotAlike`` says so:

- before the run, where the links of what is left out do not correspond one to one to those of what is simulated;
- during the run, where a copy is through at another time than what it is a copy of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import simpy

from triosim.collecting import without_collecting
from triosim.engine import Engine
from triosim.extrapolators.symmetry import Copies, Symmetry
from triosim.foreseen import Foreseen, Kind, foresee
from triosim.lone import Lone
from triosim.networks.base import Network
from triosim.networks.collectives.base import Place
from triosim.networks.quotient import NotAlike, Quotient, Rotation, Turning
from triosim.recording import Recording
from triosim.shared_links import SharedLinks
from triosim.tasks import CollectiveKind, Communicator, TaskStream

#: For how many transfers or collectives one between some ranks stands.
CopiesOf = Callable[[Sequence[int]], int]

WORTH_IT = 16  # ranks; what fewer do is quickly simulated
_SAME = 1e-9  # by what part of a transfer's time copies may differ


@dataclass(slots=True)
class _Traffic:
    """What one kind of transfer or collective sends, of a byte, and the copies of it that are simulated."""

    copies: Copies
    edges: tuple[tuple[Place, Place], ...]
    sent: list[tuple[int, ...]] = field(default_factory=list)


def repays(asked: bool | None, world: int) -> bool:
    """Whether ranks are to be folded: as the user says, or where there are many."""
    return world >= WORTH_IT if asked is None else asked


@without_collecting()
def run(
    symmetry: Symmetry,
    tasks: Callable[[int], TaskStream],
    new_network: Callable[[], Network],
    engine_on: Callable[[Network, CopiesOf], Engine],
) -> tuple[Recording, Network]:
    """Run the streams of the ranks that stand for others; return the recording of all, and the network as they left it.

    Raises ``NotAlike``.
    """
    ranks = symmetry.representatives
    foresight = foresee({rank: tasks(rank) for rank in ranks})
    folded = FoldedNetwork(new_network, symmetry, foresight.kinds)
    tapes = foresight.tapes
    streams = {rank: tapes[rank].stream() if rank in tapes else tasks(rank) for rank in ranks}
    recording = engine_on(folded, folded.copies).run(streams)
    stands_for: dict[int, list[int]] = {}
    for rank in range(symmetry.world):
        stands_for.setdefault(symmetry.representative(rank), []).append(rank)
    recording.unfold(stands_for)
    return recording, folded


class _Copy(NamedTuple):
    """One of the copies of what is sent: by which move it comes from the one that is simulated."""

    kind: Kind
    move: tuple[int, ...]


class FoldedNetwork(Network):
    """A network on which what the simulated ranks send is joined by those of its copies that share its links."""

    def __init__(self, new_network: Callable[[], Network], symmetry: Symmetry, kinds: Mapping[Kind, Foreseen]) -> None:
        network = new_network()
        super().__init__(network.env, network.topology, algorithm=network.algorithm, form=network.form)
        self._network = network
        self._symmetry = symmetry
        self._images: list[dict[str, str]] = []  # links of what is simulated, and those of copies that are left out
        self._still: list[Rotation] = []  # axes along which nothing has copies, because a quotient stands for them
        self._copies = {kind: self._copies_of(kind) for kind in kinds}
        if network.contention:
            self.quotient = self._quotient(kinds)
            network.fold(self.quotient)
        self._traffic = {kind: self._traffic_of(kind, foreseen.nbytes) for kind, foreseen in kinds.items()}
        links = SharedLinks(network.topology, self.quotient)
        alone = self._choose(links, kinds)
        idle = new_network() if alone else network
        if alone and self.quotient is not None:
            idle.fold(self.quotient)
        self._lone = Lone(network.env, idle, alone)
        self._alone = frozenset(alone)

    def copies(self, ranks: Sequence[int]) -> int:
        """Return for how many transfers or collectives one of some ranks stands."""
        found = self._symmetry.copies(ranks)
        return 1 if found is None else self._symmetry.count(found)

    def transfer(self, source: Place, destination: Place, nbytes: float) -> simpy.Event:
        """Send bytes between two ranks, and between their copies."""
        assert isinstance(source, int)
        assert isinstance(destination, int)
        kind = Kind(None, (source, destination))
        return self._all(kind, lambda by: self._network.transfer(source + by, destination + by, nbytes))

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

        def start(by: int, network: Network = self._network) -> simpy.Event:
            moved = tuple(rank + by for rank in ranks) if by else ranks
            return network.collective(kind, moved, nbytes, root=None if root is None else root + by, shares=shares)

        what = Kind(kind, ranks, root)
        if what in self._alone:
            return self._lone.run(what, nbytes, lambda idle: start(0, idle))
        return self._all(what, start)

    def _all(self, kind: Kind, start: Callable[[int], simpy.Event]) -> simpy.Event:
        traffic = self._traffic.get(kind)
        if traffic is None:
            raise NotAlike(f"{kind} was not foreseen")
        event = start(0)
        if len(traffic.sent) > 1:
            _Together(self.env, event, [start(self._symmetry.by(move)) for move in traffic.sent[1:]])
        return event

    # ---- which copies are simulated -----------------------------------------------------------------------------

    def _copies_of(self, kind: Kind) -> Copies:
        copies = self._symmetry.copies(kind.ranks)
        if copies is None:
            raise NotAlike(f"{kind.ranks} are no block of the mesh")
        return copies

    def _quotient(self, kinds: Mapping[Kind, Foreseen]) -> Quotient | None:
        """By what rotations of the ranks what is sent stays the same, links and all; along axes by themselves, or by digits.

        The axes with most ranks come first.
        """
        turning = Turning(self._network.topology, self._symmetry.world)
        found: Quotient | None = None
        for axis in sorted(self._symmetry.rotations, key=lambda one: -one.size):
            for rotations in ((axis,), tuple(axis.digits())):
                turned = {rotation: turning.links(rotation) for rotation in rotations}
                known = {rotation: links for rotation, links in turned.items() if links is not None}
                if len(known) < len(turned):
                    continue
                tried = Quotient(self._network.topology, (found.turned if found else {}) | known)
                if not self._network.fold(tried):
                    return None
                if self._stays(tried, kinds):
                    found = tried
                    self._still.append(axis)
                    break
        return found

    def _stays(self, tried: Quotient, kinds: Mapping[Kind, Foreseen]) -> bool:
        """Whether what is sent is turned into itself."""
        with suppress(NotAlike):
            for kind, foreseen in kinds.items():
                if kind.collective is None and tried.spans(kind.ranks):
                    return False
                for edge in self._edges(kind, foreseen.nbytes):
                    tried.way(*edge)
            return True
        return False

    def _edges(self, kind: Kind, nbytes: float) -> tuple[tuple[Place, Place], ...]:
        """From where to where a kind is sent; where a quotient stands for all, of some of them."""
        if kind.collective is None:
            return ((kind.ranks[0], kind.ranks[1]),)
        edges = self._network.edges(kind.collective, kind.ranks, nbytes, root=kind.root)
        if edges is None:
            raise NotAlike(
                f"the network {type(self._network).__name__} does not say over which links a collective goes"
            )
        return tuple(edges)

    def _traffic_of(self, kind: Kind, nbytes: float) -> _Traffic:
        return _Traffic(self._copies[kind], self._edges(kind, nbytes) if self._network.contention else ())

    def _moves(self, kind: Kind) -> Iterator[tuple[int, ...]]:
        return self._symmetry.moves(self._copies[kind], self._still)

    def _choose(self, links: SharedLinks, kinds: Mapping[Kind, Foreseen]) -> dict[Kind, list[str]]:
        """Find the copies that share links with what is simulated; the others must be images of it.

        Return the kinds that one communicator has all of their links for itself, with these links.
        """
        ways = {
            _Copy(kind, move): links.of(traffic.edges, self._symmetry.by(move))
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
            if _has_for_itself(components[root], kinds)
            for copy in components[root]
        }

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
            raise NotAlike(f"other flows share the links of a copy of {one.kind.ranks}")
        for copy in simulated:
            to = _Copy(copy.kind, self._symmetry.then(copy.move, one.move, self._traffic[copy.kind].copies))
            if len(ways[copy]) != len(ways[to]):
                raise NotAlike(f"the routes of copies of {copy.kind.ranks} differ")
            for first, second in zip(ways[copy], ways[to], strict=True):
                if image.setdefault(first, second) != second or origin.setdefault(second, first) != first:
                    raise NotAlike(f"copies of {copy.kind.ranks} share other links")
        self._images.append({links.names[link]: links.names[to] for link, to in image.items()})

    def _check_route(
        self, kind: Kind, move: tuple[int, ...], ways: Mapping[_Copy, list[int]], links: SharedLinks
    ) -> None:
        """Each link of a copy's has the bandwidth and latency of the one that it stands for."""
        start = ways[_Copy(kind, tuple(0 for _ in move))]
        way = ways[_Copy(kind, move)]
        if len(start) != len(way) or not all(map(links.alike, start, way)):
            raise NotAlike(f"the routes of copies of {kind.ranks} differ")

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that each link carried; on those of copies that were left out, what their originals' did."""
        carried = self._network.bytes_by_link()
        if carried:
            carried.update(self._lone.bytes_by_link())
            for image in self._images:
                carried.update({to: carried[link] for link, to in image.items()})
        return carried if self.quotient is None else self.quotient.unfolded(carried)

    def figures(self) -> Mapping[str, float]:
        """Return what the network has counted."""
        return self._network.figures()


def _has_for_itself(copies: Sequence[_Copy], kinds: Mapping[Kind, Foreseen]) -> bool:
    """Whether one communicator, which does one thing after the other, does all that is sent over some links."""
    by = set().union(*(kinds[copy.kind].by for copy in copies))
    alone = not any(any(copy.move) or copy.kind.collective is None for copy in copies)
    return alone and len(by) == 1


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
            raise NotAlike("copies take different times")
