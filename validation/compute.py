"""Operator times on rows that the fit did not see: held out at random, by shape on all GPUs, by slices of a size, and by GPUs.

``python -m validation.compute [TABLE ...]`` fits models to the other rows, by what ``triosim calibrate compute`` runs; the
figures of products and convolutions in ``python -m validation`` are those that it stored with the models that ship (``stored``
prints those of products), since these fits take half an hour. Several tables have the same shapes on several GPUs: held out
at random, a shape is mostly known from another GPU; held out by shape, from none. A GPU that is left out is predicted as its
nearest relative, where it has one (``triosim.compute.learned.kinship``). The detailed tables are by GPU and size class; the
noise floor is how far rows are apart that should take the same time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triosim.compute.fit import calibration_run, measured_files
from triosim.compute.fit import family_fitting as calibration
from triosim.compute.fit.evaluation import Statistics, by_class, statistics
from triosim.compute.fit.family_tables import FamilyTable
from triosim.compute.learned import model_files
from triosim.compute.learned.family_model import CLASSES
from triosim.compute.models import elementwise
from triosim.compute.models.elementwise import memory_seconds
from validation.report import Row, data

#: Some minutes: ``python -m validation`` runs this only where it is asked for.
TAKES_LONG = True

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_FP8_GPUS = ("b200", "gb200", "h100", "h200", "l40s")
#: The tables of products: their format, its name in files, and their GPUs.
PRODUCTS = {
    "gemm": ("bfloat16", "bf16", ("a100", *_FP8_GPUS)),
    "gemm fp8": ("float8_e4m3fn", "fp8", _FP8_GPUS),
    "gemm fp8 blocks": ("float8_e4m3fn_block", "fp8_block", _FP8_GPUS),
    "gemm nvfp4": ("float4_e2m1fn_x2", "nvfp4", ("b200", "gb200")),
}
#: The tables of convolutions, and their dtypes.
CONVOLUTIONS = {"convolution": "float32", "convolution float16": "float16"}
#: What triosim claims of the mean error: on rows held out at random, on any one GPU, and over GPUs that are left out.
CLAIMED = {"gemm": 0.05, "gemm fp8": 0.05, "gemm fp8 blocks": 0.08, "gemm nvfp4": 0.05}
CLAIMED |= {"attention": 0.035, "linear": 0.085, "bmm": 0.19, "convolution": 0.25, "convolution float16": 0.24}
#: Noisier tables: an L40S at its power limit, a B200 whose fp8 rows take one of two times without an order, and a CPU.
CLAIMED_ON = {("gemm", "L40S"): 0.07, ("gemm fp8", "B200"): 0.09, ("convolution", "Xeon-Phi-7250"): 0.27}
CLAIMED_LEFT_OUT = {"elementwise": 0.10, "layer_norm": 0.12, "softmax": 0.15, "linear": 0.25, "bmm": 0.25}
CLAIMED_LEFT_OUT |= {"convolution": 0.25, "convolution float16": 0.35}
#: The same of GPUs that are predicted as their relatives; most of a call in blocks is the host's time, which is the machine's.
CLAIMED_OF_RELATIVES = {"gemm": 0.12, "gemm fp8": 0.12, "gemm fp8 blocks": 0.35, "gemm nvfp4": 0.12}


@dataclass(frozen=True, slots=True)
class Figure:
    """Errors of one table on one GPU, under one way of holding rows out."""

    table: str
    gpu: str
    held_out: str
    total: Statistics
    classes: dict[str, Statistics]


def rows() -> list[Row]:
    found = [row for table, (dtype, _, _) in PRODUCTS.items() for row in _stored(table, "product", dtype)]
    found += [row for table, dtype in CONVOLUTIONS.items() for row in _stored(table, "convolution", dtype)]
    for figure in figures([name for name in TABLES if name not in (*PRODUCTS, *CONVOLUTIONS)]):
        error, count = figure.total.mape_percent / 100, figure.total.rows
        name = f"{figure.table} on {figure.gpu}: mean error"
        if figure.held_out == "random" and figure.table in CLAIMED:
            claimed = CLAIMED_ON.get((figure.table, figure.gpu), CLAIMED[figure.table])
            found.append(Row(name, "rows held out at random", count, error, claimed))
        elif figure.held_out == "GPU" and figure.gpu == "mean" and figure.table in CLAIMED_LEFT_OUT:
            claimed = CLAIMED_LEFT_OUT[figure.table]
            found.append(Row(f"{figure.table}: mean error", "GPUs left out of the fit", count, error, claimed))
    return found


def _stored(table: str, family: str, dtype: str) -> Iterator[Row]:
    """Yield what the fit of the shipped model found; of convolutions, rows are held out by shape."""
    (model,) = model_files.load(model_files.SHIPPED / model_files.file_name(family, dtype)).models
    held_out = "shapes held out on all GPUs" if table in CONVOLUTIONS else "rows held out at random"
    for gpu, count in model.provenance["rows"].items():
        claimed = CLAIMED_ON.get((table, gpu), CLAIMED[table])
        error = model.errors["random"][gpu]["all"]
        yield Row(f"{table} on {gpu}: mean error", held_out, count, error, claimed)
    for test, what, most in (
        ("relatives", "GPUs predicted as their relatives", CLAIMED_OF_RELATIVES),
        ("left out", "GPUs left out of the fit", CLAIMED_LEFT_OUT),
    ):
        if table in most:
            yield Row(f"{table}: mean error", what, 0, model.errors[test]["all"]["all"], most[table])


def figures(tables: Collection[str] = ()) -> Iterator[Figure]:
    """Fit and judge some tables, or all."""
    for name, judged in TABLES.items():
        if not tables or name in tables:
            yield from judged(name)


def _products(table: str) -> Iterator[Figure]:
    _, word, gpus = PRODUCTS[table]
    (one,) = read(*(f"gemm_{word}_{gpu}" for gpu in gpus))
    yield from _judged(table, one, calibration.at_random(one, most=1), "random")
    for column in "mnk":
        yield from _judged(table, one, calibration.by_slices(one, column), f"values of {column}")
    yield from _judged(table, one, calibration.by_gpus(one), "GPU")


def _attention(table: str) -> Iterator[Figure]:
    (one,) = read(*(f"attention_causal_bf16_{gpu}" for gpu in ("a100", "b200", "gb200", "h100", "h200", "l40s")))
    yield from _judged(table, one, calibration.at_random(one, most=1), "random")
    yield from _judged(table, one, calibration.at_random(one, 1, by_shape=True), "shape")
    for column in calibration.columns_with_slices(one):
        yield from _judged(table, one, calibration.by_slices(one, column), f"values of {column}")
    yield from _judged(table, one, calibration.by_gpus(one), "GPU")


def _single(table: str) -> Iterator[Figure]:
    (both,) = read("linear_fp32_multi_gpu", "bmm_fp32_multi_gpu")
    tests = [(calibration.at_random(both, most=2), "random"), (calibration.by_gpus(both), "GPU")]
    tests.append((calibration.at_random(both, 2, by_shape=True), "shape"))
    tests += [(calibration.by_slices(both, column), f"values of {column}") for column in "mnk"]
    for predicted, how in tests:
        for name, mask in (("linear", both.shapes["b"] == 1), ("bmm", both.shapes["b"] > 1)):
            yield from _judged(name, both.select(mask), predicted[mask], how)


def _reduction(table: str) -> Iterator[Figure]:
    (one,) = read(f"{'ln' if table == 'layer_norm' else table}_fp32_multi_gpu")
    yield from _judged(table, one, calibration.at_random(one), "random")
    yield from _judged(table, one, calibration.by_gpus(one), "GPU")


def _elementwise(table: str) -> Iterator[Figure]:
    (one,) = read("elem_fp32_multi_gpu")
    for how in ("random", "GPU"):
        yield from _judged(table, one, _segments(one, how), how)


def _convolutions(table: str) -> Iterator[Figure]:
    """Those in half precision learn from float32 too."""
    single, half = read("convolutions/neusight_fp32", "convolutions/deepbench")
    (one,) = (some for some in (single, half) if some.shapes.dtype == CONVOLUTIONS[table])
    beside = calibration_run.beside(one, [single, half])
    yield from _judged(table, one, calibration.at_random(one, 2, beside=beside), "random")
    yield from _judged(table, one, calibration.at_random(one, 2, by_shape=True, beside=beside), "shape")
    yield from _judged(table, one, calibration.by_gpus(one, beside), "GPU")


def _deepbench(table: str) -> Iterator[Figure]:
    """Another source than those of the fits, and with float16 on V100 and T4 GPUs without rows."""
    for one in measured_files.read([str(data("operators/gemm_deepbench.csv.gz"))], measured_files.ALL_GPUS).tables:
        dtype = "float32" if one.shapes.dtype == "float32" else "bfloat16"
        (model,) = model_files.load(model_files.SHIPPED / model_files.file_name("product", dtype)).models
        yield from _judged(f"{table} {one.shapes.dtype}", one, calibration.predict(model, one), "source")


#: How each table is judged.
TABLES: Mapping[str, Callable[[str], Iterator[Figure]]] = {
    **dict.fromkeys(PRODUCTS, _products),
    "attention": _attention,
    "linear": _single,
    "softmax": _reduction,
    "layer_norm": _reduction,
    "elementwise": _elementwise,
    **dict.fromkeys(CONVOLUTIONS, _convolutions),
    "deepbench": _deepbench,
}


def read(*names: str) -> list[FamilyTable]:
    """Return the rows of tables of measured operators, by family and dtype."""
    paths = [str(data(f"{name if '/' in name else f'operators/{name}'}.csv.gz")) for name in names]
    return calibration.joined(measured_files.read(paths, measured_files.ALL_GPUS).tables)


def _segments(rows: FamilyTable, how: str) -> Array:
    """Return predictions of the element-wise segments, each row's from a fit without it."""
    predicted = np.full(len(rows), np.nan)
    assert rows.shapes.kinds is not None
    kinds = rows.shapes.kinds
    memory = np.empty(len(rows))
    for gpu, mask in rows.by_gpu():
        memory[mask] = memory_seconds(rows.shapes.select(mask), gpu)
    fold = np.random.default_rng(0).permutation(len(rows)) % calibration.FOLDS
    whole = {gpu.name: elementwise.fit(memory[m], rows.seconds[m], kinds[m]) for gpu, m in rows.by_gpu()}
    for gpu, mask in rows.by_gpu():
        if how == "GPU":
            others = elementwise.of_others(whole, gpu)
            predicted[mask] = others.seconds(memory[mask], kinds[mask])
            continue
        for number in range(calibration.FOLDS):
            seen, held = mask & (fold != number), mask & (fold == number)
            one = elementwise.fit(memory[seen], rows.seconds[seen], kinds[seen])
            predicted[held] = one.seconds(memory[held], kinds[held])
    return predicted


