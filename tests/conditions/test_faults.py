"""GPUs and links that slow down, fail or recover at a time: what happens to a step is worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import overlapping, run, times

import triosim
from triosim.conditions import Conditions, parse_conditions
from triosim.errors import DeadlockError
from triosim.networks import PacketNetwork, Topology
from triosim.tasks import Compute, Recv, Send, TaskStream


def alone(rank: int) -> TaskStream:
    yield Compute.of("a", 4)
    yield Compute.of("b", 6)


def events(*said: Any) -> dict[str, Any]:
    found = parse_conditions({"events": list(said)}, lambda path, what, fix: AssertionError(what), Conditions())
    return {"gpu_events": found.gpu_events, "link_events": found.link_events}


def test_a_gpu_that_degrades_is_slower_from_then_on() -> None:
    """1 s at full speed, 9 s of work at a third."""
    recording = run(alone, 1, **events({"at": "1 s", "gpu": 0, "slowdown": 3}))
    assert times(recording, Compute) == [(0, 10), (10, 28)]


def test_a_gpu_that_recovers() -> None:
    """3 s, then 2 s that do 1 s of work, then the 6 s that are left."""
    recording = run(alone, 1, **events("at=3s,gpu=0,slowdown=2", "at=5s,gpu=0,slowdown=1"))
    assert recording.end == 11


def test_a_gpu_that_fails_stops_everybody_and_the_error_says_so() -> None:
    with pytest.raises(DeadlockError, match=r"GPU 1 failed at 1.00 s: 2 ranks can never go on"):
        run(overlapping, **events({"at": 1, "gpu": 1, "fails": True}))


def test_a_gpu_that_fails_names_the_block_that_it_was_in() -> None:
    """The operators between two collectives run as one computation, of which a GPU that failed has no longer a place."""
    trace = str(Path(__file__).parents[2] / "examples" / "traces" / "vgg11_a100_fake.json.gz")
    with pytest.raises(DeadlockError, match=r"rank 1 in the computations 'aten::\w+' to 'aten::\w+', which its GPU"):
        triosim.simulate(trace, "ddp=2", topology="dgx-a100", conditions={"events": ["at=10 us,gpu=1,fails=true"]})


def test_a_gpu_that_fails_and_comes_back_has_lost_the_time_between() -> None:
    recording = run(alone, 1, **events("at=1s,gpu=0,fails=true", "at=4s,gpu=0,slowdown=1"))
    assert recording.end == 13


def send_both_ways(rank: int) -> TaskStream:
    yield Send(1, 10) if rank == 0 else Recv(0)


def test_a_link_that_degrades_carries_what_is_left_more_slowly() -> None:
    """4 bytes at 1 byte per second, 6 at half of that."""
    recording = run(send_both_ways, **events({"at": 4, "from": "gpu0", "to": "gpu1", "bandwidth": 0.5}))
    assert recording.end == pytest.approx(16)


def test_the_other_direction_is_as_it_was_unless_both_are_meant() -> None:
    event = {"at": 4, "from": "gpu1", "to": "gpu0", "bandwidth": 0.5}
    assert run(send_both_ways, **events(event)).end == pytest.approx(10)
    assert run(send_both_ways, **events({**event, "both": True})).end == pytest.approx(16)


def test_a_link_that_fails_ends_the_run_unless_it_comes_back() -> None:
    fails = {"at": 4, "from": "gpu0", "to": "gpu1", "fails": True}
    with pytest.raises(DeadlockError, match=r"link gpu0->gpu1 failed at 4.00 s"):
        run(send_both_ways, **events(fails))
    back = {"at": 104, "from": "gpu0", "to": "gpu1", "bandwidth": 2}
    assert run(send_both_ways, **events(fails, back)).end == pytest.approx(107)


Flow = st.tuples(st.floats(0, 5), st.integers(0, 3), st.integers(0, 3), st.floats(0.5, 20))
Change = st.tuples(st.floats(0, 20), st.integers(0, 3), st.floats(0.2, 5))


@settings(max_examples=60, deadline=None)
@given(st.lists(Flow, min_size=1, max_size=10), st.lists(Change, max_size=5), st.sampled_from(["python", "numba"]))
def test_rates_are_fair_after_every_change_of_a_link(
    flows: list[tuple[float, int, int, float]], changes: list[tuple[float, int, float]], kernel: Any
) -> None:
    """Every flow has a full link on which no other gets more, by the definition worked out from all flows at once."""
    from triosim.networks.flow import max_min

    env = simpy.Environment()
    network = PacketNetwork(env, Topology.load("switch(4, bandwidth=1 B/s)"), kernel=kernel)
    capacity = dict.fromkeys(network.topology.links, 1.0)
    for at, source, destination, nbytes in flows:
        send = (lambda s, d, n: lambda _: network.transfer(s, d, n))(source, destination, nbytes)
        env.timeout(at).callbacks.append(send)

    def changing(gpu: int, bandwidth: float) -> Callable[[Any], None]:
        def change(_: Any) -> None:
            network.set_bandwidth(gpu, "switch0", bandwidth)
            capacity[f"gpu{gpu}->switch0"] = bandwidth

        return change

    for at, gpu, bandwidth in changes:
        env.timeout(at).callbacks.append(changing(gpu, bandwidth))
    while env.peek() < math.inf:
        now = env.peek()
        while env.peek() == now:
            env.step()
        running = list(network._flowing.values())
        routes = [flow.path.links for flow in running]
        expected = max_min.rates(capacity, routes)
        found = [network._sharing.rate[flow.slot] for flow in running]
        assert found == pytest.approx(list(expected), rel=1e-9)
    assert not network._flowing
