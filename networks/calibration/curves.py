"""Fitted curves: the time of a collective as a function of its size and its group.

The form is TorchSim's (appendix F), made sound. Achieved bandwidth is a sigmoid of the logarithm of the size,

    B(S) = L / (1 + exp(-k (ln(S + 1) - D0))),    0 < k <= 1, L > 0,

without the offset b of equation 1, which allows a bandwidth below zero; with k = 1 it is Hockney's latency and bandwidth,
and with k <= 1 more bytes never take less time. A collective of n GPUs takes t = l + f(n) S / B(S), where f(n) is what each
GPU has to send of the S bytes (nccl-tests' factor of bus bandwidth). The linear correction of equation 11 acts on the
logarithm of t, so that a time is never negative and no case of equation 12 is needed. What then remains at the sizes
that were measured (the steps between NCCL's protocols, say) is a table of ``residuals``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Weights = tuple[float, ...]
Algorithm = Literal["ring", "tree", "nvls-tree", "direct"]
NO_CORRECTION: Weights = (0.0, 0.0, 0.0, 0.0)
_CENTRE = math.log(2.0**18)  # about the middle of the sizes that are measured, so that weights are of one order

#: Kinds that nobody measured take the bandwidth and the latency of the kind that is most like them.
LIKE = {"broadcast": "all_gather", "reduce": "reduce_scatter", "gather": "all_to_all", "scatter": "all_to_all"}


def sent(kind: str, gpus: int) -> float:
    """Return what each GPU sends of one byte of a collective, as nccl-tests counts it for the bus bandwidth."""
    if kind in ("broadcast", "reduce"):
        return 1.0
    share = (gpus - 1) / gpus
    return 2.0 * share if kind == "all_reduce" else share


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """Achieved bandwidth by size: ``ceiling`` L in bytes per second, ``steepness`` k, ``middle`` D0 in ln(bytes)."""

    ceiling: float
    steepness: float
    middle: float

    def bandwidth(self, nbytes: float) -> float:
        """Return bytes per second."""
        return self.ceiling / (1.0 + math.exp(-self.steepness * (math.log(nbytes + 1.0) - self.middle)))

    def seconds(self, nbytes: float) -> float:
        """Return what bytes take at the bandwidth of their size."""
        return nbytes / self.bandwidth(nbytes) if nbytes else 0.0


@dataclass(frozen=True, slots=True)
class Residuals:
    """Factors on a time, at some sizes in bytes (ascending); between them straight lines over ln(size)."""

    sizes: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()

    def at(self, nbytes: float) -> float:
        """Return the factor of a size; beyond the sizes that there are, the nearest one's."""
        if not self.sizes:
            return 1.0
        low, high, part = _bracket(self.sizes, nbytes)
        return float(self.factors[low] ** (1.0 - part) * self.factors[high] ** part)


@dataclass(frozen=True, slots=True)
class Curve:
    """Collectives of one kind in groups of one size: latency in seconds, achieved bandwidth, and residuals."""

    gpus: int
    latency: float
    sigmoid: Sigmoid
    residuals: Residuals = Residuals()


@dataclass(frozen=True, slots=True)
class TimeParts:
    """A time in seconds: the latency, which no bandwidth shortens, and the time of the bytes.

    ``algorithm`` is the one between nodes that is expected to finish first; None inside a node.
    """

    latency: float
    moving: float
    algorithm: Algorithm | None = None

    @property
    def total(self) -> float:
        """Return both together."""
        return self.latency + self.moving


