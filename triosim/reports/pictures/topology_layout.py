"""Where the nodes of a topology are drawn.

A mesh is drawn by its coordinates, a ring round a circle, whatever has switches in layers: the GPUs in a row, above them
what joins them all, below them what joins some. Host memories are left out where they only hang on their GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from triosim.networks.collectives.ring_order import ring_order
from triosim.networks.topology import Topology

Position = tuple[float, float]


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node, or a member of a block: ``gpu`` draws it as a disc, other kinds as a box around the label."""

    label: str
    kind: str
    at: Position


@dataclass(frozen=True, slots=True)
class DrawnLink:
    """A line between two nodes: both directions of a link, or with ``arrow`` one of them."""

    a: str
    b: str
    bandwidth: float
    latency: float
    arrow: bool


def hanging_memories(topology: Topology) -> set[str]:
    """Return the memories to which nothing but GPUs leads, and the ports to them; they would hide the other nodes."""
    kinds = ("memory", "port")
    linked: dict[str, set[str]] = {name: set() for name, node in topology.nodes.items() if node.kind in kinds}
    for link in topology.links.values():
        for memory, other in ((link.source, link.destination), (link.destination, link.source)):
            if memory in linked and other:
                linked[memory].add(topology.nodes[other].kind)
    return {name for name, others in linked.items() if others and others <= {"gpu", *kinds}}


def merged(topology: Topology, left_out: set[str]) -> list[DrawnLink]:
    """Return the lines to draw: one for two equal directions, and one for parallel links with their total bandwidth."""
    both: dict[tuple[str, str], list[float]] = {}
    for link in topology.links.values():
        if link.source != link.destination and not left_out & {link.source, link.destination}:
            entry = both.setdefault((link.source, link.destination), [0.0, link.latency])
            entry[0] += link.bandwidth
    lines: dict[tuple[str, str], DrawnLink] = {}
    for (a, b), (bandwidth, latency) in both.items():
        symmetric = both.get((b, a)) == [bandwidth, latency]
        if not symmetric or (b, a) not in lines:
            lines[a, b] = DrawnLink(a, b, bandwidth, latency, arrow=not symmetric)
    return list(lines.values())


def layout(topology: Topology, nodes: list[str], lines: list[DrawnLink]) -> dict[str, Position]:
    """Return where each node is drawn; neighbours are about one unit apart."""
    places = topology.coordinates
    if len(places) == len(nodes) and all(name in places for name in nodes):
        if len(places[nodes[0]]) > 1:
            return {name: _projected(places[name]) for name in nodes}
        closed = any(abs(places[line.a][0] - places[line.b][0]) > 1 for line in lines)
        return _circle(nodes) if closed else {name: (float(places[name][0]), 0.0) for name in nodes}
    if all(topology.nodes[name].kind == "gpu" for name in nodes) and len(nodes) <= 64:
        order = ring_order(topology, range(len(nodes)))
        return _circle([topology.gpus[rank] for rank in order])
    if topology.gpus:
        return _layers(topology, nodes, lines)
    return _sprung(nodes, lines)


def _projected(place: tuple[int, ...]) -> Position:
    """Place nodes on a grid, the second dimension downward, and each further dimension at a slant."""
    x, y = float(place[0]), -float(place[1])
    if len(place) > 2:
        x, y = 1.7 * x, 1.7 * y
        for index, step in enumerate(place[2:]):
            x, y = x + 0.42 * step * (1 + 4 * index), y + 0.38 * step
    return x, y


def _circle(nodes: list[str]) -> dict[str, Position]:
    radius = max(1.0, len(nodes) / (2 * math.pi))
    turns = [2 * math.pi * index / len(nodes) for index in range(len(nodes))]
    return {name: (radius * math.sin(turn), radius * math.cos(turn)) for name, turn in zip(nodes, turns, strict=True)}


