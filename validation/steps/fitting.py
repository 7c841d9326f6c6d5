"""The fit of the constants: a Gauss-Newton step on the logarithms of predictions, with derivatives by differences.

It takes the time of all rows once. A derivative is that of a row's stand-in (``Format.stand_in``), of which many rows have the
same. The errors that it prints, in the fit and of a model size that was left out, are those of the straight lines through the
derivatives; rows that are simulated again with what was found say how far these lines are off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from triosim.errors import OptionError
from validation.steps import constants
from validation.steps.errors import Predicted, Refused, spaced
from validation.steps.printed import Known
from validation.steps.rows import Format, Row

Table = tuple[Format, str, list[Row]]
Predict = Callable[[Sequence[Table], Mapping[str, float], int, Known | None], Iterator[Predicted | Refused]]
Numbers = npt.NDArray[np.float64]

#: A constant is changed by this much for its derivative.
CHANGE = 0.05
#: Errors beyond this count linearly, so that no single row rules the fit.
OUTLIER = 0.05
#: So many rows are simulated again with the constants that were found.
AGAIN = 24


def fit(tables: Sequence[Table], jobs: int, predict: Predict, known: Known | None = None) -> None:
    """Fit, print the constants and the errors of each model size, in the fit and left out; write the constants.

    ``known`` are predictions of rows with the constants as they are, which are not simulated again.
    """
    fitted = _fitted_on(tables)
    names = list(fitted)
    at = np.log([one.value for one in fitted.values()])
    low, high = (np.log([getattr(one, end) for one in fitted.values()]) - at for end in ("low", "high"))
    everything = constants.values()
    tables = [(kind, name, [replace(row, also=()) for row in found]) for kind, name, found in tables]
    said = _logarithms(predict(tables, everything, jobs, known))
    tables = [(kind, name, [row for row in found if (name, row) in said]) for kind, name, found in tables]
    rows = [(name, row) for _, name, found in tables for row in found]
    base = np.array([said[one] - np.log(one[1].measured) for one in rows])
    print(f"{len(rows)} rows with the constants as they are: mean error {_mean(base)}", flush=True)

    def values(point: Numbers) -> dict[str, float]:
        return everything | dict(zip(names, np.exp(point).tolist(), strict=True))

    stands = [
        (kind, name, list(dict.fromkeys(kind.stand_in(row) for row in found if kind.constants)))
        for kind, name, found in tables
    ]
    of_row = [(name, kind.stand_in(row)) for kind, name, found in tables for row in found]
    missing = [(kind, name, [row for row in found if (name, row) not in said]) for kind, name, found in stands]
    said |= _logarithms(predict(missing, everything, jobs, None))
    columns = []
    for place, name in enumerate(names):
        change = np.zeros(len(names))
        change[place] = CHANGE if high[place] >= CHANGE else -CHANGE
        readers = [one for one in stands if name in one[0].constants]
        changed = _logarithms(predict(readers, values(at + change), jobs, None))
        columns.append(
            [(changed.get(one, said[one]) - said[one]) / change[place] if one in said else 0.0 for one in of_row]
        )
    slopes = np.array(columns).T
    step = moved(base, slopes, low, high)
    found_values = values(at + step)
    constants.save({name: found_values[name] for name in names})
    for name, one in fitted.items():
        print(f"{name}: {found_values[name]:.4g} {one.unit} ({one.low:g} to {one.high:g})")
    _print_left_out([row for _, row in rows], base, slopes, low, high)
    _print_straightness(tables, base + slopes @ step, lambda some: predict(some, found_values, jobs, None))


def _fitted_on(tables: Sequence[Table]) -> dict[str, constants.Constant]:
    """Return the constants that are fitted on these tables."""
    given, known = {name for _, name, _ in tables}, constants.load()
    found = {
        name: one for name, one in sorted(known.items()) if given & set(one.fitted_on.split(", ")) and not one.whole
    }
    if not found:
        said = ", ".join(sorted({one.fitted_on for one in known.values()}))
        raise OptionError("no constant is fitted on these tables", where="--fit", fix=f"give one of {said}")
    return found


def _logarithms(found: Iterator[Predicted | Refused]) -> dict[tuple[str, Row], float]:
    """Return the logarithm of what was predicted of each table's row; refused rows are said and left out."""
    logarithms = {}
    for one in found:
        if isinstance(one, Refused):
            print(one.error, file=sys.stderr)
        else:
            logarithms[one.table, one.row] = float(np.log(one.value))
    return logarithms


def _print_straightness(
    tables: Sequence[Table], lines: Numbers, predict: Callable[[Sequence[Table]], Iterator[Predicted | Refused]]
) -> None:
    """Print how far the lines are from some rows that are simulated again."""
    rows = [(kind, name, row) for kind, name, found in tables for row in found]
    off = []
    for (kind, name, row), line in spaced(list(zip(rows, lines, strict=True)), AGAIN):
        for said in _logarithms(predict([(kind, name, [row])])).values():
            off.append(said - np.log(row.measured) - line)
    largest = 100 * np.max(np.abs(np.expm1(off)))
    print(f"{len(off)} rows simulated with these: {_mean(np.array(off))} from the lines, {largest:.2f}% at most")


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
