"""The graph of one rank: its nodes by id and what each waits for; a reader of their attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triosim.chakra.nodes import Node, Value
from triosim.chakra.wire import signed
from triosim.errors import TraceError

_MOST = 2**63
_MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class RankGraph:
    """The graph that a rank executes."""

    path: Path
    nodes: Mapping[int, Node]
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, Value | None] = field(default_factory=dict)

    def where(self, node: Node) -> str:
        """Return the file and the node, for a message."""
        return f"{self.path}: {node}"

    def whole(self, node: Node, name: str, default: int | None = None) -> int:
        """Return an attribute that is a whole number of 0 or more.

        Raises ``TraceError`` where it is something else, or absent and there is no default.
        """
        value = node.attributes.get(name, default)
        if value is None:
            raise TraceError(f"the attribute '{name}' is missing", where=self.where(node), fix="write it with the node")
        if not isinstance(value, int) or not 0 <= value < _MOST:
            raise TraceError(
                f"the attribute '{name}' is {value!r}", where=self.where(node), fix="write a whole number of 0 or more"
            )
        return int(value)

    def text(self, node: Node, name: str) -> str:
        """Return an attribute that is a text, or a number as one; empty where it is absent."""
        value = node.attributes.get(name)
        if value is None:
            return ""
        if not isinstance(value, (str, int)):
            raise TraceError(f"the attribute '{name}' is {value!r}", where=self.where(node), fix="write a text")
        return str(value)

    def on_cpu(self, node: Node) -> bool:
        """Return whether a node runs on the CPU."""
        return bool(node.attributes.get("is_cpu_op", False))

    def group(self, node: Node) -> int:
        """Return the number of a collective's group; 0 is all ranks."""
        name = node.attributes.get("pg_name", "")
        if name == "":
            return 0
        if not isinstance(name, str) or not name.isdecimal():
            raise TraceError(
                f"pg_name is {name!r}", where=self.where(node), fix="write the number of a group as a text"
            )
        return int(name)

    def involved(self, node: Node) -> tuple[bool, ...] | None:
        """Return which dimensions a collective takes part in, or None where it does not say."""
        value = node.attributes.get("involved_dim")
        if value is None:
            return None
        if not isinstance(value, tuple) or not all(isinstance(one, bool) for one in value):
            raise TraceError(f"involved_dim is {value!r}", where=self.where(node), fix="write a list of booleans")
        return tuple(bool(one) for one in value)


def rank_graph(path: Path, nodes: Sequence[Node], *, lenient: bool = False, control: bool = True) -> RankGraph:
    """Return the graph of a file's nodes, checked: ids once, all dependencies there, and no cycle.

    ``lenient`` is ASTRA-sim's way: of nodes with one id the last counts and waits for what all of them do, and nodes in a cycle
    are never run. Without ``control`` only data dependencies count. Raises ``TraceError``.
    """
    if not control:
        nodes = [node._replace(ctrl_deps=()) for node in nodes]
    by_id = {node.id: node for node in nodes}
    notes: list[str] = []
    if len(by_id) < len(nodes):
        again, times = Counter(node.id for node in nodes).most_common(1)[0]
        if not lenient:
            raise TraceError(
                f"node {again} is there {times} times", where=str(path), fix="give each node an id of its own"
            )
        notes.append(f"{path}: node {again} is there {times} times; the last counts, and waits for what all of them do")
        by_id = _merged(nodes)
    _check_nodes(path, by_id)
    if cycle := _cycle(by_id):
        shown = cycle if len(cycle) <= _MOST_NAMED else [*cycle[:_MOST_NAMED], "...", cycle[-1]]
        named = " -> ".join(map(str, shown))
        if not lenient:
            raise TraceError(
                f"nodes wait for each other: {named}",
                where=str(path),
                fix="take one of these out, or give --dependencies data",
            )
        notes.append(f"{path}: nodes {named} wait for each other, and are never run")
    return RankGraph(path, by_id, tuple(notes))


def _merged(nodes: Iterable[Node]) -> dict[int, Node]:
    merged: dict[int, Node] = {}
    for node in nodes:
        before = merged.get(node.id)
        merged[node.id] = node if before is None else node._replace(data_deps=before.data_deps + node.parents)
    return merged


def _check_nodes(path: Path, nodes: Mapping[int, Node]) -> None:
    for node in nodes.values():
        if node.duration_us >= _MOST:
            raise TraceError(
                f"duration_micros is {signed(node.duration_us)}",
                where=f"{path}: {node}",
                fix="write a whole number of 0 or more",
            )
        for parent in node.data_deps + node.ctrl_deps:
            if parent not in nodes:
                raise TraceError(
                    f"it waits for node {parent}, which is not there",
                    where=f"{path}: {node}",
                    fix="write that node, or leave out the dependency",
                )


def _cycle(nodes: Mapping[int, Node]) -> list[int]:
    """Return the nodes of a cycle of dependencies, the first again at the end; or nothing."""
    waiting = {node.id: len(node.parents) for node in nodes.values()}
    children: dict[int, list[int]] = {}
    for node in nodes.values():
        for parent in node.parents:
            children.setdefault(parent, []).append(node.id)
    ready = [identity for identity, number in waiting.items() if not number]
    while ready:
        for child in children.get(ready.pop(), ()):
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    stuck = {identity for identity, number in waiting.items() if number}
    if not stuck:
        return []
    path, at = dict[int, None](), min(stuck)
    while at not in path:
        path[at] = None
        at = next(parent for parent in nodes[at].parents if parent in stuck)
    found = list(path)
    return [*found[found.index(at) :], at][::-1]
