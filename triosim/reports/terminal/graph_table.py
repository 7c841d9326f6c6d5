"""Chakra graphs as tables: how many nodes of each type there are, and what is communicated in which group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType

from triosim.chakra.graph import RankGraph
from triosim.chakra.nodes import CollectiveType, Node, NodeType
from triosim.reports.terminal.tables import facts_panel, note_lines, spaced, table
from triosim.units import format_bytes, format_time

MAX_ROWS = 20
_SIZED = ("comm_size", "tensor_size")


def render(prefix: str, graphs: Sequence[RankGraph]) -> RenderableType:
    """Return graphs as something that rich can show."""
    nodes = [(graph, node) for graph in graphs for node in graph.nodes.values()]
    dependencies = sum(len(node.parents) for _, node in nodes)
    facts = {"ranks": f"{len(graphs):,}", "nodes": f"{len(nodes):,}", "dependencies": f"{dependencies:,}"}
    named = _table("Nodes of all ranks", ("type", "nodes", "durations", "bytes", "operations"), _types(nodes))
    asked = _table("Communication of all ranks", ("kind", "group", "nodes", "bytes"), _communications(nodes))
    notes = [note for graph in graphs for note in graph.notes]
    return Group(*spaced([facts_panel(prefix, facts.items()), named, asked]), *note_lines(notes))


def _types(nodes: Sequence[tuple[RankGraph, Node]]) -> Iterator[tuple[str, ...]]:
    counts, durations, sizes, operations = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for graph, node in nodes:
        word = f"{_word(NodeType, node.type)}{' on the CPU' if graph.on_cpu(node) else ''}"
        counts[word] += 1
        durations[word] += node.duration_us
        sizes[word] += next((graph.whole(node, name) for name in _SIZED if node.attributes.get(name) is not None), 0)
        operations[word] += graph.whole(node, "num_ops", 0)
    for word, count in counts.most_common():
        figures = format_time(durations[word] / 1e6), format_bytes(sizes[word]), f"{operations[word]:.3g}"
        yield word, f"{count:,}", *figures


def _communications(nodes: Sequence[tuple[RankGraph, Node]]) -> Iterator[tuple[str, ...]]:
    counts, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for graph, node in nodes:
        if node.type == NodeType.COMM_COLL:
            key = _word(CollectiveType, graph.whole(node, "comm_type")), graph.text(node, "pg_name") or "all"
        elif node.type == NodeType.COMM_SEND:
            key = "SEND", ""
        else:
            continue
        counts[key] += 1
        sizes[key] += graph.whole(node, "comm_size", 0)
    for key, count in counts.most_common():
        yield *key, f"{count:,}", format_bytes(sizes[key])


def _word(words: type[NodeType] | type[CollectiveType], number: int) -> str:
    return words(number).name if number in words._value2member_map_ else f"type {number}"


def _table(title: str, columns: Sequence[str], rows: Iterator[tuple[str, ...]]) -> RenderableType:
    return table(title, *columns, rows=rows, most=MAX_ROWS)
