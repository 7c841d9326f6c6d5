"""Multi-dimensional topologies in the notation ``Ring(4)_FC(2)_Switch(8)``, and in ASTRA-sim's ``network.yml``.

Dimension 1 is written first and is the innermost: ranks that differ in it alone are neighbours in number (ASTRA-sim 2.0,
Won et al. 2023, IV-B). Blocks are Ring, FullyConnected (FC) and Switch (SW). A bandwidth is what a GPU can send on a
dimension in one direction: all of it on its link to the switch or to the next in the ring, shared by its links where all
are linked to all. A latency is that of one link. The graph is built only when a route is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod

from triosim.errors import TopologyError, nearest
from triosim.input_files.limits import DIRECT_LINKS, GPUS, LINKS
from triosim.networks.topology.description import Description
from triosim.networks.topology.graph import BlockKind, Dimension, GraphDraft, Regularity

GIB = 2.0**30  # what ASTRA-sim calls a GB
NS = 1e9  # in a second

BLOCKS: Mapping[str, BlockKind] = {
    "ring": "ring",
    "fullyconnected": "fully_connected",
    "fc": "fully_connected",
    "switch": "switch",
    "sw": "switch",
}
_PART = re.compile(r"\s*([A-Za-z_]+?)\s*\(([^()]*)\)\s*")
_NOTATION = re.compile(r"[A-Za-z]+\s*\([^()]*\)(\s*_\s*[A-Za-z]+\s*\([^()]*\))*")


def description(
    name: str, dimensions: Sequence[Dimension], change: Callable[[GraphDraft], None] | None = None
) -> Description:
    """Return a topology of dimensions; ``change`` changes some of its links, at once, so that its errors show."""
    _check_size(name, dimensions)
    gpus, changed = prod(dimension.size for dimension in dimensions), None
    if change is not None:
        changed = drafted(name, dimensions)
        change(changed)
    regularity = Regularity(tuple(dimensions), uniform=change is None, by_dimension=True)
    return Description(name, gpus, "shortest", regularity, lambda: (changed or drafted(name, dimensions)).graph())


def latency_and_bandwidth(dimensions: Sequence[Dimension], a: int, b: int) -> tuple[float, float]:
    """Return the latency and the least bandwidth of the route between two ranks, which goes along each dimension in turn."""
    latency, bandwidth = 0.0, float("inf")
    for dimension in dimensions:
        hops = _hops(dimension, a % dimension.size, b % dimension.size)
        a, b = a // dimension.size, b // dimension.size
        if hops:
            latency += hops * dimension.latency
            bandwidth = min(bandwidth, link_bandwidth(dimension))
    return latency, bandwidth


@cache
def block_graph(dimension: Dimension) -> Description:
    """Return one block of a dimension by itself, its members being the ranks; of a switch, two members stand for all."""
    if dimension.block == "switch":
        dimension = replace(dimension, size=min(dimension.size, 2))
    draft = drafted("a block", [dimension])
    return Description("a block", dimension.size, "shortest", draft.regularity(), draft.graph)


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
    GPUS.check(gpus, name, TopologyError)
    for one in dimensions:
        if one.block == "fully_connected":
            DIRECT_LINKS.check(one.size * (one.size - 1), name, TopologyError)
    links = sum(gpus * (one.size - 1 if one.block == "fully_connected" else 2) for one in dimensions)
    LINKS.check(links, name, TopologyError)


def drafted(name: str, dimensions: Sequence[Dimension]) -> GraphDraft:
    """Return the nodes and links; those of the first dimension come first, so that routes go along it first."""
    draft = GraphDraft(name)
    gpus = [draft.node(f"gpu{rank}", "gpu") for rank in range(prod(dimension.size for dimension in dimensions))]
    before = 1
    for number, dimension in enumerate(dimensions, start=1):
        starts = [start for start in range(len(gpus)) if start // before % dimension.size == 0]
        for line, start in enumerate(starts if dimension.size > 1 else ()):
            members = gpus[start : start + before * dimension.size : before]
            _block(draft, dimension, members, f"dim{number}.switch{line}")
        before *= dimension.size
    return draft


def _block(draft: GraphDraft, dimension: Dimension, members: Sequence[str], switch: str) -> None:
    """Join the members of one block, by a switch of this name where it is one."""
    block, n = dimension.block, len(members)
    figures = link_bandwidth(dimension), dimension.latency
    for position, gpu in enumerate(members if block == "line" else ()):
        draft.coordinates[gpu] = (position,)
    if block == "switch":
        draft.node(switch, "switch")
        for gpu in members:
            draft.both(gpu, switch, *figures)
    elif block in ("ring", "line"):
        for i in range(n if n > 2 and block == "ring" else n - 1):
            draft.both(members[i], members[(i + 1) % n], *figures)
    else:
        for i in range(n):
            for j in range(i + 1, n):
                draft.both(members[i], members[j], *figures)


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
            raise TopologyError(f"'{part}' is not a dimension", where=text, fix="write for example 'Ring(4)_Switch(2)'")
        yield match[1], match[2]


def block_of(word: str) -> BlockKind:
    """Return the block that a word of the notation stands for."""
    found = BLOCKS.get(word.lower())
    if found is None:
        raise TopologyError(f"unknown block '{word}'", fix=nearest(word, ("Ring", "FullyConnected", "FC", "Switch")))
    return found
