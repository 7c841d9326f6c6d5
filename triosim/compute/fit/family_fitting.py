"""Fits the learned models of operator families to tables of measured operators, and finds their errors by cross-validation.

Errors are those of rows that the fit did not see: rows held out at random (five folds), whole values of one size held out
(a fifth of the values of m, of n, of k ..., none of the ends), and whole GPUs. Fitting needs scikit-learn; predicting does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from triosim.compute import attainable_rate
from triosim.compute.attainable_rate import AttainableRate
from triosim.compute.compute_model import CLASS_EDGES, Array, Mask, Rows
from triosim.compute.families import COLUMNS, Family, FamilyCalls
from triosim.compute.fit import loop_cost, process_fitting
from triosim.compute.fit.boosting import TreeSettings, grow
from triosim.compute.fit.family_tables import FamilyTable
from triosim.compute.learned import convolution_features
from triosim.compute.learned.boosted_trees import BoostedTrees
from triosim.compute.learned.call_features import call_features, specifications
from triosim.compute.learned.family_model import CLASSES, FamilyModel
from triosim.compute.learned.gaussian_process import Points
from triosim.gpus import Gpu

FOLDS = 5
#: The rows of products from which a GPU gets trees of its own; trees of several GPUs also read the GPU's specifications.
ENOUGH_ALONE = 9000
_ALONE = TreeSettings(trees=250, leaves=63, rate=0.12, least=8)
_POOLED = TreeSettings(trees=300, leaves=31, rate=0.1, least=5)
_ATTENTION = TreeSettings(trees=1600, leaves=63, rate=0.08, least=4, robust=False)
_OTHER = TreeSettings(trees=150, leaves=15, rate=0.1, least=20, robust=False)
_FEW = TreeSettings(trees=120, leaves=8, rate=0.08, least=3, robust=False, features=1.0)
_FEW_OTHER = TreeSettings(trees=40, leaves=4, rate=0.1, least=25, features=1.0)
_FEW_ROWS = 2000
#: The rows from which one fold is enough to find the errors.
_LARGE = 20000
_OF_FAMILY = {"attention": _ATTENTION}
#: The rows of a GPU that a Gaussian process is fitted to, and those in other dtypes: its time grows with their cube.
_MOST_POINTS, _MOST_BESIDE = 800, 500
#: The folds that show a process's errors.
_FOLDS_OF_PROCESS = 2


def joined(tables: Sequence[FamilyTable]) -> list[FamilyTable]:
    """Return one table for each family and dtype, with the rows of all tables of it; the tables name their GPUs."""
    found: dict[tuple[Family, str], list[FamilyTable]] = {}
    for table in tables:
        found.setdefault((table.shapes.family, table.shapes.dtype), []).append(table)
    result = []
    for (family, dtype), parts in found.items():
        columns = {name: np.concatenate([part.shapes[name] for part in parts]) for name in COLUMNS[family]}
        kinds = [part.shapes.kinds for part in parts if part.shapes.kinds is not None]
        shapes = FamilyCalls(family, dtype, columns, np.concatenate(kinds) if kinds else None)
        devices = np.concatenate([part.devices for part in parts if part.devices is not None])
        files = ", ".join(Path(name).name for part in parts for name in part.source.split(", "))
        result.append(FamilyTable(shapes, np.concatenate([part.seconds for part in parts]), devices, files))
    return result


def fit(
    rows: FamilyTable, *, known: bool = True, others: bool = True, beside: Sequence[FamilyTable] = ()
) -> FamilyModel:
    """Fit a model to rows: ``known``, the trees of the rows' GPUs; ``others``, those of any other GPU.

    Of convolutions, rows of other dtypes that stand ``beside`` them are learned from, too.
    """
    family = rows.shapes.family
    attainable, reached = _rates(rows)
    sizes = {name: np.unique(rows.shapes[name]).tolist() for name in COLUMNS[family]}
    model = FamilyModel(family, rows.shapes.dtype, reached, attainable, {}, None, None, sizes)
    if family == "convolution":
        return _interpolated(model, rows, beside)
    own: dict[str, BoostedTrees] = {}
    features, told, target, group = [], [], [], []
    for number, (gpu, mask) in enumerate(rows.by_gpu()):
        calls = call_features(rows.shapes.select(mask), gpu, reached[gpu.name])
        wanted = np.log(rows.seconds[mask] / calls.roofline)
        if known and family == "product" and int(mask.sum()) >= ENOUGH_ALONE:
            own[gpu.name] = grow(calls.features, wanted, _ALONE)
        features.append(calls.features)
        told.append(np.tile(specifications(gpu, reached[gpu.name]), (len(wanted), 1)))
        target.append(wanted)
        group.append(np.full(len(wanted), number))
    stacked, wanted, groups = np.concatenate(features), np.concatenate(target), np.concatenate(group)
    few = len(wanted) < _FEW_ROWS
    pooled = None
    if known and len(own) < len(reached):
        both = np.hstack([stacked, np.concatenate(told)])
        pooled = grow(both, wanted, _FEW if few else _OF_FAMILY.get(family, _POOLED), groups)
    other = grow(stacked, wanted, _FEW_OTHER if few else _OTHER, groups) if others else None
    return replace(model, own=own, pooled=pooled, other=other)


def _interpolated(model: FamilyModel, rows: FamilyTable, beside: Sequence[FamilyTable]) -> FamilyModel:
    """Return the model with a Gaussian process over some rows of each GPU, and over those beside them that have their sizes.

    Others tell little of a dtype: with NeuSight's 13,000 in float32, half precision of shapes held out was 2% further off.
    """
    points: list[Points] = []
    target = []
    rows, costs = without_loop_costs(rows)
    for table in (rows, *(one.select(_has_sizes(one, rows)) for one in beside)):
        for gpu, mask in table.by_gpu():
            some = table.select(_spread(table, mask, _MOST_POINTS if table is rows else _MOST_BESIDE, len(points)))
            found, roofline = convolution_features.convolution_points(some.shapes, gpu)
            points.append(found)
            target.append(np.log(some.seconds / roofline))
    features, labels = (np.concatenate([getattr(one, name) for one in points]) for name in ("features", "labels"))
    process = process_fitting.fit(Points(features, labels), np.concatenate(target))
    return replace(model, process=process, samples=len(points), loop_costs=costs)


def without_loop_costs(rows: FamilyTable) -> tuple[FamilyTable, dict[str, float]]:
    """Return convolutions without what their loops added, and the usual cost on each GPU that has one.

    Only tables of odd channels have a loop that grows.
    """
    seconds, costs = rows.seconds.copy(), {}
    odd = ~convolution_features.aligned(rows.shapes)
    for gpu, mask in rows.by_gpu():
        some = np.flatnonzero(mask & odd)
        _, least = convolution_features.convolution_points(rows.shapes.select(some), gpu)
        added = loop_cost.added_by_loop(rows.seconds[some], least)
        if added.any():
            costs[gpu.name] = loop_cost.usual(added, rows.seconds[some])
            seconds[some] = np.maximum(rows.seconds[some] - added, np.minimum(least, rows.seconds[some]))
    return replace(rows, seconds=seconds), costs


def _spread(rows: FamilyTable, mask: Mask, most: int, seed: int) -> Rows:
    """Return which of a GPU's rows to take: at most so many, of common kernels and strides a smaller part.

    With a ``seed`` for each GPU, few shapes are those of others: with the same on all, that these err alike would be taken for
    what neighbouring shapes have in common.
    """
    found = np.flatnonzero(mask)
    if len(found) <= most:
        return found
    shapes = rows.shapes.select(mask)
    alike = np.stack([shapes[name] for name in ("kernel_height", "kernel_width", "stride")], axis=1)
    which = np.unique(alike, axis=0, return_inverse=True)[1].reshape(-1)
    share = 1.0 / np.sqrt(np.bincount(which)[which])
    return np.random.default_rng(seed).choice(found, most, replace=False, p=share / share.sum())


def _on_own_units(rows: FamilyTable, gpu: Gpu) -> bool:
    """Whether a GPU computes in the rows' dtype, and not in another one instead: what it shows then holds for others."""
    dtype = rows.shapes.dtype
    return rows.shapes.family != "convolution" or convolution_features.arithmetic_dtype(dtype, gpu) == dtype


