"""What is known of a point of a search: its state, its memory, the lower bound of its step time, and its simulated figures.

The states, in the order in which a search finds them out:

- ``out_of_memory``: it does not fit, and is never timed.
- ``excluded``: its bound is worse than what was simulated.
- ``refused``: simulating it ended in an error of one line, which is the ``reason``.
- ``simulated``: it has ``figures``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from triosim.results.result import Result
from triosim.results.values import RankTimes, mean_of_ranks
from triosim.units import LONGEST_SECONDS

State = Literal["out_of_memory", "excluded", "refused", "simulated"]
STATES: tuple[State, ...] = get_args(State)
#: Seconds that a difference of times may be below zero.
_ROUNDING = 1e-6

#: What a point's figures have of the metrics of a result, under the same names.
_METRICS = ("tokens_per_s", "mfu", "bubble_fraction", "energy_j", "cost")


@dataclass(frozen=True, slots=True)
class Memory:
    """The peak of the fullest rank, and what a process can have of its GPU's memory, in bytes."""

    peak_bytes: float
    capacity_bytes: float

    @property
    def headroom_bytes(self) -> float:
        """What is left; negative where it does not fit."""
        return self.capacity_bytes - self.peak_bytes

    def fits(self, margin: float = 0.0) -> bool:
        """Whether the peak is within the capacity, if it is ``margin`` (0.05: 5%) higher than predicted."""
        return self.peak_bytes * (1.0 + margin) <= self.capacity_bytes


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one simulated step; times of ranks are means over the ranks, in seconds.

    ``interval`` is the step time's 90% interval and ``doubts`` what it comes from, each source with its expected error in
    seconds. ``exposed_communication_s`` is without waiting for partners, which is ``waiting_s`` while nothing is computed, and
    without ``host_s``, in which the host computes and the GPU does not.
    ``network_price`` is that of all links and switches. What is not known is None.
    """

    step_time_s: float
    gpus: int
    samples_per_s: float
    compute_s: float
    exposed_communication_s: float
    waiting_s: float
    launch_wait_s: float
    interval: tuple[float, float] | None = None
    doubts: tuple[tuple[str, float], ...] = ()
    tokens_per_s: float | None = None
    mfu: float | None = None
    bubble_fraction: float | None = None
    energy_j: float | None = None
    cost: float | None = None
    network_price: float | None = None
    host_s: float = 0.0

    @classmethod
    def of(cls, result: Result, network_price: float | None = None) -> Figures:
        """Return the figures of a result, on a network of this price."""
        data, found = result.data, result.data.metrics
        mean = mean_of_ranks(data.ranks, 0)
        return cls(
            step_time_s=data.step_time_s,
            gpus=len(data.ranks),
            samples_per_s=data.throughput_samples_per_s,
            compute_s=mean.compute_s,
            exposed_communication_s=mean.exposed_communication_s - mean.exposed_waiting_s - mean.exposed_host_s,
            waiting_s=mean.exposed_waiting_s,
            host_s=mean.exposed_host_s,
            launch_wait_s=data.launch_wait_s,
            network_price=network_price,
            interval=data.step_time_interval_s,
            doubts=tuple((doubt.source, doubt.error_s) for doubt in data.doubts),
            **{} if found is None else {name: getattr(found, name) for name in _METRICS},
        )

    def as_rank(self, row: int = 0) -> RankTimes:
        """Return the parts of the step as those of a rank; what is neither computation nor exposed communication is idle."""
        exposed = self.exposed_communication_s + self.waiting_s + self.host_s
        idle = max(0.0, self.step_time_s - self.compute_s - exposed)
        apart = {"exposed_waiting_s": self.waiting_s, "exposed_host_s": self.host_s}
        return RankTimes(row, self.compute_s, exposed, exposed, idle, **apart)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of the point with this ``key``.

    ``at_bound`` has the figures of a step that takes no longer than the point's lower bound.
    """

    key: str
    state: State
    reason: str = ""
    memory: Memory | None = None
    figures: Figures | None = None
    at_bound: Figures | None = None

    def __post_init__(self) -> None:
        assert self.state in STATES
        assert (self.figures is not None) == (self.state == "simulated")

    def plain(self) -> dict[str, Any]:
        """Return the outcome as JSON holds it, without what is not known."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Outcome:
        """Return the outcome that ``plain`` gave. Raises ``KeyError``, ``TypeError`` or ``ValueError`` otherwise."""
        given = {one.name: plain[one.name] for one in fields(cls) if one.name in plain}
        readers = {"memory": _memory, "figures": _figures, "at_bound": _figures}
        return cls(**given | {name: reader(given[name]) for name, reader in readers.items() if name in given})


def _memory(plain: Mapping[str, Any]) -> Memory:
    found = Memory(**plain)
    if not (0.0 <= found.peak_bytes < math.inf and found.capacity_bytes >= 0.0):
        raise ValueError("bytes that no GPU has")
    return found


def _figures(plain: Mapping[str, Any]) -> Figures:
    """Return the figures of which JSON made lists of the tuples."""
    interval = plain["interval"]
    doubts = tuple((str(source), float(error)) for source, error in plain["doubts"])
    numbers = [value for name, value in plain.items() if name not in ("interval", "doubts") and value is not None]
    if not 0.0 < plain["step_time_s"] <= LONGEST_SECONDS or not all(
        -_ROUNDING <= value < math.inf for value in numbers
    ):
        raise ValueError("figures that no step has")
    return Figures(**{**plain, "interval": interval and tuple(interval), "doubts": doubts})
