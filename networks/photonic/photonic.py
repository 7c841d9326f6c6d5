"""The photonic network: optical circuits between GPUs, set up on demand on a limited number of ports.

To send (TrioSim, Li et al., ISCA 2025, 7.1): if there is a circuit between the two GPUs, use it; else set one up, which takes a
while, and tear down the one that has been idle longest where a GPU has no free port. Then reserve space in the
destination's buffer, and move the data: size / bandwidth + latency, whatever the distance.

What the paper leaves open is chosen so: a circuit takes ports at both ends and carries data in both directions; messages
in one direction go one after another, the next as soon as the last byte of the one before has left; where no port is free
and no circuit idle, whoever came first to a GPU gets its next port; a message that is larger than the buffer takes all of it.
What is not between two GPUs, such as a copy from host memory, goes over the links of the topology.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import NamedTuple

import simpy

from triosim.errors import OptionError
from triosim.networks.base import SendingNetwork
from triosim.networks.collectives.algorithm import CollectiveAlgorithm
from triosim.networks.collectives.lowering import Done, Form
from triosim.networks.events import AFTER_ALL, call_at
from triosim.networks.extensions import FigureReporter, FlowRecord, LinkRate, LinkRecorder
from triosim.networks.flow.packet import PacketNetwork
from triosim.networks.photonic.optics import OPTIONS, Optics, changed, optics_of
from triosim.networks.topology import Link, NodeRef, Topology
from triosim.networks.topology.graph import Memory
from triosim.units import Quantity


@dataclass(slots=True)
class CircuitStatistics:
    """The counts and waiting times of a photonic network.

    Messages that found their circuit standing are ``messages_on_standing_circuits``; the others waited for it, from when
    they were sent until it stood, ``waits_for_port`` of them because a GPU had no port to spare (the circuit's first message
    is counted). ``waits_for_buffer`` had a circuit, and no space at the destination.
    """

    messages: int = 0
    messages_on_standing_circuits: int = 0
    circuits_made: int = 0
    circuits_torn_down: int = 0
    waits_for_circuit: int = 0
    waiting_for_circuit_s: float = 0.0
    waits_for_port: int = 0
    waiting_for_port_s: float = 0.0
    waits_for_buffer: int = 0
    waiting_for_buffer_s: float = 0.0


class _Message(NamedTuple):
    """Bytes to send: ``taken`` of the destination's buffer, ``latency`` from one end to the other."""

    nbytes: float
    done: Done
    asked: float
    latency: float
    taken: float


@dataclass(eq=False, slots=True)
class _Lane:
    """One direction of a circuit: messages wait in it for their turn."""

    circuit: _Circuit
    link: Link
    waiting: deque[_Message] = field(default_factory=deque)
    free_at: float = 0.0  # when the last byte of the message before has left
    woken: bool = False  # whether it is to go on at that time
    blocked_since: float | None = None  # since when its first message waits for a buffer
    carried: float = 0.0


@dataclass(eq=False, slots=True)
class _Circuit:
    """A circuit between two GPUs, which may still wait for ports or be set up."""

    ends: tuple[str, str]
    asked: float
    lanes: dict[str, _Lane] = field(default_factory=dict)  # by source
    stands: bool = False
    messages: int = 0  # that are waiting or on their way


@dataclass(eq=False, slots=True)
class _Gpu:
    """The circuits of a GPU, those of them that are idle (the longest idle first), and who waits for a port or for space."""

    free_bytes: float
    circuits: int = 0
    coming: int = 0  # messages that have space in its buffer
    idle: dict[_Circuit, None] = field(default_factory=dict)
    wanted: deque[_Circuit] = field(default_factory=deque)
    wanting_bytes: deque[_Lane] = field(default_factory=deque)


