"""The collectives of one rank: the plan of each group and kind, its chunks, and their tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triosim.chakra.graph import RankGraph
from triosim.chakra.inputs.system_file import Algorithm, SystemFile
from triosim.chakra.nodes import CollectiveType
from triosim.engine.astra_sim.clock import Timers
from triosim.engine.astra_sim.collectives.custom import CustomRun
from triosim.engine.astra_sim.collectives.planner import (
    DimensionPlan,
    Plan,
    Queues,
    checked,
    chunks,
    global_dimensions,
    phases,
)
from triosim.engine.astra_sim.collectives.scheduler import Dataset, Phase, Scheduler
from triosim.engine.astra_sim.faults import Stopped

_RING = Algorithm("ring")
_INVOLVED = (True,) * 4  # what a node that does not say takes part in
_TAGS_OF_A_GROUP = 1_000_000


@dataclass(frozen=True, slots=True)
class CollectiveNode:
    """What a collective node asks for."""

    id: int
    kind: CollectiveType
    size: int
    group: int
    involved: Sequence[bool] | None


@dataclass(frozen=True, slots=True)
class Layout:
    """What all ranks know: the sizes of the dimensions, queues in each, the groups, and the graphs of custom collectives."""

    sizes: tuple[int, ...]
    queues: int
    groups: Mapping[int, tuple[int, ...]]
    custom_graph: Callable[[Path, int], RankGraph]

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        total = 1
        for size in self.sizes:
            total *= size
        return total


class Collectives:
    """Starts the collectives of a rank."""

    def __init__(self, system: SystemFile, layout: Layout, scheduler: Scheduler, timers: Timers) -> None:
        self._system, self._layout, self._scheduler, self._timers = system, layout, scheduler, timers
        self._queues = Queues(len(layout.sizes), layout.queues)
        rank = scheduler.rank
        self._global = {kind: global_dimensions(found, layout.sizes, rank) for kind, found in system.algorithms.items()}
        self._plans: dict[tuple[int, CollectiveType], Plan | Path] = {}
        self._tag = 0
        self._group_tags: dict[int, int] = {}

    @property
    def queueing(self) -> Mapping[int, int]:
        """The ns that chunks have waited in each queue."""
        return self._scheduler.queueing

    def start(self, node: CollectiveNode, finished: Callable[[Any], None], argument: Any) -> None:
        """Start a collective, and call a function with an argument when it is over for this rank.

        Chunks are numbered as they come, those of a group beside those of all; ranks that do not number alike never meet.
        """
        plan = self._plan(node)
        chunk, number = chunks(node.kind, node.size, self._system, self._layout.ranks)
        dataset = Dataset(number, finished, argument)
        if isinstance(plan, Path):
            self._add(node, dataset, [self._custom(plan, node)])
            return
        for _ in range(number):
            found = list(phases(node.kind, chunk, plan, self._queues, self._system.local_bandwidth_aware))
            if not found:  # no dimension takes part, and the collective never ends
                break
            self._add(node, dataset, found)

    def _add(self, node: CollectiveNode, dataset: Dataset, found: Sequence[Phase]) -> None:
        tag, self._tag = self._tag, self._tag + 1
        if node.group:
            tag = self._group_tags.get(node.group, node.group * _TAGS_OF_A_GROUP)
            self._group_tags[node.group] = tag + 1
        self._scheduler.add(dataset, tag, found)

    def _plan(self, node: CollectiveNode) -> Plan | Path:
        """Return the dimensions of a collective, or the prefix of a custom one; a group's is kept from its first use."""
        if not node.group:
            custom = self._custom_prefix(node)
            if custom is not None:
                return custom
            checked(self._system.algorithms[node.kind], node.kind)
            return Plan(self._global[node.kind], _INVOLVED if node.involved is None else node.involved)
        key = node.group, node.kind
        if key not in self._plans:
            self._plans[key] = self._custom_prefix(node) or self._group_plan(node)
        return self._plans[key]

    def _custom_prefix(self, node: CollectiveNode) -> Path | None:
        custom = self._system.custom
        return custom.by_node.get(node.id) or custom.by_type.get(node.kind)

    def _group_plan(self, node: CollectiveNode) -> Plan:
        """Return the plan of a group: as large as the system, that of all ranks; smaller, one ring in the listed order."""
        members, algorithms = self._members(node.group), checked(self._system.algorithms[node.kind], node.kind)
        if len(members) == self._layout.ranks:
            return Plan(self._global[node.kind], [True] * len(self._global[node.kind]))
        algorithm = algorithms[0] if len(algorithms) == 1 else _RING
        return Plan((DimensionPlan(algorithm, members, self._scheduler.rank, local=True),), (True,))

    def _members(self, group: int) -> tuple[int, ...]:
        if not group:
            return tuple(range(self._layout.ranks))
        members = self._layout.groups.get(group)
        if members is None:
            raise Stopped(f"there is no group {group}: write it into comm_group.json")
        if self._scheduler.rank not in members:
            raise Stopped(f"rank {self._scheduler.rank} is not in group {group}, of which it has a collective")
        return members

    def _custom(self, prefix: Path, node: CollectiveNode) -> Phase:
        members, rank = self._members(node.group), self._scheduler.rank
        graph = self._layout.custom_graph(prefix, members.index(rank))
        return Phase(CustomRun(graph, members, rank, self._timers, self._scheduler.messages), 0)