def _judged(table: str, rows: FamilyTable, predicted: Array, how: str) -> Iterator[Figure]:
    """Yield a figure for each GPU, and one for the mean of all."""
    several = []
    for gpu, mask in rows.by_gpu():
        seen = mask & np.isfinite(predicted)
        if seen.any():
            total = statistics(predicted[seen], rows.seconds[seen])
            several.append(total)
            yield Figure(table, gpu.name, how, total, by_class(predicted[seen], rows.seconds[seen]))
    if len(several) > 2:  # the mean of the GPUs, each counting the same
        mean = [float(np.mean([getattr(one, name) for one in several])) for name in _NAMES]
        yield Figure(table, "mean", how, Statistics(*mean, sum(one.rows for one in several)), {})


_NAMES = ("mape_percent", "median_percent", "p95_percent", "within_10_percent")


def floors() -> list[tuple[str, str, int, float]]:
    """Return the noise of tables: what, which rows or pairs, how many, and the mean error that a perfect model would have.

    Two rows whose logarithms differ by d on average, beyond what their sizes explain (the median of all such pairs), have each
    an error of d / sqrt(2), if it is noise. Some pairs run different kernels, so this is an upper estimate of the noise.
    """
    found = []
    for gpu in ("a100", "h100", "h200"):
        (one,) = read(f"gemm_bf16_{gpu}")
        for low, high, what in ((2, 15, "m and m + 1, from 2 to 15"), (1792, 4353, "m and m + 1, from 1792 to 4353")):
            m = one.shapes["m"]
            inside = one.select((m >= low) & (m <= high))
            found.append((f"gemm {gpu}", what, *_pairs(inside, "m", 1.0)))
    (one,) = read("gemm_bf16_h100", "gemm_bf16_h200")
    found.append(("gemm h100, h200", "the same shape, compute-bound", *_between(one, lambda r: _intensity(r) > 2000)))
    (one,) = read("attention_causal_bf16_h100", "attention_causal_bf16_h200")
    found.append(
        (
            "attention h100, h200",
            "the same shape, sequence >= 2048",
            *_between(one, lambda r: r.shapes["sequence"] >= 2048),
        )
    )
    (one,) = read("bmm_fp32_multi_gpu")
    for gpu, mask in one.by_gpu():
        count, error = _swapped(one.select(mask))
        if count:
            found.append((f"bmm {gpu.name}", "m and n exchanged", count, error))
    single, _ = read("convolutions/neusight_fp32", "convolutions/deepbench")
    return found + _loop_floors(single)


