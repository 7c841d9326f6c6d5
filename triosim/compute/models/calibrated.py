"""Operator times by the laws that ``triosim calibrate compute`` fitted to rows of one's own: the file ``TRIOSIM_MODELS``.

An operator whose name the rows did not have is predicted by the law of its class (``triosim.compute.fit.operator_rows``). What
ships was tried on the rows too, so that a law goes before it. A GPU, a phase, a class or a dtype that the rows did not have
is left to other models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from triosim import gpus
from triosim.compute.base import ComputeModel, Estimates
from triosim.compute.distinct_operators import each_once
from triosim.compute.fit import operator_rows
from triosim.compute.fit.operator_rows import Described
from triosim.compute.learned import stored
from triosim.compute.models.elementwise import Elementwise
from triosim.compute.models.forest import Forest
from triosim.compute.models.reduction import Reduction
from triosim.gpus import Gpu
from triosim.trace import Operator


class Calibrated(ComputeModel):
    """Every kind of operator that rows of one's own have, forward, backward and of the optimizer, on their GPU."""

    label = "calibrated"

    def __init__(self, gpu: str | None = None) -> None:
        self._gpu = gpu

    @classmethod
    def load(cls, gpu: str) -> Calibrated | None:
        """Return the model for a GPU of the catalogue, or None where the catalogue does not have it."""
        return cls(gpu) if gpus.get(gpu) is not None else None

    @each_once
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU, NaN for what no law is of."""
        target = gpus.find(gpu or self._gpu or "")
        seconds = np.full(len(operators), np.nan)
        errors = np.full(len(operators), np.nan)
        names = [self.label] * len(operators)
        laws = stored.laws(target.name)
        if not laws:
            return Estimates(seconds, errors, names)
        seen = operator_rows.describe(operators, target)
        asked: dict[operator_rows.Key, list[int]] = {}
        for place, keys in enumerate(seen.keys):
            known = next((key for key in keys if key in laws), None)
            if known is not None:
                asked.setdefault(known, []).append(place)
        by_shipped = [place for key, places in asked.items() if laws[key].form == "shipped" for place in places]
        seen = with_shipped(seen, operators, by_shipped, target)
        for key, places in asked.items():
            law, rows = laws[key], np.array(places)
            seconds[rows], errors[rows] = law.seconds(seen, rows), law.relative_error(seen, rows)
            for place in places:
                names[place] = f"{self.label}, {law}"
        return Estimates(seconds, errors, names)


def with_shipped(seen: Described, operators: Sequence[Operator], places: Sequence[int], gpu: Gpu) -> Described:
    """Return what laws see of operators, with what the models that ship say of those at some places."""
    if not places:
        return seen
    asked, shipped = [operators[place] for place in places], np.array(seen.shipped)
    with stored.using(""):
        for model in (Forest(gpu.name), Elementwise(gpu.name), Reduction(gpu.name)):
            said = model.estimate(asked, gpu.name).seconds
            shipped[places] = np.where(np.isnan(shipped[places]), said, shipped[places])
    return replace(seen, shipped=shipped)