def _rates(rows: FamilyTable) -> tuple[AttainableRate, dict[str, float]]:
    """Return the law of the rate that large calls reach, and the rate on each GPU of the rows.

    Convolutions take a part of the peak: how far they are below it depends on the algorithm more than on the GPU.
    """
    if rows.shapes.family == "convolution":
        rates = {gpu.name: convolution_features.rate(gpu, rows.shapes.dtype) for gpu, _ in rows.by_gpu()}
        return attainable_rate.DEFAULT, rates
    reached = {gpu.name: _rate(rows, gpu, mask) for gpu, mask in rows.by_gpu()}
    present = [gpu for gpu, _ in rows.by_gpu()]
    return attainable_rate.fit(present, [reached[gpu.name] for gpu in present], rows.shapes.dtype), reached


def _rate(rows: FamilyTable, gpu: Gpu, mask: Mask) -> float:
    """Return the FLOP/s that large calls reach."""
    shapes, seconds = rows.shapes.select(mask), rows.seconds[mask]
    if shapes.family == "product":
        flops = 2.0 * shapes["b"] * shapes["m"] * shapes["n"] * shapes["k"]
    elif shapes.family == "attention":
        flops = 2.0 * shapes["batch"] * shapes["heads"] * shapes["sequence"] ** 2 * shapes["head_dim"]
    else:
        return gpu.rate(shapes.dtype)
    large = flops >= np.quantile(flops, 0.5)
    return float(np.quantile(flops[large] / seconds[large], 0.75))


