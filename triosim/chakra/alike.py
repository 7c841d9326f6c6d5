"""Ranks whose graphs are the same but for the groups of their collectives, as those of data and tensor parallelism are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triosim.chakra.graph import RankGraph
from triosim.chakra.nodes import Node, NodeType, Value

_GROUP = "pg_name"
_WORLD = (None, "", "0")
_KINDS = (NodeType.COMP, NodeType.COMM_COLL)

#: The name of a group, as nodes have it.
Name = Value | None


def groups_by_place(graphs: Sequence[RankGraph]) -> Mapping[Name, tuple[Name, ...]] | None:
    """Return, for each group that the first rank communicates in, the group of every rank in its place.

    None where graphs differ in more than their groups, or have nodes that compute nothing and are no collectives.
    """
    if len(graphs) < 2 or any(node.type not in _KINDS for node in graphs[0].nodes.values()):
        return None
    found: dict[Name, list[Name]] = {}
    for graph in graphs:
        names = _beside(graphs[0], graph)
        if names is None:
            return None
        for mine, its in names.items():
            found.setdefault(mine, []).append(its)
    return {mine: tuple(names) for mine, names in found.items()}


def _beside(first: RankGraph, other: RankGraph) -> Mapping[Name, Name] | None:
    """Return the group of another rank by the one of the first rank in its place, or None where they differ otherwise."""
    if len(first.nodes) != len(other.nodes):
        return None
    found: dict[Name, Name] = {}
    for one, two in zip(first.nodes.values(), other.nodes.values(), strict=True):
        if not _is_same(one, two):
            return None
        if one.type == NodeType.COMM_COLL:
            mine, its = one.attributes.get(_GROUP), two.attributes.get(_GROUP)
            if found.setdefault(mine, its) != its or is_world(mine) != is_world(its):
                return None
    return found if len(set(found.values())) == len(found) else None


def is_world(name: Name) -> bool:
    """Whether a name is that of all ranks."""
    return name in _WORLD


def _is_same(one: Node, two: Node) -> bool:
    if one[:5] != two[:5] or one.duration_us != two.duration_us:
        return False
    return one.attributes == two.attributes or {**one.attributes, _GROUP: ""} == {**two.attributes, _GROUP: ""}
