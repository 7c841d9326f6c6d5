"""How far predictions are off measured times: relative to what was measured, over the rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from triosim import gpus
from triosim.compute import operator_rows, stored
from triosim.compute.auto import Auto
from triosim.compute.elementwise import Elementwise
from triosim.compute.forest import Forest
from triosim.compute.learned import CLASS_EDGES, CLASSES, Learned
from triosim.compute.operator_rows import OperatorRows
from triosim.compute.pricing import model_name
from triosim.compute.reduction import Reduction
from triosim.compute.shapes import Shapes
from triosim.compute.tables import Table
from triosim.errors import TriosimError, nearest
from triosim.gpus import Gpu

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of |predicted / measured - 1|, in percent: mean, median, 95th percentile, and the share of rows within 10%."""

    mape_percent: float
    median_percent: float
    p95_percent: float
    within_10_percent: float
    rows: int

    def as_dict(self) -> dict[str, float]:
        """Return the figures by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Judged:
    """How far predictions of any operators are off: ``kinds`` by operator and phase, ``models`` what predicted these."""

    total: Statistics
    classes: dict[str, Statistics]
    kinds: dict[str, Statistics]
    models: dict[str, str]
    measured_seconds: float
    predicted_seconds: float


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


def rows_of(table: Table, gpu: Gpu) -> Table:
    """Return a table's rows of one GPU; all where it does not tell GPUs apart."""
    if table.devices is None:
        return table
    names = table.gpus()
    wanted = [name for name in names if (found := gpus.get(name)) is not None and found.name == gpu.name]
    if not wanted:
        raise TriosimError(f"has no rows of {gpu.name}", where=table.source, fix=nearest(gpu.name, names))
    return table.select(np.isin(table.devices, wanted))


def gpu_in(table: Table, name: str) -> Gpu:
    """Return the GPU of a table that a user means."""
    return gpu_among(table.gpus(), name, table.source)


def gpu_among(devices: Sequence[str], name: str, source: str) -> Gpu:
    """Return the GPU that a user means: of those that were measured, one whose architecture and memory the name leaves open.

    ``H100`` is the catalogue's first; in a table of an A100 on PCIe alone, ``A100`` is that one.
    """
    gpu = gpus.find(name)
    known = [found for one in devices if (found := gpus.get(one)) is not None]
    if not known or any(one.name == gpu.name for one in known):
        return gpu
    family = gpu.name.partition("-")[0]
    alike = [one for one in known if one.name.partition("-")[0] == family]
    if len(alike) > 1:
        raise TriosimError(
            f"has no rows of {gpu.name}",
            where=source,
            fix=f"write --gpu {' or '.join(one.name for one in alike)}",
        )
    return alike[0] if alike else gpu


def predict(shapes: Shapes, gpu: Gpu, own: Sequence[Learned] = ()) -> tuple[Array, str]:
    """Return the seconds of calls on a GPU and the name of what said so: of ``own`` models, or of those that ship."""
    for model in own:
        if (model.family, model.dtype) == (shapes.family, shapes.dtype):
            return model.seconds(shapes, gpu), "the given models"
    if shapes.family == "elementwise":
        seconds, _ = Elementwise().ask(shapes, gpu)
        name = "elementwise"
    else:
        found = (Forest() if shapes.family in Forest.families else Reduction()).ask(shapes, gpu)
        if found is None:
            raise TriosimError(
                f"there is no fitted model of {shapes.family} in {shapes.dtype}", where=str(stored.SHIPPED)
            )
        seconds, _, name = found
    if not np.isfinite(seconds).all():
        raise TriosimError(f"no fitted model covers {shapes.family} in {shapes.dtype} on {gpu.name}")
    return seconds, name


def judge(rows: OperatorRows) -> Judged:
    """Compare measured operators with what ``auto`` says of them, from fitted models and the roofline alone."""
    found = Auto().estimate(rows.operators, rows.gpu.name)
    predicted, measured = found.seconds[rows.measured], rows.seconds
    keys = [f"{operator_rows.word(one.name)} {one.phase}" for one in rows.rows()]
    said = [model_name(found.model[place]) for place in rows.measured]
    kinds, models = {}, {}
    for key in sorted(set(keys), key=lambda key: -sum(t for t, k in zip(measured, keys, strict=True) if k == key)):
        chosen = np.array([one == key for one in keys])
        kinds[key] = statistics(predicted[chosen], measured[chosen])
        models[key] = ", ".join(sorted({name for name, one in zip(said, keys, strict=True) if one == key}))
    return Judged(
        statistics(predicted, measured), by_class(predicted, measured), kinds, models, float(measured.sum()),
        float(predicted.sum()),
    )  # fmt: skip
