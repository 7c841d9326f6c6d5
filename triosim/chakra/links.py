"""What belongs together across ranks: the k-th collective of a group, and each send with its receive.

A collective has no number of its own: on each rank the k-th one of a group, in order of dependence and then of id, is the same
collective. A message is matched by the pair of ranks, its tag, its bytes, and its place among equal ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from triosim.chakra.communicators import Communicators
from triosim.chakra.graph import RankGraph
from triosim.chakra.nodes import CollectiveType, Node, NodeType
from triosim.errors import TraceError

#: A node of a rank.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Message:
    """A send or receive: its two ranks, tag and bytes."""

    source: int
    destination: int
    tag: int
    nbytes: int


def in_order(graph: RankGraph) -> Iterator[Node]:
    """Yield the nodes of a graph, each after those that it waits for, otherwise by id."""
    waiting = {node.id: len(node.parents) for node in graph.nodes.values()}
    children: dict[int, list[int]] = {}
    for node in graph.nodes.values():
        for parent in node.parents:
            children.setdefault(parent, []).append(node.id)
    ready = [identity for identity, number in waiting.items() if not number]
    heapq.heapify(ready)
    while ready:
        found = heapq.heappop(ready)
        yield graph.nodes[found]
        for child in children.get(found, ()):
            waiting[child] -= 1
            if not waiting[child]:
                heapq.heappush(ready, child)


def message_of(graph: RankGraph, node: Node, rank: int, ranks: int) -> Message:
    """Return what a send or receive moves. Raises ``TraceError`` where its ends are not what they can be."""
    sends = node.type == NodeType.COMM_SEND
    source = graph.whole(node, "comm_src", rank if sends else None)
    destination = graph.whole(node, "comm_dst", None if sends else rank)
    if rank != (source if sends else destination) or max(source, destination) >= ranks or source == destination:
        what = f"a message from {source} to {destination} on rank {rank} of {ranks}"
        raise TraceError(what, where=graph.where(node), fix="write the other rank")
    return Message(source, destination, graph.whole(node, "comm_tag", 0), graph.whole(node, "comm_size"))


def linked(graphs: Sequence[RankGraph], communicators: Communicators) -> list[list[Place]]:
    """Return the nodes that belong together: those of each collective, and each send with its receive.

    Raises ``TraceError`` for a collective that ranks do not agree on, and a message without its other end.
    """
    collectives: dict[tuple[int, ...], dict[str, dict[int, list[Node]]]] = {}
    messages: dict[Message, tuple[list[Place], list[Place]]] = {}
    for rank, graph in enumerate(graphs):
        for node in in_order(graph):
            if node.type == NodeType.COMM_COLL:
                name, group = communicators.of(rank, node)
                collectives.setdefault(group, {}).setdefault(name, {}).setdefault(rank, []).append(node)
            elif node.type in (NodeType.COMM_SEND, NodeType.COMM_RECV):
                ends = messages.setdefault(message_of(graph, node, rank, len(graphs)), ([], []))
                ends[node.type == NodeType.COMM_RECV].append((rank, node.id))
    found = [pair for ends in messages.values() for pair in _pairs(graphs, *ends)]
    for group, names in collectives.items():
        for name, members in names.items():
            found += _together(graphs, name, group, members)
    return found


def _pairs(graphs: Sequence[RankGraph], sends: list[Place], receives: list[Place]) -> Iterator[list[Place]]:
    if len(sends) != len(receives):
        rank, identity = (sends if len(sends) > len(receives) else receives)[min(len(sends), len(receives))]
        graph = graphs[rank]
        other = "receive" if len(sends) > len(receives) else "send"
        where = graph.where(graph.nodes[identity])
        raise TraceError(f"there is no {other} for it", where=where, fix="write both, with equal tag and comm_size")
    yield from map(list, zip(sends, receives, strict=True))


def _together(
    graphs: Sequence[RankGraph], name: str, group: tuple[int, ...], members: Mapping[int, list[Node]]
) -> Iterator[list[Place]]:
    most = max(members, key=lambda rank: len(members[rank]))
    for position, node in enumerate(members[most]):
        where, asked = graphs[most].where(node), asked_of(graphs[most], node)
        for rank in group:
            of_rank = members.get(rank, [])
            if position >= len(of_rank):
                shared = f"of group {name}" if name else "of all ranks"
                what = f"rank {rank} has {len(of_rank)} collectives {shared}, and this is number {position + 1}"
                raise TraceError(what, where=where, fix="write it for every rank of the group")
            if asked_of(graphs[rank], of_rank[position]) != asked:
                kind, size = asked_of(graphs[rank], of_rank[position])
                what = f"it meets {CollectiveType(kind).name} of {size} bytes, {of_rank[position]} of rank {rank}"
                raise TraceError(what, where=where, fix="give the collectives of a group one order on all its ranks")
        yield [(rank, members[rank][position].id) for rank in group]


def asked_of(graph: RankGraph, node: Node) -> tuple[int, int]:
    """Return the type and the bytes of a collective. Raises ``TraceError`` for a type that there is not."""
    kind = graph.whole(node, "comm_type")
    if kind not in CollectiveType._value2member_map_:
        raise TraceError(f"there is no collective of type {kind}", where=graph.where(node), fix="write 0 to 9")
    return kind, graph.whole(node, "comm_size", 0 if kind == CollectiveType.BARRIER else None)
