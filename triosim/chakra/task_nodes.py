"""The task stream of a rank as nodes of a Chakra graph: what CUDA streams, events and the host order becomes dependencies.

Launches that cost the host time are operations of the CPU, each after the one before; a kernel waits for its launch. Whole
microseconds are what readers of Chakra know: remainders are carried on, and ``triosim_ns`` has the time as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from triosim.chakra.nodes import CollectiveType, Node, NodeType, Value
from triosim.operators import features
from triosim.tasks import (
    COMPUTE_STREAM,
    Answer,
    Batch,
    Collective,
    Communicator,
    Compute,
    Copy,
    Handle,
    Host,
    Iteration,
    Poll,
    Recv,
    Send,
    Synchronize,
    Task,
    TaskStream,
    Wait,
    WaitAny,
)
from triosim.trace import Operator

#: The attributes of our own: a duration in ns, the bytes of unequal shares, and the layer that an operator belongs to.
NS, SHARES, LAYER = "triosim_ns", "triosim_shares", "layer"

_COLLECTIVES: Mapping[str, CollectiveType] = {
    "all_reduce": CollectiveType.ALL_REDUCE,
    "reduce": CollectiveType.REDUCE,
    "all_gather": CollectiveType.ALL_GATHER,
    "gather": CollectiveType.GATHER,
    "scatter": CollectiveType.SCATTER,
    "broadcast": CollectiveType.BROADCAST,
    "all_to_all": CollectiveType.ALL_TO_ALL,
    "reduce_scatter": CollectiveType.REDUCE_SCATTER,
}
_OF_ALL = ("all_gather", "gather")

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaunchCosts:
    """What launches cost the host: a communication ``call_seconds``; operators are at most ``run_ahead`` ahead of the GPU."""

    call_seconds: float
    run_ahead: int | None = None


class Numbers:
    """The numbers of groups, streams and tags, and what operators compute: the same for all ranks."""

    def __init__(self) -> None:
        self.groups: dict[Communicator, int] = {}
        self._streams: dict[str, int] = {}
        self._tags: dict[int, int] = {}
        self.operations = Operations()

    def group(self, group: Communicator) -> int:
        """Return the number of a group, from 1."""
        return self.groups.setdefault(group, len(self.groups) + 1)

    def stream(self, name: str | None) -> Mapping[str, Value]:
        """Return the attribute of a stream; the one on which a GPU computes has none."""
        if name is None or name == COMPUTE_STREAM:
            return {}
        return {"stream": self._streams.setdefault(name, len(self._streams) + 1)}

    def tag(self, tag: int) -> int:
        """Return a tag that an int32 holds."""
        return self._tags.setdefault(tag, len(self._tags))


class Operations:
    """The attributes of operators: their layer, and FLOPs and bytes where their tensors are known; each counted once.

    ASTRA-sim divides by both: one of 0 never ends there, or is left out.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Operator, Mapping[str, Value]]] = {}

    def of(self, operator: Operator, forward: Operator | None) -> Mapping[str, Value]:
        """Return the attributes of an operator; ``forward`` is the one that it differentiates."""
        key = id(operator), id(forward)
        if key not in self._known:
            self._known[key] = operator, _operations(operator, forward)
        return self._known[key][1]


def _operations(operator: Operator, forward: Operator | None) -> Mapping[str, Value]:
    layer: dict[str, Value] = {LAYER: operator.layer} if operator.layer else {}
    if not operator.inputs and not operator.outputs:
        return layer
    counted = operator.flops or features.flops(operator, forward)
    moved = features.input_bytes(operator, forward) + features.output_bytes(operator, forward)
    return {**layer, "num_ops": max(1, round(counted)), "tensor_size": max(1, round(moved))}


