"""Fits regressions to rows of measured operators: one for each name, and one for each class of names, by phase and dtype.

Of the forms of a regression, the one with the smallest error in cross-validation is taken, in which rows of one size are held
out together. The regression states that error, averaged with the roofline's as if that were one more size: with one row it
states the mean of both, with a hundred rows about its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triosim.compute.compute_model import Array, Mask, Rows
from triosim.compute.fit.boosting import TreeSettings, grow, regressor
from triosim.compute.fit.operator_rows import OperatorRows
from triosim.compute.learned.boosted_trees import BoostedTrees
from triosim.compute.learned.kind_regression import Form, KindFeatures, KindRegression, OperatorKind
from triosim.compute.models import calibrated
from triosim.compute.models.linear import fit_line
from triosim.compute.models.roofline import LAUNCH_SECONDS

Fit = Callable[["_Points"], KindRegression]

#: The number of distinct sizes from which trees are tried.
ENOUGH_FOR_TREES = 40
_TREES = TreeSettings(trees=80, leaves=12, rate=0.12, least=4, robust=False)
#: The least error that a regression states: the variation of a call's time from run to run.
LEAST_ERROR = 0.01
#: The most points of a line's fit; of more, a random choice.
_MOST_POINTS = 500
#: The most folds: up to these, each size is held out by itself.
_MOST_FOLDS, _FOLDS_OF_TREES = 20, 5
#: The share of the sizes at either end that are held out to find the error beyond the measured sizes.
_END = 0.2


def fit(rows: OperatorRows, progress: Callable[[str], None] = lambda text: None) -> list[KindRegression]:
    """Return a regression for each name of the rows, and for each class of names, by phase and dtype."""
    known = calibrated.kind_features(rows.operators, rows.gpu)
    known = calibrated.with_shipped(known, rows.operators, rows.measured.tolist(), rows.gpu)
    known = replace(known, calls=[rows.calls.get(row, call) for row, call in enumerate(known.calls)])
    by_kind: dict[OperatorKind, list[int]] = {}
    classes: dict[OperatorKind, OperatorKind] = {}
    for row in rows.measured.tolist():
        for kind in known.kinds[row]:
            by_kind.setdefault(kind, []).append(row)
            classes[kind] = known.kinds[row][1]
    regressions: list[KindRegression] = []
    seconds = np.array([operator.seconds for operator in rows.operators])
    every = {tuple(several): _Points.of(known, seconds, np.array(several)) for several in by_kind.values()}
    if any(points.sizes >= ENOUGH_FOR_TREES for points in every.values()):
        regressor()  # says what is missing before anything takes long
    fitted: dict[tuple[int, ...], KindRegression] = {}  # a class with one name has the name's regression
    for kind, several in by_kind.items():
        one = fitted.get(tuple(several))
        if one is None:
            one = _fit_one(every[tuple(several)], calibrated.roofline_error(classes[kind]))
            fitted[tuple(several)] = one
        of_class = kind.name.startswith("any ")
        measured = {} if of_class else every[tuple(several)].by_call()
        one = replace(one, gpu=rows.gpu.name, files=rows.source, software=rows.software)
        regressions.append(replace(one, key=kind, measured=measured))
        if not of_class:
            progress(f"{regressions[-1]}: {100 * one.error:.0f}% off, {100 * one.beyond:.0f}% beyond these sizes")
    return regressions


@dataclass(frozen=True)
class _Points:
    """The measured rows of one kind of operator; ``size`` numbers their distinct sizes."""

    known: KindFeatures
    seconds: Array
    size: Rows

    @classmethod
    def of(cls, known: KindFeatures, seconds: Array, rows: Rows) -> _Points:
        part = known.select(rows)
        _, size = np.unique(np.hstack([part.drivers, part.features]), axis=0, return_inverse=True)
        return cls(part, seconds[rows], np.ravel(size))

    @property
    def sizes(self) -> int:
        return int(self.size.max()) + 1

    def select(self, rows: Mask) -> _Points:
        return _Points.of(self.known, self.seconds, np.flatnonzero(rows))

    def by_call(self) -> dict[str, float]:
        """Return the median time of each call."""
        found: dict[str, list[float]] = {}
        for call, seconds in zip(self.known.calls, self.seconds.tolist(), strict=True):
            found.setdefault(call, []).append(seconds)
        return {call: float(np.median(times)) for call, times in found.items()}

    def merged(self) -> _Points:
        """One row for each size, with the median of its times."""
        _, first = np.unique(self.size, return_index=True)
        order = np.argsort(self.size, kind="stable")
        parts = np.split(self.seconds[order], np.cumsum(np.bincount(self.size))[:-1])
        medians = np.array([np.median(part) for part in parts])
        one = self.select(np.isin(np.arange(len(self.size)), first))
        return replace(one, seconds=medians[self.size[np.sort(first)]])


def _fit_one(points: _Points, stated: float) -> KindRegression:
    """The form with the least error on rows that it was not fitted to, fitted to all rows, with the errors found."""
    forms: list[Fit] = [_shipped] if np.isfinite(points.known.shipped).all() else []
    forms += [_roofline, *[_line] * (points.sizes > 1), *[_trees] * (points.sizes >= ENOUGH_FOR_TREES)]
    held_out = [_held_out(points, form) for form in forms]
    best = int(np.argmin([float(errors.mean()) if len(errors) else np.inf for errors in held_out]))
    error = _with_prior(held_out[best], points.sizes, stated)
    ends = _with_prior(_ends_held_out(points, forms[best]), max(1, round(_END * points.sizes)), stated)
    return replace(forms[best](points), error=error, beyond=max(error, ends))


def _with_prior(errors: Array, sizes: int, stated: float) -> float:
    """Return the mean of errors, with the stated one counted as that of one more size."""
    if not len(errors):
        return stated
    return max((float(errors.mean()) * sizes + stated) / (sizes + 1), LEAST_ERROR)


def _held_out(points: _Points, form: Fit) -> Array:
    """Return the error of each row by a regression that saw no row of its size; none where there is one size."""
    if points.sizes < 2:
        return np.empty(0)
    folds = min(points.sizes, _FOLDS_OF_TREES if form is _trees else _MOST_FOLDS)
    fold = (np.random.default_rng(0).permutation(points.sizes) % folds)[points.size]
    return np.concatenate([_errors(points, form, fold == number) for number in range(folds)])


def _ends_held_out(points: _Points, form: Fit) -> Array:
    """Return the errors of the largest sizes by a regression to the others, and of the smallest likewise."""
    held = max(1, round(_END * points.sizes))
    if points.sizes < 2:
        return np.empty(0)
    _, first = np.unique(points.size, return_index=True)
    order = np.argsort(points.known.roofline[first])
    return np.concatenate([_errors(points, form, np.isin(points.size, ends)) for ends in (order[-held:], order[:held])])


def _errors(points: _Points, form: Fit, held: Mask) -> Array:
    regression = form(points.select(~held))
    predicted = regression.seconds(points.known, np.flatnonzero(held))
    error: Array = np.abs(predicted / points.seconds[held] - 1.0)
    return error


def _shipped(points: _Points) -> KindRegression:
    return _regression(points, "shipped", level=float(np.median(points.seconds / points.known.shipped)))


def _roofline(points: _Points) -> KindRegression:
    return _regression(points, "roofline", level=float(np.median(points.seconds / points.known.roofline)))


def _line(points: _Points) -> KindRegression:
    one = points.merged()
    if one.sizes > _MOST_POINTS:
        one = one.select(np.random.default_rng(0).permutation(len(one.seconds)) < _MOST_POINTS)
    return _regression(points, "line", coefficients=fit_line(one.known.drivers, one.seconds).coefficients)


def _trees(points: _Points) -> KindRegression:
    one = points.merged()
    grown = grow(one.known.features, np.log(one.seconds / one.known.roofline), _TREES)
    return _regression(points, "trees", trees=grown)


def _regression(
    points: _Points,
    form: Form,
    *,
    level: float = 0.0,
    coefficients: Sequence[float] = (),
    trees: BoostedTrees | None = None,
) -> KindRegression:
    sizes = points.known.roofline
    return KindRegression(
        gpu="",
        key=OperatorKind("", "", ""),
        form=form,
        level=level,
        coefficients=tuple(coefficients),
        least=min(LAUNCH_SECONDS, float(points.seconds.min())),
        smallest=float(sizes.min()),
        largest=float(sizes.max()),
        rows=len(points.seconds),
        sizes=points.sizes,
        trees=trees,
    )
