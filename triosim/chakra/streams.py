"""Chakra graphs as task streams, so that they run on the engine and its networks as a captured step does.

A rank's GPU computes on one stream, or on those that nodes name (the attribute ``stream``); each group has a stream of its own,
and each pair of ranks one in each direction; a memory that ranks share is one stream of all of them. On a stream, nodes run in
the order in which they become ready; a node that waits for one of another stream waits for its event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from triosim.chakra.alike import groups_by_place
from triosim.chakra.communicators import Communicators
from triosim.chakra.graph import RankGraph
from triosim.chakra.inputs.groups import Groups
from triosim.chakra.inputs.remote_memory_file import MemoryType, RemoteMemoryFile
from triosim.chakra.inputs.system_file import Compute
from triosim.chakra.issue_order import issue_order
from triosim.chakra.links import Message, asked_of, linked, message_of
from triosim.chakra.nodes import CollectiveType, Node, NodeType, Value
from triosim.chakra.task_nodes import LAYER, NS, SHARES
from triosim.errors import TraceError
from triosim.tasks import COMPUTE_STREAM, HOST_STREAM, SHARED_MEMORY_STREAM
from triosim.trace import Communication, CommunicationKind, Mark, Operator, Trace
from triosim.trace.group_families import WORLD
from triosim.trace.task_streams import TaskStreams

_KINDS: Mapping[int, CommunicationKind] = {
    CollectiveType.ALL_REDUCE: "all_reduce",
    CollectiveType.REDUCE: "reduce",
    CollectiveType.ALL_GATHER: "all_gather",
    CollectiveType.GATHER: "gather",
    CollectiveType.SCATTER: "scatter",
    CollectiveType.BROADCAST: "broadcast",
    CollectiveType.ALL_TO_ALL: "all_to_all",
    CollectiveType.REDUCE_SCATTER: "reduce_scatter",
    CollectiveType.REDUCE_SCATTER_BLOCK: "reduce_scatter",
    CollectiveType.BARRIER: "all_reduce",
}
#: The collectives of which a node says what each rank gives, where a task says what all give together.
_OF_ALL = ("all_gather", "gather")
#: A barrier is an all-reduce of one float (PyTorch, ProcessGroupNCCL::barrier).
_BARRIER_BYTES = 4
_COMMUNICATION = (NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL)
_UNSEEN = (NodeType.INVALID, NodeType.METADATA)


@dataclass(frozen=True, slots=True)
class GraphSystem:
    """What graphs need beside themselves: groups, the sizes of the network's dimensions, what computes and what is loaded from.

    ``gpu`` is the name of the GPU that computes, where it is said, and ``memory_bound`` the part of the time in which it waits
    for memory.
    """

    groups: Groups = field(default_factory=dict)
    dimensions: tuple[int, ...] = ()
    compute: Compute = field(default_factory=Compute)
    memory: RemoteMemoryFile | None = None
    gpu: str = "unknown"
    memory_bound: float | None = None


def task_streams(graphs: Sequence[RankGraph], system: GraphSystem, name: str) -> TaskStreams:
    """Return graphs as task streams. Raises ``TraceError`` for what cannot run, with the file and the node."""
    if all(node.type in _UNSEEN for graph in graphs for node in graph.nodes.values()):
        raise TraceError(
            "the graphs have nothing to simulate", where=name, fix="write nodes that compute or communicate"
        )
    alike = _alike_streams(graphs, system, name)
    if alike is not None:
        return alike
    communicators = Communicators(graphs, system.groups, system.dimensions)
    seconds = [_seconds(graph, system) for graph in graphs]
    orders = issue_order(graphs, seconds, linked(graphs, communicators))
    writer = _Writer(graphs, communicators, system, name)
    traces, like, known = {}, [], dict[object, int]()
    for rank, order in enumerate(orders):
        operators, marks = writer.write(rank, order, seconds[rank])
        first = known.setdefault((operators, marks), rank)
        like.append(first)
        if first == rank:
            traces[rank] = writer.trace(operators, marks)
    return TaskStreams(
        traces, tuple(like), communicators.families, source=name, complete=True, memory_bound=system.memory_bound
    )


def _alike_streams(graphs: Sequence[RankGraph], system: GraphSystem, name: str) -> TaskStreams | None:
    """Return the streams of ranks that differ in their groups alone, all like the first one; None where they are others.

    Each rank is then ready for a collective when the others are, so that the order of one is that of all.
    """
    places = groups_by_place(graphs)
    if places is None:
        return None
    communicators = Communicators(graphs, system.groups, system.dimensions)
    (order,) = issue_order(graphs[:1], [seconds := _seconds(graphs[0], system)], [])
    writer = _Writer(graphs, communicators, system, name)
    for node in order:
        if node.type == NodeType.COMM_COLL:
            asked_of(graphs[0], node)
    operators, marks = writer.write(0, order, seconds)
    for node in {_chosen(node): node for node in order if node.type == NodeType.COMM_COLL}.values():
        names = places[node.attributes.get("pg_name")]
        found = {communicators.family(*communicators.of(0, node))}
        for rank, own in enumerate(names):
            group = communicators.of(rank, node._replace(attributes={**node.attributes, "pg_name": own}))
            if any(names[other] != own for other in group[1]):
                return None
            found.add(communicators.family(*group))
        if len(found) > 1:
            return None
    traces = {0: writer.trace(operators, marks)}
    like = (0,) * len(graphs)
    families, waiting = communicators.families, system.memory_bound
    return TaskStreams(traces, like, families, source=name, complete=True, memory_bound=waiting)


def _chosen(node: Node) -> tuple[Value | None, ...]:
    """Return what chooses the ranks of a collective."""
    return node.attributes.get("pg_name"), node.attributes.get("involved_dim")


def _seconds(graph: RankGraph, system: GraphSystem) -> dict[int, float]:
    return {node.id: _time(graph, node, system) for node in graph.nodes.values() if node.type not in _UNSEEN}


def _time(graph: RankGraph, node: Node, system: GraphSystem) -> float:
    """Return the seconds of a computation or a memory access; messages and collectives take what the network needs."""
    if node.type in (NodeType.MEM_LOAD, NodeType.MEM_STORE):
        if system.memory is None or system.memory.memory is MemoryType.NONE:
            raise TraceError(
                "there is no remote memory", where=graph.where(node), fix="give --memory remote_memory.json"
            )
        return system.memory.time_of(graph.whole(node, "tensor_size")) / 1e9
    if node.type != NodeType.COMP:
        if node.type not in NodeType._value2member_map_:
            raise TraceError(f"there is no type {node.type}", where=graph.where(node), fix="write 0 to 7")
        return 0.0
    exact, compute = node.attributes.get(NS), system.compute
    known = isinstance(exact, float) or node.duration_us
    if graph.on_cpu(node) or not compute.roofline or (known and "num_ops" not in node.attributes):
        return exact / 1e9 if isinstance(exact, float) else node.duration_us / 1e6
    operations, size = graph.whole(node, "num_ops", 0), graph.whole(node, "tensor_size", 0)
    return max(operations / compute.peak, size / compute.memory_bandwidth)


class _Writer:
    """Writes the operators and marks of each rank."""

    def __init__(
        self, graphs: Sequence[RankGraph], communicators: Communicators, system: GraphSystem, name: str
    ) -> None:
        self._graphs, self._communicators, self._system, self._name = graphs, communicators, system, name
        self._tags: dict[tuple[int, int], int] = {}  # engine's tags, by a node's tag and bytes
        self._collectives: dict[tuple[Value | None, ...], Communication] = {}  # of named groups

    def trace(self, operators: tuple[Operator, ...], marks: tuple[Mark, ...]) -> Trace:
        """Return the trace of a rank."""
        return Trace(operators, 1, self._name, self._system.gpu, source=self._name, marks=marks)

    def write(
        self, rank: int, order: Sequence[Node], seconds: Mapping[int, float]
    ) -> tuple[tuple[Operator, ...], tuple[Mark, ...]]:
        """Return the nodes of a rank as operators, and the events that order its streams."""
        operators: list[Operator] = []
        marks: list[Mark] = []
        streams: dict[int, str] = {}
        events = _awaited(order, seconds)
        for node in order:
            if node.type in _UNSEEN:
                continue
            asked = self._communication(rank, node)
            streams[node.id] = stream = self._stream(rank, node, asked)
            position = len(operators)
            marks += [
                Mark(position, "wait", stream, parent)
                for parent in events.parents[node.id]
                if streams[parent] != stream
            ]
            layer, took = self._graphs[rank].text(node, LAYER), seconds[node.id]
            operators.append(
                Operator(position, node.name, "forward", layer, (), (), took, stream=stream, communication=asked)
            )
            if node.id in events.awaited:
                marks.append(Mark(position + 1, "record", stream, node.id))
        if not operators:  # a rank that does nothing
            operators.append(Operator(0, "nothing", "forward", "", (), (), 0.0))
        return tuple(operators), tuple(marks)

    def _stream(self, rank: int, node: Node, asked: Communication | None) -> str:
        if asked is not None:
            toward = "" if asked.peer is None else f" {asked.kind} {asked.peer}"
            return f"{asked.group}{toward}"
        if self._graphs[rank].on_cpu(node):
            return HOST_STREAM
        if node.type != NodeType.COMP:
            shared = None if self._system.memory is None else self._system.memory.shared(rank)
            return f"{HOST_STREAM} remote memory" if shared is None else f"{SHARED_MEMORY_STREAM} {shared}"
        number = self._graphs[rank].text(node, "stream")
        return f"{COMPUTE_STREAM} {number}" if number else COMPUTE_STREAM

    def _communication(self, rank: int, node: Node) -> Communication | None:
        graph = self._graphs[rank]
        if node.type in _COMMUNICATION and graph.on_cpu(node):
            raise TraceError("communication on the CPU", where=graph.where(node), fix="write is_cpu_op as false")
        if node.type in (NodeType.COMM_SEND, NodeType.COMM_RECV):
            return self._message(
                message_of(graph, node, rank, len(self._graphs)), sends=node.type == NodeType.COMM_SEND
            )
        if node.type != NodeType.COMM_COLL:
            return None
        name, found = node.attributes.get("pg_name"), node.attributes
        if not name or SHARES in found:
            return self._collective(graph, rank, node)
        key = name, found.get("comm_type"), found.get("comm_size")
        if key not in self._collectives:
            self._collectives[key] = self._collective(graph, rank, node)
        return self._collectives[key]

    def _collective(self, graph: RankGraph, rank: int, node: Node) -> Communication:
        kind, (name, members) = _KINDS[graph.whole(node, "comm_type")], self._communicators.of(rank, node)
        barrier = node.attributes["comm_type"] == CollectiveType.BARRIER
        size = _BARRIER_BYTES if barrier else graph.whole(node, "comm_size")
        size *= len(members) if kind in _OF_ALL else 1
        root = 0 if kind in ("broadcast", "reduce", "gather", "scatter") else None
        shares = node.attributes.get(SHARES)
        unequal = shares if isinstance(shares, tuple) else None
        family = self._communicators.family(name, members)
        return Communication(kind, family, float(size), root=root, shares=unequal)  # type: ignore[arg-type]

    def _message(self, message: Message, *, sends: bool) -> Communication:
        tag = self._tags.setdefault((message.tag, message.nbytes), len(self._tags))
        peer = message.destination if sends else message.source
        return Communication("send" if sends else "recv", WORLD, float(message.nbytes), peer=peer, tag=tag)


@dataclass(frozen=True, slots=True)
class _Events:
    """Whom each node waits for, past nodes that are not simulated, and which nodes others wait for."""

    parents: Mapping[int, tuple[int, ...]]
    awaited: frozenset[int]


def _awaited(order: Sequence[Node], seconds: Mapping[int, float]) -> _Events:
    parents: dict[int, tuple[int, ...]] = {}
    for node in order:  # each after its parents
        found: Iterator[int] = (
            other for parent in node.parents for other in ((parent,) if parent in seconds else parents[parent])
        )
        parents[node.id] = tuple(dict.fromkeys(found))
    return _Events(parents, frozenset(parent for node in order if node.id in seconds for parent in parents[node.id]))