class RankNodes:
    """Turns the tasks of one rank into nodes."""

    def __init__(self, rank: int, numbers: Numbers, launches: LaunchCosts | None) -> None:
        self.rank = rank
        self.nodes: list[Node] = []
        self._numbers, self._launches = numbers, launches
        self._tails: dict[str, Ids] = {}
        self._ends: dict[Handle, Ids] = {}
        self._host: Ids = ()  # what the host has waited for, or its last launch
        self._followed: dict[str | None, Ids] = {}  # by stream: what the host had waited for at its last node
        self._launched: deque[int] = deque()  # kernels that the host may be ahead of
        self._carried = 0.0
        self._forwards: dict[int, Operator] = {}  # by their id

    def draw(self, stream: TaskStream) -> None:
        """Draw a stream to its end."""
        answer: Any = None
        while True:
            try:
                task = stream.send(answer)
            except StopIteration:
                break
            answer = self._take(task)
        self._end()

    def _end(self) -> None:
        """End with a node that takes no time where the last one may be a message, at which ASTRA-sim fails.

        Its statistics know no operations of the CPU, and throw when a rank is finished; out of a message's arrival that ends
        the process.
        """
        cpu = any(node.attributes["is_cpu_op"] for node in self.nodes)
        messages = any(node.type in (NodeType.COMM_SEND, NodeType.COMM_RECV) for node in self.nodes)
        if cpu and messages:
            waits = _joined(self._host, *self._tails.values())
            self._put("end", NodeType.COMP, waits, {"is_cpu_op": False}, 0.0)

    def _take(self, task: Task) -> Handle | Answer:
        if isinstance(task, (Synchronize, WaitAny, Poll, Host)):
            return self._on_host(task)
        handle = Handle(self.rank, task)
        if isinstance(task, Iteration):
            self._ends[handle] = ()
            return handle
        stream: str | None = getattr(task, "stream", None)
        waits = self._waits(task, stream)
        ends = self._nodes_of(task, stream, waits)
        self._ends[handle] = ends
        if stream is not None:
            self._tails[stream] = ends
        if isinstance(task, Collective) and task.blocks and task.issuer is not None:
            self._tails[task.issuer] = ends
        return handle

    def _on_host(self, task: Synchronize | WaitAny | Poll | Host) -> Answer:
        if isinstance(task, Host):
            self._host = (self._put("host", NodeType.COMP, self._host, {"is_cpu_op": True}, task.seconds),)
            return Answer(0.0, ())
        if isinstance(task, Poll):
            return Answer(0.0, ())
        if isinstance(task, WaitAny):
            done = task.handles[: task.count]
            self._host = _joined(self._host, *(self._ends[handle] for handle in done))
            return Answer(0.0, done)
        ends = [self._ends[handle] for handle in task.handles] if task.handles else list(self._tails.values())
        self._host = _joined(self._host, *ends)
        return Answer(0.0, task.handles)

    def _waits(self, task: Task, stream: str | None) -> Ids:
        """Return the nodes that a task waits for: the tails of its stream and of the issuing one, and others that it names."""
        issuer = getattr(task, "issuer", None)
        handles = (*task.after, *(task.handles if isinstance(task, Wait) else ()))
        tails = [self._tails.get(name, ()) for name in (stream, issuer) if name is not None]
        waits = _joined(*tails, *(self._ends[handle] for handle in handles))
        if self._host and self._followed.get(stream) != self._host:
            waits = _joined(waits, self._host)
            self._followed[stream] = self._host
        return waits

    def _nodes_of(self, task: Task, stream: str | None, waits: Ids) -> Ids:
        if isinstance(task, Compute):
            return self._computed(task, waits)
        if isinstance(task, Batch):
            launched = self._launch(waits)
            return tuple([self._message(part, launched) for part in task.parts])
        if isinstance(task, (Send, Recv)):
            posted = isinstance(task, Recv) and task.preposted
            return (self._message(task, waits if posted else self._launch(waits)),)
        if isinstance(task, Collective):
            return (self._collective(task, self._launch(waits)),)
        if isinstance(task, Copy):
            kind = NodeType.MEM_LOAD if task.destination == "device" else NodeType.MEM_STORE
            size: dict[str, Value] = {"is_cpu_op": False, "tensor_size": round(task.nbytes)}
            return (self._put(task.label or "copy", kind, self._launch(waits), size),)
        return waits  # events take no time

    def _computed(self, task: Compute, waits: Ids) -> Ids:
        for operator in task.operators:
            launched = waits
            if self._launches is not None and operator.host_seconds:
                launched = _joined(waits, self._operator_launch(operator, self._launches.run_ahead))
            if not operator.seconds:
                waits = launched
                continue
            if operator.phase == "forward":
                self._forwards[operator.id] = operator
            forward = None if operator.forward is None else self._forwards.get(operator.forward)
            counted = self._numbers.operations.of(operator, forward)
            attributes = {"is_cpu_op": not task.share, **self._numbers.stream(task.stream), **counted}
            waits = (self._put(operator.name, NodeType.COMP, launched, attributes, operator.seconds),)
            self._launched.extend(waits)
        return waits

    def _operator_launch(self, operator: Operator, run_ahead: int | None) -> Ids:
        before = self._host
        if run_ahead is not None and operator.seconds and len(self._launched) >= run_ahead:
            before = _joined(before, (self._launched.popleft(),))
        self._host = (self._put("launch", NodeType.COMP, before, {"is_cpu_op": True}, operator.host_seconds or 0.0),)
        return self._host

    def _launch(self, waits: Ids) -> Ids:
        """Return what a communication waits for: its launch too, where that costs the host time."""
        if self._launches is None or not self._launches.call_seconds:
            return waits
        seconds = self._launches.call_seconds
        self._host = (self._put("launch", NodeType.COMP, self._host, {"is_cpu_op": True}, seconds),)
        return _joined(waits, self._host)

    def _message(self, part: Send | Recv, waits: Ids) -> int:
        attributes: dict[str, Value] = {"is_cpu_op": False, "comm_tag": self._numbers.tag(part.tag)}
        if isinstance(part, Send):
            sizes = {"comm_src": self.rank, "comm_dst": part.destination, "comm_size": round(part.nbytes)}
            return self._put(part.label or "send", NodeType.COMM_SEND, waits, attributes | sizes)
        ends = {"comm_src": part.source, "comm_dst": self.rank}
        return self._put(part.label or "recv", NodeType.COMM_RECV, waits, attributes | ends)

    def _collective(self, task: Collective, waits: Ids) -> int:
        if task.memory is not None:  # each rank loads all of it, gathered on the way
            loaded: dict[str, Value] = {"is_cpu_op": False, "tensor_size": round(task.nbytes)}
            return self._put(task.label or task.kind, NodeType.MEM_LOAD, waits, loaded)
        size = task.nbytes / len(task.group.ranks) if task.kind in _OF_ALL else task.nbytes
        attributes: dict[str, Value] = {
            "is_cpu_op": False,
            "comm_type": int(_COLLECTIVES[task.kind]),
            "comm_size": round(size),
            "pg_name": str(self._numbers.group(task.group)),
        }
        if task.shares is not None:
            attributes[SHARES] = _own_shares(task, task.group.ranks.index(self.rank))
        return self._put(task.label or task.kind, NodeType.COMM_COLL, waits, attributes)

    def _put(
        self, name: str, kind: NodeType, waits: Ids, attributes: Mapping[str, Value], seconds: float | None = None
    ) -> int:
        """Add a node; a duration's remainder of a microsecond goes to the next one."""
        microseconds = 0
        if seconds is not None:
            exact = seconds * 1e6 + self._carried
            microseconds = int(exact)
            self._carried = exact - microseconds
            attributes = {**attributes, NS: seconds * 1e9}
        self.nodes.append(Node(len(self.nodes), name, kind, (), waits, 0, microseconds, attributes))
        return len(self.nodes) - 1


