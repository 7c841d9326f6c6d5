"""The order of a ring through a group of GPUs that uses short links, and none of them twice.

Where direct links allow it the ring is a Hamiltonian cycle: on a mesh the comb that goes back along one side, on a torus of odd
sides one that steps on in each row, in a small group (the hybrid cube mesh of a DGX-1) the one of the fastest links,
found by backtracking. Elsewhere it is the best of a few orders by what limits a ring, its most loaded link, then by length.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from triosim.errors import TopologyError
from triosim.networks.topology import Link, Topology

EXACT = 16  # the largest group that is searched for the best ring of direct links
MOST_STEPS = 20_000  # of that search, for one bandwidth
NEAREST = 128  # the largest group in which the next is looked for by distance
IMPROVED = 32  # the largest group whose ring is improved by 2-opt
MOST_TRIALS = 2_000  # of 2-opt

_Score = tuple[float, float, int]


def ring_order(topology: Topology, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return ``ranks`` in the order in which a ring visits them, beginning with the least.

    Where any order is as good (a switch, a bus, all pairs linked), it is the order given.
    """
    given = tuple(ranks)
    if given not in topology.ring_orders:
        if len(set(given)) != len(given):
            raise TopologyError(f"a ring of {len(given)} ranks has one of them twice", where=topology.name)
        group = _Group(topology, sorted(given))
        any_order = len(given) < 3 or group.interchangeable()
        topology.ring_orders[given] = given if any_order else rooted(group.best(), min(given))
    return topology.ring_orders[given]


def rooted(ring: Sequence[int], root: int | None) -> tuple[int, ...]:
    """Return a ring, cut so that it begins with the root."""
    start = 0 if root is None else ring.index(root)
    return (*ring[start:], *ring[:start])


class _Group:
    """The ranks of one ring, ascending, and the links that lead from one of them straight to another."""

    def __init__(self, topology: Topology, ranks: list[int]) -> None:
        self.topology = topology
        self.ranks = ranks
        rank_of = {topology.node(rank): rank for rank in ranks}
        self.direct: dict[int, dict[int, Link]] = {}
        for name, rank in rank_of.items():
            near = {rank_of[link.destination] for link in topology.router.out(name) if link.destination in rank_of}
            routes = {other: topology.route(rank, other) for other in sorted(near)}
            self.direct[rank] = {other: route[0] for other, route in routes.items() if len(route) == 1}

    def interchangeable(self) -> bool:
        """Return whether all have the same links to the same nodes, or all are linked to all alike."""
        if all(len(links) == len(self.ranks) - 1 for links in self.direct.values()):
            return (
                len({(link.bandwidth, link.latency) for links in self.direct.values() for link in links.values()}) == 1
            )
        return len({self._attachment(self.topology.node(rank)) for rank in self.ranks}) == 1

    def _attachment(self, name: str) -> tuple[tuple[str, float, float], ...]:
        """Return where a node is linked to, and how, beside its memory."""
        router, nodes = self.topology.router, self.topology.nodes
        out = [(link.destination, link.bandwidth, link.latency) for link in router.out(name)]
        into = [(link.source, link.bandwidth, link.latency) for link in router.into(name)]
        return tuple(end for ends in (out, into) for end in sorted(ends) if nodes[end[0]].kind != "memory")

    def best(self) -> Sequence[int]:
        best: Sequence[int] = self.ranks
        score, ideal = self.score(self.ranks), self.ideal()
        for order in self.candidates():
            found = self.score(order)
            if found < score:
                best, score = order, found
            if score[0] <= ideal and score[2] <= len(self.ranks) + len(self.ranks) % 2:
                return best  # of an odd mesh one link is crossed twice, in the two directions
        return self.improved(best, score) if len(self.ranks) <= IMPROVED else best

    def candidates(self) -> Iterator[Sequence[int]]:
        """Yield orders to try: those of a box of coordinates, of direct links, from each to the nearest left."""
        for cycle in self.boxes():
            yield cycle
            yield cycle[::-1]
        if len(self.ranks) <= EXACT:
            yield from self.direct_rings()
        if len(self.ranks) <= NEAREST:
            yield self.nearest()

    def score(self, order: Sequence[int]) -> _Score:
        """Return what a ring costs, less is better: seconds a byte on its slowest link, total latency, hops."""
        load: Counter[str] = Counter()
        links: dict[str, Link] = {}
        latency, hops = 0.0, 0
        for rank, following in zip(order, (*order[1:], order[0]), strict=True):
            route = self.topology.route(rank, following)
            hops += len(route)
            for link in route:
                load[link.name] += 1
                links[link.name] = link
                latency += link.latency
        return max(load[name] / link.bandwidth for name, link in links.items()), round(latency, 15), hops

    def ideal(self) -> float:
        """Return the seconds a byte of a ring that leaves each by the fastest of its direct links; 0 if one has none."""
        if not all(self.direct.values()):
            return 0.0
        return max(1 / max(link.bandwidth for link in links.values()) for links in self.direct.values())

    def boxes(self) -> Iterator[list[int]]:
        """Yield rings through ranks whose coordinates fill a box, from each side of it."""
        places = {self.topology.coordinates.get(self.topology.node(rank), ()): rank for rank in self.ranks}
        if len(places) != len(self.ranks) or () in places:
            return
        sides = [sorted(set(values)) for values in zip(*places, strict=True)]
        shape = [len(side) for side in sides]
        if math.prod(shape) != len(self.ranks):
            return
        for cycle in cycles(shape):
            for mirrored in itertools.product((False, True), repeat=len(shape)):
                axes = [side[::-1] if flip else side for side, flip in zip(sides, mirrored, strict=True)]
                yield [places[tuple(axis[i] for axis, i in zip(axes, cell, strict=True))] for cell in cycle]

    def direct_rings(self) -> Iterator[list[int]]:
        """Yield a ring of direct links only, the fastest that there is, if backtracking finds one soon."""
        speeds = {link.bandwidth for links in self.direct.values() for link in links.values()}
        for speed in sorted(speeds, reverse=True):
            allowed = {
                rank: [other for other, link in links.items() if link.bandwidth >= speed]
                for rank, links in self.direct.items()
            }
            ring = hamiltonian(allowed, MOST_STEPS)
            if ring is not None:
                yield ring
                return

    def nearest(self) -> list[int]:
        """Return the order that goes from each rank to the nearest one left, of several the least."""
        rank_of = {self.topology.node(rank): rank for rank in self.ranks}
        order = [self.ranks[0]]
        left = dict.fromkeys(self.ranks[1:])
        while left:
            found: list[int] = []
            least = math.inf
            for cost, name in self.topology.router.spread(self.topology.node(order[-1])):
                if cost > least:
                    break
                if rank_of.get(name) in left:
                    least = cost
                    found.append(rank_of[name])
            order.append(min(found) if found else next(iter(left)))
            del left[order[-1]]
        return order

    def improved(self, order: Sequence[int], score: _Score) -> Sequence[int]:
        """Reverse stretches of a ring as long as that makes it better (2-opt), within a number of trials."""
        best = list(order)
        trials = 0
        better = True
        while better and trials < MOST_TRIALS:
            better = False
            for first, last in itertools.combinations(range(1, len(best) + 1), 2):
                trials += 1
                tried = best[:first] + best[first:last][::-1] + best[last:]
                found = self.score(tried)
                if found < score:
                    best, score, better = tried, found, True
                if trials >= MOST_TRIALS:
                    break
        return best


