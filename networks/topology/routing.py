"""Routes: the shortest by latency, then by hops (Dijkstra 1959), or ECMP over all shortest ones.

In a system of nodes a route first takes as few links to the network between nodes as there can be: none inside a node.
Latencies are compared as whole femtoseconds, so that routes whose latencies are the same in another order do tie; the
tie is broken by the link that was declared first, or with ECMP by a hash of source and destination, hop by hop, as a
switch does (RFC 2992). Every node forwards what is not for it, except a memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triosim.networks.topology.graph import Link, Node

_Edge = tuple[int, int, "Link"]  # what it costs, its place among the declared, the link
_Step = tuple[int, "Link"]  # the link's place among the declared, so that they sort by it
_OFTEN = 4  # times the nodes looked at for one destination, after which the ways to it from everywhere are kept
_MOST_KEPT = 2_000_000  # nodes in such tables; some hundred MB at the most
# A route costs one _LEAVE for each link to or from the network between nodes, its femtoseconds << 24, and one a hop.
_HOP, _LEAVE = 1, 1 << 120


class Router:
    """Finds routes between the nodes of a graph, without going over all of it for each.

    A search runs back from the destination and stops at the source's distance. A node with a single way out (a GPU
    behind a switch) is not searched from: its route is its link, then the route of what it leads to, found once.
    """

    def __init__(
        self,
        nodes: Mapping[str, Node],
        links: Iterable[Link],
        *,
        ecmp: bool = False,
        between_nodes: frozenset[str] = frozenset(),
    ) -> None:
        self._ecmp = ecmp
        self._memories = frozenset(name for name, node in nodes.items() if node.kind == "memory")
        #: Nodes that no message between GPUs passes: memories, and the ports that lead to them.
        self._aside = self._memories.union(name for name, node in nodes.items() if node.kind == "port")
        self._into: dict[str, list[_Edge]] = {name: [] for name in nodes}
        self._out: dict[str, list[_Edge]] = {name: [] for name in nodes}
        self._straight: dict[str, dict[str, list[_Edge]]] = {}  # by source and destination, as asked for
        for order, link in enumerate(links):
            if not link.source or link.source == link.destination:
                continue  # known only from explicit routes, or a memory's own bandwidth
            leave = _LEAVE if link.name in between_nodes else 0
            edge = (leave + (round(link.latency * 1e15) << 24) + _HOP, order, link)
            self._out[link.source].append(edge)
            self._into[link.destination].append(edge)
        for edges in self._into.values():
            edges.sort()  # so that a search may stop at the first one that costs too much; no two have one place
        self._exits: dict[str, Link | None] = {}
        self._entries: dict[str, Link | None] = {}
        self._tables: dict[str, dict[str, list[_Step]]] = {}
        self._effort: dict[str, int] = {}
        self._cores: dict[tuple[str, str], tuple[Link, ...] | None] = {}

    def route(self, source: str, destination: str) -> tuple[Link, ...] | None:
        """Return the links from source to destination, or None where there is no way."""
        if source == destination:
            return ()
        ends = self._ends(source, destination)
        if ends is None:
            return None
        first, start, stop, last = ends
        if start == stop:
            return (*first, *last)
        key = (source, destination) if self._ecmp else (start, stop)
        if key not in self._cores:
            self._cores[key] = self._walk(source, destination, start, stop)
        core = self._cores[key]
        return None if core is None else (*first, *core, *last)

    def routes(self, source: str, destination: str, limit: int) -> Iterator[tuple[Link, ...]]:
        """Yield the routes that cost the same as the shortest, in the order of their links, at most ``limit``."""
        onward = self._onward(source, destination) if source != destination else {}
        if onward is None:
            return
        waiting: list[tuple[str, tuple[Link, ...]]] = [(source, ())]
        while waiting and limit > 0:
            node, links = waiting.pop()
            if node == destination:
                limit -= 1
                yield links
                continue
            for _, link in sorted(onward[node], reverse=True):
                waiting.append((link.destination, (*links, link)))

    def nearest(self, destination: str, candidates: frozenset[str]) -> str | None:
        """Return the candidate from which ``destination`` is reached at the least cost, the first declared on a tie."""
        if destination in candidates:
            return destination
        distance = {destination: 0}
        heap = [(0, destination)]
        bound: int | None = None  # what the best candidate known costs
        found = None
        while heap:
            cost, node = heappop(heap)
            if bound is not None and cost >= bound:
                break
            if cost > distance[node] or (node in self._memories and node != destination):
                continue
            for price, _, link in self._into[node]:
                farther, other = cost + price, link.source
                if bound is not None and farther >= bound:
                    break
                if other in candidates:
                    bound, found = farther, other
                if other not in distance or farther < distance[other]:
                    distance[other] = farther
                    heappush(heap, (farther, other))
        return found

    def spread(self, start: str) -> Iterator[tuple[int, str]]:
        """Yield (cost, node) of every node that ``start`` reaches, the nearest first."""
        best: dict[str, int] = {start: 0}
        heap = [(0, start)]
        while heap:
            cost, node = heappop(heap)
            if cost > best[node]:
                continue
            yield cost, node
            if node in self._aside and node != start:
                continue
            for price, _, link in self._out[node]:
                if cost + price < best.get(link.destination, cost + price + 1):
                    best[link.destination] = cost + price
                    heappush(heap, (cost + price, link.destination))

    def reachable(self, start: str, *, backward: bool = False) -> set[str]:
        """Return the nodes that ``start`` reaches, or with ``backward`` those that reach it."""
        edges_of = self._into if backward else self._out
        found = {start}
        waiting = [start]
        while waiting:
            node = waiting.pop()
            if node in self._aside and node != start:
                continue
            for _, _, link in edges_of[node]:
                other = link.source if backward else link.destination
                if other not in found:
                    found.add(other)
                    waiting.append(other)
        return found

    def out(self, node: str) -> list[Link]:
        """Return the links that lead from a node, in the order in which they were declared."""
        return [link for _, _, link in self._out[node]]

    def into(self, node: str) -> list[Link]:
        """Return the links that lead to a node, the cheapest first."""
        return [link for _, _, link in self._into[node]]

    def _exit(self, node: str) -> Link | None:
        """Return the one link by which a node is left, beside those towards memories, if there is only one."""
        if node not in self._exits:
            self._exits[node] = _only([link for link in self.out(node) if link.destination not in self._aside])
        return self._exits[node]

    def _entry(self, node: str) -> Link | None:
        """Return the one link by which a node is entered, beside those from memories, if there is only one."""
        if node not in self._entries:
            self._entries[node] = _only([link for link in self.into(node) if link.source not in self._aside])
        return self._entries[node]

    def _straight_from(self, start: str) -> dict[str, list[_Edge]]:
        """Return the links that lead straight from a node, by where they lead."""
        found = self._straight.get(start)
        if found is None:
            found = self._straight[start] = {}
            for edge in self._out[start]:
                found.setdefault(edge[2].destination, []).append(edge)
        return found

    def _ends(self, source: str, destination: str) -> tuple[tuple[Link, ...], str, str, tuple[Link, ...]] | None:
        """Return the links that any route must begin and end with, and the two nodes between which to search."""
        exit_link = None if destination in self._aside else self._exit(source)
        if exit_link is not None and exit_link.destination == destination:
            return (exit_link,), destination, destination, ()
        entry_link = None if source in self._aside else self._entry(destination)
        if entry_link is not None and entry_link.source == source:
            return (), source, source, (entry_link,)
        if not self._out[source] or not self._into[destination]:
            return None
        first = () if exit_link is None else (exit_link,)
        last = () if entry_link is None else (entry_link,)
        start = source if exit_link is None else exit_link.destination
        stop = destination if entry_link is None else entry_link.source
        return first, start, stop, last

    def _walk(self, source: str, destination: str, start: str, stop: str) -> tuple[Link, ...] | None:
        """Follow the links that lead on, from start to stop; where several do, take one of them."""
        onward = self._onward(start, stop)
        if onward is None:
            return None
        links: list[Link] = []
        node = start
        while node != stop:
            edges = sorted(onward[node]) if len(onward[node]) > 1 else onward[node]
            place = zlib.crc32(f"{source}>{destination}@{node}".encode()) % len(edges) if self._ecmp else 0
            links.append(edges[place][1])
            node = links[-1].destination
        return tuple(links)

    def _onward(self, start: str, stop: str) -> Mapping[str, list[_Step]] | None:
        """Return, for each node on a shortest route, the links that lead on; None if there is no way.

        What leads to a node from everywhere is worked out once, and kept, when searches for it have cost as much.
        """
        if start in self._aside:
            onward, _ = self._search(start, stop)
            return onward if start in onward else None
        table = self._tables.get(stop)
        if table is None:
            table, looked_at = self._search(start, stop)
            self._effort[stop] = self._effort.get(stop, 0) + looked_at
            if self._effort[stop] > _OFTEN * len(self._into) and len(self._tables) * len(self._into) < _MOST_KEPT:
                self._tables[stop], _ = self._search(None, stop)
        return table if start in table else None

    def _search(self, start: str | None, stop: str) -> tuple[dict[str, list[_Step]], int]:
        """Return the links towards ``stop``, of all nodes or those up to ``start``, and how many nodes were looked at."""
        distance = {stop: 0}
        onward: dict[str, list[_Step]] = {}
        heap = [(0, stop)]
        bound: int | None = None  # what the best route known from start costs
        straight = {} if start is None else self._straight_from(start)
        closed = self._memories if stop in self._aside or start in self._aside else self._aside
        while heap:
            cost, node = heappop(heap)
            if bound is not None and cost >= bound:
                break
            if cost > distance[node]:
                continue
            if start is not None:
                # The way straight from start comes first, so that the other thousand links of a switch need no look.
                for price, order, link in straight.get(node, ()):
                    if bound is None or cost + price < bound:
                        bound = distance[start] = cost + price
                        onward[start] = [(order, link)]
                    elif cost + price == bound:
                        onward[start].append((order, link))
            for price, order, link in self._into[node]:
                farther, other = cost + price, link.source
                if bound is not None and farther >= bound:
                    break
                if other in closed:
                    continue
                known = distance.get(other)
                if known is None or farther < known:
                    distance[other] = farther
                    onward[other] = [(order, link)]
                    heappush(heap, (farther, other))
                elif farther == known:
                    onward[other].append((order, link))
        return onward, len(distance)


def _only(links: list[Link]) -> Link | None:
    return links[0] if len(links) == 1 else None
