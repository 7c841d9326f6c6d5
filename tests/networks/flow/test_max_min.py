"""The sharing rule: by hand, by its definition, and kept up to date by two implementations."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triosim.errors import SimulationError
from triosim.networks.flow import max_min
from triosim.networks.flow.sharing import FlowRates, can_compile

LINKS = st.dictionaries(st.integers(0, 9), st.floats(1e6, 1e12), min_size=1, max_size=10)


@st.composite
def systems(draw: st.DrawFn) -> tuple[dict[int, float], list[list[int]]]:
    capacities = draw(LINKS)
    route = st.lists(st.sampled_from(sorted(capacities)), min_size=1, max_size=5)
    return capacities, draw(st.lists(route, max_size=25))


def test_a_flow_that_is_held_elsewhere_leaves_the_rest_to_the_others() -> None:
    """Three flows on a: one can only do 1 because of b, so that the two others get 4.5 each and not 10 / 3."""
    assert max_min.rates({"a": 10.0, "b": 1.0}, [["a", "b"], ["a"], ["a"]]) == [1.0, 4.5, 4.5]


def test_the_long_flow_of_a_parking_lot_gets_no_less_than_the_short_ones() -> None:
    capacities = {"first": 2.0, "second": 1.0, "third": 4.0}
    rates = max_min.rates(capacities, [["first", "second", "third"], ["first"], ["second"], ["third"]])
    assert rates == [0.5, 1.5, 0.5, 3.5]


def test_no_link_means_no_limit() -> None:
    assert max_min.rates({}, []) == []
    assert max_min.rates({"wide": math.inf, "narrow": 3.0}, [[], ["wide"], ["wide", "narrow"]]) == [
        math.inf,
        math.inf,
        3.0,
    ]


def test_a_link_named_twice_in_a_route_counts_once() -> None:
    assert max_min.rates({"a": 6.0}, [["a", "a"], ["a"]]) == [3.0, 3.0]


@pytest.mark.parametrize("capacity", [0.0, -1.0, math.nan, None])
def test_a_link_without_capacity_is_refused(capacity: float | None) -> None:
    with pytest.raises(SimulationError, match="no positive capacity"):
        max_min.rates({} if capacity is None else {"a": capacity}, [["a"]])


@given(systems())
def test_every_flow_has_a_full_link_on_which_no_other_gets_more(
    system: tuple[dict[int, float], list[list[int]]],
) -> None:
    capacities, routes = system
    assert_max_min(capacities, routes, max_min.rates(capacities, routes))


def assert_max_min(capacities: dict[int, float], routes: list[list[int]], rates: list[float]) -> None:
    on_link = {link: [rates[f] for f, route in enumerate(routes) if link in route] for link in capacities}
    for link, capacity in capacities.items():
        assert sum(on_link[link]) <= capacity * (1 + 1e-9)
    for flow, route in enumerate(routes):
        assert any(
            sum(on_link[link]) >= capacities[link] * (1 - 1e-9) and rates[flow] >= max(on_link[link]) * (1 - 1e-9)
            for link in route
        )


class Traffic:
    """Flows that come and go, several at an instant, on a Sharing."""

    def __init__(self, seed: int, sharing: FlowRates, links: int, hops: int) -> None:
        self.rng = random.Random(seed)
        self.sharing = sharing
        self.links = links
        self.hops = hops
        self.routes: dict[int, list[int]] = {}  # by slot
        self.now = 0.0

    def step(self) -> list[int]:
        """Let some flows go and some come, and return the slots whose rate changed."""
        rng = self.rng
        self.now += rng.random()
        slots = sorted(self.routes)
        for slot in rng.sample(slots, min(len(slots), rng.choice([0, 1, 1, 3]))):
            self.sharing.remove(slot)
            del self.routes[slot]
        for _ in range(rng.choice([0, 1, 1, 1, 4]) if len(self.routes) < 60 else 0):
            route = rng.sample(range(self.links), rng.randint(1, self.hops))
            slot = self.sharing.add(route, rng.uniform(1e12, 1e13), self.now)
            self.routes[slot] = route
        return list(self.sharing.settle(self.now))


def capacities_of(seed: int, links: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.choice([1e9, 2e9, 1e10, rng.uniform(1e8, 1e11)]) for _ in range(links)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.sampled_from([1, 2, 8]))
def test_sharing_only_where_a_change_reaches_equals_sharing_everything_again(
    seed: int, links: int, patience: int
) -> None:
    capacities = capacities_of(seed, links)
    sharing = FlowRates(capacities, patience=patience)
    traffic = Traffic(seed, sharing, links, min(links, 5))
    for _ in range(60):
        traffic.step()
        slots = list(traffic.routes)
        expected = max_min.rates(dict(enumerate(capacities)), [traffic.routes[slot] for slot in slots])
        assert [sharing.rate[slot] for slot in slots] == pytest.approx(expected, rel=1e-9)
        for slot, rate in zip(slots, expected, strict=True):
            assert sharing.finish[slot] == pytest.approx(
                sharing.updated[slot] + sharing.remaining[slot] / rate, rel=1e-9
            )


def test_a_change_far_away_leaves_a_flow_as_it_is() -> None:
    sharing = FlowRates([1.0, 1.0])
    sharing.add([0], 10.0, 0.0)
    sharing.settle(0.0)
    other = sharing.add([1], 10.0, 3.0)
    assert list(sharing.settle(3.0)) == [other]


def test_a_flow_on_a_shared_link_whose_rate_does_not_change_is_left_as_it_is() -> None:
    """The newcomer finds room beside a flow that is held elsewhere: nobody else is touched."""
    sharing = FlowRates([10.0, 1.0])
    sharing.add([0, 1], 100.0, 0.0)
    sharing.settle(0.0)
    newcomer = sharing.add([0], 100.0, 1.0)
    assert list(sharing.settle(1.0)) == [newcomer]
    assert sharing.rate[newcomer] == 9.0


@pytest.mark.skipif(not can_compile(), reason="numba is not installed")
@pytest.mark.parametrize("seed", range(12))
def test_the_compiled_kernel_agrees_to_the_last_bit(seed: int) -> None:
    links = 5 + seed * 3
    capacities = capacities_of(seed, links)
    plain = Traffic(seed, FlowRates(capacities), links, 5)
    changing = Traffic(seed, FlowRates(capacities), links, 5)
    for step in range(200):
        if step == 20 * (seed % 3):  # at once, or while flows are on their way
            changing.sharing.compile()
        assert plain.step() == changing.step()
        for slot in plain.routes:
            for column in ("rate", "remaining", "finish"):
                assert getattr(plain.sharing, column)[slot] == getattr(changing.sharing, column)[slot]
