"""Constants of operators fitted to measured tables again, with each GPU left out in turn.

``python -m validation.operator_constants [ROWS]`` prints, for each efficiency of the roofline that rests on a table
(``triosim.compute.models.roofline``), for the launch of a kernel and the energy of a float32 FLOP (``triosim.gpus.energy``),
the value in use, the one that fits best, and the mean errors of the value in use and of GPUs that were left out of the fit.
Each GPU counts alike, by at most ROWS rows of a table, evenly spaced (2,000). Then come the rates of long products in half
precision, which the energies of a FLOP there rest on where training steps do not say more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from triosim import gpus
from triosim.compute.compute_model import Array
from triosim.compute.fit import family_tables, measured_files
from triosim.compute.models import roofline
from triosim.gpus import energy
from validation.compute import PRODUCTS, read
from validation.report import data

#: What is tried of a share, and of a factor of an energy or of a launch.
SHARES = np.round(np.arange(0.3, 1.001, 0.01), 2)
FACTORS = np.geomspace(0.5, 2.0, 57)
#: Products that take at least as long run for longer than the average that a board's power is limited over.
LONG_SECONDS = 5e-3
#: By class of the roofline, the tables that it is fitted to.
_BF16 = tuple(f"gemm_bf16_{name}" for name in PRODUCTS["gemm"][2])
TABLES = {
    "product": ("linear_fp32_multi_gpu", "bmm_fp32_multi_gpu", *_BF16),
    "attention": tuple(f"attention_causal_bf16_{name}" for name in ("a100", "b200", "gb200", "h100", "h200", "l40s")),
    "reduction": ("ln_fp32_multi_gpu", "softmax_fp32_multi_gpu"),
    "elementwise": ("elem_fp32_multi_gpu",),
}


@dataclass(frozen=True)
class Calls:
    """Rows of a GPU: seconds as measured, and at the GPU's peaks those of the arithmetic and of the bytes."""

    gpu: gpus.Gpu
    seconds: Array
    arithmetic: Array
    traffic: Array

    def errors(self, compute: float, memory: float, launch: float) -> Array:
        """Return how far each row is off under two efficiencies and a launch in seconds."""
        predicted = np.fmax(self.arithmetic / compute, self.traffic / memory) + launch
        return np.abs(predicted / self.seconds - 1.0)


def calls(tables: Sequence[str], most: int) -> Iterator[Calls]:
    """Yield the rows of tables by GPU and table, at most so many of each."""
    for table in read(*tables):
        for gpu, mask in table.by_gpu():
            rows = np.flatnonzero(mask)
            some = table.select(rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)])
            found = roofline.ceilings(family_tables.operators(some), gpu)
            yield Calls(gpu, some.seconds, found.arithmetic, found.traffic)


@dataclass(frozen=True)
class Refit:
    """A constant in use, the value that fits best, and mean errors: of the value in use, and of GPUs left out of a fit."""

    name: str
    used: float
    best: float
    fit: float
    left_out: float

    def __str__(self) -> str:
        errors = f"in use {100 * self.fit:5.1f}%, GPU left out {100 * self.left_out:5.1f}%"
        return f"{self.name:36} {self.used:8.3g} fits best {self.best:8.3g}   {errors}"


def refit(
    name: str, used: float, tried: Array, parts: Sequence[Calls], error: Callable[[Calls, float], float]
) -> Refit:
    """Fit a constant to the GPUs of some rows, and to all of them but one in turn; ``error`` is the mean of a part."""
    off = np.array([[error(part, value) for value in tried] for part in parts])
    names = np.array([part.gpu.name for part in parts])
    mean = np.array([off[names == one].mean(axis=0) for one in np.unique(names)])  # a GPU counts once
    left_out = [row[np.delete(mean, i, axis=0).mean(axis=0).argmin()] for i, row in enumerate(mean)]
    in_use = np.mean([np.mean([error(p, used) for p in parts if p.gpu.name == one]) for one in np.unique(names)])
    best = tried[mean.mean(axis=0).argmin()]
    return Refit(name, used, float(best), float(in_use), float(np.mean(left_out)) if len(mean) > 1 else np.nan)


