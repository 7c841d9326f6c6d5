"""A picture of a topology: GPUs, switches and hosts as dots, links as lines, wider where the bandwidth is larger.

A mesh is drawn by its coordinates, a ring round a circle, whatever has switches in layers: the GPUs in a row, above them
what joins them all, below them what joins some. Host memories are left out where they only hang on their GPUs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from triosim.errors import TopologyError
from triosim.networks.collectives.ring_order import ring_order
from triosim.networks.topology import Topology
from triosim.output_files import PathLike
from triosim.reports.pictures.plot import new_figure, save_figure
from triosim.reports.terminal.topology_table import plural
from triosim.units import format_bandwidth, format_time

Position = tuple[float, float]

KINDS = {"gpu": "#2f6db3", "switch": "#3f8f5b", "host": "#c4702b", "memory": "#8a6bb0"}
LINES = ("#4a4a4a", "#c23b3b", "#2b9aa8", "#b8860b", "#7d4fb3", "#3f8f5b", "#d0679d", "#6b7a8f")
MOST_LABELLED = 12  # lines that carry their bandwidth; a legend says it in any case
MOST_NODES = 5_000
MARGIN = 0.7  # around the nodes, in units of the layout


@dataclass(frozen=True, slots=True)
class DrawnLink:
    """A line between two nodes: both directions of a link, or with ``arrow`` one of them."""

    a: str
    b: str
    bandwidth: float
    latency: float
    arrow: bool


class Drawing:
    """The nodes and lines of a topology that are drawn, without memories that only hang on GPUs, and their positions."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.left_out = hanging_memories(topology)
        self.nodes = [name for name in topology.nodes if name not in self.left_out]
        self.lines = merged(topology, self.left_out)

    @cached_property
    def at(self) -> dict[str, Position]:
        """The position of each node; neighbours are about one unit apart."""
        return layout(self.topology, self.nodes, self.lines)

    @cached_property
    def size(self) -> tuple[float, float]:
        """Width and height in units of the layout, with a margin."""
        xs, ys = zip(*self.at.values(), strict=True)
        return max(xs) - min(xs) + 2 * MARGIN, max(ys) - min(ys) + 2 * MARGIN

    def show_on(self, axes: Any) -> None:
        """Let axes show all nodes, without a frame."""
        xs, ys = zip(*self.at.values(), strict=True)
        limits = {"xlim": (min(xs) - MARGIN, max(xs) + MARGIN), "ylim": (min(ys) - MARGIN, max(ys) + MARGIN)}
        axes.set(**limits, aspect="equal")
        axes.axis("off")


def draw(topology: Topology, path: PathLike) -> None:
    """Write a picture of a topology; the kind of file (png, svg, pdf) follows from the name.

    Raises ``TopologyError`` where there is nothing to draw or too much, ``OutputError`` where the file cannot be written.
    """
    drawing = Drawing(topology)
    nodes = len(drawing.nodes)
    if not nodes or nodes > MOST_NODES:
        raise TopologyError(f"{nodes} nodes cannot be drawn", where=topology.name, fix=f"at most {MOST_NODES} can")
    if topology.links and not drawing.lines:
        raise TopologyError("its links have no ends, so there is nothing to draw", where=topology.name)
    width, height = drawing.size
    inch = min(1.5 if nodes <= 16 else 1.1, 26 / width, 26 / height)  # inches a unit of the layout
    figure = new_figure(path, width=max(6.0, width * inch), height=height * inch + 0.9)
    axes: Any = figure.add_subplot()
    drawing.show_on(axes)
    _draw_lines(axes, drawing.lines, drawing.at, inch)
    draw_nodes(axes, drawing, inch)
    axes.set_title(_title(topology, drawing.left_out), fontsize=11)
    save_figure(figure, path, bbox_inches="tight", pad_inches=0.15)


def hanging_memories(topology: Topology) -> set[str]:
    """Return the memories that are linked to GPUs alone; they would hide the other nodes."""
    linked: dict[str, set[str]] = {name: set() for name, node in topology.nodes.items() if node.kind == "memory"}
    for link in topology.links.values():
        for memory, other in ((link.source, link.destination), (link.destination, link.source)):
            if memory in linked and other:
                linked[memory].add(topology.nodes[other].kind)
    return {memory for memory, kinds in linked.items() if kinds == {"gpu"}}


def merged(topology: Topology, left_out: set[str]) -> list[DrawnLink]:
    """Return the lines to draw: one for two equal directions, and one for parallel links with their total bandwidth."""
    both: dict[tuple[str, str], list[float]] = {}
    for link in topology.links.values():
        if link.source and not left_out & {link.source, link.destination}:
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
    for part in parts:
        level, here = 0, [name for name in part if any(other in topology.gpus for other in near[name])] or part[:1]
        sign = 1 if part in above else -1
        placed: set[str] = set(topology.gpus)
        while here:
            level += 1
            middle = {name: _mean([at[other][0] for other in near[name] if other in placed]) for name in here}
            gap = max(1.1, min(2.2, (row - 1) / len(here)))
            up = {name: x for name, x in middle.items() if name not in listened}
            down = {name: x for name, x in middle.items() if name in listened}
            for name, x in (_apart(up, gap) | _apart(down, gap)).items():
                at[name] = (x, (-1 if name in listened else sign) * level * max(1.3, row / 14))
            placed.update(here)
            here = [name for name in part if name not in placed and any(other in placed for other in near[name])]
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


