"""Ranks that do the same are simulated once: their streams run for one of them, and the network carries what shares its links.

Which ranks do the same is said by the plan (``triosim.extrapolators.symmetry``). What the simulated ranks send stands for
its copies. A copy whose links, directly or through others, are not those of the simulated ranks goes its own way at the
same speed, and is left out; the others are sent too. It is exact, and where it would not be, ``NotAlike`` says so:

- before the run, where the links of what is left out do not correspond one to one to those of what is simulated;
- during the run, where a copy is through at another time than what it is a copy of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import simpy

from triosim.engine import Engine
from triosim.extrapolators.symmetry import Copies, Symmetry
from triosim.networks.base import Network
from triosim.networks.collectives.base import Place
from triosim.networks.topology import Topology
from triosim.recording import Recording
from triosim.tasks import (
    Batch,
    Collective,
    CollectiveKind,
    Communicator,
    Compute,
    Handle,
    Iteration,
    Record,
    Recv,
    Send,
    TaskStream,
    Wait,
)

#: For how many transfers or collectives one between some ranks stands.
CopiesOf = Callable[[Sequence[int]], int]

WORTH_IT = 16  # ranks; what fewer do is quickly simulated
_SAME = 1e-9  # by what part of a transfer's time copies may differ


class NotAlike(Exception):
    """Ranks that were taken to do the same do not."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is sent: a collective of some ranks, or from one rank to another where ``collective`` is None."""

    collective: CollectiveKind | None
    ranks: tuple[int, ...]
    root: int | None = None


@dataclass(slots=True)
class _Traffic:
    """What one kind of transfer or collective sends, of a byte, and the copies of it that are simulated."""

    copies: Copies
    edges: tuple[tuple[Place, Place], ...]
    sent: list[tuple[int, ...]] = field(default_factory=list)


def repays(asked: bool | None, world: int) -> bool:
    """Whether ranks are to be folded: as the user says, or where there are many."""
    return world >= WORTH_IT if asked is None else asked


