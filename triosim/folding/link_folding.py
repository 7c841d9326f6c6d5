"""Finds classes of links: rotations of the ranks that map the topology, and everything that is sent, to itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product

from triosim.errors import AsymmetryError
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.folding.dry_run import PatternUse, TransferPattern
from triosim.folding.edges import memory_edges, pattern_edges
from triosim.networks.extensions import FoldableNetwork
from triosim.networks.topology import Topology
from triosim.networks.topology.link_symmetry import LinkClasses, LinkPermutations, Rotation, is_of_memory


def find_link_classes(
    network: FoldableNetwork, topology: Topology, symmetry: Symmetry, patterns: Mapping[TransferPattern, PatternUse]
) -> tuple[LinkClasses | None, tuple[Rotation, ...]]:
    """Return the classes of links, if any, and the axes along which one flow is then simulated for all.

    Each axis is rotated as a whole or, where that is no symmetry, by the parts that ``_divisions`` yields. Axes with most ranks
    are tried first.
    """
    permutations = LinkPermutations(topology, symmetry.world)
    found: LinkClasses | None = None
    folded_axes: list[Rotation] = []
    for axis in sorted(symmetry.rotations, key=lambda one: -one.size):
        for rotations in _divisions(axis, topology):
            induced = {rotation: permutations.of(rotation) for rotation in rotations}
            known = {rotation: links for rotation, links in induced.items() if links is not None}
            if len(known) < len(induced):
                continue
            tried = LinkClasses(topology, (found.permutations if found else {}) | known)
            network.use_link_classes(tried)
            if _is_symmetric(network, topology, tried, symmetry, patterns):
                found = tried
                folded_axes.append(axis)
                break
    network.use_link_classes(found)
    return found, tuple(folded_axes)


def _divisions(axis: Rotation, topology: Topology) -> Iterator[tuple[Rotation, ...]]:
    """Yield the rotations to try for an axis: of the whole, or of each digit of the position.

    The digits are those of the number that is written with the prime factors of the size as bases (for recursive halving), with
    the sizes of the topology's dimensions (for a ring in each node, and rings from node to node), or with the prime factors of
    one dimension and the size of another.
    """
    digits = tuple(axis.prime_factors())
    tried = [(axis,), digits]
    parts = list(_along_dimensions(axis, topology))
    if len(parts) > 1:
        for ways in product(*(dict.fromkeys((tuple(part.prime_factors()), (part,))) for part in parts)):
            tried.append(tuple(rotation for way in ways for rotation in way))
    yield from dict.fromkeys(tried)


def _along_dimensions(axis: Rotation, topology: Topology) -> Iterator[Rotation]:
    """Yield the parts of an axis that lie in each dimension of the topology, or the axis where its ranks do not fill them."""
    stride, left, ranks = axis.stride, axis.size, 1
    for dimension in topology.dimensions[:-1]:
        ranks *= dimension.size
        size = ranks // stride
        if size <= 1:
            continue
        if ranks % stride or left % size or left == size:
            break
        yield Rotation(stride, size)
        stride, left = ranks, left // size
    yield Rotation(stride, left)


def _is_of_memory(topology: Topology, pattern: TransferPattern) -> bool:
    """Whether a pattern that reaches a memory uses no links over which ranks send each other anything."""
    edges = memory_edges(topology, pattern, pattern.ranks)
    return all(is_of_memory(topology, link) for ends in edges for link in topology.route(*ends))


def _is_symmetric(
    network: FoldableNetwork,
    topology: Topology,
    tried: LinkClasses,
    symmetry: Symmetry,
    patterns: Mapping[TransferPattern, PatternUse],
) -> bool:
    """Whether the rotations of link classes map everything that is sent to itself."""
    digits = [rotation for rotation in tried.permutations if rotation not in symmetry.rotations]
    with suppress(AsymmetryError):
        for pattern, use in patterns.items():
            if pattern.reaches_memory:
                if not _is_of_memory(topology, pattern):
                    return False  # its flows share links with those between ranks
                continue
            if pattern.collective is None and any(len(set(map(digit.position, pattern.ranks))) > 1 for digit in digits):
                return False  # a transfer along a ring has its image by a rotation of the whole axis alone
            if pattern.unequal and tried.spans(pattern.ranks):
                return False
            for edge in pattern_edges(network, pattern, use.nbytes):
                tried.route(*edge)
        return True
    return False