def _draw_lines(axes: Any, lines: list[DrawnLink], at: dict[str, Position], inch: float) -> None:
    """Draw lines straight, unless another node is in the way or the two directions differ."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyArrowPatch

    fastest = max((line.bandwidth for line in lines), default=1.0)
    looks = Counter((line.bandwidth, line.latency) for line in lines)
    ranked = sorted(looks, key=lambda look: (-look[0], look[1]))
    colour = {look: LINES[index % len(LINES)] for index, look in enumerate(ranked)}
    thin = min(1.0, inch / 0.7)
    opposite = {(line.b, line.a) for line in lines}
    rows = rows_and_columns(at)
    for line in lines:
        width = thin * (0.7 + 3.3 * line.bandwidth / fastest)
        look = colour[line.bandwidth, line.latency]
        a, b = sorted((line.a, line.b), key=lambda name: at[name]) if not line.arrow else (line.a, line.b)
        in_the_way = blocked(at[a], at[b], rows)
        bend = 0.28 if in_the_way else 0.12 if (line.a, line.b) in opposite else 0.0
        width *= 0.5 if in_the_way and len(lines) > 100 else 1.0  # the way round a large torus is drawn fainter
        if not bend and not line.arrow:
            axes.plot(*zip(at[a], at[b], strict=True), color=look, linewidth=width, alpha=0.75, zorder=1)
        else:
            axes.add_patch(
                FancyArrowPatch(
                    at[a], at[b], connectionstyle=f"arc3,rad={bend}", arrowstyle="-|>" if line.arrow else "-",
                    mutation_scale=10, shrinkA=0, shrinkB=min(19.0, 22 * inch) if line.arrow else 0, color=look,
                    linewidth=width, alpha=0.75, zorder=1, clip_on=False,
                )
            )  # fmt: skip
        if len(lines) <= MOST_LABELLED and len(looks) > 1:
            (ax, ay), (bx, by) = at[a], at[b]
            spot = ((ax + bx) / 2 + bend / 2 * (by - ay), (ay + by) / 2 - bend / 2 * (bx - ax))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            axes.annotate(
                format_bandwidth(line.bandwidth), spot, fontsize=7, ha="center", va="center", bbox=box, zorder=2
            )
    handles = [
        Line2D(
            [], [], color=colour[look], linewidth=0.7 + 3.3 * look[0] / fastest,
            label=f"{format_bandwidth(look[0])}, {format_time(look[1])} ({looks[look]} drawn)",
        )
        for look in ranked[: len(LINES)]
    ]  # fmt: skip
    if handles:
        axes.figure.legend(
            handles=handles, fontsize=8, loc="outside lower center", ncols=min(3, len(handles)), frameon=False
        )


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


def draw_nodes(axes: Any, drawing: Drawing, inch: float) -> None:
    """Draw GPUs as discs, with their names in them if there is room, and other nodes as boxes around their names."""
    topology, at = drawing.topology, drawing.at
    size = min(34.0, 40.0 * inch)  # points across
    gpus = [name for name in drawing.nodes if topology.nodes[name].kind == "gpu"]
    others = [name for name in drawing.nodes if topology.nodes[name].kind != "gpu"]
    boxed = inch > 0.25 or len(others) < 8
    for names, marker in ((gpus, "o"), ([] if boxed else others, "s")):
        for name in names:
            colour = KINDS[topology.nodes[name].kind]
            axes.plot(*at[name], marker, markersize=size, color=colour, mec="white", mew=min(0.8, size / 20), zorder=3)
    for name in gpus if size > 7 else ():
        text = name if size > 24 else name.removeprefix("gpu")
        font = max(3.5, min(8.5, size * 1.4 / max(len(text), 2)))
        axes.annotate(text, at[name], fontsize=font, color="white", ha="center", va="center", zorder=4)
    for name in others if boxed else ():
        box = {"boxstyle": "round,pad=0.5", "facecolor": KINDS[topology.nodes[name].kind], "edgecolor": "white"}
        font = max(5.0, min(8.0, 10 * inch)) if len(others) > 8 else 8.0
        axes.annotate(name, at[name], fontsize=font, color="white", ha="center", va="center", bbox=box, zorder=4)


def _title(topology: Topology, left_out: set[str]) -> str:
    kinds = Counter(node.kind for node in topology.nodes.values())
    counts = ", ".join(f"{count} {'host ' * (kind == 'memory')}{plural(kind, count)}" for kind, count in kinds.items())
    note = f" (host {plural('memory', len(left_out))} not drawn)" if left_out else ""
    return f"{topology.name}: {counts}{note}"
