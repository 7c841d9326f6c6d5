"""Operator times of element-wise operators: three straight segments over the bytes moved, on logarithmic scales.

Category one of TorchSim (appendix E): flat while a launch lasts longer than its work, a transition, and slope one where
memory bandwidth is the limit. Bytes are counted as the time that they need at the GPU's peak bandwidth, so that the segments
of one GPU are about right for another. An operator of two tensors moves three times a tensor's bytes, any other twice.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from triosim import gpus
from triosim.compute import uncertainty
from triosim.compute.compute_model import Array, ComputeModel, Estimates
from triosim.compute.families import BINARY, FamilyCalls
from triosim.compute.learned import model_files
from triosim.compute.operator_sequence import OperatorSequence, deduplicated
from triosim.gpus import Gpu
from triosim.trace import DTYPE_BYTES, Operator

#: The shortest time in any table: a launch and its drain on current GPUs.
_SHORTEST = 2.2e-6
#: With so many rows, an operator's factor is halfway between 1 and that of its rows.
_WEIGHT_OF_NONE = 2.0
#: The scale, in logarithms of bandwidth, at which the weight of another GPU falls.
_NEAR = 0.7


@dataclass(frozen=True)
class Segments:
    """Three segments of the time of calls, by the seconds t that their bytes need at peak bandwidth.

    The time is ``floor`` up to t = ``first``, t / ``share`` from ``second`` on, and a straight line on logarithmic scales
    between them, times the operator's factor in ``kinds``.
    """

    share: float
    first: float
    second: float
    floor: float = _SHORTEST
    kinds: Mapping[str, float] | None = None
    error: float = 0.15

    def seconds(self, memory: Array, kinds: npt.NDArray[np.str_] | None = None) -> Array:
        """Return the time of calls whose bytes need ``memory`` seconds at peak bandwidth."""
        low, high = math.log(self.first), math.log(self.second)
        bottom, top = math.log(self.floor), high - math.log(self.share)
        where = np.log(memory)
        found = np.interp(where, [low, high], [bottom, top]) + np.maximum(where - high, 0.0)
        factor = np.ones(len(memory))
        if kinds is not None and self.kinds:
            factor = np.array([self.kinds.get(kind, 1.0) for kind in kinds.tolist()])
        timed: Array = np.exp(found) * factor
        return timed


def memory_seconds(calls: FamilyCalls, gpu: Gpu) -> Array:
    """Return how long the bytes of calls need at a GPU's peak bandwidth."""
    passes = np.full(len(calls), 2.0)
    if calls.kinds is not None:
        passes += np.isin(calls.kinds, list(BINARY))
    nbytes: Array = passes * DTYPE_BYTES[calls.dtype] * calls["rows"] * calls["columns"]
    return nbytes / gpu.bandwidth


def fit(memory: Array, seconds: Array, kinds: npt.NDArray[np.str_] | None) -> Segments:
    """Return the segments with the smallest mean absolute error of the logarithm, and each kind's factor, shrunk by count.

    The factors found in a first round are taken out of the times before the second.
    """
    found = _fit_segments(memory, seconds)
    factors: dict[str, float] = {}
    for _ in range(2 if kinds is not None else 0):
        assert kinds is not None
        off = np.log(seconds / found.seconds(memory))
        factors = {}
        common = np.zeros(len(seconds))
        for kind in sorted(set(kinds.tolist())):
            own = off[kinds == kind]
            common[kinds == kind] = float(np.median(own)) * len(own) / (len(own) + _WEIGHT_OF_NONE)
            factors[kind] = float(np.exp(common[kinds == kind][0]))
        found = _fit_segments(memory, seconds / np.exp(common))
    return Segments(found.share, found.first, found.second, found.floor, factors)


def _fit_segments(memory: Array, seconds: Array) -> Segments:
    large = memory >= np.quantile(memory, 0.5)
    share = float(np.median(memory[large] / seconds[large]))
    floor = min(_SHORTEST, float(seconds.min()))
    measured = np.log(seconds)
    best, found = math.inf, Segments(share, 1e-6, 1e-4, floor)
    for first, second in itertools.product(np.geomspace(2e-7, 4e-6, 12), np.geomspace(4e-6, 2e-3, 40)):
        tried = Segments(share, float(first), float(second), floor)
        off = measured - np.log(tried.seconds(memory))
        level = math.exp(float(np.median(off)))
        error = float(np.abs(off - math.log(level)).mean())
        if error < best - 1e-6:
            best, found = error, Segments(share / level, float(first), float(second), floor * level)
    return found


def of_others(fitted: Mapping[str, Segments], gpu: Gpu) -> Segments:
    """Return segments for a GPU that was not measured: the others' mean, weighted by how close their bandwidth is.

    Memories of one kind reach about the same share of their peak (GDDR 0.75, HBM2 and later 0.9) and have similar bandwidths.
    """
    names = [name for name in fitted if name != gpu.name]
    distance = np.log([gpus.find(name).bandwidth / gpu.bandwidth for name in names])
    weights = np.exp(-0.5 * (distance / _NEAR) ** 2) + 1e-3
    weights /= weights.sum()

    def mean(values: list[float]) -> float:
        return float(np.exp(weights @ np.log(values)))

    several = [fitted[name] for name in names]
    kinds = sorted({kind for one in several for kind in one.kinds or ()})
    factors = {kind: mean([(one.kinds or {}).get(kind, 1.0) for one in several]) for kind in kinds}
    share, first, second, floor = (
        mean([getattr(one, name) for one in several]) for name in ("share", "first", "second", "floor")
    )
    return Segments(share, first, second, floor, factors)


class Elementwise(ComputeModel):
    """``add``, ``mul``, ``relu``, ``gelu`` and others, in any dtype: only bytes count."""

    name = "elementwise"

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each element-wise operator's time on a GPU, NaN for the others."""
        target = gpus.find(gpu)
        segments, measured = _segments(target)
        found = Estimates.unknown(len(operators), self.name)
        for rows, calls in OperatorSequence.of(operators).calls:
            if calls.family == "elementwise":
                found.seconds[rows] = segments.seconds(memory_seconds(calls, target), calls.kinds)
                found.relative_error[rows] = segments.error
        return replace(found, extrapolated=np.full(len(operators), not measured))


def _segments(gpu: Gpu) -> tuple[Segments, bool]:
    """Return the segments of a GPU, and whether they were fitted to it."""
    fitted = _shipped()
    name = gpu.name if gpu.name in fitted else gpu.like
    if name and name in fitted:
        return fitted[name], True
    measured = {name: one for name, one in fitted.items() if name}
    error = fitted[""].error * uncertainty.small_sample_factor(len(measured))
    return replace(of_others(measured, gpu), error=error), False


def dump(fitted: Mapping[str, Segments], provenance: Mapping[str, Any]) -> str:
    """Return fitted segments as JSON; the GPU without a name is any other."""
    return json.dumps({"gpus": {name: asdict(one) for name, one in fitted.items()}, "provenance": provenance}, indent=1)


def parse(text: str) -> dict[str, Segments]:
    """Return the segments of such a text."""
    return {name: Segments(**one) for name, one in json.loads(text)["gpus"].items()}


@cache
def _shipped() -> dict[str, Segments]:
    return parse((model_files.SHIPPED / "elementwise.json").read_text(encoding="utf-8"))
