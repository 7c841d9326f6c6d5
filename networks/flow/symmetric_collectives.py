"""Symmetric collectives on the packet network, simulated for one rank until something else is sent.

In a collective along the dimensions of a regular system all ranks do the same, so that the links of one rank say how long it
takes (:mod:`triosim.networks.collectives.phased.symmetric`). When anything else is sent, every flow is simulated from there on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import simpy

from triosim.networks.collectives.algorithm import CollectiveAlgorithm, CollectiveOperation, Edge
from triosim.networks.collectives.phased.symmetric import SymmetricCollective

if TYPE_CHECKING:
    from triosim.networks.flow.packet import PacketNetwork
    from triosim.networks.flow.uncontended import UncontendedExecution

Fold = Literal["auto", "always", "never"]
WORTH_IT = 128  # ranks; what a smaller group sends is quickly simulated
_NEVER = 1 << 62  # ranks
_MOST_KEPT = 1_000  # groups


@dataclass(frozen=True, eq=False, slots=True)
class _SymmetricFlows:
    """The flows of a symmetric collective of so many bytes; see ``PlannedFlows``."""

    symmetric: SymmetricCollective
    nbytes: float
    carried: dict[SymmetricCollective, float]  # the bytes of those that have ended
    stretch: float = 1.0

    def seconds(self) -> float:
        """Return how long they flow."""
        return self.symmetric.seconds * self.nbytes

    def left(self, elapsed: float) -> Iterable[tuple[Edge, float]]:
        """Return every edge with the bytes that are left of it."""
        return self.symmetric.edges(elapsed, self.nbytes)

    def arrived(self) -> None:
        """Count the bytes."""
        self.carried[self.symmetric] = self.carried.get(self.symmetric, 0.0) + self.nbytes


class SymmetricExecution:
    """Finds what one rank does in a symmetric collective, and counts the bytes of those that have ended."""

    def __init__(
        self, network: PacketNetwork, execution: UncontendedExecution, algorithm: CollectiveAlgorithm, fold: Fold
    ) -> None:
        self.network = network
        self._execution = execution
        self._algorithm = algorithm
        self.least = {"auto": WORTH_IT, "always": 2, "never": _NEVER}[fold]
        self._known: dict[tuple[Any, ...], SymmetricCollective | None] = {}
        self._carried: dict[SymmetricCollective, float] = {}  # bytes of the collectives that ended folded

    def begin(self, operation: CollectiveOperation) -> simpy.Event | None:
        """Run a collective and return its event; None where ranks differ in what they do."""
        symmetric = self._symmetric(operation)
        if symmetric is None:
            return None
        flows = _SymmetricFlows(symmetric, operation.nbytes, self._carried)
        return self._execution.run(flows, symmetric.latency + symmetric.fill * operation.nbytes)

    def stop(self) -> None:
        """Simulate all ranks from now on."""
        self._execution.simulate_flows()
        self.least = _NEVER

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that collectives which were simulated for one rank have sent over each link."""
        found: dict[str, float] = {}
        for symmetric, nbytes in self._carried.items():
            for source, destination, carried in symmetric.edges_by_link():
                for link in self.network.topology.route(source, destination):
                    found[link.name] = found.get(link.name, 0.0) + carried * nbytes
        return found

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
