"""Multi-dimensional networks by notation, ``Ring(4)_FC(2)_Switch(8)``, and ASTRA-sim's ``network.yml``.

Dimension 1 is written first and is the innermost: ranks that differ in it alone are neighbours in number (ASTRA-sim 2.0,
Won et al. 2023, IV-B). Blocks are Ring, FullyConnected (FC) and Switch (SW). A bandwidth is what a GPU can send on a
dimension in one direction: all of it on its link to the switch or to the next in the ring, shared by its links where all
are linked to all. A latency is that of one link. The graph is built only when a route is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import SupportsIndex

from triosim.errors import TopologyError, nearest
from triosim.networks.topology.lazy import UnbuiltTopology
from triosim.networks.topology.shapes import MOST_GPUS, MOST_LINKS, Draft, Wire
from triosim.networks.topology.topology import Block, Dimension, Topology

GIB = 2.0**30  # what ASTRA-sim calls a GB
NS = 1e9  # in a second

BLOCKS: Mapping[str, Block] = {
    "ring": "ring",
    "fullyconnected": "fully_connected",
    "fc": "fully_connected",
    "switch": "switch",
    "sw": "switch",
}
_PART = re.compile(r"\s*([A-Za-z_]+?)\s*\(([^()]*)\)\s*")
_NOTATION = re.compile(r"[A-Za-z]+\s*\([^()]*\)(\s*_\s*[A-Za-z]+\s*\([^()]*\))*")


class DimensionalTopology(UnbuiltTopology):
    """A topology of dimensions; ``change`` makes some of its links others, and is tried at once."""

    by_dimension = True

    def __init__(
        self, name: str, dimensions: Sequence[Dimension], change: Callable[[Draft], None] | None = None
    ) -> None:
        _check_size(name, dimensions)
        self._change = change
        super().__init__(name, prod(dimension.size for dimension in dimensions), dimensions, self._drafted)
        self.uniform = change is None
        if change is not None:
            self._build()

    def way(self, source: SupportsIndex | str, destination: SupportsIndex | str) -> tuple[float, float]:
        """Return latency and least bandwidth of a route, dimension by dimension where no link differs."""
        if not self.uniform or isinstance(source, str) or isinstance(destination, str):
            return super().way(source, destination)
        self.node(source), self.node(destination)
        a, b = source.__index__(), destination.__index__()
        latency, bandwidth = 0.0, float("inf")
        for dimension in self.dimensions:
            hops = _hops(dimension, a % dimension.size, b % dimension.size)
            a, b = a // dimension.size, b // dimension.size
            if hops:
                latency += hops * dimension.latency
                bandwidth = min(bandwidth, link_bandwidth(dimension))
        return latency, bandwidth

    def _drafted(self) -> Topology:
        draft = drafted(self.name, self.dimensions)
        draft.dimensions.extend(self.dimensions)
        if self._change is not None:
            self._change(draft)
        return draft.topology()


def link_bandwidth(dimension: Dimension) -> float:
    """Return the bandwidth of one link of a block."""
    return dimension.bandwidth / (dimension.size - 1 if dimension.block == "fully_connected" else 1)


def _hops(dimension: Dimension, a: int, b: int) -> int:
    if a == b:
        return 0
    if dimension.block == "ring":
        return min((a - b) % dimension.size, (b - a) % dimension.size)
    return 2 if dimension.block == "switch" else 1


def _check_size(name: str, dimensions: Sequence[Dimension]) -> None:
    gpus = prod(dimension.size for dimension in dimensions)
    if gpus > MOST_GPUS:
        raise TopologyError(f"{gpus} GPUs are too many", where=name, fix=f"write at most {MOST_GPUS}")
    links = sum(gpus * (one.size - 1 if one.block == "fully_connected" else 2) for one in dimensions)
    if links > MOST_LINKS:
        raise TopologyError(f"it has {links} links", where=name, fix=f"at most {MOST_LINKS} can be")


def drafted(name: str, dimensions: Sequence[Dimension]) -> Draft:
    """Return the nodes and links; those of the first dimension come first, so that routes go along it first."""
    draft = Draft(name)
    gpus = [draft.node(f"gpu{rank}", "gpu") for rank in range(prod(dimension.size for dimension in dimensions))]
    before = 1
    for number, dimension in enumerate(dimensions, start=1):
        wire = Wire(link_bandwidth(dimension), dimension.latency) if dimension.size > 1 else None
        starts = [start for start in range(len(gpus)) if start // before % dimension.size == 0]
        for line, start in enumerate(starts if wire else ()):
            assert wire is not None
            members = gpus[start : start + before * dimension.size : before]
            _block(draft, dimension.block, members, wire, f"dim{number}.switch{line}")
        before *= dimension.size
    return draft


def _block(draft: Draft, block: Block, members: Sequence[str], wire: Wire, switch: str) -> None:
    n = len(members)
    for place, gpu in enumerate(members if block == "line" else ()):
        draft.coordinates[gpu] = (place,)
    if block == "switch":
        draft.node(switch, "switch")
        for gpu in members:
            draft.wire(gpu, switch, wire)
    elif block in ("ring", "line"):
        for i in range(n if n > 2 and block == "ring" else n - 1):
            draft.wire(members[i], members[(i + 1) % n], wire)
    else:
        for i in range(n):
            for j in range(i + 1, n):
                draft.wire(members[i], members[j], wire)


def is_notation(text: str) -> bool:
    """Return whether a name is in the notation of dimensions: blocks joined by ``_``, or one block of ASTRA-sim's."""
    if not _NOTATION.fullmatch(text.strip()):
        return False
    words = [word for word, _ in parts(text)]
    return len(words) > 1 or (words[0].lower() in BLOCKS and words[0][0].isupper())


def is_written(topology: object) -> bool:
    """Return whether what a file says under ``topology`` is dimensions: in the notation, or a list of blocks."""
    if isinstance(topology, list):
        return bool(topology) and all(str(word).lower() in BLOCKS for word in topology)
    return isinstance(topology, str) and is_notation(topology)


def parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the block and what is in its brackets, of each dimension."""
    for part in re.split(r"(?<=\))\s*_", text.strip()):
        match = _PART.fullmatch(part)
        if match is None:
            raise TopologyError(f"'{part}' is no dimension", where=text, fix="write for example 'Ring(4)_Switch(2)'")
        yield match[1], match[2]


def block_of(word: str) -> Block:
    """Return the block that a word of the notation stands for."""
    found = BLOCKS.get(word.lower())
    if found is None:
        raise TopologyError(f"unknown block '{word}'", fix=nearest(word, ("Ring", "FullyConnected", "FC", "Switch")))
    return found
