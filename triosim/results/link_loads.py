"""The load of each link over time, from the rates that a network recorded.

A link's rate is constant between two changes, so its cumulative bytes are piecewise linear, and the bytes of any time slot are
exact. A link's *share* is the part of its bandwidth that is taken, also by the time for which a calibrated collective keeps
the link beyond what its bytes need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from triosim.networks.extensions import LinkRate
from triosim.networks.topology import Link, Topology

#: The number of equal time slots of a run, to say when a link was busiest.
SLOTS = 50


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """A link's load from the start of a run to its end: at ``times`` (seconds) rate (bytes per second) and share change.

    The last time is the end of the run.
    """

    times: tuple[float, ...]
    rates: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def peak(self) -> float:
        """The highest share."""
        return max(self.shares, default=0.0)

    @property
    def busy_s(self) -> float:
        """Seconds in which it carried anything."""
        spans = zip(self.times, self.times[1:], self.rates, strict=False)
        return math.fsum(end - start for start, end, rate in spans if rate > 0)

    def carried(self, edges: Any) -> Any:
        """Return the bytes between each two of some times in order, as an array."""
        return _between(self.times, self.rates, edges)

    def taken(self, edges: Any) -> Any:
        """Return the seconds, between each two of some times, that the link would have needed at its full bandwidth."""
        return _between(self.times, self.shares, edges)


def loads(rates: Iterable[LinkRate], end: float) -> dict[str, LoadCurve]:
    """Return the load of each link that carried anything until ``end``; of changes at one instant the last counts."""
    changes: dict[str, list[LinkRate]] = {}
    for change in sorted(rates, key=lambda one: one.time):  # circuits say beforehand when they will be through
        found = changes.setdefault(change.link, [])
        if found and found[-1].time == change.time:
            found.pop()
        found.append(change)
    made = {}
    for name, found in changes.items():
        kept = [one for one in found if one.time < end]
        times = (0.0, *(one.time for one in kept), end)
        made[name] = LoadCurve(times, (0.0, *(one.rate for one in kept)), (0.0, *(one.share for one in kept)))
    return {name: load for name, load in made.items() if any(load.rates)}


def edges(end: float, slots: int = SLOTS) -> Any:
    """Return the boundaries of equal time slots, an array of one more than ``slots``."""
    import numpy as np

    return np.linspace(0.0, end, slots + 1)


def busiest_slot(load: LoadCurve, end: float, slots: int = SLOTS) -> tuple[float, float]:
    """Return the start and end of the time slot in which the link carried most; the first of equals."""
    import numpy as np

    bounds = edges(end, slots)
    taken = load.taken(bounds)
    first = int(np.argmax(taken >= taken.max() * (1 - 1e-9)))
    return float(bounds[first]), float(bounds[first + 1])


class LinkClass(NamedTuple):
    """A class of equal links: the kinds of nodes that they join, in either direction, bandwidth and latency."""

    source: str
    destination: str
    bandwidth: float
    latency: float


def link_classes(topology: Topology) -> dict[LinkClass, list[Link]]:
    """Return the links of a topology by class."""
    found: dict[LinkClass, list[Link]] = {}
    for link in topology.links.values():
        ends = (topology.nodes[end].kind if end else "" for end in (link.source, link.destination))
        one, other = sorted(ends)
        found.setdefault(LinkClass(one, other, link.bandwidth, link.latency), []).append(link)
    return found


def _between(times: tuple[float, ...], levels: tuple[float, ...], bounds: Any) -> Any:
    import numpy as np

    line = np.concatenate(([0.0], np.cumsum(np.diff(times) * np.asarray(levels))))
    return np.diff(np.interp(bounds, times, line))
