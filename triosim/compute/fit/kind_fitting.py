"""Fits laws to rows of measured operators: one for each name, and one for each class of names, by phase and dtype.

Of the forms that a law may have, the one is taken that predicts rows best that it did not see. What it states as its error is
what this cross-validation found, rows of one size always held out together, with what is stated of such operators without any
row as one row more: a law of one row is as unsure as the roofline, one of a hundred is as sure as it showed to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from triosim.compute.fit import operator_rows
from triosim.compute.fit.boosting import Settings, grow, regressor
from triosim.compute.fit.operator_rows import Described, Key, OperatorRows
from triosim.compute.learned.ensemble import Ensemble
from triosim.compute.learned.kind_laws import Form, KindLaw
from triosim.compute.models import calibrated
from triosim.compute.models.linear import fit_line
from triosim.compute.models.roofline import FLOOR_SECONDS

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Fit = Callable[["_Points"], KindLaw]

#: So many different sizes are worth trees.
ENOUGH_FOR_TREES = 40
_TREES = Settings(trees=80, leaves=12, rate=0.12, least=4, robust=False)
#: No law is surer than this: what the same call's time varies by from run to run.
LEAST_ERROR = 0.01
#: A line needs no more points, chosen at random.
_MOST_POINTS = 500
#: Each size is held out alone, up to so many.
_MOST_FOLDS, _FOLDS_OF_TREES = 20, 5
#: Of the sizes, how many at either end are held out to see how a law goes on.
_END = 0.2


def fit(rows: OperatorRows, progress: Callable[[str], None] = lambda text: None) -> list[KindLaw]:
    """Return a law for each name of the rows, and for each class of names, by phase and dtype."""
    described = operator_rows.describe(rows.operators, rows.gpu)
    described = calibrated.with_shipped(described, rows.operators, rows.measured.tolist(), rows.gpu)
    by_key: dict[Key, list[int]] = {}
    classes: dict[Key, Key] = {}
    for place in rows.measured.tolist():
        for key in described.keys[place]:
            by_key.setdefault(key, []).append(place)
            classes[key] = described.keys[place][1]
    laws: list[KindLaw] = []
    seconds = np.array([operator.seconds for operator in rows.operators])
    every = {tuple(places): _Points.of(described, seconds, np.array(places)) for places in by_key.values()}
    if any(points.sizes >= ENOUGH_FOR_TREES for points in every.values()):
        regressor()  # says what is missing before anything takes long
    fitted: dict[tuple[int, ...], KindLaw] = {}  # a class of one name is that name
    for key, places in by_key.items():
        law = fitted.get(tuple(places))
        if law is None:
            points = every[tuple(places)]
            law = fitted[tuple(places)] = _fit_one(points, operator_rows.stated_error(classes[key]))
        laws.append(replace(law, gpu=rows.gpu.name, key=key, files=rows.source))
        if not key.name.startswith("any "):
            progress(f"{laws[-1]}: {100 * law.error:.0f}% off, {100 * law.beyond:.0f}% beyond these sizes")
    return laws


@dataclass(frozen=True)
class _Points:
    """The rows of one kind; ``size`` numbers those that are alike."""

    described: Described
    seconds: Array
    size: npt.NDArray[np.int64]

    @classmethod
    def of(cls, described: Described, seconds: Array, places: npt.NDArray[np.int64]) -> _Points:
        part = described.select(places)
        _, size = np.unique(np.hstack([part.drivers, part.features]), axis=0, return_inverse=True)
        return cls(part, seconds[places], np.ravel(size))

    @property
    def sizes(self) -> int:
        return int(self.size.max()) + 1

    def select(self, rows: Mask) -> _Points:
        return _Points.of(self.described, self.seconds, np.flatnonzero(rows))

    def merged(self) -> _Points:
        """One row for each size, with the median of its times."""
        _, first = np.unique(self.size, return_index=True)
        order = np.argsort(self.size, kind="stable")
        parts = np.split(self.seconds[order], np.cumsum(np.bincount(self.size))[:-1])
        medians = np.array([np.median(part) for part in parts])
        one = self.select(np.isin(np.arange(len(self.size)), first))
        return replace(one, seconds=medians[self.size[np.sort(first)]])


def _fit_one(points: _Points, stated: float) -> KindLaw:
    """The form that errs less where it was not fitted, fitted to all, with the errors that it had."""
    forms: list[Fit] = [_roofline]
    if np.isfinite(points.described.shipped).all():
        forms = [_shipped, _roofline]
    if points.sizes > 1:
        forms.append(_line)
    if points.sizes >= ENOUGH_FOR_TREES:
        forms.append(_trees)
    held_out = [_held_out(points, form) for form in forms]
    best = int(np.argmin([float(errors.mean()) if len(errors) else np.inf for errors in held_out]))
    error = _with_prior(held_out[best], points.sizes, stated)
    ends = _with_prior(_ends_held_out(points, forms[best]), max(1, round(_END * points.sizes)), stated)
    return replace(forms[best](points), error=error, beyond=max(error, ends))


def _with_prior(errors: Array, sizes: int, stated: float) -> float:
    """The mean of errors, with the stated one as that of one size more."""
    if not len(errors):
        return stated
    return max((float(errors.mean()) * sizes + stated) / (sizes + 1), LEAST_ERROR)


def _held_out(points: _Points, form: Fit) -> Array:
    """Errors of each row by a law that saw no row of its size; none where there is one size."""
    if points.sizes < 2:
        return np.empty(0)
    folds = min(points.sizes, _FOLDS_OF_TREES if form is _trees else _MOST_FOLDS)
    fold = (np.random.default_rng(0).permutation(points.sizes) % folds)[points.size]
    return np.concatenate([_errors(points, form, fold == number) for number in range(folds)])


def _ends_held_out(points: _Points, form: Fit) -> Array:
    """Errors of the largest sizes by a law of the others, and of the smallest likewise."""
    held = max(1, round(_END * points.sizes))
    if points.sizes < 2:
        return np.empty(0)
    _, first = np.unique(points.size, return_index=True)
    order = np.argsort(points.described.roofline[first])
    return np.concatenate([_errors(points, form, np.isin(points.size, ends)) for ends in (order[-held:], order[:held])])


def _errors(points: _Points, form: Fit, held: Mask) -> Array:
    law = form(points.select(~held))
    predicted = law.seconds(points.described, np.flatnonzero(held))
    error: Array = np.abs(predicted / points.seconds[held] - 1.0)
    return error


def _shipped(points: _Points) -> KindLaw:
    return _law(points, "shipped", level=float(np.median(points.seconds / points.described.shipped)))


def _roofline(points: _Points) -> KindLaw:
    return _law(points, "roofline", level=float(np.median(points.seconds / points.described.roofline)))


def _line(points: _Points) -> KindLaw:
    one = points.merged()
    if one.sizes > _MOST_POINTS:
        one = one.select(np.random.default_rng(0).permutation(len(one.seconds)) < _MOST_POINTS)
    return _law(points, "line", coefficients=fit_line(one.described.drivers, one.seconds).coefficients)


def _trees(points: _Points) -> KindLaw:
    one = points.merged()
    grown = grow(one.described.features, np.log(one.seconds / one.described.roofline), _TREES)
    return _law(points, "trees", trees=grown)


def _law(
    points: _Points,
    form: Form,
    *,
    level: float = 0.0,
    coefficients: Sequence[float] = (),
    trees: Ensemble | None = None,
) -> KindLaw:
    sizes = points.described.roofline
    return KindLaw(
        gpu="",
        key=Key("", "", ""),
        form=form,
        level=level,
        coefficients=tuple(coefficients),
        least=min(FLOOR_SECONDS, float(points.seconds.min())),
        smallest=float(sizes.min()),
        largest=float(sizes.max()),
        rows=len(points.seconds),
        sizes=points.sizes,
        trees=trees,
    )
