"""One rank of a run: it issues the nodes of its graph as their parents and its resources allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triosim.chakra.graph import RankGraph
from triosim.chakra.inputs.system_file import SIMULATED, Compute
from triosim.chakra.nodes import CollectiveType, Node, NodeType
from triosim.engine.astra_sim.busy_time import BusyTime, kind_of
from triosim.engine.astra_sim.clock import Timers
from triosim.engine.astra_sim.collectives.collectives import CollectiveNode, Collectives
from triosim.engine.astra_sim.durations import by_roofline, replayed
from triosim.engine.astra_sim.faults import NeverEnds, Stopped, Thrown
from triosim.engine.astra_sim.issuing import Issuing
from triosim.engine.astra_sim.messages import Messages, Tags
from triosim.engine.astra_sim.remote_memory import RemoteMemory
from triosim.errors import TraceError

_TENSORS = ("inputs", "outputs")
_MEMORY = (NodeType.MEM_LOAD, NodeType.MEM_STORE)


@dataclass(frozen=True, slots=True)
class Devices:
    """What a rank's nodes run on."""

    compute: Compute
    timers: Timers
    collectives: Collectives
    messages: Messages
    memory: RemoteMemory
    track_memory: bool


class Npu:
    """A rank; ``finished`` is the tick at which nothing of its graph was left.

    ``computing`` is what ASTRA-sim counts as such: the durations of what its GPU computes. ``busy`` is the time
    in which nodes of each kind run.
    """

    def __init__(self, rank: int, graph: RankGraph, devices: Devices) -> None:
        self.rank, self._graph, self._devices = rank, graph, devices
        self._issuing = Issuing(graph)
        self.finished: int | None = None
        self.computing = 0
        self.never_ends: str | None = None
        self._unknown_to_statistics = False
        self.busy = BusyTime(devices.timers.clock)

    @property
    def queueing(self) -> Mapping[int, int]:
        """The ns that chunks of its collectives have waited in each queue."""
        return self._devices.collectives.queueing

    def start(self) -> None:
        """Issue what waits for nothing."""
        self._walk()

    def _complete(self, node: Node) -> None:
        if self.finished is None:
            self._finish(node)
            self._walk()

    def _finish(self, node: Node) -> None:
        """Note that a node is over; where local memory is tracked, ASTRA-sim reads its tensors now."""
        for name in _TENSORS if self._devices.track_memory else ():
            if name not in node.attributes:
                self._issuing.release(node)
                raise Thrown(f"{self._graph.where(node)}: no attribute '{name}', which track-local-mem needs")
        self.busy.end(self._kind(node))
        self._issuing.finish(node)

    def _kind(self, node: Node) -> str:
        return kind_of(node.type, on_cpu=self._graph.on_cpu(node))

    def _walk(self) -> None:
        for node in self._issuing.walk():
            self.busy.begin(self._kind(node))
            try:
                self._issue(node)
            except NeverEnds as error:
                self.never_ends = str(error)
            except TraceError as error:
                raise Thrown(str(error)) from None
        if self._issuing.is_over:
            self.finished = self._devices.timers.clock.now
            if self._unknown_to_statistics:
                raise Thrown(
                    f"rank {self.rank} has nodes that ASTRA-sim's statistics do not know, after it has reported"
                )

    def _issue(self, node: Node) -> None:
        on_cpu = self._graph.on_cpu(node)
        if node.type == NodeType.METADATA:
            raise Stopped(f"{self._graph.where(node)}: ASTRA-sim's statistics abort at METADATA")
        if on_cpu or node.type in (*_MEMORY, NodeType.INVALID):
            self._unknown_to_statistics = True
        if self._devices.compute.replay_only:
            self._replay(node, on_cpu=on_cpu)
        elif node.type in _MEMORY:
            access = (self._devices.timers, self._graph.whole(node, "tensor_size"), self._complete, node)
            self._devices.memory.access(self.rank, access)
        elif node.type == NodeType.COMP:
            self._compute(node, on_cpu=on_cpu)
        elif node.type == NodeType.INVALID:
            self._finish(node)  # its children are looked at after the rank's next completion
        elif on_cpu:
            raise Thrown(f"{self._graph.where(node)}: communication on the CPU")
        elif node.type == NodeType.COMM_COLL:
            self._collective(node)
        elif node.type in (NodeType.COMM_SEND, NodeType.COMM_RECV):
            self._message(node)
        else:
            raise Stopped(f"{self._graph.where(node)}: there is no type {node.type}")

    def _replay(self, node: Node, *, on_cpu: bool) -> None:
        duration = replayed(node)
        if not on_cpu:
            self.computing += duration
        self._devices.timers.after(duration, self._complete, node)

    def _compute(self, node: Node, *, on_cpu: bool) -> None:
        compute = self._devices.compute
        if on_cpu or not compute.roofline:
            self._replay(node, on_cpu=on_cpu)
            return
        duration = by_roofline(self._graph, node, compute)
        if duration is None:
            self._finish(node)  # as an INVALID node
            return
        self.computing += duration
        self._devices.timers.after(duration, self._complete, node)

    def _collective(self, node: Node) -> None:
        kind, group = self._graph.whole(node, "comm_type"), self._graph.group(node)
        size = self._graph.whole(node, "comm_size")
        if kind == CollectiveType.BROADCAST:
            self._devices.timers.after(replayed(node), self._complete, node)
        elif kind in SIMULATED:
            asked = CollectiveNode(node.id, CollectiveType(kind), size, group, self._graph.involved(node))
            self._devices.collectives.start(asked, self._complete, node)
        else:
            raise Thrown(f"{self._graph.where(node)}: a collective of type {kind} is not simulated")

    def _message(self, node: Node) -> None:
        graph, rank, messages = self._graph, self.rank, self._devices.messages
        sends = node.type == NodeType.COMM_SEND
        source = graph.whole(node, "comm_src", rank if sends else None)
        destination = graph.whole(node, "comm_dst", None if sends else rank)
        if rank != (source if sends else destination):
            raise Thrown(f"{graph.where(node)}: a message from {source} to {destination} on rank {rank}")
        size, tag = graph.whole(node, "comm_size"), (Tags.NODE, graph.whole(node, "comm_tag"))
        if sends:
            messages.send(source, destination, size, tag, (self._complete, node))
        else:
            messages.receive(source, destination, size, tag, (self._complete, node))
