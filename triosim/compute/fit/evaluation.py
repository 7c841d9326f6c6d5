"""The errors of predicted operator times against measured ones, over the rows of tables and traces.

A row on a GPU that is not known is refused, and counts as an error of 100%.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from triosim.compute import families
from triosim.compute.compute_model import CLASS_EDGES, Array
from triosim.compute.fit.measured_files import MeasuredFiles
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
class Group:
    """The rows of one GPU, operator (a family, or an operator's name and phase) and dtype: their mean error, and how many of
    them were refused.
    """

    gpu: str
    operator: str
    dtype: str
    rows: int
    mape_percent: float
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The errors of predicted operators, by size class, by operator and phase (``kinds``), with the models of each kind, and by
    ``groups``; refused rows count in ``total`` and ``groups`` alone.
    """

    total: Statistics
    classes: dict[str, Statistics]
    kinds: dict[str, Statistics]
    models: dict[str, str]
    groups: tuple[Group, ...]
    measured_seconds: float
    predicted_seconds: float

    @property
    def model(self) -> str:
        """The names of the models that predicted any."""
        return ", ".join(sorted({name for several in self.models.values() for name in several.split(", ")}))

    def only(self, name: str) -> str | None:
        """Return what all groups have as ``gpu``, ``operator`` or ``dtype``; None where they differ."""
        found = {getattr(group, name) for group in self.groups}
        return found.pop() if len(found) == 1 else None


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


def already_fitted(measured: MeasuredFiles) -> list[str]:
    """Return a warning where the models that will be asked were fitted to these very rows, by the names of the files."""
    sources = [table.source for table in measured.tables] + [rows.source for rows in measured.operators]
    asked = {Path(name).name for source in sources for name in source.split(", ")}
    own, shipped = model_files.fitted_files({(table.shapes.family, table.shapes.dtype) for table in measured.tables})
    for whose, files in (("the given models", asked & own), ("the models that ship", asked & shipped)):
        if files:
            return [
                f"{whose} were fitted to {', '.join(sorted(files))}: rows that they did not see are predicted less well, "
                "see docs/calibration.md"
            ]
    return []


def evaluate(measured: MeasuredFiles) -> Evaluation:
    """Compare measured operators with the estimates of ``auto``, which has fitted models and the roofline alone.

    Tables are measured in short loops: no power limit counts.
    """
    judged = [_Judged.of(rows) for rows in measured.by_gpu()]
    seconds, predicted = (np.concatenate([getattr(one, name) for one in judged]) for name in ("measured", "predicted"))
    keys = np.array([key for one in judged for key in one.kinds])
    names = np.array([name for one in judged for name in one.models])
    kinds, models = {}, {}
    for key in sorted(dict.fromkeys(keys.tolist()), key=lambda key: -float(seconds[keys == key].sum())):
        kinds[key] = statistics(predicted[keys == key], seconds[keys == key])
        models[key] = ", ".join(sorted(set(names[keys == key].tolist())))
    refused = [Group(one.gpu, one.operator, one.dtype, one.rows, 100.0, one.rows) for one in measured.refused]
    groups = (*(group for one in judged for group in one.groups()), *refused)
    lost = sum(group.refused for group in refused)
    total = statistics(np.append(predicted, np.zeros(lost)), np.append(seconds, np.ones(lost)))
    sums = float(seconds.sum()), float(predicted.sum())
    return Evaluation(total, by_class(predicted, seconds), kinds, models, groups, *sums)


@dataclass(frozen=True, slots=True)
class _Judged:
    """The measured operators of one GPU, with what is predicted for them."""

    gpu: str
    measured: Array
    predicted: Array
    kinds: list[str]
    models: list[str]
    labels: list[tuple[str, str]]

    @classmethod
    def of(cls, rows: OperatorRows) -> _Judged:
        found = AutoComputeModel(sustained=False).estimate(rows.operators, rows.gpu.name)
        kinds = [f"{bare_name(one.name)} {one.phase}" for one in rows.rows()]
        models = [found.model[row] for row in rows.measured.tolist()]
        return cls(rows.gpu.name, rows.seconds, found.seconds[rows.measured], kinds, models, _labels(rows, kinds))

    def groups(self) -> Iterator[Group]:
        """Yield the groups of the GPU's rows."""
        error = 100.0 * np.abs(self.predicted / self.measured - 1.0)
        for label in dict.fromkeys(self.labels):
            mine = error[[one == label for one in self.labels]]
            yield Group(self.gpu, *label, len(mine), float(mine.mean()))


def _labels(rows: OperatorRows, kinds: Sequence[str]) -> list[tuple[str, str]]:
    """Return each row's operator, by family where it has one, and dtype."""
    measured = rows.rows()
    tensors = ([t.dtype for t in (*one.inputs, *one.outputs) if "float" in t.dtype] for one in measured)
    found = [(kind, next(iter(dtypes), "")) for kind, dtypes in zip(kinds, tensors, strict=True)]
    for places, calls in families.calls_of(measured):
        for place in places.tolist():
            found[place] = (calls.family, calls.dtype)
    return found
