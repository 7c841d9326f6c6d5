"""Flows that start together and share their links with no others: when each ends, without an event for every end.

Progressive filling (:mod:`triosim.networks.flow.max_min`) with two differences that change no result. All links are settled at
once whose fair share is the smallest on every route that crosses them: they would be, one after the other. And parts of the
network that share no link go on to their next end by themselves, each with a clock of its own, so that there are as many rounds
as one part has ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: What is less than this part of a flow's work, or of a link's share, is rounding.
_ROUNDING = 1e-12


class SimultaneousFlows:
    """Flows with the numbers of the links that each crosses (different ones, at least one) and the bytes that each sends.

    ``capacities`` are those of all links by number, in bytes per second.
    """

    def __init__(self, routes: Sequence[Sequence[int]], nbytes: Sequence[float], capacities: Sequence[float]) -> None:
        numbers = {
            link: number for number, link in enumerate(dict.fromkeys(link for route in routes for link in route))
        }
        longest = max(map(len, routes))
        # Routes as rows; the shorter ones end in a link that has room for all.
        self._routes = np.full((len(routes), longest), len(numbers))
        for row, route in enumerate(routes):
            self._routes[row, : len(route)] = [numbers[link] for link in route]
        self._capacities = np.array([*(capacities[link] for link in numbers), np.inf])
        self._nbytes = np.array(nbytes, dtype=np.float64)
        self._parts = self._connected()

    def seconds(self) -> float:
        """Return when the last of them ends."""
        return float(self._run(np.inf)[0].max())

    def left(self, seconds: float) -> Floats:
        """Return the bytes that are left of each after so many seconds, at least 0."""
        return self._run(seconds)[1]

    def _run(self, until: float) -> tuple[Floats, Floats]:
        """Return when each flow ends, or ``until``, and the bytes that are left of it then."""
        left, ends = self._nbytes.copy(), np.full(len(self._nbytes), until)
        clocks = np.zeros(self._parts.max() + 1)
        flows = np.flatnonzero(left > 0.0)
        ends[left <= 0.0] = 0.0
        while len(flows):
            rates, parts = self._rates(self._routes[flows]), self._parts[flows]
            steps = np.full(len(clocks), np.inf)
            np.minimum.at(steps, parts, left[flows] / rates)
            steps = np.where(np.isfinite(steps), np.minimum(steps, until - clocks), 0.0)
            left[flows] = np.maximum(left[flows] - rates * steps[parts], 0.0)
            clocks += steps
            ended = left[flows] <= _ROUNDING * self._nbytes[flows]
            left[flows[ended]], ends[flows[ended]] = 0.0, clocks[parts[ended]]
            flows = flows[~ended & (clocks[parts] < until)]
        return ends, left

    def _rates(self, routes: Integers) -> Floats:
        """Return the max-min fair rates of flows with these routes."""
        rates, free = np.zeros(len(routes)), self._capacities.copy()
        flows = np.arange(len(routes))
        while len(flows):
            crossings = routes.ravel()
            counts = np.bincount(crossings, minlength=len(free))
            shares = np.divide(free, counts, out=np.full(len(free), np.inf), where=counts > 0)
            fair = shares[routes].min(axis=1)
            lowest = np.full(len(free), np.inf)
            np.minimum.at(lowest, crossings, np.repeat(fair, routes.shape[1]))
            full = shares <= lowest * (1 + _ROUNDING)
            settled = full[routes].any(axis=1)
            rates[flows[settled]] = fair[settled]
            taken = np.repeat(fair[settled], routes.shape[1])
            free = np.maximum(free - np.bincount(routes[settled].ravel(), taken, len(free)), 0.0)
            flows, routes = flows[~settled], routes[~settled]
        return rates

    def _connected(self) -> Integers:
        """Return a number for each flow: equal ones for those that share links, directly or through others."""
        crossings, length = self._routes.ravel(), self._routes.shape[1]
        found = np.arange(len(self._routes))
        while True:
            of_links = np.full(len(self._capacities), len(found))
            np.minimum.at(of_links, crossings, np.repeat(found, length))
            of_links[-1] = len(found)  # the link that has room for all connects none
            lower = np.minimum(found, of_links[self._routes].min(axis=1))
            if (lower == found).all():
                return np.unique(found, return_inverse=True)[1]
            found = lower