def run(
    symmetry: Symmetry,
    tasks: Callable[[int], TaskStream],
    network: Network,
    engine_on: Callable[[Network, CopiesOf], Engine],
) -> tuple[Recording, Network]:
    """Run the streams of the ranks that stand for others; return the recording of all, and the network as they left it.

    Raises ``NotAlike``, after which the network is of no more use.
    """
    ranks = symmetry.representatives
    folded = FoldedNetwork(network, symmetry, communications({rank: tasks(rank) for rank in ranks}))
    recording = engine_on(folded, folded.copies).run({rank: tasks(rank) for rank in ranks})
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

    def __init__(self, network: Network, symmetry: Symmetry, kinds: Mapping[Kind, float]) -> None:
        super().__init__(network.env, network.topology, algorithm=network.algorithm, form=network.form)
        self._network = network
        self._symmetry = symmetry
        self._images: list[dict[str, str]] = []  # links of what is simulated, and those of copies that are left out
        self._traffic = {kind: self._traffic_of(kind, nbytes) for kind, nbytes in kinds.items()}
        self._choose()

    def copies(self, ranks: Sequence[int]) -> int:
        """Return for how many transfers or collectives one of some ranks stands."""
        found = self._symmetry.copies(ranks)
        return 1 if found is None else self._symmetry.count(found)

    def transfer(self, source: Place, destination: Place, nbytes: float) -> simpy.Event:
        """Send bytes between two ranks, and between their copies."""
        assert isinstance(source, int)
        assert isinstance(destination, int)
        kind = Kind(None, (source, destination))
        return self._all(kind, nbytes, lambda by: self._network.transfer(source + by, destination + by, nbytes))

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

        def start(by: int) -> simpy.Event:
            moved = tuple(rank + by for rank in ranks)
            return self._network.collective(
                kind, moved, nbytes, root=None if root is None else root + by, shares=shares
            )

        return self._all(Kind(kind, ranks, root), nbytes, start)

    def _all(self, kind: Kind, nbytes: float, start: Callable[[int], simpy.Event]) -> simpy.Event:
        traffic = self._traffic.get(kind)
        if traffic is None:
            raise NotAlike(f"{kind} was not foreseen")
        event = start(0)
        if len(traffic.sent) > 1:
            _Together(self.env, event, [start(self._symmetry.by(move)) for move in traffic.sent[1:]])
        return event

    # ---- which copies are simulated -----------------------------------------------------------------------------

    def _traffic_of(self, kind: Kind, nbytes: float) -> _Traffic:
        copies = self._symmetry.copies(kind.ranks)
        if copies is None:
            raise NotAlike(f"{kind.ranks} are no block of the mesh")
        if not self._network.contention:
            return _Traffic(copies, ())
        if kind.collective is None:
            return _Traffic(copies, ((kind.ranks[0], kind.ranks[1]),))
        edges = self._network.edges(kind.collective, kind.ranks, nbytes, root=kind.root)
        if edges is None:
            raise NotAlike(
                f"the network {type(self._network).__name__} does not say over which links a collective goes"
            )
        return _Traffic(copies, tuple(edges))

    def _choose(self) -> None:
        """Find the copies that share links with what is simulated; the others must be images of it."""
        links, symmetry = _Links(self._network.topology), self._symmetry
        ways = {
            _Copy(kind, move): links.of(traffic.edges, symmetry.by(move))
            for kind, traffic in self._traffic.items()
            for move in symmetry.moves(traffic.copies)
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
            for move in symmetry.moves(traffic.copies):
                self._check_route(kind, move, ways, links)

    def _check_image(
        self,
        one: _Copy,
        components: Mapping[int, Sequence[_Copy]],
        ways: Mapping[_Copy, list[int]],
        links: _Links,
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

    def _check_route(self, kind: Kind, move: tuple[int, ...], ways: Mapping[_Copy, list[int]], links: _Links) -> None:
        """Each link of a copy's has the bandwidth and latency of the one that it stands for."""
        start = ways[_Copy(kind, tuple(0 for _ in move))]
        way = ways[_Copy(kind, move)]
        if len(start) != len(way) or not all(map(links.alike, start, way)):
            raise NotAlike(f"the routes of copies of {kind.ranks} differ")

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that each link carried; on those of copies that were left out, what their originals' did."""
        carried = self._network.bytes_by_link()
        if carried:
            for image in self._images:
                carried.update({to: carried[link] for link, to in image.items()})
        return carried

    def figures(self) -> Mapping[str, float]:
        """Return what the network has counted."""
        return self._network.figures()


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


class _Links:
    """The links of a topology by number, and which of them flows join."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._kinds: list[tuple[float, float]] = []
        self._parents: list[int] = []

    def of(self, edges: Iterable[tuple[Place, Place]], by: int) -> list[int]:
        """Return the links that flows take one after the other, moved by so many ranks."""
        return [number for one, other in edges for number in self._route(_moved(one, by), _moved(other, by))]

    def _route(self, source: Place, destination: Place) -> Iterator[int]:
        for link in self._topology.route(self._topology.node(source), self._topology.node(destination)):
            if link.bandwidth == math.inf:
                raise NotAlike(f"{link.name} carries everything at once")
            number = self._numbers.setdefault(link.name, len(self._numbers))
            if number == len(self._parents):
                self._parents.append(number)
                self._kinds.append((link.bandwidth, link.latency))
                self.names.append(link.name)
            yield number

    def join(self, links: Sequence[int]) -> None:
        """Note that some flows share what shares any of these links."""
        for link in links[1:]:
            self._parents[self.root(link)] = self.root(links[0])

    def root(self, link: int) -> int:
        """Return the link that stands for all that are joined with one."""
        parents = self._parents
        while parents[link] != link:
            parents[link] = parents[parents[link]]
            link = parents[link]
        return link

    def alike(self, first: int, second: int) -> bool:
        """Whether two links have the same bandwidth and latency."""
        return self._kinds[first] == self._kinds[second]


def _moved(place: Place, by: int) -> Place:
    if not by:
        return place
    if isinstance(place, int):
        return place + by
    raise NotAlike(f"{place} is no rank")


def communications(streams: Mapping[int, TaskStream]) -> dict[Kind, float]:
    """Return what some ranks send in their first iteration, with the bytes of one; their streams are used up.

    Raises ``NotAlike`` for streams that look at the clock or at others, whose tasks nobody can foresee.
    """
    found: dict[Kind, float] = {}
    for rank, stream in streams.items():
        answer: Handle | None = None
        while True:
            try:
                task = stream.send(answer)
            except StopIteration:
                break
            if isinstance(task, Iteration):
                break
            answer = Handle(rank, task)
            for part in task.parts if isinstance(task, Batch) else (task,):
                _note(found, part, rank, streams)
        stream.close()
    return found


def _note(found: dict[Kind, float], task: Any, rank: int, simulated: Container[int]) -> None:
    if isinstance(task, Collective):
        if task.shares is not None:
            raise NotAlike("shares are unequal")
        if len(task.group.ranks) > 1:
            found.setdefault(Kind(task.kind, task.group.ranks, task.root), task.nbytes)
    elif isinstance(task, Send):
        if task.destination not in simulated:
            raise NotAlike(f"rank {rank} sends to one of those that it stands for")
        found.setdefault(Kind(None, (rank, task.destination)), task.nbytes)
    elif not isinstance(task, (Compute, Recv, Record, Wait)):
        raise NotAlike(f"a {type(task).__name__} may be another on each rank")
