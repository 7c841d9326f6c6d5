"""How much of each link was taken over time, and where the links are drawn, as the page and a recorded result hold it."""

from __future__ import annotations

from typing import Any

from triosim.networks.topology import Topology
from triosim.reports.pictures.topology_drawing import Drawing, drawing_of, is_drawable
from triosim.reports.pictures.topology_picture import KINDS
from triosim.results.link_loads import edges, loads
from triosim.results.result import Result

SLOTS = 200  # into which the run is divided
MOST_ROWS = 40  # links that are shown over time, the busiest
_PIXELS = 60  # a unit of the drawing's layout


def link_slots(result: Result) -> dict[str, Any]:
    """Return the links' shares of bandwidth taken, mean and by slot. Raises ``OptionError`` where they were not recorded."""
    recording, network = result.recorded_links()
    end = recording.end
    bounds = edges(end, SLOTS)
    slot = bounds[1] - bounds[0]
    taken = {name: (load.taken(bounds) / slot).round(4).tolist() for name, load in loads(network.rates, end).items()}
    busiest = sorted(taken, key=lambda name: -sum(taken[name]))
    rows: dict[tuple[float, ...], list[str]] = {}
    for name in busiest:
        rows.setdefault(tuple(taken[name]), []).append(name)
    return {
        "end_s": end,
        "slots": SLOTS,
        "rows": [
            {"name": same[0] if len(same) == 1 else f"{same[0]} and {len(same) - 1} alike", "loads": list(shares)}
            for shares, same in list(rows.items())[:MOST_ROWS]
        ],
        "drawing": _drawn(network.topology, taken) if is_drawable(network.topology) else None,
    }


def _drawn(topology: Topology, taken: dict[str, list[float]]) -> dict[str, Any]:
    """Return the nodes and lines of the topology's drawing; a line shows the most loaded link that it stands for."""
    drawing = drawing_of(topology)
    lines: dict[tuple[str, str], list[float]] = {}
    for link in topology.links.values():
        ends = drawing.ends(link)
        if ends is not None:
            shares = taken.get(link.name, [0.0] * SLOTS)
            if sum(shares) >= sum(lines.get(ends, ())):
                lines[ends] = shares
    _, height = drawing.size
    return {
        "height": round(min(640.0, max(200.0, height * _PIXELS))),
        "captions": [text for text, _ in drawing.captions],
        "nodes": [
            {
                "name": name,
                "label": node.label,
                "x": round(
                    node.at[0] * _PIXELS, 1
                ),  # whatever is above each other is so exactly: a chart fits its width
                "y": round(-node.at[1] * _PIXELS, 1),
                "round": node.kind == "gpu",
            }
            | {"colour": KINDS.get(node.kind, "#888888")}
            for name, node in drawing.nodes.items()
        ],
        "lines": [
            {"source": a, "target": b, "name": _between(drawing, a, b), "mean": sum(shares) / SLOTS, "slots": shares}
            for (a, b), shares in lines.items()
        ],
    }


def _between(drawing: Drawing, a: str, b: str) -> str:
    return f"{drawing.nodes[a].label} to {drawing.nodes[b].label}"
