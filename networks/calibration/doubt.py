"""How far off a calibrated collective is expected to be: the errors of what was left out of the fits.

Errors are mean absolute ones, of the time of the bytes and of the latency: small collectives follow software more than links.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from triosim.networks.calibration import internode
from triosim.networks.calibration.curves import TimeParts
from triosim.networks.calibration.model import Calibration


@dataclass(frozen=True, slots=True)
class PartErrors:
    """The relative errors of the two parts of a time."""

    latency: float
    moving: float

    def of(self, parts: TimeParts) -> float:
        """Return the relative error of the whole, whose parts err together."""
        if not parts.total:
            return 0.0
        return (self.latency * parts.latency + self.moving * parts.moving) / parts.total


#: Of curves that were fitted to this very cluster: sizes that were left out.
OWN = PartErrors(0.06, 0.04)
#: Of a measured machine elsewhere: other clusters with its GPUs, and other versions of NCCL (``validation.collectives``).
ELSEWHERE = PartErrors(0.48, 0.10)
#: Of another machine, for each e-fold of bandwidth between the two: generations that were left out (so, too).
PER_E_FOLD = PartErrors(0.60, 0.26)
#: Of more than two PCIe boards in a server whose host nobody measured: that of the L40S, left out (so, too).
UNKNOWN_HOST = PartErrors(0.46, 0.65)


def relative_error(calibration: Calibration, kind: str, gpus: int, nbytes: float, nodes: int) -> float | None:
    """Return the expected relative error of a collective of so many GPUs over some nodes; None where it is not calibrated."""
    parts = calibration.parts(kind, gpus, nbytes, nodes)
    if parts is None:
        return None
    if nodes > 1 and calibration.own_between(kind) is None:
        return between_nodes().of(parts)
    if nodes > 1 or calibration.node is None:
        return OWN.of(parts)
    host = UNKNOWN_HOST.of(parts) if calibration.scale.gpus_per_switch and gpus > 2 else 0.0
    return math.hypot(ELSEWHERE.of(parts), _folds(calibration, gpus) * PER_E_FOLD.of(parts), host)


def _folds(calibration: Calibration, gpus: int) -> float:
    """Return how many e-folds of bandwidth a group on a node is from the nearest measured machine that stands for it."""
    faster, node = calibration.faster, calibration.node
    if faster is None or node is None or faster.calibration.node is None:
        return abs(math.log(calibration.scale.speed_of(gpus)))
    if faster.share >= 1.0:
        return _folds(faster.calibration, gpus)
    return min(faster.share, 1.0 - faster.share) * math.log(faster.calibration.node.bandwidth / node.bandwidth)


def between_nodes() -> PartErrors:
    """Return the errors between nodes: those of clusters that were left out of the fit."""
    _, shared = internode.constants()
    return PartErrors(shared.latency_error, shared.moving_error)


class ErrorEstimator(ABC):
    """States how far off the times of its collectives are expected to be, which the interval of the step counts."""

    @abstractmethod
    def relative_error(self, kind: str, gpus: int, nbytes: float) -> float:
        """Return the mean absolute error of transfers that have run, as a share of their time; 0 where none is known."""
