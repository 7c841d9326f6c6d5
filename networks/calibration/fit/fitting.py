"""Fits the curves of collectives to the logarithms of measured times, so that 10 us weigh as much as 10 ms.

First the sigmoid of each kind and group size, with a loss that grows linearly for outliers and trusts least those rows that a
larger size undercuts; then the linear correction of a kind, by ridge regression; then what remains, smoothed by a Gaussian
process over ln(size).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from triosim.networks.calibration.curves import (
    Curve,
    KindCurves,
    Residuals,
    Sigmoid,
    Straggler,
    TimeParts,
    corrected,
    features,
    sent,
)
from triosim.networks.calibration.internode import algorithms, card_share, hops_of
from triosim.networks.calibration.model import Calibration, InterNodeTimes

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """One measured collective: ``nbytes`` as nccl-tests counts them; ``nodes`` is the number of nodes that its GPUs span.

    ``compute_slowdown`` is how many times longer products took beside it, ``collective_slowdown`` it beside them; None where
    that was not measured.
    """

    kind: str
    gpus: int
    nbytes: float
    seconds: float
    nodes: int = 1
    compute_slowdown: float | None = None
    collective_slowdown: float | None = None


REACH = 2.0  # e-folds of size over which residuals are smoothed
NOISE = 0.3  # the part of a residual that is noise
ROBUST = 0.1  # residuals of ln t beyond this count linearly
RIDGE = 1.0  # rows' worth of belief that there is no linear correction
REPEATS = 4  # rows of one size that say how much slower the slowest ranks are


def fit(
    rows: Sequence[MeasuredCollective], gpus_per_node: int, note: str = "", known: Calibration | None = None
) -> Calibration:
    """Fit a calibration to rows; of kinds that they do not have, what is ``known`` before stays.

    A size that was measured ``REPEATS`` times and more gives its minimum to the curves, and its 75th percentile to
    the straggler ratio.
    """
    kinds = {} if known is None or known.transferred else dict(known.kinds)
    between = {} if known is None else dict(known.between)
    stragglers = {} if known is None else dict(known.stragglers)
    for kind in sorted({row.kind for row in rows}):
        mine = [row for row in rows if row.kind == kind]
        least, straggler = _stragglers(mine)
        inside, outside = [row for row in least if row.nodes == 1], [row for row in least if row.nodes > 1]
        stragglers.pop(kind, None)
        if straggler is not None:
            stragglers[kind] = straggler
        if inside:
            kinds[kind] = fit_kind(kind, inside)
        if outside:
            between[kind] = fit_between(kind, outside, kinds.get(kind))
    return Calibration(gpus_per_node, kinds, between, stragglers, note)


def _stragglers(rows: Sequence[MeasuredCollective]) -> tuple[list[MeasuredCollective], Straggler | None]:
    """Return the least time of each size that was repeated, and the straggler ratio of those (least squares)."""
    same: dict[tuple[int, float, int], list[MeasuredCollective]] = {}
    for row in rows:
        same.setdefault((row.gpus, row.nbytes, row.nodes), []).append(row)
    least: list[MeasuredCollective] = []
    found: list[tuple[float, float]] = []
    for (gpus, nbytes, _), several in same.items():
        if len(several) < REPEATS:
            least.extend(several)
            continue
        first = min(several, key=lambda row: row.seconds)
        least.append(first)
        late = float(np.percentile([row.seconds for row in several], 75.0))
        found.append((gpus * math.log(nbytes + 1.0), late / first.seconds - 1.0))
    if not found:
        return least, None
    at, excess = (np.array(column) for column in zip(*found, strict=True))
    if len(set(at)) < 2:
        return least, Straggler(float(excess.mean()))
    slope, offset = np.polyfit(at, excess, 1)
    return least, Straggler(float(offset), float(slope))


def fit_kind(kind: str, rows: Sequence[MeasuredCollective]) -> KindCurves:
    """Fit the curves of one kind of collective to its rows, which are of at least one group size."""
    groups = sorted({row.gpus for row in rows})
    curves = tuple(base_curve(kind, gpus, [row for row in rows if row.gpus == gpus]) for gpus in groups)
    plain = KindCurves(kind, curves)
    weights = _correction(plain, rows)
    found = KindCurves(kind, curves, weights)
    return replace(found, curves=tuple(_with_residuals(found, curve, rows) for curve in curves))


@dataclass(frozen=True, slots=True)
class _Problem:
    """The fit of a latency and a sigmoid: ln t = ln(extra + hops l + max(floor, factor S / B(S)))."""

    sizes: Array
    target: Array
    factor: float = 1.0
    hops: Array | float = 1.0
    extra: Array | float = 0.0
    floor: Array | float = 0.0
    trust: Array | float = 1.0  # how much each row counts

    def predicted(self, point: Array) -> Array:
        """Return ln t at a point: ln latency, ln ceiling, the logit of the steepness, the middle."""
        latency, ceiling, steepness, middle = point
        bend = np.clip(-_expit(float(steepness)) * (np.log(self.sizes + 1.0) - middle), -60.0, 60.0)
        moving = self.factor * self.sizes * np.exp(-ceiling) * (1.0 + np.exp(bend))
        return np.asarray(np.log(self.extra + self.hops * np.exp(latency) + np.maximum(self.floor, moving)))


def base_curve(kind: str, gpus: int, rows: Sequence[MeasuredCollective]) -> Curve:
    """Fit latency and sigmoid of a group size."""
    sizes, seconds = _columns(rows)
    latency, sigmoid = _fitted(_Problem(sizes, np.log(seconds), sent(kind, gpus), trust=_trust(rows)))
    return Curve(gpus, latency, sigmoid)


def fit_between(kind: str, rows: Sequence[MeasuredCollective], inside: KindCurves | None) -> InterNodeTimes:
    """Fit the way between nodes to rows of several nodes; what happens inside a node is known, or left to it as well."""
    _, seconds = _columns(rows)
    near = [
        inside.parts(math.ceil(row.gpus / row.nodes), row.nbytes)
        if inside is not None and row.gpus > row.nodes
        else TimeParts(0.0, 0.0)
        for row in rows
    ]
    large, small = algorithms(kind)[0], algorithms(kind)[-1]
    problem = _Problem(
        np.array([row.nbytes * card_share(kind, large, row.nodes, row.gpus) for row in rows]),
        np.log(seconds),
        hops=np.array([hops_of(kind, small, row.nodes) for row in rows]),
        extra=np.array([part.latency for part in near]),
        floor=np.array([part.moving for part in near]),
    )
    return InterNodeTimes(*_fitted(problem))


def _columns(rows: Sequence[MeasuredCollective]) -> tuple[Array, Array]:
    return np.array([row.nbytes for row in rows]), np.array([row.seconds for row in rows])


def _fitted(problem: _Problem) -> tuple[float, Sigmoid]:
    """Return the latency and the sigmoid that fit best, from several starts."""
    seconds = np.exp(problem.target)
    peak = float((problem.factor * problem.sizes / seconds).max())
    quickest = float((seconds / problem.hops).min())
    best: tuple[float, Array] | None = None
    for steepness in (0.6, 0.9):
        for quantile in (0.4, 0.8):
            middle = float(np.quantile(np.log(problem.sizes), quantile))
            start = np.array([math.log(0.8 * quickest), math.log(1.1 * peak), _logit(steepness), middle])
            point, loss = _descend(start, problem)
            if best is None or loss < best[0]:
                best = loss, point
    assert best is not None
    latency, ceiling, logit, middle = (float(value) for value in best[1])
    return math.exp(latency), Sigmoid(math.exp(ceiling), _expit(logit), middle)


def _logit(share: float) -> float:
    return math.log(share / (1.0 - share))


def _expit(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-min(max(value, -30.0), 30.0)))


#: How strongly a parameter is held where the rows do not say it: ln latency, ln ceiling, steepness, middle.
_BELIEF = np.array([0.01, 5.0, 0.5, 0.002])


def _trust(rows: Sequence[MeasuredCollective]) -> Array:
    """Return how much each row of one group size counts: less if a larger size took less time, for then it was disturbed."""
    later = {}
    least = math.inf
    for row in sorted(rows, key=lambda row: -row.nbytes):
        least = min(least, row.seconds)
        later[row.nbytes] = least
    excess = np.array([math.log(row.seconds / later[row.nbytes]) for row in rows])
    return np.asarray(1.0 / (1.0 + (excess / ROBUST) ** 2))


def _loss(residuals: Array, point: Array, start: Array, trust: Array | float) -> float:
    far = np.abs(residuals) / ROBUST
    huber = trust * np.where(far < 1.0, 0.5 * far**2, far - 0.5)
    return float(huber.sum() + _BELIEF @ (point - start) ** 2)


def _descend(start: Array, problem: _Problem) -> tuple[Array, float]:
    """Levenberg and Marquardt's method, with the weights of Huber's loss."""
    point, damping = start.copy(), 1.0
    residuals = problem.predicted(point) - problem.target
    loss = _loss(residuals, point, start, problem.trust)
    for _ in range(200):
        step = _step(point, start, residuals, problem, damping)
        candidate = point + np.clip(step, -2.0, 2.0)
        new = problem.predicted(candidate) - problem.target
        new_loss = _loss(new, candidate, start, problem.trust)
        if new_loss >= loss:
            damping *= 4.0
            if damping > 1e9:
                break
            continue
        done = loss - new_loss < 1e-7 * (1.0 + loss)
        point, residuals, loss, damping = candidate, new, new_loss, max(damping / 5.0, 1e-9)
        if done:
            break
    return point, loss


def _step(point: Array, start: Array, residuals: Array, problem: _Problem, damping: float) -> Array:
    jacobian = np.empty((len(residuals), len(point)))
    for column in range(len(point)):
        moved = point.copy()
        moved[column] += 1e-5
        jacobian[:, column] = (problem.predicted(moved) - problem.target - residuals) / 1e-5
    weight = problem.trust / (ROBUST * np.maximum(np.abs(residuals), ROBUST))
    normal = jacobian.T @ (weight[:, None] * jacobian) + np.diag(2.0 * _BELIEF)
    gradient = jacobian.T @ (weight * residuals) + 2.0 * _BELIEF * (point - start)
    return np.asarray(np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient))


def _correction(curves: KindCurves, rows: Sequence[MeasuredCollective]) -> tuple[float, ...]:
    """Fit the linear correction to what the curves leave: ridge regression, rows far off counting less."""
    x = np.array([features(row.gpus, row.nbytes) for row in rows])
    y = np.array([math.log(row.seconds / curves.base(row.gpus, row.nbytes).total) for row in rows])
    weights = np.zeros(x.shape[1])
    groups = {gpus: [row for row in rows if row.gpus == gpus] for gpus in {row.gpus for row in rows}}
    known = {row: one for mine in groups.values() for row, one in zip(mine, _trust(mine), strict=True)}
    clean = np.array([known[row] for row in rows])
    for _ in range(10):
        trust = clean * ROBUST / np.maximum(np.abs(y - x @ weights), ROBUST)
        weights = np.linalg.solve(x.T @ (trust[:, None] * x) + RIDGE * np.eye(x.shape[1]), x.T @ (trust * y))
    return tuple(float(weight) for weight in weights)


def _with_residuals(curves: KindCurves, curve: Curve, rows: Iterable[MeasuredCollective]) -> Curve:
    """Return a curve with what remains at powers of two of the sizes that were measured."""
    mine = [row for row in rows if row.gpus == curve.gpus]
    sizes = np.array([row.nbytes for row in mine])
    base = [math.log(row.seconds / curves.base(row.gpus, row.nbytes).total) for row in mine]
    left = np.array(
        [one - corrected(curves.weights, row.gpus, row.nbytes) for one, row in zip(base, mine, strict=True)]
    )
    low, high = math.floor(math.log2(sizes.min())), math.ceil(math.log2(sizes.max()))
    knots = 2.0 ** np.arange(low, high + 1)
    smooth = _smoothed(np.log(sizes), left, np.log(knots), NOISE**2 / _trust(mine))
    factors = tuple(round(float(value), 4) for value in np.exp(smooth))
    return replace(curve, residuals=Residuals(tuple(float(knot) for knot in knots), factors))


def _smoothed(at: Array, values: Array, wanted: Array, noise: Array) -> Array:
    """Return the mean of a Gaussian process (Matern 3/2; Rasmussen and Williams 2006, 4.17) with each value's noise."""

    def covariance(one: Array, other: Array) -> Array:
        distance = np.sqrt(3.0) * np.abs(one[:, None] - other[None, :]) / REACH
        return np.asarray((1.0 + distance) * np.exp(-distance))

    noisy = covariance(at, at) + np.diag(noise)
    return np.asarray(covariance(wanted, at) @ np.linalg.solve(noisy, values))