def with_received_sizes(ranks: Iterable[RankNodes]) -> list[list[Node]]:
    """Return the nodes of all ranks, their receives with the bytes of their sends."""
    sizes: dict[tuple[Value | None, ...], deque[Value | None]] = {}
    every = list(ranks)
    for writer in every:
        for node in writer.nodes:
            if node.type == NodeType.COMM_SEND:
                sizes.setdefault(_pair(node), deque()).append(node.attributes["comm_size"])
    return [[_received(node, sizes) for node in writer.nodes] for writer in every]


def _received(node: Node, sizes: Mapping[tuple[Value | None, ...], deque[Value | None]]) -> Node:
    if node.type != NodeType.COMM_RECV:
        return node
    return node._replace(attributes={**node.attributes, "comm_size": sizes[_pair(node)].popleft()})


def _pair(node: Node) -> tuple[Value | None, ...]:
    return tuple(node.attributes[name] for name in ("comm_src", "comm_dst", "comm_tag"))


def _own_shares(task: Collective, position: int) -> tuple[float, ...]:
    """Return unequal shares; of an all-to-all between all pairs, what this rank sends."""
    assert task.shares is not None
    n = len(task.group.ranks)
    return task.shares[position * n : (position + 1) * n] if len(task.shares) == n * n > n else task.shares


def _joined(*ids: Iterable[int]) -> Ids:
    return tuple(sorted({one for some in ids for one in some}))
