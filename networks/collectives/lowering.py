"""Lowers collectives to transfers: the transfers of an algorithm are laid out once, and kept for the next equal collective."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

import simpy

from triosim.errors import OptionError, nearest
from triosim.networks.collectives.algorithm import (
    CollectiveAlgorithm,
    CollectiveOperation,
    SteadyState,
    checked_transfers,
)
from triosim.networks.collectives.execution import GraphExecution, SendFunction, TransferGraph, run_steady_state
from triosim.networks.topology import NodeRef, Topology

Form = Literal["pipelined", "steps"]
_MOST_KEPT = 4_000_000  # transfers of all layouts together


class Layout(NamedTuple):
    """The transfers of a collective in one of its two forms; their sizes are to be multiplied by ``factor``."""

    transfers: SteadyState | TransferGraph
    factor: float

    def edges(self) -> Iterable[tuple[NodeRef, NodeRef]]:
        """Return source and destination of each transfer."""
        if isinstance(self.transfers, SteadyState):
            return [edge[:2] for edge in self.transfers.edges]
        return self.transfers.ends

    def run(self, env: simpy.Environment, send: SendFunction) -> simpy.Event:
        """Send everything; the event fires when all of it is delivered."""
        event = env.event()
        if isinstance(self.transfers, SteadyState):
            run_steady_state(send, self.transfers, self.factor, event)
        else:
            GraphExecution(send, self.transfers, self.factor, event).start()
        return event


class CollectiveLowering:
    """Lays out collectives by an algorithm in a form: ``pipelined`` (its steady state) or ``steps`` (each transfer)."""

    def __init__(self, topology: Topology, algorithm: CollectiveAlgorithm, form: Form) -> None:
        if form not in get_args(Form):
            raise OptionError(f"unknown form of collectives '{form}'", fix=nearest(str(form), get_args(Form)))
        self.topology = topology
        self.algorithm = algorithm
        self.form = form
        self._layouts: dict[CollectiveOperation, SteadyState | TransferGraph] = {}
        self._kept = 0  # transfers in all layouts

    def layout(self, operation: CollectiveOperation) -> Layout:
        """Return the transfers of a collective that ``check`` has accepted."""
        algorithm = self.algorithm
        proportional = algorithm.proportional or (algorithm.steady and self.form == "pipelined")
        proportional = proportional and operation.shares is None
        key = operation._replace(nbytes=1.0) if proportional else operation
        found = self._layouts.get(key)
        if found is None:
            if self.form == "pipelined":
                found = algorithm.steady_state(key, self.topology)
            else:
                found = TransferGraph(checked_transfers(algorithm, key, self.topology))
            self._keep(key, found)
        return Layout(found, operation.nbytes if proportional else 1.0)

    def _keep(self, key: CollectiveOperation, layout: SteadyState | TransferGraph) -> None:
        """Keep a layout, and drop the oldest ones where there are too many transfers."""
        count = _count(layout)
        while self._layouts and self._kept + count > _MOST_KEPT:
            self._kept -= _count(self._layouts.pop(next(iter(self._layouts))))
        self._layouts[key] = layout
        self._kept += count


def _count(layout: SteadyState | TransferGraph) -> int:
    return len(layout.edges) if isinstance(layout, SteadyState) else len(layout.ends)
