"""What the tables' scaled products take beside the product: a vLLM linear layer quantises its activations first.

In fp8 it reads a bf16 number twice, for the largest and to scale it, and writes it once: 5 bytes. In nvfp4 the scale of the
tensor is known: 2.5 bytes. Rows take turns at the one maximum in memory, which is fitted: the time of m rows of k numbers by
k x n weights, from 4,096 rows on, less these bytes and the k m of bf16 products on the same GPU, is

    launch + m (row + c n + d k n)

with no term below zero. ``python -m validation.quantising`` prints the seconds a row of each GPU, their median, which ships
(``triosim.compute.models.forest``), and how far what this says of rows of 2,048 to 16,384 numbers is off the GPU's own, in the
fit and with the GPU left out of it.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from triosim.compute.models.forest import QUANTISING
from triosim.gpus import Gpu, find
from validation.report import Row, data

_LEAST_ROWS = 4096
_WIDTHS = np.array([2048.0, 4096.0, 8192.0, 16384.0])
#: A name of the tables, the dtype of its products, and the GPUs that it has by the tables' names.
_FORMATS = {
    "fp8": ("float8_e4m3fn", ("h100", "h200", "b200", "gb200", "l40s")),
    "nvfp4": ("float4_e2m1fn_x2", ("b200", "gb200")),
}
_GPUS = {"h100": "H100-SXM", "h200": "H200", "b200": "B200", "gb200": "GB200", "l40s": "L40S"}

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quantising:
    """Seconds a row on a GPU, beside ``number_bytes`` of each number."""

    gpu: Gpu
    row: float
    number_bytes: float

    def error(self, row: float) -> float:
        """Return how far other seconds a row are off, as a share of the GPU's own time, on average over the widths."""
        moved = self.number_bytes * _WIDTHS / self.gpu.bandwidth
        return float(np.mean(abs(row - self.row) / (self.row + moved)))


def measured(form: str) -> Iterator[Quantising]:
    """Yield the figures of each GPU that has tables of a format."""
    dtype, names = _FORMATS[form]
    _, number_bytes = QUANTISING[dtype]
    for name in names:
        gpu = find(_GPUS[name])
        plain = _terms(f"gemm_bf16_{name}")["m k"]
        row = _terms(f"gemm_{form}_{name}", plain + number_bytes / gpu.bandwidth)["m"]
        yield Quantising(gpu, row, number_bytes)


def _terms(table: str, number: float | None = None) -> dict[str, float]:
    """Return the seconds of a table's products by term; ``number`` are those of m k where they are known."""
    with gzip.open(data(f"operators/{table}.csv.gz"), "rt", encoding="utf-8") as file:
        lines = [[float(line[name]) for name in ("m", "n", "k", "latency_ms")] for line in csv.DictReader(file)]
    m, n, k, milliseconds = np.array([line for line in lines if line[0] >= _LEAST_ROWS]).T
    seconds = milliseconds * 1e-3
    terms: dict[str, Array] = {"launch": np.ones_like(m), "m": m, "m n": m * n, "m n k": m * n * k}
    if number is None:
        terms["m k"] = m * k
    parts = np.stack(list(terms.values()), axis=1) / seconds[:, None]
    scale = parts.mean(axis=0)
    found = nnls(parts / scale, 1.0 - (number or 0.0) * m * k / seconds)[0] / scale
    return dict(zip(terms, found.tolist(), strict=True))


def rows() -> list[Row]:
    """Compare the constants that ship with each GPU's own."""
    found = []
    for form, (dtype, _) in _FORMATS.items():
        gpus = list(measured(form))
        error = fmean(one.error(QUANTISING[dtype][0]) for one in gpus)
        found.append(Row(f"quantising in {form} tables, mean", "each GPU's own", len(gpus), error, 0.15))
    return found


def main() -> None:
    for form, (dtype, _) in _FORMATS.items():
        gpus, shipped = list(measured(form)), QUANTISING[dtype][0]
        best = median(one.row for one in gpus)
        print(f"{form}: {_said(shipped)} in the package, {_said(best)} fitted to all")
        for one in gpus:
            without = median(other.row for other in gpus if other is not one)
            print(
                f"{one.gpu.name}: {_said(one.row)}; {one.error(shipped):.0%} off with the package's, "
                f"{one.error(best):.0%} fitted, {one.error(without):.0%} left out ({_said(without)})"
            )


def _said(row: float) -> str:
    return f"{row * 1e9:.2f} ns a row"


if __name__ == "__main__":
    main()