def _loop_floors(rows: FamilyTable) -> list[tuple[str, str, int, float]]:
    """Return the error of convolutions whose time on the GPU is known, with one cost of the loop for all rows of a GPU."""
    alone, costs = calibration.without_loop_costs(rows)
    found = []
    for gpu, mask in rows.by_gpu():
        grown = mask & (alone.seconds < rows.seconds)
        if grown.any():
            error = np.abs((alone.seconds[grown] + costs[gpu.name]) / rows.seconds[grown] - 1.0)
            what = "the loop's cost is not known, the GPU's time is"
            found.append((f"convolution {gpu.name}", what, int(grown.sum()), float(error.mean())))
    return found


def _intensity(rows: FamilyTable) -> Array:
    m, n, k = (rows.shapes[name] for name in "mnk")
    intensity: Array = m * n * k / (m * k + n * k + m * n)
    return intensity


def _key(rows: FamilyTable, names: str | tuple[str, ...]) -> list[tuple[float, ...]]:
    return list(zip(*(rows.shapes[name].tolist() for name in names), strict=True))


def _spread(logs: list[float]) -> tuple[int, float]:
    values = np.array(logs)
    if not len(values):
        return 0, float("nan")
    return len(values), float(np.abs(values - np.median(values)).mean() / np.sqrt(2.0))