def hamiltonian(following: dict[int, list[int]], most_steps: int) -> list[int] | None:
    """Return a cycle through all nodes of a directed graph, or None if there is none, or none within so many steps."""
    start = next(iter(following))
    path, on_path = [start], {start}
    waiting = [iter(following[start])]
    for _ in range(most_steps):
        if len(path) == len(following) and start in following[path[-1]]:
            return path
        node = next((node for node in waiting[-1] if node not in on_path), None)
        if node is not None:
            path.append(node)
            on_path.add(node)
            waiting.append(iter(following[node]))
        else:
            on_path.discard(path.pop())
            waiting.pop()
            if not path:
                return None
    return None


def cycles(shape: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """Yield cycles through the cells of a box: those of neighbours if there are, with wrap-around as the last resort."""
    if math.prod(shape) % 2 and sum(side > 1 for side in shape) > 1:
        yield wrapped(shape)
    for axis, side in enumerate(shape):
        across = snake([other for index, other in enumerate(shape) if index != axis])
        cells = comb(len(across), side)
        if cells:
            yield [(*across[row][:axis], column, *across[row][axis:]) for row, column in cells]
    yield snake(shape)


def snake(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return a path through the cells of a box, each a neighbour of the one before."""
    if not shape:
        return [()]
    inner = snake(shape[:-1])
    return [(*cell, layer) for layer in range(shape[-1]) for cell in (inner[::-1] if layer % 2 else inner)]


def comb(rows: int, columns: int) -> list[tuple[int, int]]:
    """Return a cycle through a grid, of neighbours only; where both sides are odd, one step of two cells is in it.

    It goes to and fro over all columns but the first, down the rows, and back up along the first column. Of an odd number
    of rows the last is put in afterwards: pairs of its cells between the pairs above them, the corner where it is near.
    """
    if rows < 2 or columns < 2:
        return []
    if rows % 2 and columns % 2 == 0:
        return [(row, column) for column, row in comb(columns, rows)]
    even = rows - rows % 2
    cycle = [
        (row, column) for row in range(even) for column in (range(columns - 1, 0, -1) if row % 2 else range(1, columns))
    ]
    cycle += [(row, 0) for row in range(even - 1, -1, -1)]
    if rows % 2:
        for column in range(0, columns - 1, 2):
            place = cycle.index((even - 1, column + 1))  # the row above is walked from the right to the left
            cycle[place + 1 : place + 1] = [(even, column + 1), (even, column)]
        place = cycle.index((even, columns - 2))
        cycle.insert(place + 1, (even, columns - 1))
    return cycle


def wrapped(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return a cycle through a torus all of whose sides are odd: each row is walked round, and the next begins a cell further.

    Rows are walked forward or backward, so many of each that the shifts add up to once round.
    """
    if len(shape) == 1:
        return [(cell,) for cell in range(shape[0])]
    inner, last = wrapped(shape[:-1]), shape[-1]
    rows, columns = max(len(inner), last), min(len(inner), last)
    cycle, column = [], 0
    for row in range(rows):
        step = 1 if row < (rows + columns) // 2 else -1
        cycle += [(row, (column + step * i) % columns) for i in range(columns)]
        column = (column - step) % columns
    return [(*inner[a], b) if len(inner) == rows else (*inner[b], a) for a, b in cycle]
