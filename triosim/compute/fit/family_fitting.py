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
from triosim.compute.compute_model import CLASS_EDGES, Array, Mask
from triosim.compute.families import COLUMNS, Family, FamilyCalls
from triosim.compute.fit.boosting import TreeSettings, grow
from triosim.compute.fit.family_tables import FamilyTable
from triosim.compute.learned.boosted_trees import BoostedTrees
from triosim.compute.learned.call_features import call_features, specifications
from triosim.compute.learned.family_model import CLASSES, FamilyModel
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


def fit(rows: FamilyTable, *, known: bool = True, others: bool = True) -> FamilyModel:
    """Fit a model to rows: ``known``, the trees of the rows' GPUs; ``others``, those of any other GPU."""
    reached = {gpu.name: _rate(rows, gpu, mask) for gpu, mask in rows.by_gpu()}
    present = [gpu for gpu, _ in rows.by_gpu()]
    attainable = attainable_rate.fit(present, [reached[gpu.name] for gpu in present], rows.shapes.dtype)
    own: dict[str, BoostedTrees] = {}
    features, told, target, group = [], [], [], []
    for number, (gpu, mask) in enumerate(rows.by_gpu()):
        calls = call_features(rows.shapes.select(mask), gpu, reached[gpu.name])
        wanted = np.log(rows.seconds[mask] / calls.roofline)
        if known and rows.shapes.family == "product" and int(mask.sum()) >= ENOUGH_ALONE:
            own[gpu.name] = grow(calls.features, wanted, _ALONE)
        features.append(calls.features)
        told.append(np.tile(specifications(gpu, reached[gpu.name]), (len(wanted), 1)))
        target.append(wanted)
        group.append(np.full(len(wanted), number))
    stacked, wanted = np.concatenate(features), np.concatenate(target)
    few = len(wanted) < _FEW_ROWS
    pooled = None
    if known and len(own) < len(present):
        both = np.hstack([stacked, np.concatenate(told)])
        settings = _FEW if few else _ATTENTION if rows.shapes.family == "attention" else _POOLED
        pooled = grow(both, wanted, settings, np.concatenate(group))
    other = grow(stacked, wanted, _FEW_OTHER if few else _OTHER, np.concatenate(group)) if others else None
    sizes = {name: np.unique(rows.shapes[name]).tolist() for name in COLUMNS[rows.shapes.family]}
    return FamilyModel(rows.shapes.family, rows.shapes.dtype, reached, attainable, own, pooled, other, sizes)


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
    """Return the model's seconds for each row."""
    found = np.empty(len(rows))
    for gpu, mask in rows.by_gpu():
        found[mask] = model.seconds(rows.shapes.select(mask), gpu)
    return found


def at_random(rows: FamilyTable, most: int = FOLDS, *, by_shape: bool = False) -> Array:
    """Return predictions of each row by a model that was fitted without it and its fold; NaN beyond ``most`` folds.

    With ``by_shape``, the rows of one shape on all GPUs are in one fold.
    """
    which = np.arange(len(rows))
    if by_shape:
        columns = np.stack([rows.shapes[name] for name in COLUMNS[rows.shapes.family]], axis=1)
        which = np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)
    fold = (np.random.default_rng(0).permutation(which.max() + 1) % FOLDS)[which]
    return _held_out(rows, [fold == number for number in range(most)])


def by_slices(rows: FamilyTable, column: str) -> Array:
    """Return predictions of the rows of a fifth of a column's values by a model that saw none of these values; NaN elsewhere.

    The smallest and the largest value stay: errors beyond all measurements are another question.
    """
    values = np.unique(rows.shapes[column])
    inner = np.random.default_rng(0).permutation(values[1:-1])
    return _held_out(rows, [np.isin(rows.shapes[column], inner[: max(1, round(0.2 * len(values)))])])


def by_gpus(rows: FamilyTable) -> Array:
    """Return predictions of each GPU's rows by a model that was fitted to others: to its relative alone, if it has one."""
    found = np.full(len(rows), np.nan)
    parts = list(rows.by_gpu())
    for gpu, mask in parts if len(parts) > 1 else []:
        rest = rows.select(~mask)
        relative = relative_of(gpu, rest)
        model = fit(rest, known=False) if relative is None else fit(rest.on([relative]), others=False)
        found[mask] = predict(model, rows.select(mask))
    return found


def relative_of(gpu: Gpu, rows: FamilyTable) -> str | None:
    """Return the name of the GPU, among those of some rows, that a model of these would predict another one as; or None."""
    empty = FamilyModel(
        rows.shapes.family, rows.shapes.dtype, dict.fromkeys(rows.gpus(), 1.0), attainable_rate.DEFAULT, {}, None, None
    )
    return empty.measured_gpu(gpu) or empty.relative(gpu, empty.dtype)


def _held_out(rows: FamilyTable, masks: Sequence[Mask]) -> Array:
    found = np.full(len(rows), np.nan)
    for mask in masks:
        if mask.any() and not mask.all():
            found[mask] = predict(fit(rows.select(~mask), others=False), rows.select(mask))
    return found


def columns_with_slices(rows: FamilyTable) -> list[str]:
    """Return the columns with enough values to hold some out."""
    return [name for name in COLUMNS[rows.shapes.family] if len(np.unique(rows.shapes[name])) >= 8]


def calibrate(
    rows: FamilyTable, progress: Callable[[str], None] = lambda text: None, *, source: str = ""
) -> FamilyModel:
    """Fit to all rows, with errors from cross-validation."""
    name = f"{rows.shapes.family} in {rows.shapes.dtype}"
    progress(f"{name}: {len(rows)} rows, cross-validating")
    random = at_random(rows, most=FOLDS if len(rows) < _LARGE else 1)
    slices = [by_slices(rows, column) for column in columns_with_slices(rows)]
    left_out = by_gpus(rows)
    progress(f"{name}: fitting to all rows")
    model = fit(rows)
    errors = {
        "random": {gpu.name: _errors(rows, random, mask) for gpu, mask in rows.by_gpu()},
        "slices": {gpu.name: _pooled_errors(rows, slices, mask) for gpu, mask in rows.by_gpu()},
    }
    related = np.zeros(len(rows), dtype=bool)
    for gpu, mask in rows.by_gpu():
        related |= mask & (relative_of(gpu, rows.select(~mask)) is not None)
    errors |= {
        name: {"all": found}
        for name, mask in (("relatives", related), ("left out", ~related))
        if (found := _errors(rows, left_out, mask))
    }
    used: dict[str, Any] = {
        "files": rows.source.split(", "),
        "rows": {gpu.name: int(mask.sum()) for gpu, mask in rows.by_gpu()},
        "fit": "boosted trees on log(seconds / roofline)",
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
