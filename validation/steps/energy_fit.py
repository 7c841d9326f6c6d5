"""The fit of the energy of a FLOP of an architecture to measured steps, with each source of them left out in turn.

    python -m validation.steps.energy_fit hopper|ampere [ROWS]

Rows are predicted by their plain commands, in processes that take another energy for the architecture
(``triosim.gpus.energy.HALF``). Between these the logarithm of a step's time is a straight line in that of the energy. The
sources count alike, however many rows they have; ROWS are those of each, evenly spaced (12).
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import cast

import numpy as np
import numpy.typing as npt

from triosim.gpus import energy
from validation.steps import constants, formats
from validation.steps.errors import spaced

#: The formats of tables that were measured on the boards of an architecture.
SOURCES = {
    "hopper": ("torchtitan", "torchsim-sharded", "one-gpu"),
    "ampere": ("megatron-one-node", "megatron-nodes", "megatron-selective"),
}
#: The energies that are tried, over that of the package.
FACTORS = (0.8, 0.9, 1.0, 1.1, 1.2)
#: Rows of more work than this (layers times micro-batches times GPUs) are left out.
_MOST_WORK = 2e5

Errors = npt.NDArray[np.float64]


def source_errors(source: str, architecture: str, factor: float, count: int) -> list[float]:
    """Return log(predicted / measured) of the steps of a source, with another energy. For a process of its own."""
    known = cast("MutableMapping[str, energy.Energy]", energy.HALF)
    known[architecture] = replace(known[architecture], joules=factor * known[architecture].joules)
    errors = []
    for kind, _, rows in formats.shared(source):
        quick = [row for row in rows if row.quantity == "step time" and kind.work(row) <= _MOST_WORK]
        for row in spaced(quick, count):
            errors.append(float(np.log(kind.predicted(row, constants.values()).value / row.measured)))
    return errors


def fitted(sources: dict[str, Errors]) -> float:
    """Return the factor with the least mean error of the sources, each of (factors, rows)."""
    tried = np.geomspace(FACTORS[0], FACTORS[-1], 81)
    means = [np.mean([_mean_error(errors, factor) for errors in sources.values()]) for factor in tried]
    return float(tried[int(np.argmin(means))])


def _mean_error(errors: Errors, factor: float) -> float:
    """Return the mean |predicted / measured - 1| of a source's rows with a factor."""
    at = [np.interp(np.log(factor), np.log(FACTORS), row) for row in errors.T]
    return float(np.mean(np.abs(np.expm1(at))))


def main(architecture: str, count: int) -> None:
    """Print the energy that fits best, and each source's error in the fit and where it was left out."""
    with ProcessPoolExecutor(2, get_context("spawn"), max_tasks_per_child=1) as pool:
        asked = {
            name: [pool.submit(source_errors, name, architecture, factor, count) for factor in FACTORS]
            for name in SOURCES[architecture]
        }
        sources = {name: np.array([one.result() for one in several]) for name, several in asked.items()}
    now, best = energy.HALF[architecture].joules * 1e12, fitted(sources)
    print(f"{architecture}: {now:g} pJ in the package, {best * now:.2f} pJ fitted to all")
    for name, errors in sources.items():
        without = fitted({other: one for other, one in sources.items() if other != name})
        print(
            f"{name}: {errors.shape[1]} rows, {_mean_error(errors, 1.0):.1%} off with the package's, "
            f"{_mean_error(errors, best):.1%} fitted, {_mean_error(errors, without):.1%} left out ({without * now:.2f} pJ)"
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 12)
