"""Ranks that do the same at the same ticks, of which one is simulated: what it sends is what it receives.

That is exact where all ranks have one graph but for the groups of their collectives, every collective is a ring, and each step
along a ring costs the same from every rank, on the network on which messages do not meet. All ranks then start and end each
node together, so that the message from the rank before comes when the one to the rank after arrives. Other algorithms look at
what has come in before a rank goes on, for which the order within a tick counts, and that differs from rank to rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from triosim.chakra.alike import Name, groups_by_place, is_world
from triosim.chakra.graph import RankGraph
from triosim.chakra.inputs.groups import Groups
from triosim.chakra.inputs.system_file import SIMULATED, SystemFile
from triosim.chakra.nodes import CollectiveType, NodeType
from triosim.engine.astra_sim.collectives.planner import global_rings
from triosim.engine.astra_sim.messages import Messages
from triosim.engine.astra_sim.networks import UnawareNetwork


class MirroredMessages(Messages):
    """The messages of one rank for all: what it sends to the rank after it in a ring comes from the one before it."""

    def _numbered(self, key: tuple[Any, ...], side: int) -> tuple[Any, ...]:
        tag, _, _, size = key
        return super()._numbered((tag, size), side)


def are_alike(graphs: Sequence[RankGraph], system: SystemFile, groups: Groups, network: UnawareNetwork) -> bool:
    """Whether all ranks end every node of theirs at the same tick."""
    if system.bus is not None or system.custom.by_type or system.custom.by_node:
        return False
    kinds = {
        graphs[0].whole(node, "comm_type", -1) for node in graphs[0].nodes.values() if node.type == NodeType.COMM_COLL
    }
    if not all(_are_rings(system, kind) for kind in kinds):
        return False
    places = groups_by_place(graphs)
    if places is None:
        return False
    rings = [ring for size in _listed(system, kinds) for ring in global_rings(network.sizes, size)]
    for names in places.values():
        if not is_world(names[0]):
            found = _rings_of(names, groups)
            if found is None:
                return False
            rings.append(found)
    return all(_costs_are_equal(ring, network) for ring in rings)


def _are_rings(system: SystemFile, kind: int) -> bool:
    if kind == CollectiveType.BROADCAST:
        return True
    algorithms = system.algorithms[CollectiveType(kind)] if kind in SIMULATED else ()
    return bool(algorithms) and all(one.name == "ring" for one in algorithms)


def _listed(system: SystemFile, kinds: set[int]) -> Iterator[int | None]:
    """Yield over how many dimensions the rings of all ranks go, one by one; None for one that spans them all."""
    for kind in kinds - {CollectiveType.BROADCAST}:
        algorithms = system.algorithms[CollectiveType(kind)]
        spans = next((number for number, one in enumerate(algorithms) if one.spans_all), None)
        yield len(algorithms) if spans is None else spans
        if spans is not None:
            yield None


def _rings_of(names: Sequence[Name], groups: Groups) -> dict[int, tuple[int, int]] | None:
    """Return the ranks after and before each in its group; None where the groups do not divide the ranks equally."""
    found: dict[int, tuple[int, int]] = {}
    size: int | None = None
    for rank, name in enumerate(names):
        members = groups.get(int(name), ()) if isinstance(name, str) and name.isdecimal() else ()
        size = len(members) if size is None else size
        if rank not in members or len(members) != size or size < 2 or any(names[other] != name for other in members):
            return None
        at = members.index(rank)
        found[rank] = members[(at + 1) % size], members[at - 1]
    return found


def _costs_are_equal(ring: Mapping[int, tuple[int, int]], network: UnawareNetwork) -> bool:
    return len({tuple(network.cost(rank, other) for other in beside) for rank, beside in ring.items()}) == 1
