"""Collectives in which all ranks do the same, simulated once for all of them while nothing else is in the network.

A collective along the dimensions of a regular system looks the same from every rank, so that one rank's links say when it
is through (see :mod:`triosim.networks.collectives.phased.symmetric`). As soon as anything else is sent, the collective is
unfolded: every flow of every rank goes on, with the bytes that it has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import simpy

from triosim.networks.collectives.algorithm import CollectiveAlgorithm
from triosim.networks.collectives.phased.symmetric import SymmetricCollective
from triosim.networks.events import call_at
from triosim.tasks import CollectiveKind

if TYPE_CHECKING:
    from triosim.networks.flow.packet import PacketNetwork

Fold = Literal["auto", "always", "never"]
WORTH_IT = 128  # ranks; what a smaller group sends is quickly simulated
_NEVER = 1 << 62  # ranks
_MOST_KEPT = 1_000  # groups


@dataclass(eq=False, slots=True)
class _Run:
    """A folded collective on its way: what it is, when its bytes began to flow, and when they will be through."""

    symmetric: SymmetricCollective
    nbytes: float
    flowing: float
    end: float
    event: simpy.Event
    timer: simpy.Event


class Folding:
    """Holds the collective that is folded, if there is one, and counts the bytes of those that were."""

    def __init__(self, network: PacketNetwork, algorithm: CollectiveAlgorithm, fold: Fold) -> None:
        self.network = network
        self._algorithm = algorithm
        self.least = {"auto": WORTH_IT, "always": 2, "never": _NEVER}[fold]
        self.run: _Run | None = None
        self._known: dict[tuple[Any, ...], SymmetricCollective | None] = {}
        self._carried: dict[SymmetricCollective, float] = {}  # bytes of the collectives that ended folded

    def begin(self, kind: CollectiveKind, ranks: tuple[int, ...], nbytes: float) -> simpy.Event | None:
        """Run a collective folded, and return its event; None where ranks differ in what they do."""
        network = self.network
        symmetric = self._symmetric(kind, ranks, nbytes)
        if symmetric is None:
            return None
        flowing = network.env.now + (symmetric.latency + symmetric.fill * nbytes)
        end = flowing + symmetric.seconds * nbytes
        timer = call_at(network.env, end, lambda _: self._end(run))
        self.run = run = _Run(symmetric, nbytes, flowing, end, network.env.event(), timer)
        return run.event

    def unfold(self) -> None:
        """Something else is about to be sent: let every rank's flows go on from where they are."""
        run = self.run
        if run is None:
            return
        if self.network.env.now >= run.end:
            self._end(run)
            return
        self.run = None
        self.network._superseded[run.timer] = None
        late = run.flowing - self.network.env.now
        edges = list(run.symmetric.edges(max(-late, 0.0), run.nbytes))
        left = len(edges)

        def delivered() -> None:
            nonlocal left
            left -= 1
            if not left:
                run.event.succeed()

        self.network._go_on(edges, late, delivered)

    def stop(self) -> None:
        """Fold nothing from now on."""
        self.unfold()
        self.least = _NEVER

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that folded collectives have sent over each link."""
        found: dict[str, float] = {}
        for symmetric, nbytes in self._carried.items():
            for source, destination, carried in symmetric.edges_by_link():
                for link in self.network.topology.route(source, destination):
                    found[link.name] = found.get(link.name, 0.0) + carried * nbytes
        return found

    def _end(self, run: _Run) -> None:
        """The collective is through, unless it was unfolded meanwhile or is through already."""
        if self.run is not run:
            self.network._superseded.pop(run.timer, None)
            return
        self.run = None
        self._carried[run.symmetric] = self._carried.get(run.symmetric, 0.0) + run.nbytes
        run.event.succeed()

    def _symmetric(self, kind: CollectiveKind, ranks: tuple[int, ...], nbytes: float) -> SymmetricCollective | None:
        """Return what one rank does, worked out now or before."""
        topology = self.network.topology
        if not topology.uniform or not topology.dimensions:
            return None
        chosen = self._algorithm.choose(kind, ranks, nbytes, topology)
        key = (chosen, kind, ranks)
        if key not in self._known:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[key] = chosen.symmetric(kind, ranks, topology)
        return self._known[key]
