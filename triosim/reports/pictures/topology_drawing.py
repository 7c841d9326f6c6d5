"""What a picture of a topology shows: nodes at their places, the lines between them, and which lines stand for which links.

A small topology is drawn whole. One of several dimensions, or a large one that its dimensions describe, is drawn a dimension
at a time: one block of each, with the ring, the switch or the direct links that join its members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from triosim.errors import TopologyError
from triosim.networks.topology import Topology
from triosim.networks.topology.graph import Link
from triosim.reports.pictures.topology_blocks import Blocks
from triosim.reports.pictures.topology_layout import DrawnLink, DrawnNode, Position, hanging_memories, layout, merged

MOST_WHOLE = 40  # GPUs that are drawn one by one
MOST_IN_GRID = 256  # of a mesh or a torus of two or three dimensions
MOST_NODES = 5_000  # that are drawn one by one
MARGIN = 0.7  # around the nodes, in units of the layout


@dataclass(frozen=True, slots=True)
class Drawing:
    """The nodes and lines of a picture. ``ends`` returns the drawn ends of a link, or None where it is not drawn.

    ``captions`` are texts and where their middle is; ``left_out`` names the nodes that are not drawn.
    """

    nodes: Mapping[str, DrawnNode]
    lines: Sequence[DrawnLink]
    ends: Callable[[Link], tuple[str, str] | None]
    captions: Sequence[tuple[str, Position]] = ()
    left_out: frozenset[str] = frozenset()

    @property
    def at(self) -> dict[str, Position]:
        """The position of each node; neighbours are about one unit apart."""
        return {name: node.at for name, node in self.nodes.items()}

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """The least x, the greatest x, the least y and the greatest y, with a margin."""
        xs, ys = zip(*[node.at for node in self.nodes.values()], *[at for _, at in self.captions], strict=True)
        return min(xs) - MARGIN, max(xs) + MARGIN, min(ys) - MARGIN, max(ys) + MARGIN

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in units of the layout, with a margin."""
        left, right, low, high = self.bounds
        return right - left, high - low


def drawing_of(topology: Topology) -> Drawing:
    """Return what a picture of a topology shows. Raises ``TopologyError`` where there is nothing to draw, or too much."""
    if not is_drawable(topology):
        nodes = len(topology.nodes)
        raise TopologyError(f"{nodes} nodes cannot be drawn", where=topology.name, fix=f"at most {MOST_NODES} can")
    return _by_dimension(topology) if _is_regular(topology) else _whole(topology)


def is_drawable(topology: Topology) -> bool:
    """Return whether there are nodes, and few enough, or dimensions that describe them."""
    return len(topology.nodes) > 0 and (len(topology.nodes) <= MOST_NODES or _is_regular(topology))


def _is_regular(topology: Topology) -> bool:
    """Return whether a block of each dimension says more than all nodes would."""
    sides = [dimension.size for dimension in topology.dimensions if dimension.size > 1]
    if not topology.uniform or not sides or prod(sides) != len(topology.gpus):
        return False
    if topology.regularity.by_dimension and len(sides) > 1:
        return True
    grid = len(topology.coordinates) == len(topology.gpus) and 2 <= len(sides) <= 3
    return len(topology.gpus) > (MOST_IN_GRID if grid else MOST_WHOLE)


def _whole(topology: Topology) -> Drawing:
    left_out = hanging_memories(topology)
    names = [name for name in topology.nodes if name not in left_out]
    lines = merged(topology, left_out)
    at = layout(topology, names, lines)
    nodes = {name: DrawnNode(name, topology.nodes[name].kind, at[name]) for name in names}

    def ends(link: Link) -> tuple[str, str] | None:
        both = link.source, link.destination
        return both if link.source != link.destination and all(name in nodes for name in both) else None

    return Drawing(nodes, lines, ends, left_out=frozenset(left_out))


def _by_dimension(topology: Topology) -> Drawing:
    blocks = Blocks(topology)
    nodes = {name: node for block in blocks for name, node in block.members.items()}
    lines: dict[frozenset[str], DrawnLink] = {}
    for link in topology.links.values():
        ends = blocks.ends(link)
        if ends is not None and frozenset(ends) not in lines:
            lines[frozenset(ends)] = DrawnLink(*ends, link.bandwidth, link.latency, arrow=False)
    captions = [(block.caption, block.caption_at) for block in blocks]
    return Drawing(nodes, list(lines.values()), blocks.ends, captions, blocks.left_out)
