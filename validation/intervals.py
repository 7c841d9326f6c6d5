"""The coverage of stated 90% intervals: how often the measured time of operators and of whole steps lies within them.

Nothing that is judged was fitted: rows are held out at random, by layers (all rows of some pairs of n and k) and by GPUs. A
step is a handful of held-out layers, each repeated some times, measured in one size and predicted in another, as a trace of
another batch size or a tensor-parallel share would be. The errors that are stated for a GPU left out are those of
models that have not seen it either. ``python -m validation.intervals`` prints each GPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from triosim.compute.compute_model import CLASS_EDGES, ComputeModel
from triosim.compute.fit import family_fitting as calibration
from triosim.compute.fit.family_tables import FamilyTable
from triosim.compute.learned import model_files
from triosim.compute.learned.family_model import FamilyModel
from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.models.linear import Linear
from triosim.compute.models.roofline import Roofline
from triosim.compute.pricing.repricing import reprice
from triosim.gpus import Gpu
from triosim.results.uncertainty import WIDTH
from triosim.trace import Operator, Tensor, Trace
from validation.compute import read
from validation.report import Row

#: Three minutes: ``python -m validation`` runs this only where it is asked for.
TAKES_LONG = True

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Of nine in ten, what counts as right.
LEAST, MOST = 0.80, 0.97
#: What triosim claims: the mean over GPUs of the share that is outside of its interval.
CLAIMED = {
    "row, held out at random": 0.20,
    "sum of 50 to 300 such rows": 0.20,
    "row, roofline without a fit": 0.20,
    "row, GPU left out of the fit": 0.20,
    "step in another size, auto": 0.20,
    "step in another size, linear": 0.45,
    "step in another size, roofline": 0.40,
}
#: Where it claims less: the models know that each size was measured, not that these were not measured together.
_CLAIMED_LESS = {("step in another size, auto", "attention, another heads"): 0.60}
_STEPS = 60
#: Of fewer rows, sums of up to 300 are much the same.
_ENOUGH = 600
_TABLES = {
    "gemm": ("gemm_bf16_h100",),
    "attention": ("attention_causal_bf16_h100", "attention_causal_bf16_h200"),
    "float32 products": ("linear_fp32_multi_gpu", "bmm_fp32_multi_gpu"),
    "softmax": ("softmax_fp32_multi_gpu",),
    "layer norm": ("ln_fp32_multi_gpu",),
    "element-wise": ("elem_fp32_multi_gpu",),
}
#: What makes a layer in each table, and what changes from one step to another.
_LAYERS = {"gemm": "nk", "attention": ("heads", "kv_heads", "head_dim"), "float32 products": "nk"}
_CHANGES = {"gemm": "mnk", "attention": ("batch", "sequence", "heads"), "float32 products": "bmnk"}


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of ``cases``, the share within the stated interval; ``error`` is the mean error, ``stated`` what was said of it."""

    what: str
    table: str
    gpu: str
    cases: int
    inside: float
    error: float
    stated: float

    @property
    def verdict(self) -> str:
        """Whether that is too few, too many or right."""
        return "too few" if self.inside < LEAST else "too many" if self.inside > MOST else ""


def rows() -> list[Row]:
    several: dict[tuple[str, str], list[Coverage]] = {}
    for one in coverages():
        several.setdefault((one.what, one.table), []).append(one)
    return [
        Row(
            f"{what}: outside of the 90% interval",
            f"{table}, mean of {len(members)} {'GPU' if len(members) == 1 else 'GPUs'}",
            sum(one.cases for one in members),
            float(np.mean([1.0 - one.inside for one in members])),
            _CLAIMED_LESS.get((what, table), CLAIMED[what]),
        )
        for (what, table), members in several.items()
    ]


def coverages() -> Iterator[Coverage]:
    """Judge everything: about two minutes."""
    for table, names in _TABLES.items():
        (one,) = read(*names)
        if table != "element-wise":
            yield from at_random(table, one)
        yield from by_roofline(table, one)
    for table in ("float32 products", "softmax", "layer norm"):
        (one,) = read(*_TABLES[table])
        yield from left_out(table, one)
    for table in _LAYERS:
        (one,) = read(*_TABLES[table])
        yield from steps(table, one)


def covered(what: str, table: str, gpu: Gpu, predicted: Array, measured: Array, stated: Array) -> Coverage:
    """Count the measured times within the intervals."""
    inside = np.abs(np.log(measured / predicted)) <= np.log1p(WIDTH * stated)
    error = float(np.abs(predicted / measured - 1.0).mean())
    return Coverage(what, table, gpu.name, len(measured), float(inside.mean()), error, float(stated.mean()))