class CircuitTopology(Topology):
    """A topology whose GPUs reach each other by circuits, all at the same distance; ``links`` has the circuits made so far."""

    def __init__(self, electrical: Topology, optics: Optics) -> None:
        self.optics = optics
        self._electrical = electrical
        self._reached: dict[tuple[str, str], Link] = {}
        circuits = [
            replace(one, bandwidth=optics.circuit_bandwidth, latency=optics.latency) for one in electrical.dimensions
        ]
        super().__init__(
            electrical.name,
            electrical.nodes.values(),
            electrical.links.values(),
            routing=electrical.routing,
            routes={ends: [link.name for link in links] for ends, links in electrical.graph.routes.items()},
            regularity=replace(electrical.regularity, dimensions=tuple(circuits), uniform=False),
        )
        gpus = frozenset(self.gpus)
        for name in [link.name for link in self.links.values() if {link.source, link.destination} <= gpus]:
            del self.links[name]

    @property
    def memories(self) -> Mapping[str, Memory]:
        """The memories outside of GPUs, which electrical links reach."""
        return self._electrical.memories

    def circuit(self, source: str, destination: str) -> Link:
        """Return one direction of the circuit between two GPUs, whether it stands or not."""
        ends = source, destination
        if ends not in self._reached:
            name = f"{source}~{destination}"
            self._reached[ends] = Link(name, *ends, self.optics.circuit_bandwidth, self.optics.latency)
        return self._reached[ends]

    def joins(self, source: str, destination: str) -> bool:
        """Return whether a message between two nodes goes by a circuit."""
        return source != destination and self.nodes[source].kind == self.nodes[destination].kind == "gpu"

    def _route(self, source: str, destination: str) -> tuple[Link, ...]:
        if self.joins(source, destination):
            return (self.circuit(source, destination),)
        return super()._route(source, destination)