def efficiencies(most: int) -> Iterator[Refit]:
    """Yield the efficiencies of each class, the other one as in use, and the launch of a kernel."""
    for kind, tables in TABLES.items():
        now, parts = roofline.DEFAULTS[kind], list(calls(tables, most))
        yield refit(
            f"{kind}, of bandwidth",
            now.memory,
            SHARES,
            parts,
            lambda part, value, now=now: float(part.errors(now.compute, value, now.launch).mean()),
        )
        if kind in roofline.ARITHMETIC:
            yield refit(
                f"{kind}, of peak",
                now.compute,
                SHARES,
                parts,
                lambda part, value, now=now: float(part.errors(value, now.memory, now.launch).mean()),
            )
        if kind == "elementwise":
            yield refit(
                "kernel's launch, us",
                roofline.LAUNCH_SECONDS * 1e6,
                FACTORS * roofline.LAUNCH_SECONDS * 1e6,
                parts,
                lambda part, value, now=now: float(part.errors(now.compute, now.memory, value * 1e-6).mean()),
            )


def float32_energies(most: int) -> Iterator[Refit]:
    """Yield the energies of a float32 FLOP: long products take the time that the board's power leaves them."""
    parts = [part for part in calls(TABLES["product"][:1], most) if (part.seconds >= LONG_SECONDS).any()]
    for name, used, new in (("before Ada", energy.FLOAT32_OLD, False), ("from Ada on", energy.FLOAT32_NEW, True)):
        some = [part for part in parts if energy.is_new(part.gpu) is new]
        yield refit(f"float32 FLOP, {name}, pJ", used * 1e12, used * 1e12 * FACTORS, some, _error_of_energy)


def _error_of_energy(part: Calls, picojoules: float) -> float:
    """Return the mean error of a GPU's long products, if each FLOP takes so much."""
    gpu, long = part.gpu, part.seconds >= LONG_SECONDS
    now = roofline.DEFAULTS["product"].compute
    peak = gpu.rate("float32")
    used = min(peak, energy.sustained_rate(gpu, "float32") / now)  # what the arithmetic was divided by
    limit = peak * min(1.0, gpu.tdp_watts / (picojoules * 1e-12 * peak)) if gpu.tdp_watts else peak
    seconds = part.arithmetic[long] * used / min(now * peak, limit)
    return float(np.abs(seconds / part.seconds[long] - 1.0).mean())


def half_precision_rates() -> Iterator[str]:
    """Yield the rate of each GPU's long products in half precision, nine in ten are below it, and the energy that it means."""
    deepbench = measured_files.read([str(data("operators/gemm_deepbench.csv.gz"))], measured_files.ALL_GPUS).tables
    for table in (*read(*_BF16), *(one for one in deepbench if one.shapes.dtype == "float16")):
        flops = 2.0 * np.prod([table.shapes.columns[name] for name in "bmnk"], axis=0)
        for gpu, mask in table.by_gpu():
            long = mask & (table.seconds >= LONG_SECONDS)
            used = energy.joules(gpu, "float16")
            if long.any() and used:
                rate, peak = float(np.quantile(flops[long] / table.seconds[long], 0.9)), gpu.rate("float16")
                joules = gpu.tdp_watts * (peak / rate) ** energy.CLOCK_EXPONENT / peak
                yield f"FLOP of a {gpu.name}: {rate / 1e12:.0f} TFLOP/s, {joules * 1e12:.2f} pJ; in use {used * 1e12:.2f}"


def main(arguments: Sequence[str]) -> int:
    """Print the fits."""
    most = int(arguments[0]) if arguments else 2000
    for one in (*efficiencies(most), *float32_energies(most), *half_precision_rates()):
        print(one, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
