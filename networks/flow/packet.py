"""The default network, which simulates flows: every flow gets its max-min fair share of the links that it crosses.

A transfer takes its route's latency first; then its bytes flow, at a rate that is set again whenever a flow that it
shares links with, directly or through others, starts or ends. No packet is simulated: the name is TrioSim's. With
zero latencies it agrees with SimGrid's fluid model (CM02 with all factors 1; Casanova et al. 2014).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Literal, get_args

import simpy

from triosim.config import Option
from triosim.config.option import SYSTEM
from triosim.errors import AsymmetryError
from triosim.networks.base import MOST_REMEMBERED, SendingNetwork
from triosim.networks.calibration.calibrated_times import (
    CalibratedCollective,
    CalibratedNetwork,
    calibrated_collectives,
)
from triosim.networks.calibration.deepep import DeepEPCollectives
from triosim.networks.collectives.algorithm import (
    CollectiveAlgorithm,
    CollectiveOperation,
    Edge,
    SteadyState,
    checked_operation,
)
from triosim.networks.collectives.algorithms.auto import is_auto
from triosim.networks.collectives.lowering import Done, Form, Layout
from triosim.networks.collectives.memory_gather import memory_gather
from triosim.networks.events import AFTER_ALL, call_at
from triosim.networks.extensions import (
    ChangeableLinks,
    FlowRecord,
    FoldableNetwork,
    GatheringNetwork,
    LinkRate,
    LinkRecorder,
    TransportNetwork,
)
from triosim.networks.flow import sharing
from triosim.networks.flow.sharing import FlowRates
from triosim.networks.flow.symmetric_collectives import Fold, SymmetricExecution
from triosim.networks.flow.uncontended import UncontendedExecution
from triosim.networks.flow.unequal_collectives import KnownExchanges, ends_one_by_one
from triosim.networks.topology import NodeRef, Topology
from triosim.networks.topology.link_symmetry import LinkClasses
from triosim.tasks import CollectiveKind, DeepEP, ExpertLibrary, Tier

Kernel = Literal["auto", "python", "numba"]
_NEVER = 1e200  # seconds; when a flow over a link that has failed would end


@dataclass(eq=False, slots=True)
class Path:
    """A route: its latency, the links that limit its flows (by number), and the bytes delivered over it."""

    source: str
    destination: str
    latency: float
    links: tuple[str, ...]
    limits: tuple[int, ...]
    carried: float = 0.0


@dataclass(eq=False, slots=True)
class _Flow:
    """Bytes on their way along a route, each of which counts ``stretch`` times on its links."""

    number: int
    path: Path
    nbytes: float
    done: Done
    asked: float
    stretch: float = 1.0
    slot: int = -1
    finish: float = -1.0  # as last computed; -1 when there is none


def _choice(name: str, choices: tuple[str, ...], help: str) -> Option:
    return Option(name, "choice", "auto", help, choices=choices, panel=SYSTEM)


class PacketNetwork(
    SendingNetwork,
    LinkRecorder,
    ChangeableLinks,
    FoldableNetwork,
    CalibratedNetwork,
    TransportNetwork,
    GatheringNetwork,
):
    """Flows with max-min fair rates. See ``Network`` for what it does and for the other options.

    Without an ``algorithm`` it is ``auto``: on a calibrated topology, pipelined, collectives take what was measured, elsewhere
    they run the quickest algorithm that there is for their group and size.
    ``kernel`` is ``python``, ``numba`` (compiled; the extra ``fast``), or ``auto``: compiled once that repays, with equal
    results. ``fold`` (``auto`` for large groups, ``always`` or ``never``) simulates a collective in which all ranks do the
    same for one of them, while nothing else is sent.
    """

    options = (
        _choice(
            "kernel",
            get_args(Kernel),
            "packet: the code that computes rates: plain Python, compiled by numba, or the faster of both.",
        ),
        _choice("fold", get_args(Fold), "packet: simulate a collective for one rank where all ranks do the same."),
    )

    def __init__(
        self,
        env: simpy.Environment,
        topology: Topology,
        *,
        algorithm: str | CollectiveAlgorithm | None = None,
        form: Form = "pipelined",
        record: bool = False,
        kernel: Kernel = "auto",
        fold: Fold = "auto",
    ) -> None:
        super().__init__(env, topology, algorithm="auto" if algorithm is None else algorithm, form=form)
        self.record = record
        self.flows: list[FlowRecord] = []
        self.rates: list[LinkRate] = []
        self._classes: LinkClasses | None = None  # of links, of which one is simulated
        self.calibrated = calibrated_collectives(topology) if is_auto(algorithm) and form == "pipelined" else None
        machine = None if self.calibrated is None else self.calibrated.measured_on
        self._measured: dict[CollectiveOperation, tuple[Layout, float]] = {}
        self._deepep = DeepEPCollectives(topology, machine)
        self._gathers: dict[tuple[Tier, tuple[int, ...]], SteadyState] = {}
        kernel, fold = (option.parse(value) for option, value in zip(self.options, (kernel, fold), strict=True))
        self._uncontended = UncontendedExecution(self)
        self._symmetric = SymmetricExecution(self, self._uncontended, self._lowering.algorithm, fold)
        self._link_names = list(topology.links)
        self._link_numbers = {
            link.name: number for number, link in enumerate(topology.links.values()) if link.bandwidth < math.inf
        }
        self._sharing = FlowRates(link.bandwidth for link in topology.links.values())
        self._compile_at = sharing.COMPILING_REPAYS if kernel == "auto" and sharing.can_compile() else math.inf
        if kernel == "numba":
            self._sharing.compile()
        self._paths: dict[tuple[NodeRef, NodeRef], Path] = {}
        self._known = KnownExchanges(self._path, self._sharing.capacity)
        self._sent = 0
        self._starting: dict[float, list[_Flow]] = {}  # by the time at which their latency is over
        self._flowing: dict[int, _Flow] = {}  # by slot
        self._ends: list[tuple[float, int, _Flow]] = []  # a heap; an entry whose time is no longer the flow's is void
        self._timer: simpy.Event | None = None  # at the next end, or before it
        self._timer_at = math.inf
        self._superseded: dict[simpy.Event, None] = {}  # timers that SimPy cannot cancel
        self._sharing_again = False
        self._touched: dict[int, None] = {}  # links whose rate may have changed, when recording
        self._recorded: dict[int, tuple[float, float]] = {}

    def _run(self, operation: CollectiveOperation) -> simpy.Event:
        ranks = operation.ranks
        planned = self._as_measured(operation)
        if planned is not None:
            return self._send_all(*planned)
        if len(ranks) >= self._symmetric.least and operation.shares is None and self._alone:
            folded = self._symmetric.begin(operation)
            if folded is not None:
                return folded
        return self._send_all(self._reduced(self._lowering.layout(operation), ranks))

    def _as_measured(self, operation: CollectiveOperation) -> tuple[Layout, float] | None:
        """Return the transfers of a calibrated collective, and how often their bytes count; None of another."""
        if self.calibrated is None:
            return None
        known = self._measured.get(operation)
        if known is None:
            plan = self.calibrated.plan(operation)
            if plan is None:
                return None
            known = self._planned(plan, operation.ranks), plan.stretch
            if operation.shares is None:
                if len(self._measured) >= MOST_REMEMBERED:
                    self._measured.clear()
                self._measured[operation] = known
        return known

    def exchange(self, transport: DeepEP, ranks: tuple[int, ...]) -> simpy.Event:
        """Run an all-to-all of a group by its transport; see ``TransportNetwork``."""
        return self._run_plan(self._deepep.plan(ranks, transport), ranks)

    def exchange_edges(self, transport: DeepEP, ranks: tuple[int, ...]) -> Iterable[tuple[NodeRef, NodeRef]]:
        """Return source and destination of each transfer of an exchange; see ``TransportNetwork``."""
        return self._planned(self._deepep.plan(ranks, transport), ranks).edges()

    def transport_notes(self, library: ExpertLibrary) -> Iterable[str]:
        """Return what a reader should know of the times of transports; see ``TransportNetwork``."""
        return self._deepep.notes(library)

    def gather_from(self, tier: Tier, ranks: tuple[int, ...], nbytes: float) -> simpy.Event:
        """Load a tensor to all ranks through switches that gather its shares; see ``GatheringNetwork``."""
        key = tier, ranks
        if key not in self._gathers:
            memory = self.topology.memory_of(ranks[0], tier)
            assert memory is not None, "checked before the run"
            self._gathers[key] = memory_gather(self.topology, memory, ranks, 1.0)
        return Layout(self._gathers[key], nbytes).run(self.env, self.send)

    def _run_plan(self, plan: CalibratedCollective, ranks: Sequence[int]) -> simpy.Event:
        return self._send_all(self._planned(plan, ranks), plan.stretch)

    def _send_all(self, layout: Layout, stretch: float = 1.0) -> simpy.Event:
        """Send what a layout says; while nothing else is sent, flows that end one by one need no event each."""
        if self._alone and self._known.hold and ends_one_by_one(layout):
            return self._uncontended.run(self._known.flows(layout, stretch), layout.latency)
        return layout.run(self.env, partial(self.send, stretch=stretch))

    def _planned(self, plan: CalibratedCollective, ranks: Sequence[int]) -> Layout:
        return self._reduced(Layout(plan.steady, plan.factor), ranks)

    def collective_edges(
        self, kind: CollectiveKind, ranks: tuple[int, ...], nbytes: float, *, root: int | None = None
    ) -> Iterable[tuple[NodeRef, NodeRef]]:
        """Return source and destination of each transfer of a collective; see ``FoldableNetwork``."""
        operation = checked_operation(kind, ranks, nbytes, self.topology, root=root)
        planned = self._as_measured(operation)
        if planned is not None:
            return planned[0].edges()
        return self._reduced(self._lowering.layout(operation), ranks).edges()

    def use_link_classes(self, classes: LinkClasses | None) -> None:
        """Simulate one representative of each class of links from now on; see ``FoldableNetwork``."""
        self._symmetric.stop()  # a collective is no longer alone
        self._paths.clear()
        self._known.clear()
        self._measured.clear()
        self._classes = classes

    def _reduced(self, layout: Layout, ranks: Sequence[int]) -> Layout:
        """Return the part of a collective that is simulated: one transfer of each symmetry class.

        Raises ``AsymmetryError`` in the form of steps, whose transfers depend on each other across classes.
        """
        if self._classes is None:
            return layout
        if isinstance(layout.transfers, SteadyState):
            edges = self._classes.representatives(layout.transfers.edges, ranks)
            return layout._replace(transfers=layout.transfers._replace(edges=edges))
        if self._classes.spans(ranks):
            raise AsymmetryError(f"the steps of {ranks} are sent one by one")
        return layout

    @property
    def _alone(self) -> bool:
        """Whether a collective that starts now would be alone, and no flow is to be recorded."""
        idle = not (self._flowing or self._starting or self._uncontended.running)
        return idle and self._lowering.form == "pipelined" and not self.record

    def set_bandwidth(self, source: NodeRef, destination: NodeRef, bandwidth: float) -> None:
        """Set the bandwidth of the links from one node to another, in bytes per second; 0: they carry nothing.

        Routes and the orders of collectives stay as they are. Raises ``TopologyError`` where there is no such link.
        """
        self._symmetric.stop()  # links are no longer alike
        self._known.hold = False
        ends = self.topology.node(source), self.topology.node(destination)
        for link in self.topology.links_between(*ends):
            number = self._link_numbers[link.name]
            self._sharing.set_capacity(number, bandwidth)
            if self.record:
                self._touched[number] = None
        self._share_later()

    def bytes_by_link(self) -> dict[str, float]:
        """Return how many bytes each link has delivered so far."""
        carried = dict.fromkeys(self._link_names, 0.0) | self._symmetric.bytes_by_link()
        for path in dict.fromkeys(self._paths.values()):
            for name in path.links:
                carried[name] += path.carried
        return carried

    def flows_under_way(self) -> int:
        """Return how many flows are on their way now, those whose first byte has not arrived included."""
        return len(self._flowing) + sum(map(len, list(self._starting.values()))) + self._uncontended.flows_under_way

    def send(
        self,
        source: NodeRef,
        destination: NodeRef,
        nbytes: float,
        done: Done,
        latency: float | None = None,
        stretch: float = 1.0,
    ) -> None:
        """Send bytes and call back on delivery. ``latency`` replaces the route's; they count ``stretch`` times on its links."""
        if self._uncontended.running is not None:
            self._uncontended.simulate_flows()
        path = self._paths.get((source, destination)) or self._path(source, destination)
        now = self.env.now
        at = now + (path.latency if latency is None else latency)
        self._sent += 1
        flow = _Flow(self._sent, path, nbytes, done, now, stretch)
        starting = self._starting.get(at)
        if starting is not None:
            starting.append(flow)
            return
        self._starting[at] = [flow]
        call_at(self.env, at, lambda _: self._start(at))

    def go_on(self, edges: Iterable[tuple[Edge, float]], late: float, done: Done, stretch: float = 1.0) -> None:
        """Go on with flows of which so much is left (bytes times ``stretch``), or start them after ``late`` seconds."""
        now = self.env.now
        for (source, destination, nbytes), left in edges:
            if late > 0:
                self.send(source, destination, nbytes, done, late, stretch)
                continue
            self._sent += 1
            flow = _Flow(self._sent, self._path(source, destination), nbytes, done, now, stretch)
            if left > 0:
                flow.slot = self._sharing.add(flow.path.limits, left, now)
                self._flowing[flow.slot] = flow
            else:
                self._deliver(flow, now)
        self._share_later()

    def _path(self, source: NodeRef, destination: NodeRef) -> Path:
        known = self._paths.get((source, destination))
        if known is not None:
            return known
        names = self.topology.node(source), self.topology.node(destination)
        if names not in self._paths:
            route = (self.topology.route if self._classes is None else self._classes.route)(*names)
            links = tuple(dict.fromkeys([link.name for link in route]))
            limits = tuple([self._link_numbers[name] for name in links if name in self._link_numbers])
            self._paths[names] = Path(*names, math.fsum(link.latency for link in route), links, limits)
        path = self._paths[source, destination] = self._paths[names]
        return path

    def _start(self, at: float) -> None:
        now = self.env.now
        empty: list[_Flow] = []
        for flow in self._starting.pop(at):
            work = flow.nbytes * flow.stretch
            if work > 0 and flow.path.limits:
                flow.slot = self._sharing.add(flow.path.limits, work, now)
                self._flowing[flow.slot] = flow
            else:
                empty.append(flow)
        self._share_later()
        for flow in empty:
            self._deliver(flow, now)

    def _share_later(self) -> None:
        """Share again when everything of this instant has happened."""
        if not self._sharing_again and (self._sharing.changed or self._touched):
            self._sharing_again = True
            call_at(self.env, self.env.now, self._share, AFTER_ALL)

    def _share(self, _: simpy.Event | None = None) -> None:
        self._sharing_again = False
        finish = self._sharing.finish
        for slot in self._sharing.settle(self.env.now):
            flow = self._flowing[slot]
            flow.finish = finish[slot]
            heappush(self._ends, (flow.finish, flow.number, flow))
            if self.record:
                self._touched.update(dict.fromkeys(flow.path.limits))
        if self.record:
            self._record_rates()
        if self._sharing.work >= self._compile_at:
            self._compile_at = math.inf
            with suppress(ImportError):  # a numba that does not fit its surroundings is as good as none
                self._sharing.compile()
        self._set_timer()

    def _set_timer(self) -> None:
        """Have the next end of a flow happen. A timer that is early is kept, it will be set again when it goes off."""
        ends = self._ends
        if len(ends) > 4 * len(self._flowing) + 64:
            ends[:] = [(flow.finish, flow.number, flow) for flow in self._flowing.values() if flow.finish >= 0]
            heapify(ends)
        while ends and ends[0][0] != ends[0][2].finish:
            heappop(ends)
        if not ends or ends[0][0] >= self._timer_at or ends[0][0] > _NEVER:
            return
        if self._timer is not None:
            self._superseded[self._timer] = None
        self._timer_at = ends[0][0]
        self._timer = call_at(self.env, self._timer_at, self._end)

    def _end(self, timer: simpy.Event) -> None:
        """Deliver the flows whose last byte is there."""
        if timer is not self._timer:
            del self._superseded[timer]
            return
        now = self.env.now
        until = self._timer_at + 8 * math.ulp(self._timer_at)  # those that differ by rounding end together
        self._timer, self._timer_at = None, math.inf
        ended: list[_Flow] = []
        ends = self._ends
        while ends and ends[0][0] <= until:
            at, _, flow = heappop(ends)
            if at == flow.finish:
                flow.finish = -1.0
                self._sharing.remove(flow.slot)
                del self._flowing[flow.slot]
                ended.append(flow)
                if self.record:
                    self._touched.update(dict.fromkeys(flow.path.limits))
        if not self._flowing and self._superseded:
            self._forget_superseded()
        for flow in ended:
            self._deliver(flow, now)
        if self._sharing_again:
            return
        if not (self._sharing.changed or self._touched):
            self._set_timer()
        elif self.env.peek() > now:
            self._share()  # nothing else happens at this instant
        else:
            self._share_later()

    def _deliver(self, flow: _Flow, now: float) -> None:
        path = flow.path
        path.carried += flow.nbytes
        if self.record:
            self.flows.append(FlowRecord(path.source, path.destination, flow.nbytes, flow.asked, now, path.links))
        flow.done()

    def supersede(self, timer: simpy.Event) -> None:
        """Let a timer, which nothing waits for any more, not keep the clock running."""
        self._superseded[timer] = None

    def forget(self, timer: simpy.Event) -> None:
        """Take note that a timer, which may be superseded, went off."""
        self._superseded.pop(timer, None)

    def _forget_superseded(self) -> None:
        """Take timers that nothing waits for out of SimPy's queue, so that a run ends when the last byte is there."""
        queue = self.env._queue
        queue[:] = [entry for entry in queue if entry[3] not in self._superseded]
        heapify(queue)
        self._superseded.clear()

    def _record_rates(self) -> None:
        for link in self._touched:
            bytes_per_s = taken = 0.0
            for slot, rate in self._sharing.on(link):
                taken += rate
                bytes_per_s += rate / self._flowing[slot].stretch
            share = taken / self._sharing.capacity[link]
            if (bytes_per_s, share) != self._recorded.get(link, (0.0, 0.0)):
                self._recorded[link] = bytes_per_s, share
                self.rates.append(LinkRate(self.env.now, self._link_names[link], bytes_per_s, share))
        self._touched.clear()
