"""The communicator groups of graphs: of ``comm_group.json``, of nodes that declare them, and of dimensions of the network."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence

from triosim.chakra.graph import RankGraph
from triosim.chakra.inputs.groups import Groups
from triosim.chakra.nodes import Node, NodeType
from triosim.errors import TraceError
from triosim.trace.group_families import GroupFamilies, Ranks


class Communicators:
    """The group of each collective, and the families of groups."""

    def __init__(self, graphs: Sequence[RankGraph], groups: Groups, dimensions: Sequence[int] = ()) -> None:
        self._graphs = graphs
        self._world = tuple(range(len(graphs)))
        self._dimensions = dimensions
        self._declared: dict[str, Ranks] = {str(name): members for name, members in groups.items()}
        for graph in graphs:
            self._declared |= {n: m or self._world for n, m in _declared(graph) if n not in self._declared}
        self._families = GroupFamilies(len(graphs))

    def of(self, rank: int, node: Node) -> tuple[str, Ranks]:
        """Return the name and the ranks of a collective's group. Raises ``TraceError`` for one that is not known."""
        graph = self._graphs[rank]
        name = graph.text(node, "pg_name")
        if name in ("", "0") and name not in self._declared:
            involved = graph.involved(node)
            return "", self._world if involved is None or all(involved) else self._along(graph, node, rank, involved)
        members = self._declared.get(name)
        if members is None:
            raise TraceError(
                f"there is no group '{name}'", where=graph.where(node), fix="give it in --groups comm_group.json"
            )
        if rank not in members or max(members) >= len(self._world):
            what = f"rank {rank} of {len(self._world)} is not in group '{name}', or others of it are not there"
            raise TraceError(what, where=graph.where(node), fix="mend comm_group.json")
        return name, members

    def family(self, name: str, members: Ranks) -> str:
        """Return the family of a group."""
        return self._families.of(name, members)

    @property
    def families(self) -> Mapping[str, tuple[Ranks, ...]]:
        """The groups of each family."""
        return self._families.groups

    def _along(self, graph: RankGraph, node: Node, rank: int, involved: Sequence[bool]) -> Ranks:
        """Return the ranks that differ from one only in some dimensions of the network."""
        if len(self._dimensions) < 2:
            return self._world
        members, stride = [rank], 1
        for number, size in enumerate(self._dimensions):
            if number < len(involved) and involved[number]:
                starts = [one - one // stride % size * stride for one in members]
                members = [start + step * stride for start in starts for step in range(size)]
            stride *= size
        if stride != len(self._world):
            what = f"involved_dim is of a network of {stride} ranks"
            raise TraceError(what, where=graph.where(node), fix=f"give one of {len(self._world)}")
        return tuple(sorted(members))


def _declared(graph: RankGraph) -> Iterator[tuple[str, Ranks]]:
    """Yield the groups that METADATA nodes declare, as PyTorch's converter writes them: a list with one JSON text."""
    for node in graph.nodes.values():
        if node.type != NodeType.METADATA or not node.input_values:
            continue
        try:
            (text,) = ast.literal_eval(node.input_values)  # as Python or JSON writes a list of texts
            yield from ((str(one["pg_name"]), tuple(map(int, one["ranks"]))) for one in json.loads(text))
        except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError):
            continue  # metadata of another kind