def predict(model: FamilyModel, rows: FamilyTable) -> Array:
    """Return the model's seconds for each row, in the loop of its table."""
    found = np.empty(len(rows))
    for gpu, mask in rows.by_gpu():
        calls = rows.shapes.select(mask)
        found[mask] = model.seconds(calls, gpu) + model.loop_cost(calls, gpu)
    return found


def at_random(
    rows: FamilyTable, most: int = FOLDS, *, by_shape: bool = False, beside: Sequence[FamilyTable] = ()
) -> Array:
    """Return predictions of each row by a model that was fitted without it and its fold; NaN beyond ``most`` folds.

    With ``by_shape``, the rows of one shape on all GPUs are in one fold.
    """
    which = np.arange(len(rows))
    if by_shape:
        which = np.unique(_sizes(rows), axis=0, return_inverse=True)[1].reshape(-1)
    fold = (np.random.default_rng(0).permutation(which.max() + 1) % FOLDS)[which]
    return _held_out(rows, [fold == number for number in range(most)], beside)


def by_slices(rows: FamilyTable, column: str) -> Array:
    """Return predictions of the rows of a fifth of a column's values by a model that saw none of these values; NaN elsewhere.

    The smallest and the largest value stay: errors beyond all measurements are another question.
    """
    values = np.unique(rows.shapes[column])
    inner = np.random.default_rng(0).permutation(values[1:-1])
    return _held_out(rows, [np.isin(rows.shapes[column], inner[: max(1, round(0.2 * len(values)))])])


def by_gpus(rows: FamilyTable, beside: Sequence[FamilyTable] = ()) -> Array:
    """Return predictions of each GPU's rows by a model that was fitted to others: to its relative alone, if it has one."""
    found = np.full(len(rows), np.nan)
    parts = list(rows.by_gpu())
    for gpu, mask in parts if len(parts) > 1 else []:
        rest = rows.select(~mask)
        relative = relative_of(gpu, rest)
        if relative is None:
            more = [table.select(table.devices != gpu.name) for table in beside if table.devices is not None]
            model = fit(rest, known=False, beside=more)
        else:
            model = fit(rest.on([relative]), others=False)
        found[mask] = predict(model, rows.select(mask))
    return found


def relative_of(gpu: Gpu, rows: FamilyTable) -> str | None:
    """Return the name of the GPU, among those of some rows, that a model of these would predict another one as; or None."""
    empty = FamilyModel(
        rows.shapes.family, rows.shapes.dtype, dict.fromkeys(rows.gpus(), 1.0), attainable_rate.DEFAULT, {}, None, None
    )
    return empty.measured_gpu(gpu) or empty.relative(gpu, empty.dtype)


