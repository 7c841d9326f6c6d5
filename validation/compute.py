"""Operator times on rows that the fit did not see: held out at random, by shape on all GPUs, by slices of a size, and by GPUs.

Every figure is that of a model fitted here, to the other rows, by what
``triosim calibrate compute`` runs. Several tables have the same shapes on several GPUs: held out at random, a shape is mostly
known from another GPU; held out by shape, from none. ``python -m validation.compute`` prints the detailed tables: by GPU and
size class, and the noise floor, which is how far rows are apart that should take the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triosim.compute.fit import family_fitting as calibration
from triosim.compute.fit import measured_files
from triosim.compute.fit.evaluation import Statistics, by_class, statistics
from triosim.compute.fit.family_tables import FamilyTable
from triosim.compute.models import elementwise
from triosim.compute.models.elementwise import memory_seconds
from validation.report import Row, data

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: What triosim claims of the mean error: on rows held out at random, on any one GPU, and over GPUs that are left out.
CLAIMED = {"gemm": 0.04, "attention": 0.025, "linear": 0.085, "bmm": 0.19}
CLAIMED_LEFT_OUT = {"elementwise": 0.10, "layer_norm": 0.12, "softmax": 0.15, "linear": 0.25, "bmm": 0.25}
#: And of the share of products that are within 10%.
WITHIN = 0.93


@dataclass(frozen=True, slots=True)
class Figure:
    """Errors of one table on one GPU, under one way of holding rows out."""

    table: str
    gpu: str
    held_out: str
    total: Statistics
    classes: dict[str, Statistics]


def rows() -> list[Row]:
    found = []
    for figure in figures():
        error = figure.total.mape_percent / 100
        name = f"{figure.table} on {figure.gpu}: mean error"
        if figure.held_out == "random" and figure.table in CLAIMED:
            found.append(Row(name, "rows held out at random", figure.total.rows, error, CLAIMED[figure.table]))
            if figure.table == "gemm":
                missed = 1 - figure.total.within_10_percent / 100
                found.append(
                    Row(
                        f"gemm on {figure.gpu}: rows off by over 10%", "the same", figure.total.rows, missed, 1 - WITHIN
                    )
                )
        elif figure.held_out == "GPU" and figure.gpu == "mean":
            found.append(
                Row(
                    f"{figure.table}: mean error",
                    "GPUs left out of the fit",
                    figure.total.rows,
                    error,
                    CLAIMED_LEFT_OUT[figure.table],
                )
            )
    return found


def figures() -> list[Figure]:
    """Fit and judge everything. A few minutes on two cores."""
    found: list[Figure] = []
    for gpu in ("a100", "h100", "h200"):
        (one,) = read(f"gemm_bf16_{gpu}")
        found += _judged("gemm", one, calibration.at_random(one, most=1), "random")
        for column in "mnk":
            found += _judged("gemm", one, calibration.by_slices(one, column), f"values of {column}")
    (one,) = read("attention_causal_bf16_h100", "attention_causal_bf16_h200")
    found += _judged("attention", one, calibration.at_random(one, most=2), "random")
    found += _judged("attention", one, calibration.at_random(one, 2, by_shape=True), "shape")
    for column in calibration.columns_with_slices(one):
        found += _judged("attention", one, calibration.by_slices(one, column), f"values of {column}")
    (both,) = read("linear_fp32_multi_gpu", "bmm_fp32_multi_gpu")
    tests = [(calibration.at_random(both, most=2), "random"), (calibration.by_gpus(both), "GPU")]
    tests.append((calibration.at_random(both, 2, by_shape=True), "shape"))
    tests += [(calibration.by_slices(both, column), f"values of {column}") for column in "mnk"]
    for predicted, how in tests:
        for table, mask in (("linear", both.shapes["b"] == 1), ("bmm", both.shapes["b"] > 1)):
            found += _judged(table, both.select(mask), predicted[mask], how)
    for table, name in (("softmax", "softmax"), ("layer_norm", "ln")):
        (one,) = read(f"{name}_fp32_multi_gpu")
        found += _judged(table, one, calibration.at_random(one), "random")
        found += _judged(table, one, calibration.by_gpus(one), "GPU")
    (one,) = read("elem_fp32_multi_gpu")
    for how in ("random", "GPU"):
        found += _judged("elementwise", one, _segments(one, how), how)
    return found


def read(*names: str) -> list[FamilyTable]:
    """Return the rows of tables of measured operators, by family and dtype."""
    paths = [str(data(f"operators/{name}.csv.gz")) for name in names]
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
    """Return how far apart neighbouring rows are: what, which pairs, how many, and mean error of one row of such a pair.

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


def main() -> None:
    print("| table | GPU | held out | rows | mean | median | 95th | within 10% | < 20 us | 20-200 us | > 200 us |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for one in figures():
        t = one.total
        classes = [one.classes.get(name) for name in ("<20us", "20-200us", ">200us")]
        cells = [f"{c.mape_percent:.1f} / {c.within_10_percent:.0f}" if c else "" for c in classes]
        print(
            f"| {one.table} | {one.gpu} | {one.held_out} | {t.rows} | {t.mape_percent:.2f} | {t.median_percent:.2f} "
            f"| {t.p95_percent:.1f} | {t.within_10_percent:.1f} | {' | '.join(cells)} |"
        )
    print("\n| table | pairs | number | error of one row |\n|---|---|--:|--:|")
    for table, what, count, error in floors():
        print(f"| {table} | {what} | {count} | {100 * error:.1f} % |")


if __name__ == "__main__":
    main()
