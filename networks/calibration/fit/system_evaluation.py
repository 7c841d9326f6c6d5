"""Judges predicted collectives on a table of several systems, each row on a topology of its own system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import simpy

from triosim.errors import TriosimError
from triosim.networks.analytical import AnalyticalNetwork
from triosim.networks.calibration.deepep import DeepEPCollectives
from triosim.networks.calibration.fit import judging, system_table
from triosim.networks.calibration.fit.fitting import MeasuredCollective
from triosim.networks.calibration.fit.judging import ErrorSummary
from triosim.networks.calibration.fit.system_table import SEND_RECEIVE, Group, SystemRow
from triosim.networks.calibration.fit.systems import MeasuredSystem
from triosim.networks.calibration.lookup import measured_on
from triosim.tasks import DeepEP

#: The algorithms that a row may name and that work between nodes.
_BETWEEN_NODES = frozenset({"ring", "tree", "nvls-tree"})


@dataclass(frozen=True, slots=True)
class GroupErrors:
    """The errors of the rows of a group, the topologies that they were predicted on, and rows refused by reason."""

    group: Group
    errors: ErrorSummary
    topologies: tuple[str, ...]
    refused: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return the group's columns and figures by name."""
        reasons = [{"reason": reason, "rows": rows} for reason, rows in self.refused.items()]
        return {
            **self.group.as_dict(),
            **self.errors.as_dict(),
            "topology": ", ".join(self.topologies),
            "refused": reasons,
        }


@dataclass(frozen=True, slots=True)
class SystemEvaluation:
    """The errors of all rows of a table, of each kind of collective, and of each group; a refused row counts as 100%."""

    name: str
    total: ErrorSummary
    kinds: Mapping[str, ErrorSummary]
    groups: Sequence[GroupErrors]

    @property
    def refused(self) -> dict[str, int]:
        """How many rows were refused, by reason."""
        counts: Counter[str] = Counter()
        for group in self.groups:
            counts.update(group.refused)
        return dict(counts)

    def as_dict(self) -> dict[str, Any]:
        """Return what was found as plain values."""
        names = dict.fromkeys(name for group in self.groups for name in group.topologies)
        each = {kind: one.as_dict() for kind, one in self.kinds.items()}
        groups = [group.as_dict() for group in self.groups]
        return {**self.total.as_dict(), "topology": ", ".join(names), "collectives": each, "groups": groups}


def evaluate(path: str, collective: str | None = None, gpu: str | None = None) -> SystemEvaluation:
    """Return how far predictions are off the collectives of a table; see ``system_table.read``."""
    predictions = _Predictions()
    rows = [predictions.of(row) for row in system_table.read(path, collective=collective, gpu=gpu)]
    by_group: dict[Group, list[_Prediction]] = {}
    for row in rows:
        by_group.setdefault(row.row.group, []).append(row)
    kinds = sorted({row.row.group.collective for row in rows})
    by_kind = {kind: [row for row in rows if row.row.group.collective == kind] for kind in kinds}
    return SystemEvaluation(
        Path(path).name,
        _errors(rows),
        {kind: _errors(mine) for kind, mine in by_kind.items()},
        [_group_errors(group, mine) for group, mine in by_group.items()],
    )


@dataclass(frozen=True, slots=True)
class _Prediction:
    """A row, the seconds that were predicted for it, and the name of the topology; or why there is no prediction."""

    row: SystemRow
    seconds: float = 0.0
    topology: str = ""
    refused: str = ""

    @property
    def measured(self) -> MeasuredCollective:
        """What was measured; of a row that is refused, anything, of which the prediction of 0 is off by 100%."""
        if self.row.collective is None or self.refused:
            return MeasuredCollective(self.row.group.collective, 2, self.row.nbytes, 1.0)
        return self.row.collective


@dataclass(slots=True)
class _Predictions:
    """Predicts rows; systems that are the same share a network."""

    networks: dict[MeasuredSystem, AnalyticalNetwork] = field(default_factory=dict)
    kernels: dict[MeasuredSystem, DeepEPCollectives] = field(default_factory=dict)

    def of(self, row: SystemRow) -> _Prediction:
        """Return the prediction of a row."""
        system, collective = row.system, row.collective
        if system is None or collective is None:
            return _Prediction(row, refused=row.refused)
        try:
            if row.kernel is not None:
                return self._of_kernel(row, system, row.kernel)
            network = self.networks.get(system)
            if network is None:
                network = self.networks[system] = AnalyticalNetwork(simpy.Environment(), system.topology())
            return _Prediction(row, _seconds(network, system, row, collective), network.topology.name)
        except TriosimError as error:
            return _Prediction(row, refused=error.what)

    def _of_kernel(self, row: SystemRow, system: MeasuredSystem, kernel: DeepEP) -> _Prediction:
        if system not in self.kernels:
            topology = system.topology()
            self.kernels[system] = DeepEPCollectives(topology, measured_on(topology))
        on = self.kernels[system]
        return _Prediction(row, on.seconds(tuple(system.ranks), kernel), on.topology.name)


def _seconds(network: AnalyticalNetwork, system: MeasuredSystem, said: SystemRow, row: MeasuredCollective) -> float:
    """Return the seconds of a collective on a system, by the algorithm between nodes that the row names, if it does.

    Sends to the next rank, each with a receive from the one before, take what the slowest pair takes to exchange as many bytes.
    """
    algorithm = said.algorithm
    if algorithm in _BETWEEN_NODES and network.calibrated is not None and system.nodes > 1:
        parts = network.calibrated.calibration.parts(row.kind, row.gpus, row.nbytes, row.nodes, algorithm)
        if parts is not None:
            return parts.total
    if row.kind != SEND_RECEIVE:
        return network.seconds(cast(Any, row.kind), system.ranks, row.nbytes)
    ranks = system.ranks
    pairs = {(ranks[place], ranks[place + 1]) for place in (0, system.gpus - 1) if place + 1 < len(ranks)}
    return max(network.seconds("all_to_all", pair, 2 * row.nbytes) for pair in pairs)


def _errors(rows: Sequence[_Prediction]) -> ErrorSummary:
    return judging.judged([row.measured for row in rows], [row.seconds for row in rows])


def _group_errors(group: Group, rows: Sequence[_Prediction]) -> GroupErrors:
    names = tuple(dict.fromkeys(row.topology for row in rows if row.topology))
    return GroupErrors(group, _errors(rows), names, Counter(row.refused for row in rows if row.refused))
