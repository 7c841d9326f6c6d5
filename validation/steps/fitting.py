"""The fit of the constants: a Gauss-Newton step on the logarithms of predictions, with derivatives by differences.

It takes the time of all rows once, and once more for each constant; it is run again until nothing moves. The errors that it
prints, in the fit and of a model size that was left out, are those of the straight lines through the derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from triosim.errors import OptionError
from validation.steps import constants
from validation.steps.errors import Predicted
from validation.steps.rows import Format, Row

Table = tuple[Format, str, list[Row]]
Predict = Callable[[Sequence[Table], Mapping[str, float], int], Iterator[Predicted]]
Numbers = npt.NDArray[np.float64]

#: A constant is changed by this much for its derivative.
CHANGE = 0.05
#: Errors beyond this count linearly, so that no single row rules the fit.
OUTLIER = 0.05


def fit(tables: Sequence[Table], jobs: int, predict: Predict) -> None:
    """Fit, print the constants and the errors of each model size, in the fit and left out; write the constants."""
    known = constants.load()
    given = {name for _, name, _ in tables}
    names = sorted(
        name for name, one in known.items() if given.intersection(one.fitted_on.split(", ")) and not one.whole
    )
    if not names:
        said = ", ".join(sorted({one.fitted_on for one in known.values()}))
        raise OptionError("no constant is fitted on these tables", where="--fit", fix=f"give one of {said}")
    low, high = (np.log([getattr(known[name], end) for name in names]) for end in ("low", "high"))
    at = np.log([known[name].value for name in names])
    everything = constants.values(known)

    def logarithms(point: Numbers) -> Numbers:
        values = everything | dict(zip(names, np.exp(point).tolist(), strict=True))
        return np.log([one.value / one.row.measured for one in predict(tables, values, jobs)])

    rows = [row for _, _, found in tables for row in found]
    base = logarithms(at)
    print(f"with the constants as they are: mean error {100 * np.mean(np.abs(np.expm1(base))):.2f}%", flush=True)
    columns = []
    for place in range(len(names)):
        change = np.zeros(len(names))
        change[place] = CHANGE if at[place] + CHANGE <= high[place] else -CHANGE
        columns.append((logarithms(at + change) - base) / change[place])
    slopes = np.stack(columns, axis=1)
    step = moved(base, slopes, low - at, high - at)
    found = dict(zip(names, np.exp(at + step).tolist(), strict=True))
    constants.save(found)
    for name, value in found.items():
        print(f"{name}: {value:.4g} {known[name].unit} ({known[name].low:g} to {known[name].high:g})")
    _print_left_out(rows, base, slopes, low - at, high - at)


def moved(base: Numbers, slopes: Numbers, low: Numbers, high: Numbers) -> Numbers:
    """Return the step to the least robust error of what is linear around here, within bounds."""
    inside = np.clip(np.zeros(len(low)), low + 1e-9, high - 1e-9)
    found = least_squares(
        lambda step: base + slopes @ step, inside, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER
    )
    return np.asarray(found.x)


def _print_left_out(rows: Sequence[Row], base: Numbers, slopes: Numbers, low: Numbers, high: Numbers) -> None:
    """Print, by model size, the mean error in the fit, and where the size was left out."""
    fitted = base + slopes @ moved(base, slopes, low, high)
    left_out = np.full(len(rows), np.nan)
    for size in dict.fromkeys(row.model for row in rows):
        own = np.array([row.model == size for row in rows])
        if not own.all():
            left_out[own] = base[own] + slopes[own] @ moved(base[~own], slopes[~own], low, high)
        print(f"{size}: {own.sum()} rows, fitted {_mean(fitted[own])}, left out {_mean(left_out[own])}")
    print(f"all: fitted {_mean(fitted)}, left out {_mean(left_out)}")


def _mean(logarithms: Numbers) -> str:
    return "none" if np.isnan(logarithms).any() else f"{100 * np.mean(np.abs(np.expm1(logarithms))):.2f}%"
