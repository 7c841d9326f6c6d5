"""The price of a network, from what its links and switches cost for each GB/s: the key ``price`` of a topology file.

    price: 4                                             # of a link, for each GB/s of one direction
    price: {link: [2, 5, 12], switch: [0, 3, 8]}         # of dimensions, one for each
    price: {link: 2, switch: 3, between_nodes: {link: 12, switch: 8}}

A link has both directions. ``switch`` is what a switch costs for each GB/s of each of its ports, besides the link. Of
several nodes, ``between_nodes`` are the links of network cards. That links and switches cost by their bandwidth, each dimension
at prices of its own, is the model of LIBRA (Won et al. 2024); the currency is the user's. Links to memories cost nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triosim.errors import TopologyError, nearest
from triosim.networks.topology.description import Section
from triosim.networks.topology.dimensional import link_bandwidth
from triosim.networks.topology.graph import Dimension, Link
from triosim.networks.topology.topology import Topology

KEY = "price"
_GB = 1e9  # bytes per second


@dataclass(frozen=True, slots=True)
class _Rates:
    """What a link and a switch cost for each GB/s; of dimensions, one for each, or one for all."""

    link: tuple[float, ...]
    switch: tuple[float, ...] = (0.0,)

    def of(self, dimension: int) -> tuple[float, float]:
        return self.link[dimension % len(self.link)], self.switch[dimension % len(self.switch)]


@dataclass(frozen=True, slots=True)
class Prices:
    """What links and switches cost within a node, or in all of the network, and between nodes."""

    within: _Rates
    between_nodes: _Rates


def network_price(topology: Topology) -> float | None:
    """Return what the links and switches of a topology cost; None where its file has no prices. Raises ``TopologyError``."""
    prices = prices_of(topology)
    if prices is None:
        return None
    if topology.regularity.by_dimension and topology.uniform:
        return math.fsum(_of_dimensions(topology.dimensions, prices.within))
    return math.fsum(_of_link(topology, link, prices) for link in topology.links.values())


def prices_of(topology: Topology) -> Prices | None:
    """Return the prices in a topology's file; None where it has none. Raises ``TopologyError`` for what they cannot be."""
    section = topology.sections.get(KEY)
    if section is None:
        return None
    prices = section.parsed(_prices)
    by_dimension = topology.regularity.by_dimension
    _check_numbers(section, prices.within, len(topology.dimensions) if by_dimension else 1)
    return prices


def _of_dimensions(dimensions: Sequence[Dimension], rates: _Rates) -> list[float]:
    gpus = math.prod(one.size for one in dimensions)
    found = []
    for number, one in enumerate(dimensions):
        link, switch = rates.of(number)
        per_gb = link + (switch if one.block == "switch" else 0.0)
        found.append(gpus / one.size * _links(one) * link_bandwidth(one) / _GB * per_gb if one.size > 1 else 0.0)
    return found


def _links(dimension: Dimension) -> int:
    """Return how many links a block has."""
    size = dimension.size
    if dimension.block == "fully_connected":
        return size * (size - 1) // 2
    return size if dimension.block == "switch" or (dimension.block == "ring" and size > 2) else size - 1


def _of_link(topology: Topology, link: Link, prices: Prices) -> float:
    """Return what one direction of a link costs: half of both."""
    kinds = [topology.nodes[end].kind for end in (link.source, link.destination) if end]
    if "host" in kinds or "memory" in kinds:
        return 0.0
    rates = prices.between_nodes if link.name in topology.graph.between_nodes else prices.within
    price, switch = rates.of(0)
    return (price + switch * kinds.count("switch")) * link.bandwidth / _GB / 2


def _prices(section: Section) -> Prices:
    said = section.said
    if not isinstance(said, Mapping):
        within = _Rates(_numbers(section, said))
        return Prices(within, within)
    within = _rates(section, {key: value for key, value in said.items() if key != "between_nodes"})
    beyond = said.get("between_nodes")
    if beyond is None:
        return Prices(within, within)
    if isinstance(beyond, Mapping):
        return Prices(within, _rates(section, beyond, "between_nodes"))
    return Prices(within, _Rates(_numbers(section, beyond, "between_nodes")))


def _rates(section: Section, said: Mapping[str, Any], *path: str) -> _Rates:
    for key in said:
        if key not in ("link", "switch"):
            fix = nearest(str(key), ("link", "switch", *(() if path else ("between_nodes",))))
            raise TopologyError("unknown key", where=section.where((*path, str(key))), fix=fix)
    if "link" not in said:
        raise TopologyError("'link' is missing", where=section.where(path), fix="write what a GB/s of a link costs")
    switch = said.get("switch", 0.0)
    return _Rates(_numbers(section, said["link"], *path, "link"), _numbers(section, switch, *path, "switch"))


def _numbers(section: Section, said: Any, *path: str) -> tuple[float, ...]:
    found = []
    for one in said if isinstance(said, list) and said else [said]:
        try:
            number = math.nan if isinstance(one, bool) else float(one)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 <= number <= 1e12:
            raise TopologyError(f"'{one}' is not a price", where=section.where(path), fix="write a number of 0 or more")
        found.append(number)
    return tuple(found)


def _check_numbers(section: Section, rates: _Rates, dimensions: int) -> None:
    for key, values in (("link", rates.link), ("switch", rates.switch)):
        if len(values) not in (1, dimensions):
            what = f"{len(values)} prices of a {key} for {dimensions} dimension{'s' * (dimensions != 1)}"
            raise TopologyError(
                what, where=section.where(), fix="write one for each, the innermost first, or one for all"
            )
