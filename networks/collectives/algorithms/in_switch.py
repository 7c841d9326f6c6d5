"""Reduction in switches: a switch adds up what its ports send and multicasts the sum (SHARP; Graham et al. 2016).

A rank sends its tensor once and receives the sum once: S/B for an all-reduce, whatever the number of ranks. With several
levels of switches, each adds up what is below it. All-gather, broadcast are multicast, reduce-scatter, reduce are added
up on the way; gather, scatter and all-to-all, with nothing to add or to copy, go straight.

NVLS, what NVSwitches have, is the same by slices: a GPU fetches the sum of its own slice through the switch and multicasts
it, so that (N+1)/N S bytes leave and reach each GPU (multimem.ld_reduce and multimem.st of PTX; NCCL since 2.17).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from triosim.errors import OptionError
from triosim.networks.collectives.algorithm import CollectiveOperation, Edge, OperationAlgorithm, SteadyState, Transfer
from triosim.networks.collectives.algorithms import direct
from triosim.networks.collectives.algorithms.rotated_trees import behind_one_switch
from triosim.networks.collectives.algorithms.tree import chunks_of
from triosim.networks.topology import NodeRef, Topology

Parents = dict[NodeRef, NodeRef]


class InSwitch(OperationAlgorithm):
    """Collectives through the switch above all ranks, which reduces and multicasts."""

    steady = True
    name = "in-switch"

    def transfers_of(self, operation: CollectiveOperation, topology: Topology) -> Iterator[Transfer]:
        """Yield the transfers of a collective."""
        kind, ranks, nbytes, _, _ = operation
        if kind == "all_to_all":
            return direct.Direct().transfers_of(operation, topology)
        if kind in ("gather", "scatter"):
            return direct.gather_or_scatter(operation)
        tree, sizes = _SwitchTree(switch_tree(topology, ranks, self.name)), operation.chunk_sizes
        if kind == "all_reduce":
            self.all_reduce(tree, ranks, nbytes)
            return iter(tree.found)
        chunks = chunks_of(nbytes)
        by_rank = kind in ("all_gather", "reduce_scatter")
        pieces = zip(ranks, sizes, strict=True) if by_rank else [(operation.first, nbytes / chunks)] * chunks
        for chunk, (rank, size) in enumerate(pieces):
            if kind in ("all_gather", "broadcast"):
                tree.multicast(rank, ranks, chunk, size)
            else:
                tree.sum(ranks, rank, chunk, size)
        return iter(tree.found)

    def steady_state(self, operation: CollectiveOperation, topology: Topology) -> SteadyState:
        """Return the steady state; how many chunks there are does not matter for it."""
        if operation.shares is not None:
            return super().steady_state(operation, topology)
        edges, latency, _ = super().steady_state(operation._replace(nbytes=1.0), topology)
        return SteadyState(tuple(edge._replace(nbytes=edge.nbytes * operation.nbytes) for edge in edges), latency)

    def all_reduce(self, tree: _SwitchTree, group: Sequence[int], nbytes: float) -> None:
        """Add up in the topmost switch, and multicast from there."""
        chunks = chunks_of(nbytes)
        top = next(switch for switch in tree.parents.values() if switch not in tree.parents)
        for chunk in range(chunks):
            tree.multicast(top, group, chunk, nbytes / chunks, after=tree.sum(group, top, chunk, nbytes / chunks))


class SlicedInSwitch(InSwitch):
    """NVLS: every GPU has the switch add up one slice, and multicasts it."""

    name = "nvls"

    def steady_state(self, operation: CollectiveOperation, topology: Topology) -> SteadyState:
        """Return the steady state; that of an all-reduce behind one switch in closed form, from each rank to the next.

        Every rank sends and receives (N+1)/N S, whoever it is from and for. As flows between ranks they can be folded.
        """
        ranks = operation.ranks
        if operation.kind != "all_reduce" or not behind_one_switch(ranks, topology):
            return super().steady_state(operation, topology)
        nbytes = (len(ranks) + 1) / len(ranks) * operation.nbytes
        routes = [topology.route(*ends) for ends in zip(ranks, (*ranks[1:], ranks[0]), strict=True)]
        up = [first.latency for first, _ in routes]
        down = [last.latency for _, last in (routes[-1], *routes[:-1])]
        latency = max(up) + max(there + back for there, back in zip(up, down, strict=True)) + max(down)
        edges = [Edge(rank, after, nbytes) for rank, after in zip(ranks, (*ranks[1:], ranks[0]), strict=True)]
        return SteadyState(tuple(edges), latency)

    def all_reduce(self, tree: _SwitchTree, group: Sequence[int], nbytes: float) -> None:
        """Add up each slice for its owner, who multicasts it to all."""
        parts = chunks_of(nbytes / len(group))
        size = nbytes / len(group) / parts
        for chunk in range(parts * len(group)):
            rank = group[chunk % len(group)]
            summed = tree.sum(group, rank, chunk, size, also_own=True)
            tree.multicast(rank, group, chunk, size, after=summed, also_own=True)


class _SwitchTree:
    """A tree of switches above the ranks, and the transfers in it so far."""

    def __init__(self, parents: Parents) -> None:
        self.parents = parents
        self.found: list[Transfer] = []
        self.last: dict[tuple[NodeRef, NodeRef, bool], int] = {}  # one piece after the other on each edge

    def _send(
        self,
        source: NodeRef,
        destination: NodeRef,
        chunk: int,
        size: float,
        after: tuple[int, ...],
        sums: bool,
        action: Literal["copy", "reduce"] | None = None,
    ) -> int:
        before = self.last.get((source, destination, sums))
        self.last[source, destination, sums] = len(self.found)
        if before is not None:
            after = (*after, before)
        self.found.append(Transfer(source, destination, chunk, size, action or ("reduce" if sums else "copy"), after))
        return len(self.found) - 1

    def multicast(
        self,
        source: NodeRef,
        group: Sequence[NodeRef],
        chunk: int,
        size: float,
        *,
        after: tuple[int, ...] = (),
        also_own: bool = False,
    ) -> None:
        """Send a piece over each link of the tree once, away from the source; with ``also_own`` back to it, too."""
        leaves = set(group) - (set() if also_own else {source})
        arrived: dict[NodeRef, tuple[int, ...]] = {source: after}
        for here, there in self._edges(source, leaves):
            arrived[there] = (self._send(here, there, chunk, size, arrived[here], False),)
        if also_own:
            above = self.parents[source]
            self._send(above, source, chunk, size, arrived[above], False)

    def sum(
        self, group: Sequence[NodeRef], destination: NodeRef, chunk: int, size: float, *, also_own: bool = False
    ) -> tuple[int, ...]:
        """Add a piece up over each link of the tree once, towards the destination; return what arrives there."""
        edges = self._edges(destination, set(group) - {destination})
        into: dict[NodeRef, tuple[int, ...]] = {}
        for there, here in reversed(edges):
            if also_own and there == destination:
                continue
            number = self._send(here, there, chunk, size, into.get(here, ()), True)
            into[there] = (*into.get(there, ()), number)
        if also_own:  # the destination reads its own part through the switch as well, and keeps the sum
            above = self.parents[destination]
            number = self._send(destination, above, chunk, size, (), True)
            number = self._send(above, destination, chunk, size, (*into.get(above, ()), number), True, "copy")
            return (number,)
        return into.get(destination, ())

    def _edges(self, source: NodeRef, leaves: set[NodeRef]) -> list[tuple[NodeRef, NodeRef]]:
        """Return the edges from the source to leaves in the tree, each after the one that leads to it."""
        above = self._up(source)
        meets = {place: steps for steps, place in enumerate(above)}
        climbed = 0
        down: dict[tuple[NodeRef, NodeRef], None] = {}
        for leaf in sorted(leaves, key=str):
            path = self._up(leaf)
            joint = next(step for step, place in enumerate(path) if place in meets)
            climbed = max(climbed, meets[path[joint]])
            down.update(((path[step], path[step - 1]), None) for step in range(joint, 0, -1))
        return [*pairwise(above[: climbed + 1]), *down]

    def _up(self, place: NodeRef) -> list[NodeRef]:
        path = [place]
        while path[-1] in self.parents:
            path.append(self.parents[path[-1]])
        return path


def switch_tree(topology: Topology, group: Sequence[int], asked_by: str = "in-switch") -> Parents:
    """Return the parent of each rank and switch, up to one switch above all ranks; ``OptionError`` where there is none."""
    best = meeting(topology, group)
    if best is None:
        raise OptionError(
            f"messages among the {len(group)} ranks of {topology.name} have no switch in common",
            where=asked_by,
            fix="give a topology of switches, or another algorithm",
        )
    parents: Parents = {}
    for rank in group:
        here: NodeRef = rank
        for link in topology.route(rank, best):
            if here in parents:
                break
            parents[here] = link.destination
            here = link.destination
    return parents


def meeting(topology: Topology, group: Sequence[int]) -> str | None:
    """Return the nearest switch that all ranks reach through switches alone, or None."""
    kinds = topology.nodes
    on_ways = [
        link.destination for link in topology.route(group[0], group[-1]) if kinds[link.destination].kind == "switch"
    ]
    found: list[tuple[int, str]] = []
    for switch in dict.fromkeys(on_ways):
        routes = [topology.route(rank, switch) for rank in group]
        if all(kinds[link.destination].kind == "switch" for route in routes for link in route):
            found.append((max(map(len, routes)), switch))
    return min(found)[1] if found else None
