"""One block of each dimension of a regular topology, laid out side by side."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from triosim.networks.topology import Topology
from triosim.networks.topology.graph import Dimension, Link
from triosim.reports.pictures.topology_layout import DrawnNode, Position
from triosim.units import format_bandwidth, format_time

MOST_MEMBERS = 8  # of a block that are all drawn; of more, the first five, dots, and the last one
FIRST_MEMBERS = 5
BLOCKS_A_ROW = 2
_GAP = 1.4  # between blocks, in units of the layout
_WIDTH = 5.0  # of a block at least: its caption
WORDS = {"ring": "ring", "fully_connected": "direct links", "switch": "switch", "line": "line"}


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a dimension: its members by name (GPUs, or those of an inner block; its switch), and what is written below.

    ``stride`` is by how much the ranks of neighbours differ.
    """

    number: int
    dimension: Dimension
    stride: int
    members: Mapping[str, DrawnNode]
    caption: str
    caption_at: Position

    def name_of(self, rank: int) -> str:
        """Return the name of the member that stands for a rank, in whatever block it is."""
        return member_name(self.number, drawn_place(rank // self.stride % self.dimension.size, self.dimension.size))

    @property
    def switch(self) -> str:
        """The name of its switch."""
        return f"{self.number}.switch"


def member_name(number: int, place: int | None) -> str:
    """Return the name of a member of a dimension's block; of a place of None, that of the dots."""
    return f"{number}.{'more' if place is None else place}"


def drawn_place(place: int, size: int) -> int | None:
    """Return a place that is drawn by itself, or None for those that dots stand for."""
    return place if size <= MOST_MEMBERS or place < FIRST_MEMBERS or place == size - 1 else None


class Blocks:
    """One block of each dimension that has members to join, and which of their members each link joins."""

    def __init__(self, topology: Topology) -> None:
        self._ranks = {gpu: rank for rank, gpu in enumerate(topology.gpus)}
        self._topology = topology
        self._by_index = {block.number - 1: block for block in _laid_out(topology)}
        self._switches = self._switch_dimensions()
        self.left_out = frozenset(topology.nodes) - self._ranks.keys() - self._switches.keys()

    def __iter__(self) -> Iterator[Block]:
        return iter(self._by_index.values())

    def ends(self, link: Link) -> tuple[str, str] | None:
        """Return the members that stand for the ends of a link, or None where they are one, or not drawn."""
        source, destination = self._ranks.get(link.source), self._ranks.get(link.destination)
        if source is not None and destination is not None:
            block = self._by_index.get(_outermost(self._topology.dimensions, (source, destination)) or 0)
            names = block and (block.name_of(source), block.name_of(destination))
            return names if names and names[0] != names[1] else None
        if source is not None and link.destination in self._switches:
            block = self._by_index[self._switches[link.destination]]
            return block.name_of(source), block.switch
        if destination is not None and link.source in self._switches:
            block = self._by_index[self._switches[link.source]]
            return block.switch, block.name_of(destination)
        return None

    def _switch_dimensions(self) -> dict[str, int]:
        """Return for each switch the index of the outermost dimension along which it joins GPUs."""
        nodes = self._topology.nodes
        joined: dict[str, list[int]] = {}
        for link in self._topology.links.values():
            if link.source in self._ranks and nodes[link.destination].kind == "switch":
                joined.setdefault(link.destination, []).append(self._ranks[link.source])
        found = {switch: _outermost(self._topology.dimensions, ranks) for switch, ranks in joined.items()}
        return {switch: index for switch, index in found.items() if index is not None}


def _laid_out(topology: Topology) -> Iterator[Block]:
    """Yield the blocks, row by row."""
    stride, left, top, lowest = 1, 0.0, 0.0, 0.0
    for number, dimension in enumerate(topology.dimensions, start=1):
        if dimension.size > 1:
            if left > 0 and number % BLOCKS_A_ROW == 1:
                left, top = 0.0, lowest - _GAP
            block, width = _block(topology, number, stride, (left, top))
            left, lowest = left + width + _GAP, min(lowest, block.caption_at[1])
            yield block
        stride *= dimension.size


def _block(topology: Topology, number: int, stride: int, corner: Position) -> tuple[Block, float]:
    """Return a block whose upper left corner is given, and its width."""
    dimension = topology.dimensions[number - 1]
    places = list(dict.fromkeys(drawn_place(place, dimension.size) for place in range(dimension.size)))
    around = _around(dimension.block, len(places))
    width = max(_WIDTH, max(x for x, _ in around) - min(x for x, _ in around))
    height = max(y for _, y in around) - min(y for _, y in around)
    raised = 1.4 if dimension.block == "switch" else 0.0
    middle, foot = corner[0] + width / 2, corner[1] - raised - height
    members = {
        member_name(number, place): DrawnNode(*_label(place, stride), (middle + x, foot + y))
        for place, (x, y) in zip(places, around, strict=True)
    }
    if raised:
        members[f"{number}.switch"] = DrawnNode("switch", "switch", (middle, corner[1]))
    count = len(topology.gpus) // dimension.size
    caption = (
        f"dimension {number}: {WORDS[dimension.block]} of {dimension.size}{f', {count} times' if count > 1 else ''}\n"
        f"{format_bandwidth(dimension.bandwidth)} a GPU, {format_time(dimension.latency)} a link"
    )
    caption_at = (middle, foot - 1.0)
    return Block(number, dimension, stride, members, caption, caption_at), width


def _around(block: str, count: int) -> list[Position]:
    """Return where the members of a block are, the lowest at 0: on a circle where they are linked to each other."""
    if block in ("switch", "line") or count == 2:
        return [(place - (count - 1) / 2, 0.0) for place in range(count)]
    radius = max(1.0, 1.1 * count / (2 * math.pi))
    turns = [2 * math.pi * place / count for place in range(count)]
    return [(radius * math.sin(turn), radius * (1 + math.cos(turn))) for turn in turns]


def _label(place: int | None, stride: int) -> tuple[str, str]:
    """Return the label and the kind of a member: a GPU, or the GPUs of an inner block."""
    if place is None:
        return "...", "more"
    return (f"gpu{place}", "gpu") if stride == 1 else (f"{place * stride}-{(place + 1) * stride - 1}", "block")


def _outermost(dimensions: Sequence[Dimension], ranks: Collection[int]) -> int | None:
    """Return the index of the outermost dimension in which ranks differ."""
    found, stride = None, 1
    for index, dimension in enumerate(dimensions):
        if len({rank // stride % dimension.size for rank in ranks}) > 1:
            found = index
        stride *= dimension.size
    return found