def _held_out(rows: FamilyTable, masks: Sequence[Mask], beside: Sequence[FamilyTable] = ()) -> Array:
    """Return predictions of the rows of each mask without them, and without the same sizes in other dtypes."""
    found = np.full(len(rows), np.nan)
    for mask in masks:
        if mask.any() and not mask.all():
            unseen = [table.select(~_has_sizes(table, rows.select(mask))) for table in beside]
            found[mask] = predict(fit(rows.select(~mask), others=False, beside=unseen), rows.select(mask))
    return found


def _has_sizes(rows: FamilyTable, of: FamilyTable) -> Mask:
    """Return which rows have the sizes of a row of another table."""
    sizes = np.concatenate([_sizes(rows), _sizes(of)])
    which = np.unique(sizes, axis=0, return_inverse=True)[1].reshape(-1)
    return np.isin(which[: len(rows)], which[len(rows) :])


def _sizes(rows: FamilyTable) -> Array:
    return np.stack([rows.shapes[name] for name in COLUMNS[rows.shapes.family]], axis=1)


def columns_with_slices(rows: FamilyTable) -> list[str]:
    """Return the columns with enough values to hold some out, without those that follow from others."""
    return [name for name in COLUMNS[rows.shapes.family] if len(np.unique(rows.shapes[name])) >= 8]


def calibrate(
    rows: FamilyTable,
    progress: Callable[[str], None] = lambda text: None,
    *,
    source: str = "",
    beside: Sequence[FamilyTable] = (),
) -> FamilyModel:
    """Fit to all rows, and to rows of other dtypes ``beside`` them, with errors from cross-validation."""
    name = f"{rows.shapes.family} in {rows.shapes.dtype}"
    progress(f"{name}: {len(rows)} rows, cross-validating")
    by_shape = rows.shapes.family == "convolution"  # their tables have the same shapes on all GPUs
    folds = _FOLDS_OF_PROCESS if by_shape else FOLDS if len(rows) < _LARGE else 1
    random = at_random(rows, most=folds, by_shape=by_shape, beside=beside)
    slices = [random] if by_shape else [by_slices(rows, column) for column in columns_with_slices(rows)]
    left_out = by_gpus(rows, beside)
    progress(f"{name}: fitting to all rows")
    model = fit(rows, beside=beside)
    own_units = np.zeros(len(rows), dtype=bool)
    for gpu, mask in rows.by_gpu():
        own_units |= mask & _on_own_units(rows, gpu)
    errors = {
        "random": {gpu.name: _errors(rows, random, mask) for gpu, mask in rows.by_gpu()},
        "slices": {gpu.name: _pooled_errors(rows, slices, mask) for gpu, mask in rows.by_gpu()},
    }
    related = np.zeros(len(rows), dtype=bool)
    for gpu, mask in rows.by_gpu():
        related |= mask & (relative_of(gpu, rows.select(~mask)) is not None)
    errors |= {
        name: {"all": found}
        for name, mask in (("relatives", related), ("left out", ~related & own_units))
        if (found := _errors(rows, left_out, mask))
    }
    used: dict[str, Any] = {
        "files": rows.source.split(", "),
        "rows": {gpu.name: int(mask.sum()) for gpu, mask in rows.by_gpu()},
        "fit": f"{'boosted trees' if model.process is None else 'a Gaussian process'} on log(seconds / roofline)",
        "folds": FOLDS,
        "source": source,
    }
    return replace(model, errors=errors, provenance=used)


def _errors(rows: FamilyTable, predicted: Array, mask: Mask) -> dict[str, float]:
    """Return mean relative errors, all together and by size class as predicted."""
    seen = mask & np.isfinite(predicted)
    if not seen.any():
        return {}
    error = np.abs(predicted[seen] / rows.seconds[seen] - 1.0)
    which = np.searchsorted(CLASS_EDGES, predicted[seen], side="right")
    found = {"all": round(float(error.mean()), 4)}
    for number, name in enumerate(CLASSES):
        if (which == number).sum() >= 20:
            found[name] = round(float(error[which == number].mean()), 4)
    return found


def _pooled_errors(rows: FamilyTable, several: Sequence[Array], mask: Mask) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for predicted in several:
        for name, value in _errors(rows, predicted, mask).items():
            found.setdefault(name, []).append(value)
    return {name: round(float(np.mean(values)), 4) for name, values in found.items()}
