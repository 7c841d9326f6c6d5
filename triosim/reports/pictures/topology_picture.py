"""A picture of a topology: GPUs, switches and hosts as dots, links as lines, wider where the bandwidth is larger."""

from __future__ import annotations

from collections import Counter
from typing import Any

from triosim.errors import TopologyError
from triosim.networks.topology import Topology
from triosim.output_files import PathLike
from triosim.reports.pictures.plot import new_figure, save_figure
from triosim.reports.pictures.topology_drawing import Drawing, drawing_of
from triosim.reports.pictures.topology_layout import blocked, rows_and_columns
from triosim.reports.terminal.topology_table import plural
from triosim.units import format_bandwidth, format_time

KINDS = {
    "gpu": "#2f6db3", "block": "#5b87bd", "switch": "#3f8f5b", "port": "#7a8f3f", "host": "#c4702b", "memory": "#8a6bb0"
}  # fmt: skip
LINES = ("#4a4a4a", "#c23b3b", "#2b9aa8", "#b8860b", "#7d4fb3", "#3f8f5b", "#d0679d", "#6b7a8f")
MOST_LABELLED = 12  # lines that carry their bandwidth; a legend says it in any case
_BLANK = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
WIDEST = 12.9  # inches: 2,000 pixels with its border


def draw(topology: Topology, path: PathLike) -> None:
    """Write a picture of a topology; the kind of file (png, svg, pdf) follows from the name.

    Raises ``TopologyError`` where there is nothing to draw or too much, ``OutputError`` where the file cannot be written.
    """
    drawing = drawing_of(topology)
    if topology.links and not drawing.lines:
        raise TopologyError("its links have no ends, so there is nothing to draw", where=topology.name)
    width, height = drawing.size
    inch = min(1.5 if len(drawing.nodes) <= 16 else 1.1, WIDEST / width, WIDEST / height)  # inches a unit of the layout
    figure = new_figure(path, width=max(6.0, width * inch), height=height * inch + 0.9)
    axes: Any = figure.add_subplot()
    show(axes, drawing, inch)
    _draw_lines(axes, drawing, inch)
    axes.set_title(_title(topology, drawing.left_out), fontsize=11)
    save_figure(figure, path, bbox_inches="tight", pad_inches=0.15)


def show(axes: Any, drawing: Drawing, inch: float) -> None:
    """Show nodes and captions, without lines; ``inch`` is how many inches a unit of the layout takes."""
    left, right, low, high = drawing.bounds
    axes.set(xlim=(left, right), ylim=(low, high), aspect="equal")
    axes.axis("off")
    _draw_nodes(axes, drawing, inch)
    for text, at in drawing.captions:
        axes.annotate(text, at, fontsize=min(10.0, 13 * inch), ha="center", va="center", linespacing=1.4)


def _draw_lines(axes: Any, drawing: Drawing, inch: float) -> None:
    """Draw lines straight, unless another node is in the way or the two directions differ."""
    from matplotlib.patches import FancyArrowPatch

    lines, at = drawing.lines, drawing.at
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
        if len(lines) <= MOST_LABELLED and len(looks) > 1 and not drawing.captions:
            (ax, ay), (bx, by) = at[a], at[b]
            spot = ((ax + bx) / 2 + bend / 2 * (by - ay), (ay + by) / 2 - bend / 2 * (bx - ax))
            axes.annotate(
                format_bandwidth(line.bandwidth), spot, fontsize=7, ha="center", va="center", bbox=_BLANK, zorder=2
            )
    if not drawing.captions:  # which say it
        _legend(axes.figure, [(look, colour[look], looks[look]) for look in ranked[: len(LINES)]], fastest)


def _legend(figure: Any, looks: list[tuple[tuple[float, float], str, int]], fastest: float) -> None:
    """Explain the lines: bandwidth and latency, the colour, and how many are drawn."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], color=colour, linewidth=0.7 + 3.3 * bandwidth / fastest,
            label=f"{format_bandwidth(bandwidth)}, {format_time(latency)} ({count} drawn)",
        )
        for (bandwidth, latency), colour, count in looks
    ]  # fmt: skip
    if handles:
        figure.legend(
            handles=handles, fontsize=8, loc="outside lower center", ncols=min(3, len(handles)), frameon=False
        )


def _draw_nodes(axes: Any, drawing: Drawing, inch: float) -> None:
    """Draw GPUs as discs, with their names in them if there is room, and other nodes as boxes around their names."""
    size = min(34.0, 40.0 * inch)  # points across
    others = [node for node in drawing.nodes.values() if node.kind not in ("gpu", "more")]
    longest = max((len(node.label) for node in others), default=0)
    font = min(8.0, 90 * inch / max(longest, 6))  # a label as wide as the distance to the next one
    for node in drawing.nodes.values():
        if node.kind == "more":
            axes.annotate(node.label, node.at, fontsize=12, ha="center", va="center", zorder=4, bbox=_BLANK)
        elif node.kind == "gpu" or font < 4:
            colour, marker = KINDS[node.kind], "o" if node.kind == "gpu" else "s"
            axes.plot(*node.at, marker, markersize=size, color=colour, mec="white", mew=min(0.8, size / 20), zorder=3)
        if node.kind == "gpu" and size > 7:
            text = node.label if size > 24 else node.label.removeprefix("gpu")
            fitting = max(3.5, min(8.5, size * 1.4 / max(len(text), 2)))
            axes.annotate(text, node.at, fontsize=fitting, color="white", ha="center", va="center", zorder=4)
        elif node.kind not in ("gpu", "more") and font >= 4:
            box = {"boxstyle": "round,pad=0.4", "facecolor": KINDS[node.kind], "edgecolor": "white"}
            axes.annotate(
                node.label, node.at, fontsize=font, color="white", ha="center", va="center", bbox=box, zorder=4
            )


def _title(topology: Topology, left_out: frozenset[str]) -> str:
    kinds = Counter(node.kind for node in topology.nodes.values())
    counts = ", ".join(f"{count} {_words(kind, count)}" for kind, count in kinds.items())
    hidden = Counter(topology.nodes[name].kind for name in left_out)
    note = f" ({' and '.join(_words(kind, count) for kind, count in hidden.items())} not drawn)" if hidden else ""
    return f"{topology.name}: {counts}{note}"


def _words(kind: str, count: int) -> str:
    return plural(kind, count)