def _pairs(rows: FamilyTable, column: str, step: float) -> tuple[int, float]:
    names = tuple(rows.shapes.columns)
    place = names.index(column)
    times = dict(zip(_key(rows, names), np.log(rows.seconds).tolist(), strict=True))
    logs = []
    for key, time in times.items():
        other = times.get((*key[:place], key[place] + step, *key[place + 1 :]))
        if other is not None:
            logs.append(other - time)
    return _spread(logs)


def _between(rows: FamilyTable, chosen: object) -> tuple[int, float]:
    assert callable(chosen)
    rows = rows.select(chosen(rows))
    names = tuple(rows.shapes.columns)
    parts = [rows.select(mask) for _, mask in rows.by_gpu()]
    first, second = (dict(zip(_key(part, names), np.log(part.seconds).tolist(), strict=True)) for part in parts)
    return _spread([first[key] - second[key] for key in first if key in second])


def _swapped(rows: FamilyTable) -> tuple[int, float]:
    times = dict(zip(_key(rows, ("b", "m", "n", "k")), np.log(rows.seconds).tolist(), strict=True))
    return _spread([t - times[b, n, m, k] for (b, m, n, k), t in times.items() if m < n and (b, n, m, k) in times])


def _print_stored() -> None:
    """Print the errors in percent that the shipped models of products and attention carry: random rows, slices, other GPUs."""
    print("| model | GPU | rows | held out | < 20 us | 20-200 us | > 200 us | values of a size held out |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    names = [("product", dtype) for dtype, _, _ in PRODUCTS.values()] + [("attention", "bfloat16")]
    for family, dtype in names:
        (model,) = model_files.load(model_files.SHIPPED / model_files.file_name(family, dtype)).models
        tests = [(gpu, rows, model.errors["random"][gpu]) for gpu, rows in model.provenance["rows"].items()]
        tests += [(name, "", model.errors[name]["all"]) for name in ("relatives", "left out") if name in model.errors]
        for name, rows, errors in tests:
            cells = [f"{100 * errors[one]:.1f}" if one in errors else "" for one in ("all", *CLASSES)]
            slices = model.errors["slices"].get(name, {}).get("all")
            cells.append("" if slices is None else f"{100 * slices:.1f}")
            print(f"| {family} {dtype} | {name} | {rows} | {' | '.join(cells)} |")


def main() -> None:
    if sys.argv[1:] == ["stored"]:
        _print_stored()
        return
    print("| table | GPU | held out | rows | mean | median | 95th | within 10% | < 20 us | 20-200 us | > 200 us |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for one in figures(sys.argv[1:]):
        t = one.total
        classes = [one.classes.get(name) for name in ("<20us", "20-200us", ">200us")]
        cells = [f"{c.mape_percent:.1f} / {c.within_10_percent:.0f}" if c else "" for c in classes]
        print(
            f"| {one.table} | {one.gpu} | {one.held_out} | {t.rows} | {t.mape_percent:.2f} | {t.median_percent:.2f} "
            f"| {t.p95_percent:.1f} | {t.within_10_percent:.1f} | {' | '.join(cells)} |"
        )
    if len(sys.argv) > 1:
        return
    print("\n| table | pairs, or rows | number | error of one row |\n|---|---|--:|--:|")
    for table, what, count, error in floors():
        print(f"| {table} | {what} | {count} | {100 * error:.1f} % |")


if __name__ == "__main__":
    main()
