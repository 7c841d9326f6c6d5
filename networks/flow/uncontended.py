"""A collective that has the packet network for itself: its flows are simulated only if something else is sent before it ends.

Until then nothing can change their rates, so their last end is known when the first bytes flow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import simpy

from triosim.networks.collectives.algorithm import Edge
from triosim.networks.collectives.lowering import after_last
from triosim.networks.events import call_at

if TYPE_CHECKING:
    from triosim.networks.flow.packet import PacketNetwork


class PlannedFlows(Protocol):
    """The flows of a collective, which start together."""

    @property
    def stretch(self) -> float:
        """How many times each byte counts on its links."""

    def seconds(self) -> float:
        """Return how long they flow on a network on which nothing else does."""

    def left(self, elapsed: float) -> Iterable[tuple[Edge, float]]:
        """Return every flow with what is left of its bytes, counted ``stretch`` times, so long after the start."""

    def arrived(self) -> None:
        """Count the bytes that the links have carried, at the end."""


@dataclass(eq=False, slots=True)
class _Running:
    """A collective under way: when its bytes begin to flow, and when the last one arrives, once that is known."""

    flows: PlannedFlows
    flowing: float
    event: simpy.Event
    timer: simpy.Event
    end: float | None = None


class UncontendedExecution:
    """Runs one collective at a time on a packet network that is idle."""

    def __init__(self, network: PacketNetwork) -> None:
        self._network = network
        self.running: _Running | None = None

    @property
    def flows_under_way(self) -> int:
        """How many flows the collective that runs has."""
        run = self.running
        return 0 if run is None else sum(1 for _ in run.flows.left(0.0))

    def run(self, flows: PlannedFlows, latency: float) -> simpy.Event:
        """Start a collective whose bytes flow after a latency, and return its event."""
        env = self._network.env
        flowing = env.now + latency
        timer = call_at(env, flowing, lambda _: self._flow(run))
        self.running = run = _Running(flows, flowing, env.event(), timer)
        return run.event

    def simulate_flows(self) -> None:
        """Simulate every flow from now on, because something else is about to be sent, or links change."""
        run, network = self.running, self._network
        if run is None:
            return
        now = network.env.now
        if run.end is not None and now >= run.end:
            self._end(run)
            return
        self.running = None
        network.supersede(run.timer)
        late = run.flowing - now
        flows = list(run.flows.left(max(-late, 0.0)))
        network.go_on(flows, late, after_last(len(flows), run.event), run.flows.stretch)

    def _flow(self, run: _Running) -> None:
        if self.running is not run:
            self._network.forget(run.timer)
            return
        run.end = run.flowing + run.flows.seconds()
        run.timer = call_at(self._network.env, run.end, lambda _: self._end(run))

    def _end(self, run: _Running) -> None:
        """End the collective, unless it has ended already or its flows are simulated."""
        if self.running is not run:
            self._network.forget(run.timer)
            return
        self.running = None
        run.flows.arrived()
        run.event.succeed()
