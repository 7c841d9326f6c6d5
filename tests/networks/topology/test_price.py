"""The price of a network: what its links and the ports of its switches cost for each GB/s."""

from __future__ import annotations

from typing import Any

import pytest

from triosim.networks.topology import Topology
from triosim.networks.topology.price import network_price


def price(**said: Any) -> float | None:
    return network_price(Topology.from_dict(said))


def test_a_topology_without_prices_has_none() -> None:
    assert price(topology="ring", gpus=4, bandwidth="10 GB/s") is None


def test_links_cost_by_their_bandwidth_in_one_direction() -> None:
    assert price(topology="ring", gpus=4, bandwidth="10 GB/s", price=3) == pytest.approx(4 * 10 * 3)
    assert price(topology="fully_connected", gpus=4, bandwidth="10 GB/s", price=3) == pytest.approx(6 * 10 * 3)


def test_a_switch_costs_for_each_of_its_ports() -> None:
    said = {"topology": "switch", "gpus": 8, "bandwidth": "10 GB/s"}
    assert price(**said, price={"link": 2, "switch": 3}) == pytest.approx(8 * 10 * (2 + 3))


def test_links_between_nodes_have_a_price_of_their_own_and_memories_none() -> None:
    said = {"preset": "dgx-h100", "gpus": 16}  # 450 GB/s to the switch of the node, 50 GB/s to the fabric
    assert price(**said, price={"link": 1, "between_nodes": {"link": 10, "switch": 2}}) == pytest.approx(
        16 * 450 + 16 * 50 * 12
    )


def test_dimensions_have_prices_of_their_own() -> None:
    """Two rings of four links, four pairs, and one switch for all eight on an outer dimension of one GPU each."""
    said = {"topology": "Ring(4)_FC(2)_Switch(1)", "bandwidth": ["100 GB/s", "50 GB/s", "25 GB/s"]}
    prices = {"link": [1, 2, 100], "switch": [9, 9, 9]}
    assert price(**said, price=prices) == pytest.approx(2 * 4 * 100 * 1 + 4 * 50 * 2)
    switched = {"topology": "Switch(8)", "bandwidth": "100 GB/s"}
    assert price(**switched, price={"link": 1, "switch": 9}) == pytest.approx(8 * 100 * 10)


@pytest.mark.parametrize(
    "text", ["Ring(4)", "Ring(2)", "FC(5)", "Switch(3)", "Ring(4)_FC(3)", "Switch(2)_Ring(3)_FC(2)"]
)
def test_what_dimensions_cost_is_what_their_links_cost(text: str) -> None:
    """The closed form for dimensions agrees with the sum over the links of the graph."""
    count = text.count("(")
    topology = Topology.from_dict(
        {"topology": text, "bandwidth": ["30 GB/s"] * count, "price": {"link": 2, "switch": 5}}
    )
    changed = topology.with_links(lambda link: link)  # not regular any more: every link is counted
    assert network_price(topology) == pytest.approx(network_price(changed))
