"""The errors of predicted operator times against measured ones, over the rows of tables and traces."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from triosim.compute.compute_model import CLASS_EDGES, Array
from triosim.compute.fit.operator_rows import OperatorRows
from triosim.compute.learned import model_files
from triosim.compute.learned.family_model import CLASSES
from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.models.calibrated import bare_name


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean, median and 95th percentile of |predicted / measured - 1| in percent, and the share of rows within 10%."""

    mape_percent: float
    median_percent: float
    p95_percent: float
    within_10_percent: float
    rows: int

    def as_dict(self) -> dict[str, float]:
        """Return the figures by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The errors of predicted operators, by size class and by operator and phase (``kinds``), with the models of each kind."""

    total: Statistics
    classes: dict[str, Statistics]
    kinds: dict[str, Statistics]
    models: dict[str, str]
    measured_seconds: float
    predicted_seconds: float

    @property
    def model(self) -> str:
        """The names of the models that predicted any."""
        return ", ".join(sorted({name for several in self.models.values() for name in several.split(", ")}))


def statistics(predicted: Array, measured: Array) -> Statistics:
    """Return the figures of the rows. Raises ``ValueError`` without any."""
    if not len(measured):
        raise ValueError("no rows")
    error = 100.0 * np.abs(predicted / measured - 1.0)
    return Statistics(
        float(error.mean()),
        float(np.median(error)),
        float(np.percentile(error, 95.0)),
        float(100.0 * (error <= 10.0).mean()),
        len(error),
    )


def by_class(predicted: Array, measured: Array) -> dict[str, Statistics]:
    """Return the figures of each size class, by what was measured."""
    which = np.searchsorted(CLASS_EDGES, measured, side="right")
    return {
        name: statistics(predicted[which == number], measured[which == number])
        for number, name in enumerate(CLASSES)
        if (which == number).any()
    }


def already_fitted(rows: OperatorRows, families: Collection[tuple[str, str]]) -> list[str]:
    """Return a warning where the models that will be asked were fitted to these very rows, by the names of the files.

    ``families`` are the families and dtypes of a table of one operator, which the shipped models may have been fitted to.
    """
    asked = {Path(name).name for name in rows.source.split(", ")}
    own, shipped = model_files.fitted_files(families)
    for whose, files in (("the given models", asked & own), ("the models that ship", asked & shipped)):
        if files:
            return [
                f"{whose} were fitted to {', '.join(sorted(files))}: rows that they did not see are predicted less well, "
                "see docs/calibration.md"
            ]
    return []


def evaluate(rows: OperatorRows) -> Evaluation:
    """Compare measured operators with the estimates of ``auto``, which has fitted models and the roofline alone."""
    found = AutoComputeModel().estimate(rows.operators, rows.gpu.name)
    predicted, measured = found.seconds[rows.measured], rows.seconds
    keys = [f"{bare_name(one.name)} {one.phase}" for one in rows.rows()]
    names = np.array(found.model)[rows.measured]
    rows_of_kind = {key: np.array([one == key for one in keys]) for key in dict.fromkeys(keys)}
    kinds, models = {}, {}
    for key, chosen in sorted(rows_of_kind.items(), key=lambda item: -sum(measured[item[1]])):
        kinds[key] = statistics(predicted[chosen], measured[chosen])
        models[key] = ", ".join(sorted(set(names[chosen].tolist())))
    sums = float(measured.sum()), float(predicted.sum())
    return Evaluation(statistics(predicted, measured), by_class(predicted, measured), kinds, models, *sums)
