"""The network of a run in which one rank of each class is simulated, and with it the groups that do what its groups do.

A collective is started in all groups of its class at once, because their ranks come at the same times, and ends in all at
once: the classes are those of an equitable partition of ranks, groups and links together, in which every link of a class
carries the flows of as many groups of each class, and max-min fair rates depend on nothing else. Where one group alone uses
its links, it is simulated for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import simpy

from triosim.errors import AsymmetryError
from triosim.extrapolators.captured.rank_classes import Group, RankClasses
from triosim.folding.dry_run import PatternUse, TransferPattern
from triosim.folding.edges import pattern_edges
from triosim.folding.quotient_network import QuotientNetwork, StartCollective
from triosim.folding.shared_links import SharedLinks
from triosim.folding.uncontended import UncontendedCollectives
from triosim.folding.unforeseen import UnforeseenTransfers
from triosim.networks.base import Network
from triosim.networks.extensions import ContentionFree, FoldableNetwork
from triosim.networks.topology import NodeRef


class ClassNetwork(QuotientNetwork):
    """A network on which simulated groups stand for their copies. ``patterns`` is what the ranks of the classes send.

    What else they send is started in all copies, too. Raises ``AsymmetryError`` where copies may take different times, or
    where it runs beside collectives that are not simulated on this network.
    """

    def __init__(
        self, new_network: Callable[[], Network], classes: RankClasses, patterns: Mapping[TransferPattern, PatternUse]
    ) -> None:
        if any(pattern.reaches_memory for pattern in patterns):
            raise AsymmetryError("ranks copy from and to memories that they share")
        network = new_network()
        self._classes = classes
        self._patterns, self._unforeseen = frozenset(patterns), UnforeseenTransfers()
        self._alike: list[list[str]] = []  # links that carry the same
        self._one_for_all = isinstance(network, ContentionFree)
        idle = network
        alone: dict[TransferPattern, list[str]] = {}
        if isinstance(network, FoldableNetwork):
            links = _Links(network, classes, patterns)
            self._alike, alone = links.alike(), links.of_one_group()
            idle = new_network() if alone else network
        elif not self._one_for_all:
            raise AsymmetryError(f"the network {type(network).__name__} does not tell which links a collective uses")
        super().__init__(network, idle)
        self._uncontended = UncontendedCollectives(network.env, idle, alone)

    def transfer(self, source: NodeRef, destination: NodeRef, nbytes: float) -> simpy.Event:
        """Send bytes between two ranks, and between those that do the same."""
        assert isinstance(source, int)
        assert isinstance(destination, int)
        event = self._started((source, destination), lambda pair: self._network.transfer(pair[0], pair[1], nbytes))
        foreseen = TransferPattern(None, (source, destination)) in self._patterns
        return self._unforeseen.begins(event, (source, destination), nbytes, foreseen=foreseen, apart=False)

    def _run(self, pattern: TransferPattern, nbytes: float, start: StartCollective) -> simpy.Event:
        ranks = pattern.ranks
        if pattern in self._uncontended:
            event = self._uncontended.run(pattern, nbytes, lambda idle: start(idle, ranks))
            return self._unforeseen.begins(event, ranks, nbytes, foreseen=True, apart=True)
        event = self._started(ranks, lambda members: start(self._network, members))
        return self._unforeseen.begins(event, ranks, nbytes, foreseen=pattern in self._patterns, apart=False)

    def _started(self, ranks: Group, start: Callable[[Group], simpy.Event]) -> simpy.Event:
        copies = (ranks,) if self._one_for_all else self._classes.copies(ranks)
        events = [start(one) for one in copies]
        return events[0] if len(events) == 1 else self.env.all_of(events)

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that went over each link."""
        found = self.simulated_bytes_by_link()
        if found:
            found.update(self._uncontended.bytes_by_link())
            for names in self._alike:
                found.update(dict.fromkeys(names, max(found.get(name, 0.0) for name in names)))
        return found


class _Links:
    """The links that the patterns of simulated groups and of their copies cross.

    Raises ``AsymmetryError`` where the links of a copy are not like those of the simulated group.
    """

    def __init__(
        self, network: FoldableNetwork, classes: RankClasses, patterns: Mapping[TransferPattern, PatternUse]
    ) -> None:
        assert isinstance(network, Network)
        self._names = SharedLinks(network.topology, None)
        self._patterns = patterns
        self._crossed: dict[tuple[TransferPattern, Group], Counter[int]] = {}
        for pattern, use in patterns.items():
            for ranks in classes.copies(pattern.ranks):
                edges = pattern_edges(network, _copy_of(pattern, ranks), use.nbytes)
                self._crossed[pattern, ranks] = Counter(self._names.on_routes(edges, None))
        self._numbers = self._classes()
        for (pattern, ranks), crossed in self._crossed.items():
            if self._kinds(crossed) != self._kinds(self._crossed[pattern, pattern.ranks]):
                raise AsymmetryError(f"the routes of the {pattern} and of ranks {ranks} differ")

    def _classes(self) -> list[int]:
        """Return the class of each link: by its speed, and by how many groups cross it how often with each pattern."""
        uses: list[Counter[tuple[TransferPattern, int]]] = [Counter() for _ in self._names.names]
        for (pattern, _), crossed in self._crossed.items():
            for link, times in crossed.items():
                uses[link][pattern, times] += 1
        keys = [(self._names.speed(link), frozenset(used.items())) for link, used in enumerate(uses)]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return [numbers[key] for key in keys]

    def _kinds(self, crossed: Counter[int]) -> Counter[tuple[int, int]]:
        return Counter((self._numbers[link], times) for link, times in crossed.items())

    def alike(self) -> list[list[str]]:
        """Return the names of links that carry the same."""
        found: dict[int, list[str]] = {}
        for link, number in enumerate(self._numbers):
            found.setdefault(number, []).append(self._names.names[link])
        return [names for names in found.values() if len(names) > 1]

    def of_one_group(self) -> dict[TransferPattern, list[str]]:
        """Return the links of the patterns whose group alone uses its links, for collectives that run one after the other."""
        users: list[set[object]] = [set() for _ in self._names.names]
        for (pattern, ranks), crossed in self._crossed.items():
            whose: set[object] = {(one.name, ranks) for one in self._patterns[pattern].communicators} or {
                (pattern, ranks)
            }
            for link in crossed:
                users[link] |= whose
        return dict(self._alone(users))

    def _alone(self, users: Sequence[set[object]]) -> Iterator[tuple[TransferPattern, list[str]]]:
        shared = {pattern.ranks for pattern in self._patterns if not self._is_alone(pattern, users)}
        for pattern in self._patterns:
            if pattern.ranks not in shared:
                yield pattern, [self._names.names[link] for link in self._crossed[pattern, pattern.ranks]]

    def _is_alone(self, pattern: TransferPattern, users: Sequence[set[object]]) -> bool:
        crossed = self._crossed[pattern, pattern.ranks]
        usual = pattern.collective is not None and not pattern.unequal
        return usual and bool(crossed) and all(len(users[link]) == 1 for link in crossed)


def _copy_of(pattern: TransferPattern, ranks: Group) -> TransferPattern:
    """Return the pattern of other ranks."""
    root = None if pattern.root is None else ranks[pattern.ranks.index(pattern.root)]
    return TransferPattern(pattern.collective, ranks, root, pattern.unequal)
