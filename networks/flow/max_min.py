"""The max-min fair share of bandwidth: a flow's rate could rise only if the rate of a flow that is no faster fell.

Progressive filling (Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2): the rates of all flows grow
together; when a link is full, the flows on it are settled, and the others grow on. This is the rule alone, written to
be read; :mod:`triosim.networks.flow.sharing` keeps the same rates up to date while flows come and go.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from triosim.errors import SimulationError

L = TypeVar("L", bound=Hashable)


def rates(capacities: Mapping[L, float], routes: Sequence[Iterable[L]]) -> list[float]:
    """Return the max-min fair rate of each flow, in bytes per second, given the links that it crosses.

    A link that a route names twice counts once: a route is a set of links here. A flow that crosses no link, or only
    links of infinite capacity, gets an infinite rate. Raises ``SimulationError`` for a link without a capacity or
    with one that is not positive.
    """
    crossing: dict[L, dict[int, None]] = {}  # the flows on each link that are not settled yet
    links = [tuple(dict.fromkeys(route)) for route in routes]
    for flow, route in enumerate(links):
        for link in route:
            crossing.setdefault(link, {})[flow] = None
    left = {link: _capacity(capacities, link) for link in crossing}
    result = [math.inf] * len(links)

    while crossing:
        fullest = min(crossing, key=lambda link: left[link] / len(crossing[link]))
        rate = max(left[fullest] / len(crossing[fullest]), 0.0)
        if rate == math.inf:
            break
        for flow in tuple(crossing[fullest]):
            result[flow] = rate
            for link in links[flow]:
                left[link] -= rate
                del crossing[link][flow]
        crossing = {link: flows for link, flows in crossing.items() if flows}
    return result


def _capacity(capacities: Mapping[L, float], link: L) -> float:
    capacity = capacities.get(link, 0.0)
    if not capacity > 0:
        raise SimulationError(f"link {link!r} has no positive capacity", fix="give it one, in bytes per second")
    return capacity
