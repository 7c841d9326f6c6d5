"""Errors of predicted collectives against measured ones: of any table, and of sizes that were held out of the fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import simpy

from triosim.compute.fit.evaluation import Statistics, statistics
from triosim.errors import OptionError
from triosim.networks.analytical import AnalyticalNetwork
from triosim.networks.calibration.fit.fitting import MeasuredCollective, fit_kind
from triosim.networks.calibration.lookup import calibration_of
from triosim.networks.topology import Topology

LARGE = 2**20  # bytes; from there on bandwidth decides, below it latency
MOST_FITS = 24


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of predictions: of all rows, of those of 1 MiB and more, of the others; None where there are none."""

    total: Statistics
    large: Statistics | None
    small: Statistics | None

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name: those of all rows, and the mean of either class."""
        large, small = self.large, self.small
        means = {"mape_large_percent": large and large.mape_percent, "mape_small_percent": small and small.mape_percent}
        return {**self.total.as_dict(), **means, "rows_large": large.rows if large else 0}


def judged(rows: Sequence[MeasuredCollective], predicted: Sequence[float]) -> ErrorSummary:
    """Compare predicted seconds with those of rows, of which there is at least one."""
    said, measured = np.array(predicted, dtype=float), np.array([row.seconds for row in rows])
    large = np.array([row.nbytes >= LARGE for row in rows])

    def of(chosen: Any) -> Statistics | None:
        return statistics(said[chosen], measured[chosen]) if chosen.any() else None

    return ErrorSummary(statistics(said, measured), of(large), of(~large))


def by_collective(rows: Sequence[MeasuredCollective], predicted: Sequence[float]) -> dict[str, ErrorSummary]:
    """Return the figures of each collective."""
    found = {}
    for kind in sorted({row.kind for row in rows}):
        mine = [(row, said) for row, said in zip(rows, predicted, strict=True) if row.kind == kind]
        found[kind] = judged([row for row, _ in mine], [said for _, said in mine])
    return found


def predict(topology: Topology, rows: Sequence[MeasuredCollective]) -> list[float]:
    """Return the seconds of rows on a topology: calibrated or, where it is not, by NCCL's choice of algorithm."""
    network = AnalyticalNetwork(simpy.Environment(), topology)
    return [network.seconds(cast(Any, row.kind), group_of(topology, row), row.nbytes) for row in rows]


def gpus_per_node(topology: Topology) -> int:
    """Return how many GPUs a node of a topology has: all of them, where it has one node."""
    calibration = calibration_of(topology)
    if calibration is not None:
        return calibration.gpus_per_node
    several = "fabric" in topology.nodes and bool(topology.dimensions)
    return len(topology.gpus) // (topology.dimensions[-1].size if several else 1)


def group_of(topology: Topology, row: MeasuredCollective) -> tuple[int, ...]:
    """Return ranks of a topology that a row's GPUs could have been: the first of a node, or of each of several."""
    per_node = gpus_per_node(topology)
    nodes = max(row.nodes, -(-row.gpus // per_node))
    if row.gpus % nodes:
        raise OptionError(f"{row.gpus} GPUs are not evenly distributed over {nodes} nodes", where=topology.name)
    inside = row.gpus // nodes
    if inside > per_node:
        fix = "give a topology with larger nodes"
        raise OptionError(f"{inside} GPUs a node are more than its {per_node}", where=topology.name, fix=fix)
    if (nodes - 1) * per_node + inside > len(topology.gpus):
        what, fix = f"{row.gpus} GPUs on {nodes} nodes do not fit into {len(topology.gpus)}", "name a larger system"
        raise OptionError(what, where=topology.name, fix=f"{fix}, such as 'dgx-h100(nodes=4)'")
    return tuple(node * per_node + place for node in range(nodes) for place in range(inside))


def held_out(rows: Sequence[MeasuredCollective]) -> tuple[list[MeasuredCollective], list[float]]:
    """Return the rows inside a node of every size but the least and the largest, predicted by a fit without that size."""
    found: list[MeasuredCollective] = []
    said: list[float] = []
    for kind in sorted({row.kind for row in rows}):
        mine = [row for row in rows if row.kind == kind and row.nodes == 1]
        inner = sorted({row.nbytes for row in mine})[1:-1]
        fits = min(len(inner), MOST_FITS)  # of many sizes, every n-th is held out together
        for sizes in [frozenset(inner[start::fits]) for start in range(fits)]:
            left = [row for row in mine if row.nbytes not in sizes]
            out = [row for row in mine if row.nbytes in sizes]
            if not left:
                continue
            curves = fit_kind(kind, left)
            found.extend(out)
            said.extend(curves.parts(row.gpus, row.nbytes).total for row in out)
    return found, said
