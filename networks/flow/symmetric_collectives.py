"""Symmetric collectives on the packet network, simulated for one rank until something else is sent.

In a collective along the dimensions of a regular system all ranks do the same, so that the links of one rank say how long it
takes (:mod:`triosim.networks.collectives.phased.symmetric`). When anything else is sent, every flow is simulated from there on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import simpy

from triosim.networks.collectives.algorithm import CollectiveAlgorithm, CollectiveOperation
from triosim.networks.collectives.lowering import after_last
from triosim.networks.collectives.phased.symmetric import SymmetricCollective
from triosim.networks.events import call_at

if TYPE_CHECKING:
    from triosim.networks.flow.packet import PacketNetwork

Fold = Literal["auto", "always", "never"]
WORTH_IT = 128  # ranks; what a smaller group sends is quickly simulated
_NEVER = 1 << 62  # ranks
_MOST_KEPT = 1_000  # groups


@dataclass(eq=False, slots=True)
class _Running:
    """A collective that is simulated for one rank: when its bytes began to flow, and when the last one arrives."""

    symmetric: SymmetricCollective
    nbytes: float
    flowing: float
    end: float
    event: simpy.Event
    timer: simpy.Event


class SymmetricExecution:
    """Simulates one symmetric collective at a time, and counts the bytes of those that have ended."""

    def __init__(self, network: PacketNetwork, algorithm: CollectiveAlgorithm, fold: Fold) -> None:
        self.network = network
        self._algorithm = algorithm
        self.least = {"auto": WORTH_IT, "always": 2, "never": _NEVER}[fold]
        self.running: _Running | None = None
        self._known: dict[tuple[Any, ...], SymmetricCollective | None] = {}
        self._carried: dict[SymmetricCollective, float] = {}  # bytes of the collectives that ended folded

    def begin(self, operation: CollectiveOperation) -> simpy.Event | None:
        """Run a collective and return its event; None where ranks differ in what they do."""
        network, nbytes = self.network, operation.nbytes
        symmetric = self._symmetric(operation)
        if symmetric is None:
            return None
        flowing = network.env.now + (symmetric.latency + symmetric.fill * nbytes)
        end = flowing + symmetric.seconds * nbytes
        timer = call_at(network.env, end, lambda _: self._end(run))
        self.running = run = _Running(symmetric, nbytes, flowing, end, network.env.event(), timer)
        return run.event

    def simulate_all(self) -> None:
        """Simulate every flow of every rank from now on, because something else is about to be sent."""
        run = self.running
        if run is None:
            return
        if self.network.env.now >= run.end:
            self._end(run)
            return
        self.running = None
        self.network._superseded[run.timer] = None
        late = run.flowing - self.network.env.now
        edges = list(run.symmetric.edges(max(-late, 0.0), run.nbytes))
        self.network._go_on(edges, late, after_last(len(edges), run.event))

    def stop(self) -> None:
        """Simulate all ranks from now on."""
        self.simulate_all()
        self.least = _NEVER

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that collectives which were simulated for one rank have sent over each link."""
        found: dict[str, float] = {}
        for symmetric, nbytes in self._carried.items():
            for source, destination, carried in symmetric.edges_by_link():
                for link in self.network.topology.route(source, destination):
                    found[link.name] = found.get(link.name, 0.0) + carried * nbytes
        return found

    def _end(self, run: _Running) -> None:
        """End the collective, unless it has ended already or all of its ranks are simulated."""
        if self.running is not run:
            self.network._superseded.pop(run.timer, None)
            return
        self.running = None
        self._carried[run.symmetric] = self._carried.get(run.symmetric, 0.0) + run.nbytes
        run.event.succeed()

    def _symmetric(self, operation: CollectiveOperation) -> SymmetricCollective | None:
        topology = self.network.topology
        if not topology.uniform or not topology.dimensions:
            return None
        chosen = self._algorithm.choose(operation, topology)
        key = (chosen, operation.kind, operation.ranks)
        if key not in self._known:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[key] = chosen.symmetric(operation, topology)
        return self._known[key]