def _layers(topology: Topology, nodes: list[str], lines: list[DrawnLink]) -> dict[str, Position]:
    """Place GPUs in a row, the switches that serve most of them above it, and other ones below."""
    near: dict[str, list[str]] = {name: [] for name in nodes}
    for line in lines:
        near[line.a].append(line.b)
        near[line.b].append(line.a)
    at: dict[str, Position] = {gpu: (float(rank), 0.0) for rank, gpu in enumerate(topology.gpus)}
    parts = sorted(_parts(near, at), key=lambda part: -len({gpu for name in part for gpu in near[name] if gpu in at}))
    above, row = parts[:1], len(at)
    heard = {line.a for line in lines if line.arrow and line.b in at}
    listened = heard - {end for line in lines if not line.arrow or line.a in at for end in (line.a, line.b)}
    waiting = {name: 1 if part in above else -1 for part in parts for name in part}
    level = 0
    while here := [name for name in waiting if any(other in at for other in near[name])]:
        level += 1
        middle = {name: _mean([at[other][0] for other in near[name] if other in at]) for name in here}
        sign = {name: -1 if name in listened else waiting[name] for name in here}
        for side in (1, -1):
            there = {name: x for name, x in middle.items() if sign[name] == side}
            gap = max(1.1, min(2.2, (row - 1) / max(1, len(there))))
            for name, x in _apart(there, gap).items():
                at[name] = (x, side * level * max(1.3, row / 14))
        for name in here:
            del waiting[name]
    rest = [name for name in nodes if name not in at]
    lowest = min((y for _, y in at.values()), default=0.0)
    return at | {name: (float(index), lowest - 1.3) for index, name in enumerate(rest)}


def _parts(near: dict[str, list[str]], gpus: Iterable[str]) -> list[list[str]]:
    """Return the sets of nodes other than GPUs that are connected without crossing one."""
    seen = set(gpus)
    parts = []
    for start in near:
        if start in seen:
            continue
        part, waiting = [], [start]
        seen.add(start)
        while waiting:
            name = waiting.pop()
            part.append(name)
            fresh = [other for other in near[name] if other not in seen]
            seen.update(fresh)
            waiting += dict.fromkeys(fresh)
        parts.append([name for name in near if name in set(part)])
    return parts


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _apart(middle: dict[str, float], gap: float) -> dict[str, float]:
    """Return the positions of nodes in a row, each near its wanted position, and none nearer to another than the gap."""
    names = sorted(middle, key=lambda name: middle[name])
    places: list[float] = []
    for name in names:
        places.append(max(middle[name], places[-1] + gap) if places else middle[name])
    shift = _mean([middle[name] - place for name, place in zip(names, places, strict=True)])
    return {name: place + shift for name, place in zip(names, places, strict=True)}


def _sprung(nodes: list[str], lines: list[DrawnLink]) -> dict[str, Position]:
    import networkx

    graph: Any = networkx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from((line.a, line.b) for line in lines)
    scale = max(1.0, math.sqrt(len(nodes)))
    found = networkx.spring_layout(graph, seed=1, scale=scale)
    return {name: (float(x), float(y)) for name, (x, y) in found.items()}


def rows_and_columns(at: dict[str, Position]) -> dict[tuple[str, float], list[float]]:
    """Return the nodes by row and by column, so that a line along one of them can tell what is in its way."""
    rows: dict[tuple[str, float], list[float]] = {}
    for x, y in at.values():
        rows.setdefault(("y", round(y, 3)), []).append(x)
        rows.setdefault(("x", round(x, 3)), []).append(y)
    return rows


def blocked(a: Position, b: Position, rows: dict[tuple[str, float], list[float]]) -> bool:
    """Return whether another node is in the way of a straight line along a row or a column."""
    for axis, along, name in ((1, 0, "y"), (0, 1, "x")):
        if abs(a[axis] - b[axis]) < 1e-3:
            low, high = sorted((a[along], b[along]))
            return any(low + 1e-3 < place < high - 1e-3 for place in rows[name, round(a[axis], 3)])
    return False