class PhotonicNetwork(SendingNetwork, LinkRecorder, FigureReporter):
    """Circuits between GPUs. See ``Network`` for what it does and for the other options.

    ``**optics`` are those of ``Optics``, which ``OPTIONS`` declares: ``ports``, ``bandwidth``, ``latency``, ``setup``,
    ``buffer`` and ``ports_per_circuit``, as numbers or with units ("20 ms"). What is not given is what the topology's file
    says under ``photonic``, or TrioSim's figure. Raises ``OptionError`` for an unknown name or a wrong value.
    """

    topology: CircuitTopology
    options = OPTIONS

    def __init__(
        self,
        env: simpy.Environment,
        topology: Topology,
        *,
        algorithm: str | CollectiveAlgorithm = "ring",
        form: Form = "pipelined",
        record: bool = False,
        **optics: Quantity | None,
    ) -> None:
        self.optics = changed(
            optics_of(topology) or Optics(),
            {name: value for name, value in optics.items() if value is not None},
            lambda key, what, fix: OptionError(what, where=key, fix=fix),
        )
        super().__init__(env, CircuitTopology(topology, self.optics), algorithm=algorithm, form=form)
        self.record = record
        self.statistics = CircuitStatistics()
        self._electrical = PacketNetwork(env, topology, record=record)
        self.flows, self.rates = self._electrical.flows, self._electrical.rates  # both record into the same lists
        self._gpus = {name: _Gpu(self.optics.buffer) for name in self.topology.gpus}
        self._ends: dict[tuple[NodeRef, NodeRef], tuple[str, str]] = {}  # of messages that go by circuits
        self._circuits: dict[tuple[str, str], _Circuit] = {}  # by both orders of their ends
        self._carried: dict[str, float] = defaultdict(float)  # by circuits that are torn down
        self._stirred: dict[str, None] = {}  # GPUs at which a port may go to somebody
        self._dealing = False
        self._due: dict[float, list[Callable[[], None]]] = {}  # what is to happen, by time

    def bytes_by_link(self) -> dict[str, float]:
        """Return how many bytes each circuit has delivered in each direction, and each link beside them."""
        links = self.topology.links
        electrical = self._electrical.bytes_by_link().items()
        carried = defaultdict(float, {name: n for name, n in electrical if name in links})
        for name, nbytes in self._carried.items():
            carried[name] += nbytes
        for circuit in dict.fromkeys(self._circuits.values()):
            for lane in circuit.lanes.values():
                carried[lane.link.name] += lane.carried
        return dict(carried)

    def figures(self) -> Mapping[str, float]:
        """Return the statistics by name."""
        return asdict(self.statistics)

    def send(
        self, source: NodeRef, destination: NodeRef, nbytes: float, done: Done, latency: float | None = None
    ) -> None:
        """Send bytes and call back on delivery: by a circuit between GPUs, over electrical links between other nodes."""
        ends = self._ends.get((source, destination))
        if ends is None:
            here, there = self.topology.node(source), self.topology.node(destination)
            if not self.topology.joins(here, there):
                self._electrical.send(here, there, nbytes, done, latency)
                return
            ends = self._ends[source, destination] = here, there
        here = ends[0]
        self.statistics.messages += 1
        circuit = self._circuits.get(ends)
        if circuit is None:
            circuit = self._ask_for_circuit(*ends)
        elif circuit.stands:
            self.statistics.messages_on_standing_circuits += 1
            if not circuit.messages:
                for end in ends:
                    del self._gpus[end].idle[circuit]
        circuit.messages += 1
        lane = circuit.lanes[here]
        late = self.optics.latency if latency is None else latency
        lane.waiting.append(_Message(nbytes, done, self.env.now, late, min(nbytes, self.optics.buffer)))
        if circuit.stands and len(lane.waiting) == 1:
            self._go_on(lane)

    def _go_on(self, lane: _Lane) -> None:
        """Send the lane's next message, now or when the one before has left."""
        if not lane.waiting or lane.woken or lane.blocked_since is not None:
            return
        if lane.free_at > self.env.now:
            lane.woken = True
            self._after(lane.free_at - self.env.now, partial(self._reserve, lane))
        else:
            self._reserve(lane)

    def _reserve(self, lane: _Lane) -> None:
        """Send the lane's next message if there is space for it, else wait for that behind those that wait already."""
        lane.woken = False
        gpu = self._gpus[lane.link.destination]
        if gpu.wanting_bytes or gpu.free_bytes < lane.waiting[0].taken:
            lane.blocked_since = self.env.now
            gpu.wanting_bytes.append(lane)
        else:
            self._transmit(lane)

    def _transmit(self, lane: _Lane) -> None:
        message = lane.waiting.popleft()
        gpu = self._gpus[lane.link.destination]
        gpu.coming += 1
        gpu.free_bytes -= message.taken
        seconds = message.nbytes / lane.link.bandwidth
        lane.free_at = self.env.now + seconds
        if self.record and seconds > 0:
            self.rates.append(LinkRate(self.env.now, lane.link.name, lane.link.bandwidth, 1.0))
            self.rates.append(LinkRate(lane.free_at, lane.link.name, 0.0, 0.0))
        self._after(seconds + message.latency, partial(self._delivered, lane, message))
        self._go_on(lane)

    def _delivered(self, lane: _Lane, message: _Message) -> None:
        """Free the space of a delivered message, call back, and mark the circuit idle if it has no other message."""
        circuit = lane.circuit
        lane.carried += message.nbytes
        if self.record:
            ends = lane.link.source, lane.link.destination
            self.flows.append(FlowRecord(*ends, message.nbytes, message.asked, self.env.now, (lane.link.name,)))
        self._release(self._gpus[lane.link.destination], message.taken)
        circuit.messages -= 1
        if not circuit.messages:
            for end in circuit.ends:
                self._gpus[end].idle[circuit] = None
                self._stir(end)
        message.done()

    def _release(self, gpu: _Gpu, nbytes: float) -> None:
        gpu.coming -= 1
        # A buffer that is empty is reset, so that rounding does not add up.
        gpu.free_bytes = gpu.free_bytes + nbytes if gpu.coming else self.optics.buffer
        while gpu.wanting_bytes and gpu.free_bytes >= gpu.wanting_bytes[0].waiting[0].taken:
            lane = gpu.wanting_bytes.popleft()
            assert lane.blocked_since is not None
            self.statistics.waits_for_buffer += 1
            self.statistics.waiting_for_buffer_s += self.env.now - lane.blocked_since
            lane.blocked_since = None
            self._transmit(lane)

    def _ask_for_circuit(self, here: str, there: str) -> _Circuit:
        circuit = _Circuit((here, there), self.env.now)
        for source, destination in ((here, there), (there, here)):
            circuit.lanes[source] = _Lane(circuit, self.topology.circuit(source, destination))
        self._circuits[here, there] = self._circuits[there, here] = circuit
        for end in circuit.ends:
            self._gpus[end].wanted.append(circuit)
            self._stir(end)
        return circuit

    def _stir(self, gpu: str) -> None:
        """Assign the ports of a GPU after everything else of this instant, when it is known which circuits are idle."""
        if not self._gpus[gpu].wanted:
            return
        self._stirred[gpu] = None
        if not self._dealing:
            self._dealing = True
            call_at(self.env, self.env.now, self._deal, AFTER_ALL)

    def _deal(self, _: simpy.Event) -> None:
        self._dealing = False
        while self._stirred:
            gpu = next(iter(self._stirred))
            del self._stirred[gpu]
            wanted = self._gpus[gpu].wanted
            while wanted and self._can_be_made(wanted[0]):
                self._make(wanted[0])

    def _can_be_made(self, circuit: _Circuit) -> bool:
        """Return whether a circuit is the next at both of its ends, and both have a port for it."""
        ends = [self._gpus[end] for end in circuit.ends]
        return all(end.wanted[0] is circuit and (end.circuits < self.optics.circuits or end.idle) for end in ends)

    def _make(self, circuit: _Circuit) -> None:
        waited = self.env.now - circuit.asked
        if waited > 0:
            self.statistics.waits_for_port += 1
            self.statistics.waiting_for_port_s += waited
        for name in circuit.ends:
            gpu = self._gpus[name]
            gpu.wanted.popleft()
            if gpu.circuits == self.optics.circuits:
                self._tear_down(next(iter(gpu.idle)))
            gpu.circuits += 1
            if gpu.wanted:
                self._stirred[name] = None
        self.statistics.circuits_made += 1
        self._after(self.optics.setup, lambda: self._stand(circuit))

    def _tear_down(self, circuit: _Circuit) -> None:
        self.statistics.circuits_torn_down += 1
        here, there = circuit.ends
        del self._circuits[here, there], self._circuits[there, here]
        for lane in circuit.lanes.values():
            self._carried[lane.link.name] += lane.carried
        for end in circuit.ends:
            gpu = self._gpus[end]
            del gpu.idle[circuit]
            gpu.circuits -= 1
            if gpu.wanted:
                self._stirred[end] = None

    def _stand(self, circuit: _Circuit) -> None:
        """Send what waited for a circuit that is set up now."""
        circuit.stands = True
        for lane in circuit.lanes.values():
            self.topology.links.setdefault(lane.link.name, lane.link)
            for message in lane.waiting:
                self.statistics.waits_for_circuit += 1
                self.statistics.waiting_for_circuit_s += self.env.now - message.asked
            self._go_on(lane)

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after a time; callbacks of one instant, such as those of a ring's step, share one event."""
        at = self.env.now + seconds
        due = self._due.get(at)
        if due is not None:
            due.append(callback)
            return
        self._due[at] = [callback]
        self.env.timeout(seconds).callbacks.append(partial(self._happen, at))

    def _happen(self, at: float, _: simpy.Event) -> None:
        for callback in self._due.pop(at):
            callback()
