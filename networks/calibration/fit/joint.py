"""Fits the collectives of several machines together, so that a size missing on one is known from the others.

NCCL changes its algorithm and protocol at sizes that depend on the collective, the group and the GPU's generation, hardly on
the machine. So machines of one generation share a base curve for each collective and group size, and what remains of
ln(seconds) is a Gaussian process over size, group size, machine and collective (Rasmussen and Williams, Gaussian Processes
for Machine Learning, chapter 2). The covariance is exponential in ln(size), which allows the steps between protocols.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triosim.networks.calibration.curves import Curve, KindCurves, Residuals, sent
from triosim.networks.calibration.fit import fitting
from triosim.networks.calibration.fit.fitting import MeasuredCollective

Array = npt.NDArray[np.float64]

#: Collectives whose protocols change at the same sizes.
RELATED = {"reduce_scatter": "all_gather"}
#: The sizes at which the remainder is stored: 512 B to 16 GiB, every doubling.
STORED_SIZES = tuple(float(2**power) for power in range(9, 35))
#: A group size has a base curve of its own where its rows reach down to this size; others lie between those that do.
SMALL = 64 * 1024.0


@dataclass(frozen=True, slots=True)
class MachineRows:
    """The measured collectives of one machine, inside a node, and the generation that it shares curves with."""

    machine: str
    generation: str
    rows: Sequence[MeasuredCollective]


@dataclass(frozen=True, slots=True)
class Covariance:
    """How strongly remainders of ln(seconds) go together.

    ``deviation`` is their standard deviation, ``size_reach`` and ``group_reach`` the e-folds of bytes and of GPUs over which
    they fall off; then the correlation of machines of one generation, of other machines, and of related collectives.
    ``machine_offset`` is how far all sizes of a machine may be off its generation, ``noise`` the scatter of a measurement.
    """

    deviation: float = 0.25
    size_reach: float = 2.0
    group_reach: float = 1.0
    same_generation: float = 0.95
    other_generation: float = 0.3
    related: float = 0.7
    machine_offset: float = 0.1
    noise: float = 0.04


@dataclass(frozen=True, slots=True)
class _Points:
    """Where remainders are known or asked for; all arrays have one entry a point."""

    size: Array
    group: Array
    machine: npt.NDArray[np.str_]
    generation: npt.NDArray[np.str_]
    kind: npt.NDArray[np.str_]
    related: npt.NDArray[np.str_]


def _points(machine: MachineRows, rows: Sequence[MeasuredCollective]) -> _Points:
    count = len(rows)
    return _Points(
        np.log([row.nbytes for row in rows]),
        np.log([row.gpus for row in rows]),
        np.full(count, machine.machine),
        np.full(count, machine.generation),
        np.array([row.kind for row in rows], dtype=np.str_),
        np.array([RELATED.get(row.kind, row.kind) for row in rows], dtype=np.str_),
    )


def _joined(points: Sequence[_Points]) -> _Points:
    names = ("size", "group", "machine", "generation", "kind", "related")
    return _Points(*(np.concatenate([getattr(one, name) for one in points]) for name in names))


def _covariance(left: _Points, right: _Points, how: Covariance) -> Array:
    def same(name: str) -> npt.NDArray[np.bool_]:
        return np.asarray(getattr(left, name)[:, None] == getattr(right, name))

    sizes = np.abs(left.size[:, None] - right.size) / how.size_reach
    groups = np.abs(left.group[:, None] - right.group)
    machines = np.where(same("generation"), how.same_generation, how.other_generation)
    machines = np.where(same("machine"), 1.0, machines)
    kinds = np.where(same("kind"), 1.0, np.where(same("related"), how.related, 0.0))
    shape = how.deviation**2 * np.exp(-sizes - groups / how.group_reach) * machines * kinds
    offset = how.machine_offset**2 * np.exp(-groups / 2.0) * (same("machine") & same("kind"))
    return np.asarray(shape + offset)


class JointFit:
    """The curves of several machines, fitted together. ``seconds`` predicts, ``curves`` returns what is stored."""

    def __init__(self, machines: Sequence[MachineRows], how: Covariance | None = None) -> None:
        self._how = Covariance() if how is None else how
        rows = {machine.machine: medians(machine.rows) for machine in machines}
        self._machines = {machine.machine: machine for machine in machines}
        self._base = {
            generation: _base_curves(
                [row for one in machines if one.generation == generation for row in rows[one.machine]]
            )
            for generation in sorted({machine.generation for machine in machines})
        }
        self._known = _joined([_points(machine, rows[machine.machine]) for machine in machines])
        remains = [
            math.log(row.seconds / self._base[machine.generation][row.kind].base(row.gpus, row.nbytes).total)
            for machine in machines
            for row in rows[machine.machine]
        ]
        scatter = np.concatenate([_scatter(rows[machine.machine], self._how.noise) for machine in machines])
        covariance = _covariance(self._known, self._known, self._how) + np.diag(scatter**2)
        self._weights: Array = np.linalg.solve(covariance, np.array(remains))

    def seconds(self, machine: str, rows: Sequence[MeasuredCollective]) -> Array:
        """Return the predicted seconds of rows of a machine, which must be one of those that were fitted."""
        said = self._machines[machine]
        base = [self._base[said.generation][row.kind].base(row.gpus, row.nbytes).total for row in rows]
        return np.array(base) * np.exp(self._remainders(said, rows))

    def curves(self, machine: str) -> Mapping[str, KindCurves]:
        """Return the curves of a machine by kind of collective: the base of its generation, and its own remainders."""
        said = self._machines[machine]
        found: dict[str, KindCurves] = {}
        for kind in sorted({row.kind for row in said.rows}):
            measured = {row.gpus for row in said.rows if row.kind == kind}
            base = [curve for curve in self._base[said.generation][kind].curves if curve.gpus in measured]
            found[kind] = KindCurves(kind, tuple(self._with_remainders(said, kind, curve) for curve in base))
        return found

    def _with_remainders(self, machine: MachineRows, kind: str, curve: Curve) -> Curve:
        rows = [MeasuredCollective(kind, curve.gpus, size, 1.0) for size in STORED_SIZES]
        base = np.array([curve.latency + sent(kind, curve.gpus) * curve.sigmoid.seconds(size) for size in STORED_SIZES])
        factors = _never_falling(base * np.exp(self._remainders(machine, rows))) / base
        residuals = Residuals(STORED_SIZES, tuple(round(float(factor), 4) for factor in factors))
        return Curve(curve.gpus, curve.latency, curve.sigmoid, residuals)

    def _remainders(self, machine: MachineRows, rows: Sequence[MeasuredCollective]) -> Array:
        return np.asarray(_covariance(_points(machine, rows), self._known, self._how) @ self._weights)


def _never_falling(seconds: Array) -> Array:
    """Return times that do not fall with the size: the geometric mean of the nearest such times above and below."""
    above, below = np.maximum.accumulate(seconds), np.minimum.accumulate(seconds[::-1])[::-1]
    return np.asarray(np.sqrt(above * below))


def medians(rows: Sequence[MeasuredCollective]) -> list[MeasuredCollective]:
    """Return one row for each collective, group and size: the median of what was measured, say by several versions of NCCL."""
    same: dict[tuple[str, int, float], list[float]] = {}
    for row in rows:
        same.setdefault((row.kind, row.gpus, row.nbytes), []).append(math.log(row.seconds))
    return [MeasuredCollective(*key, math.exp(float(np.median(found)))) for key, found in sorted(same.items())]


def _base_curves(rows: Sequence[MeasuredCollective]) -> dict[str, KindCurves]:
    """Return the curves of one generation: of each collective, for the group sizes whose rows begin with small ones."""
    found: dict[str, KindCurves] = {}
    for kind in sorted({row.kind for row in rows}):
        mine = [row for row in rows if row.kind == kind]
        least = {gpus: min(row.nbytes for row in mine if row.gpus == gpus) for gpus in {row.gpus for row in mine}}
        whole = sorted(gpus for gpus, nbytes in least.items() if nbytes <= SMALL) or sorted(least)
        curves = [fitting.base_curve(kind, gpus, [row for row in mine if row.gpus == gpus]) for gpus in whole]
        found[kind] = KindCurves(kind, tuple(curves))
    return found


def _scatter(rows: Sequence[MeasuredCollective], noise: float) -> Array:
    """Return the standard deviation of each row's ln(seconds): more for a disturbed row, slower than one of a larger size."""
    found: list[float] = []
    for row in rows:
        others = [one for one in rows if one.kind == row.kind and one.gpus == row.gpus]
        later = min((one.seconds for one in others if one.nbytes > row.nbytes), default=row.seconds)
        earlier = max((one.seconds for one in others if one.nbytes < row.nbytes), default=row.seconds)
        disturbed = max(math.log(row.seconds / later), math.log(earlier / row.seconds) / 2.0, 0.0)
        found.append(math.hypot(noise, disturbed))
    return np.array(found)