@dataclass(frozen=True)
class KindCurves:
    """Collectives of one kind: a curve for each group size that was measured (ascending), and the linear correction."""

    kind: str
    curves: tuple[Curve, ...]
    weights: Weights = NO_CORRECTION

    def parts(self, gpus: int, nbytes: float) -> TimeParts:
        """Return the time of a collective of some GPUs.

        Between group sizes that were measured, the latency is interpolated over the number of GPUs, everything else
        over its logarithm. Beyond them each doubling costs as much latency as the last one, and the bandwidth stays.
        """
        largest = self.curves[-1].gpus
        if gpus > largest:
            known = self.parts(largest, nbytes)
            more = self.latency(gpus) - self.latency(largest)
            return TimeParts(known.latency + more, known.moving * sent(self.kind, gpus) / sent(self.kind, largest))
        total = self._corrected(gpus, nbytes)
        latency = min(total, self._corrected(gpus, self._least(gpus)))
        return TimeParts(latency, total - latency)

    def _corrected(self, gpus: int, nbytes: float) -> float:
        """Return the seconds with all corrections; what exceeds those of the least size is what the bytes take."""
        low, high, part = self._around(gpus)
        factor = low.residuals.at(nbytes) ** (1.0 - part) * high.residuals.at(nbytes) ** part
        return float(self.base(gpus, nbytes).total * factor * math.exp(corrected(self.weights, gpus, nbytes)))

    def _least(self, gpus: int) -> float:
        """Return the least size that was measured, in bytes; 0 where curves have no residuals."""
        return max((curve.residuals.sizes[0] for curve in self._around(gpus)[:2] if curve.residuals.sizes), default=0.0)

    def base(self, gpus: int, nbytes: float) -> TimeParts:
        """Return the time before any correction."""
        low, high, part = self._around(gpus)
        seconds = low.sigmoid.seconds(nbytes) ** (1.0 - part) * high.sigmoid.seconds(nbytes) ** part if nbytes else 0.0
        return TimeParts(self.latency(gpus), sent(self.kind, gpus) * seconds)

    def latency(self, gpus: int) -> float:
        """Return the latency of a group, in seconds: by straight lines over its size, beyond the largest over its logarithm."""
        curves = self.curves
        if len(curves) == 1:
            return curves[0].latency
        place = min(max(bisect_right([curve.gpus for curve in curves], gpus), 1), len(curves) - 1)
        low, high = curves[place - 1], curves[place]
        if gpus > high.gpus:
            doubling = (high.latency - low.latency) / math.log2(high.gpus / low.gpus)
            return high.latency + max(doubling, 0.0) * math.log2(gpus / high.gpus)
        slope = (high.latency - low.latency) / (high.gpus - low.gpus)
        if gpus < low.gpus:
            slope = max(slope, 0.0)
        nearest = high if gpus == high.gpus else low
        return max(nearest.latency + slope * (gpus - nearest.gpus), nearest.latency / 2)

    def _around(self, gpus: int) -> tuple[Curve, Curve, float]:
        """Return the curves on both sides of a group size, and how far it is from the first to the second."""
        low, high, part = _bracket([curve.gpus for curve in self.curves], gpus)
        return self.curves[low], self.curves[high], part


def _bracket(known: Sequence[float], value: float) -> tuple[int, int, float]:
    """Return the neighbours of a value among ascending ones, and how far it is from the first to the second, in logarithms."""
    place = bisect_right(known, value)
    if place == 0 or place == len(known):
        nearest = min(place, len(known) - 1)
        return nearest, nearest, 0.0
    low, high = known[place - 1], known[place]
    return place - 1, place, math.log(value / low) / math.log(high / low)


def features(gpus: int, nbytes: float) -> tuple[float, float, float, float]:
    """Return what the linear correction weighs: 1, ln S, ln P and their product, each about its middle."""
    size = (math.log(nbytes + 1.0) - _CENTRE) / 10.0
    group = math.log(gpus / 4.0)
    return 1.0, size, group, size * group


def corrected(weights: Sequence[float], gpus: int, nbytes: float) -> float:
    """Return the linear correction of the logarithm of a time."""
    return sum(weight * one for weight, one in zip(weights, features(gpus, nbytes), strict=True))


@dataclass(frozen=True, slots=True)
class Straggler:
    """The slowest ranks: t75 / tmin = 1 + max(0, offset + slope P ln S) (TorchSim, equation 13)."""

    offset: float = 0.0
    slope: float = 0.0

    def ratio(self, gpus: int, nbytes: float) -> float:
        """Return by how much the 75th percentile exceeds the minimum; never less than 1."""
        return 1.0 + max(0.0, self.offset + self.slope * gpus * math.log(nbytes + 1.0))