def at_random(table: str, rows: FamilyTable) -> Iterator[Coverage]:
    """Rows of one fold of five, with the errors that ship."""
    shipped = _shipped(rows)
    predicted = calibration.at_random(rows, most=1 if len(rows) > 2000 else calibration.FOLDS)
    for gpu, mask in rows.by_gpu():
        seen = mask & np.isfinite(predicted)
        stated = shipped.relative_error(rows.shapes.select(seen), gpu, predicted[seen])
        measured = rows.seconds[seen]
        yield covered("row, held out at random", table, gpu, predicted[seen], measured, stated)
        if len(measured) >= _ENOUGH:
            yield sums(table, gpu, predicted[seen], measured, stated)


def sums(table: str, gpu: Gpu, predicted: Array, measured: Array, stated: Array) -> Coverage:
    """Sums of rows of all sizes, whose errors are taken as fully correlated."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(_STEPS):
        some = rng.permutation(len(measured))[: rng.integers(50, 301)]
        step = predicted[some].sum()
        found.append((step, measured[some].sum(), (predicted[some] * stated[some]).sum() / step))
    step, seconds, error = np.array(found).T
    return covered("sum of 50 to 300 such rows", table, gpu, step, seconds, error)


def by_roofline(table: str, rows: FamilyTable, most: int = 500) -> Iterator[Coverage]:
    """Rows predicted by the efficiencies that no trace was fitted to."""
    for gpu, mask in rows.by_gpu():
        some = rows.select(mask).select(_some(int(mask.sum()), most))
        found = Roofline().estimate(operators(some), gpu.name)
        yield covered("row, roofline without a fit", table, gpu, found.seconds, some.seconds, found.relative_error)


def left_out(table: str, rows: FamilyTable) -> Iterator[Coverage]:
    """Rows of a GPU by a model that was fitted to the others, with errors of those that were left out of fits without it."""
    present = list(rows.by_gpu())
    without = {number: calibration.fit(rows.select(~mask), known=False) for number, (_, mask) in enumerate(present)}
    predicted: dict[tuple[int, int], Array] = {}
    for one, (_, first) in enumerate(present):
        for other, (_, second) in list(enumerate(present))[one + 1 :]:
            model = calibration.fit(rows.select(~(first | second)), known=False)
            predicted[one, other] = calibration.predict(model, rows.select(second))
            predicted[other, one] = calibration.predict(model, rows.select(first))
    for one, (gpu, mask) in enumerate(present):
        found = calibration.predict(without[one], rows.select(mask))
        others = [number for number in range(len(present)) if number != one]
        seconds = np.concatenate([predicted[one, number] for number in others])
        off = np.abs(seconds / np.concatenate([rows.seconds[present[number][1]] for number in others]) - 1.0)
        model = replace(without[one], errors={"left out": {"all": _by_class(seconds, off)}})
        stated = model.relative_error(rows.shapes.select(mask), gpu, found)
        yield covered("row, GPU left out of the fit", table, gpu, found, rows.seconds[mask], stated)


def steps(table: str, rows: FamilyTable) -> Iterator[Coverage]:
    """Steps in another size by each model, of layers that no fit saw."""
    held = _held_layers(rows, tuple(_LAYERS[table]))
    shipped = _shipped(rows)
    refit = replace(calibration.fit(rows.select(~held), others=False), errors=shipped.errors, sizes=shipped.sizes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "held_out.npz"
        model_files.save([refit], path)
        with model_files.using(path):
            for column in _CHANGES[table]:
                for gpu, mask in rows.by_gpu():
                    yield from _steps_of(f"{table}, another {column}", rows.select(mask & held), gpu, column)


def _steps_of(table: str, rows: FamilyTable, gpu: Gpu, column: str) -> Iterator[Coverage]:
    models: tuple[tuple[str, Callable[[], ComputeModel]], ...] = (
        ("auto", partial(AutoComputeModel, sustained=False)),
        ("linear", Linear),
        ("roofline", Roofline),
    )
    drawn = list(_drawn(rows, column))
    if len(drawn) < _STEPS // 2:
        return
    for name, kind in models:
        found = []
        for before, after, measured in drawn:
            model = kind()
            model.fit(Trace(tuple(before), 1, gpu=gpu.name))
            priced = reprice(before, after, model, gpu.name)
            step = sum(one.seconds for one in priced)
            error = sum(one.seconds * (0.3 if one.relative_error is None else one.relative_error) for one in priced)
            found.append((step, measured, error / step))
        predicted, seconds, stated = np.array(found).T
        yield covered(f"step in another size, {name}", table, gpu, predicted, seconds, stated)


def _drawn(rows: FamilyTable, column: str) -> Iterator[tuple[list[Operator], list[Operator], float]]:
    """Yield steps of 4 to 10 layers, 2 to 12 times each, before and after a column changed by at most 16 times."""
    names = list(rows.shapes.columns)
    place = names.index(column)
    layers: dict[tuple[float, ...], dict[float, int]] = {}
    for number, sizes in enumerate(zip(*(rows.shapes[name].tolist() for name in names), strict=True)):
        layers.setdefault((*sizes[:place], *sizes[place + 1 :]), {})[sizes[place]] = number
    made, values = operators(rows), sorted({size for sizes in layers.values() for size in sizes})
    rng = np.random.default_rng(0)
    count = 0
    for _ in range(4000 if len(values) > 1 else 0):
        old, new = rng.choice(values, 2, replace=False)
        both = [sizes for sizes in layers.values() if old in sizes and new in sizes]
        if not 1.25 <= max(new / old, old / new) <= 16.0 or len(both) < 4 or count == _STEPS:
            continue
        count += 1
        chosen = [both[number] for number in rng.permutation(len(both))[: rng.integers(4, 11)]]
        times = int(rng.integers(2, 13))
        pairs = [(sizes[old], sizes[new]) for sizes in chosen for _ in range(times)]
        before = [replace(made[a], id=n, seconds=float(rows.seconds[a])) for n, (a, _) in enumerate(pairs, 1)]
        after = [replace(made[b], id=n, seconds=float(rows.seconds[a])) for n, (a, b) in enumerate(pairs, 1)]
        yield before, after, float(sum(rows.seconds[b] for _, b in pairs))


def operators(rows: FamilyTable) -> list[Operator]:
    """Return the operators that rows of a table are."""
    names = list(rows.shapes.columns)
    kinds = ["" for _ in range(len(rows))] if rows.shapes.kinds is None else rows.shapes.kinds.tolist()
    sizes = zip(*(rows.shapes[name].astype(int).tolist() for name in names), strict=True)
    return [_operator(rows, number, one, kind) for number, (one, kind) in enumerate(zip(sizes, kinds, strict=True), 1)]


def _operator(rows: FamilyTable, number: int, sizes: tuple[int, ...], kind: str) -> Operator:
    family, attributes = rows.shapes.family, {}
    if family == "product":
        b, m, n, k = sizes
        batch = () if b == 1 else (b,)
        name, shapes = ("mm" if b == 1 else "bmm"), [(*batch, m, k), (*batch, k, n), (*batch, m, n)]
    elif family == "attention":
        b, s, h, kv, d = sizes
        name, shapes = "scaled_dot_product_attention", [(b, h, s, d), (b, kv, s, d), (b, kv, s, d), (b, h, s, d)]
        attributes = {"is_causal": True}
    elif family == "elementwise":
        two = kind in ("add", "sub", "mul", "div", "pow")
        name, shapes = kind.removesuffix("u") if kind.rstrip("u") != "rel" else kind, [sizes] * (3 if two else 2)
    else:
        name, shapes = family, [sizes, sizes] if family == "softmax" else [sizes, sizes[1:], sizes]
    tensors = [Tensor(10 * number + place, shape, rows.shapes.dtype) for place, shape in enumerate(shapes)]
    return Operator(
        number, f"aten::{name}", "forward", "", tuple(tensors[:-1]), tuple(tensors[-1:]), 0.0, attributes=attributes
    )


def _shipped(rows: FamilyTable) -> FamilyModel:
    found = model_files.find(rows.shapes.family, rows.shapes.dtype, "")
    assert found is not None
    return found


def _held_layers(rows: FamilyTable, columns: tuple[str, ...], share: float = 0.2) -> Mask:
    keys = list(zip(*(rows.shapes[name].tolist() for name in columns), strict=True))
    layers = sorted(set(keys))
    chosen = np.random.default_rng(1).permutation(len(layers))[: int(share * len(layers))]
    held = {layers[number] for number in chosen}
    return np.array([key in held for key in keys])


def _some(count: int, most: int) -> Mask:
    some: Mask = np.random.default_rng(0).permutation(count) < most
    return some


def _by_class(seconds: Array, off: Array) -> dict[str, float]:
    which = np.searchsorted(CLASS_EDGES, seconds, side="right")
    names = ("<20us", "20-200us", ">200us")
    found = {
        name: float(off[which == number].mean()) for number, name in enumerate(names) if (which == number).sum() >= 20
    }
    return {"all": float(off.mean()), **found}


def main() -> None:
    print("| what | table | GPU | cases | within | mean error | stated | |\n|---|---|---|--:|--:|--:|--:|---|")
    for one in coverages():
        shares = f"{100 * one.inside:.0f} % | {100 * one.error:.1f} % | {100 * one.stated:.1f} %"
        print(f"| {one.what} | {one.table} | {one.gpu} | {one.cases} | {shares} | {one.verdict} |", flush=True)


if __name__ == "__main__":
    main()
