"""Unequal GPUs and links: what happens to a step is worked out by hand. What files and options may say, and what not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import simpy
import traces
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from triosim.conditions import Conditions, Interference, Stragglers, parse_conditions, parse_factors, parse_ranks
from triosim.conditions.interference import OperatorProgress
from triosim.conditions.stragglers import draw
from triosim.engine.engine import Engine
from triosim.engine.intervals import length, overlap
from triosim.engine.options import EngineOptions
from triosim.engine.recording import Recording, operator_times
from triosim.errors import DeadlockError, OptionError, TriosimError
from triosim.networks import PacketNetwork, Topology
from triosim.tasks import AllReduce, Communicator, Compute, Recv, Send, TaskStream, Wait
from triosim.trace import Trace

WORLD = Communicator((0, 1), "world")
RING = "ring(2, bandwidth=1 B/s)"


def run(program: Callable[[int], TaskStream], world: int = 2, **conditions: Any) -> Recording:
    """Run a program on a network of 1 byte per second."""
    env = simpy.Environment()
    network = PacketNetwork(env, Topology.load(f"ring({max(world, 2)}, bandwidth=1)"))
    engine = Engine(env, network, EngineOptions(timeline=True, conditions=Conditions(**conditions)))
    return engine.run({rank: program(rank) for rank in range(world)})


def times(recording: Recording, kind: type) -> list[tuple[float | None, float | None]]:
    assert recording.handles is not None
    return [(h.started, h.finished) for h in recording.handles if isinstance(h.task, kind) and h.rank == 0]


# ---- computation and communication on one GPU ----------------------------------------------------------------------


def overlapping(rank: int) -> TaskStream:
    """2 s, then an all-reduce of 3 s (1.5 bytes each way, twice) beside 10 s of computation."""
    yield Compute.of("before", 2)
    handle = yield AllReduce(3, WORLD)
    yield Compute.of("beside", 10)
    yield Wait((handle,))


def test_computation_is_slower_beside_a_collective() -> None:
    """In the 3 s of the collective 2 s are computed, the other 8 s after it."""
    recording = run(overlapping, interference=Interference({"all_reduce": 1.5}))
    assert times(recording, Compute) == [(0, 2), (2, 13)]
    assert times(recording, AllReduce) == [(2, 5)]
    assert recording.ranks[0].slowed_seconds == pytest.approx(1)
    assert recording.ranks[0].compute_seconds == pytest.approx(13)


def test_a_collective_is_slower_beside_computation() -> None:
    recording = run(overlapping, interference=Interference({}, {"all_reduce": 2.0}))
    assert times(recording, Compute) == [(0, 2), (2, 12)]
    assert times(recording, AllReduce) == [(2, 8)]


def test_both_at_once() -> None:
    """6 s of collective, in which 4 s are computed; the other 6 s after it."""
    recording = run(overlapping, interference=Interference({"all_reduce": 1.5}, {"all_reduce": 2.0}))
    assert times(recording, AllReduce) == [(2, 8)]
    assert times(recording, Compute) == [(0, 2), (2, 14)]


def test_a_collective_goes_on_at_full_speed_when_nobody_computes_any_more() -> None:
    """1 s of computation beside it: half a second of it done by then; the other 2.5 s take as long."""

    def program(rank: int) -> TaskStream:
        yield AllReduce(3, WORLD)
        yield Compute.of("beside", 1)

    assert times(run(program, interference=Interference({}, {"all_reduce": 2.0})), AllReduce) == [(0, 3.5)]


def test_computation_that_begins_late_slows_what_is_left_of_a_collective() -> None:
    """One member begins to compute after 2 of the 3 s: the last second takes two."""

    def program(rank: int) -> TaskStream:
        yield AllReduce(3, WORLD, issuer=None)
        if rank == 1:
            yield Compute.of("nothing", 0)
            yield triosim_host(2)
            yield Compute.of("beside", 10)

    assert times(run(program, interference=Interference({}, {"all_reduce": 2.0})), AllReduce) == [(0, 4)]


def triosim_host(seconds: float) -> Any:
    from triosim.tasks import Host

    return Host(seconds)


def test_of_several_transfers_the_one_that_hampers_most_counts() -> None:
    """The send takes 2 s, the all-reduce 6 (they share the link): 2 and then 4 s at a factor of 2, of 3 while both run."""

    def program(rank: int) -> TaskStream:
        yield AllReduce(2, WORLD)
        yield Send(1, 1, stream="sends") if rank == 0 else Recv(0, stream="sends")
        yield Compute.of("beside", 10)

    recording = run(program, interference=Interference({"all_reduce": 2.0, "send": 3.0}))
    send_end = times(recording, Send)[0][1]
    reduce_end = times(recording, AllReduce)[0][1]
    assert send_end is not None
    assert reduce_end is not None
    both, one = min(send_end, reduce_end), max(send_end, reduce_end)
    slow_part = (one - both) / (2.0 if reduce_end > send_end else 3.0)
    assert times(recording, Compute) == [(0, pytest.approx(one + 10 - both / 3 - slow_part))]


def test_kinds_that_are_not_named_hamper_nothing() -> None:
    plain = run(overlapping)
    named = run(overlapping, interference=Interference({"all_gather": 3.0}, {"send": 2.0}))
    assert times(named, Compute) == times(plain, Compute) == [(0, 2), (2, 12)]
    assert times(named, AllReduce) == times(plain, AllReduce) == [(2, 5)]


def test_a_factor_of_one_changes_no_result() -> None:
    trace = traces.transformer()
    options: dict[str, Any] = {"topology": "switch(4, bandwidth=1 GB/s, latency=1 us)", "host_overhead": "5 us"}
    plain = triosim.simulate(trace, "ddp=4", **options)
    paced = triosim.simulate(trace, "ddp=4", conditions={"events": [{"at": 1e3, "gpu": 0, "slowdown": 2}]}, **options)
    assert paced.step_time_s == pytest.approx(plain.step_time_s, rel=1e-12)
    assert paced.data.launch_wait_s == pytest.approx(plain.data.launch_wait_s, rel=1e-9)
    for one, other in zip(paced.data.ranks, plain.data.ranks, strict=True):
        assert one.compute_s == pytest.approx(other.compute_s, rel=1e-12)
        assert one.exposed_communication_s == pytest.approx(other.exposed_communication_s, rel=1e-9)


Speeds = st.lists(st.tuples(st.floats(0, 10), st.floats(1, 5)), max_size=6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 3), min_size=1, max_size=8), Speeds)
def test_work_is_conserved_whatever_the_speed(seconds: list[float], changes: list[tuple[float, float]]) -> None:
    """Operators follow each other without a gap, and the time at each speed adds up to the work."""
    changes = sorted(changes)
    progress, factor = OperatorProgress(0.0, seconds), 1.0
    for at, following in changes:
        progress.advance(at, factor)
        factor = following
    end = progress.advance(math.inf, factor)
    assert [start for start, _ in progress.intervals] == [0.0, *(stop for _, stop in progress.intervals[:-1])]
    edges = [0.0, *(min(at, end) for at, _ in changes), end]
    speeds = [1.0, *(one for _, one in changes)]
    work = sum((b - a) / speed for a, b, speed in zip(edges[:-1], edges[1:], speeds, strict=True))
    assert work == pytest.approx(sum(seconds), abs=1e-9)
    assert end >= sum(seconds) - 1e-9


def test_a_slow_operator_is_as_long_in_the_timeline_as_it_ran() -> None:
    recording = run(overlapping, interference=Interference({"all_reduce": 1.5}))
    assert recording.handles is not None
    spans = [span[1:] for handle in recording.handles if handle.rank == 0 for span in operator_times(handle)]
    assert spans == [(0, 2), (2, 13)]
    rank = recording.ranks[0]
    assert length(rank.compute.merged()) == pytest.approx(13)
    assert overlap(rank.compute.merged(), rank.communication.merged()) == pytest.approx(3)


# ---- unequal GPUs --------------------------------------------------------------------------------------------------

SWITCH = "switch(4, bandwidth=100 GB/s)"


def two_layers() -> Trace:
    return traces.mlp()


def compute(result: triosim.Result) -> list[float]:
    return [rank.compute_s for rank in result.data.ranks]


def test_a_slow_gpu_takes_longer_and_the_others_wait_for_it() -> None:
    plain = triosim.simulate(two_layers(), "ddp=4", topology=SWITCH)
    slow = triosim.simulate(two_layers(), "ddp=4", topology=SWITCH, conditions={"slow_gpus": {"1,3": 1.5}})
    one = compute(plain)[0]
    assert compute(slow) == pytest.approx([one, 1.5 * one, one, 1.5 * one])
    assert slow.data.ranks[0].waiting_s > 0
    assert slow.data.ranks[1].waiting_s == pytest.approx(0)
    layer = slow.data.layers[0]
    assert {share.ranks: share.total_s for share in layer.per_rank} == {
        "0,2": pytest.approx(plain.data.layers[0].total_s),
        "1,3": pytest.approx(1.5 * plain.data.layers[0].total_s),
    }


@pytest.mark.parametrize("parallel", ["ddp=4", "tp=4", "pp=4", "dp=2,pp=2"])
def test_a_system_that_is_twice_as_slow_in_everything_takes_twice_as_long(parallel: str) -> None:
    slow = {"slow_gpus": {"0-3": 2}}
    options: dict[str, Any] = {"global_batch_size": 8}
    fast = triosim.simulate(traces.convnet(), parallel, topology="ring(4, bandwidth=1 GB/s, latency=10 us)", **options)
    half = "ring(4, bandwidth=500 MB/s, latency=20 us)"
    both = triosim.simulate(traces.convnet(), parallel, topology=half, conditions=slow, **options)
    assert both.step_time_s == pytest.approx(2 * fast.step_time_s, rel=1e-9)


@pytest.mark.parametrize("parallel", ["ddp=4", "pp=4"])
def test_a_gpu_that_degrades_at_once_is_a_slow_gpu(parallel: str) -> None:
    options: dict[str, Any] = {"topology": SWITCH, "host_overhead": "3 us"}
    slow = triosim.simulate(traces.convnet(), parallel, conditions={"slow_gpus": {2: 1.7}}, **options)
    happens = {"events": "at=0,gpu=2,slowdown=1.7"}
    degraded = triosim.simulate(traces.convnet(), parallel, conditions=happens, **options)
    assert degraded.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)
    assert compute(degraded) == pytest.approx(compute(slow), rel=1e-9)


def test_a_gpu_of_another_kind_takes_the_time_predicted_for_it() -> None:
    trace = traces.transformer()
    other = triosim.simulate(trace, gpus=1, gpu="V100-SXM2-32GB")
    mixed = triosim.simulate(trace, "ddp=4", topology=SWITCH, conditions={"gpu_kinds": {"2-3": "V100-SXM2-32GB"}})
    here = triosim.simulate(trace, gpus=1)
    assert compute(mixed) == pytest.approx([compute(here)[0]] * 2 + [compute(other)[0]] * 2)
    assert any("2 of the 4 GPUs are V100" in note for note in mixed.notes)


def test_chance_is_the_same_for_the_same_seed() -> None:
    def steps(**said: Any) -> triosim.Result:
        return triosim.simulate(
            two_layers(), "ddp=4", topology=SWITCH, iterations=3, conditions={"stragglers": said} if said else None
        )

    first, again, other = (steps(spread=0.5, seed=seed) for seed in (1, 1, 2))
    assert compute(first) == compute(again)
    assert compute(first) != compute(other)
    one = compute(steps())[0]
    assert all(one <= seconds <= 1.5 * one for seconds in compute(first))
    assert compute(first) == pytest.approx([one * draw(Stragglers(spread=0.5, seed=1), rank, 0) for rank in range(4)])
    anew = steps(spread=0.5, seed=1, every="iteration")
    mean = [sum(draw(Stragglers(spread=0.5, seed=1), rank, i) for i in range(3)) / 3 for rank in range(4)]
    assert compute(anew) == pytest.approx([one * factor for factor in mean])


@pytest.mark.parametrize(
    ("distribution", "mean"), [("uniform", 1.25), ("exponential", 1.5), ("lognormal", math.exp(0.125))]
)
def test_what_is_drawn_has_the_distributions_mean(distribution: Any, mean: float) -> None:
    drawn = [draw(Stragglers(distribution, 0.5, 7), rank, 0) for rank in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.02)
    if distribution == "lognormal":
        assert statistics.median(drawn) == pytest.approx(1, rel=0.02)
    else:
        assert min(drawn) >= 1


def test_links_slowed_by_chance_hold_back_what_crosses_them() -> None:
    """A switch: the all-reduce's ring goes at the pace of the slowest link, as it would if all were as slow."""
    said = Stragglers(spread=9, seed=4)
    slowest = max(draw(said, f"gpu{rank}", "switch0") for rank in range(4))
    assert 1 < slowest < 10
    options: dict[str, Any] = {"collective_form": "steps"}
    slow = triosim.simulate(
        two_layers(),
        "dp=4",
        topology="switch(4, bandwidth=1 MB/s)",
        conditions={"slow_links": "uniform,spread=9,seed=4"},
        **options,
    )
    alike = triosim.simulate(two_layers(), "dp=4", topology=f"switch(4, bandwidth={1e6 / slowest})", **options)
    assert slow.step_time_s == pytest.approx(alike.step_time_s, rel=1e-9)
    assert any("slow-downs of links are drawn at random" in note for note in slow.notes)


def test_stages_are_balanced_over_unequal_gpus_when_asked() -> None:
    """No other division into two stages has a faster slowest stage."""
    trace = traces.mlp(batch=8, sizes=(16,) * 7)

    def slowest(**options: Any) -> float:
        conditions = {"slow_gpus": {1: 2}}
        return max(
            compute(triosim.simulate(trace, "pp=2", topology=SWITCH, micro_batches=1, conditions=conditions, **options))
        )

    layers = [row.layer for row in triosim.simulate(trace, gpus=1).data.layers if row.forward_s]
    best = min(slowest(stages=[layer]) for layer in layers[1:])
    assert slowest(balance_stages=True) == pytest.approx(best)
    assert slowest() > 1.2 * best


# ---- what happens at a time ----------------------------------------------------------------------------------------


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
    network = PacketNetwork(env, Topology.load("switch(4, bandwidth=1)"), kernel=kernel)
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


# ---- what may be said ----------------------------------------------------------------------------------------------


def test_a_file_and_an_option_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text(
        "topology: switch\ngpus: 4\nbandwidth: 100 GB/s\ncompute_slowdown: {all_reduce: 1.3}\ncollective_slowdown: 1.1\n"
        "slow_gpus: {0: 1.2, 2-3: 1.5}\nstragglers: {distribution: lognormal, spread: 0.1, seed: 3}\n"
        "events: [{at: 1 ms, gpu: 1, slowdown: 2}, {at: 2 ms, from: gpu0, to: switch0, bandwidth: 1 GB/s}]\n"
    )
    said: dict[str, Any] = {
        "compute_slowdown": "all_reduce=1.3",
        "collective_slowdown": "1.1",
        "slow_gpus": ["0=1.2", "2-3=1.5"],
        "stragglers": "lognormal,spread=0.1,seed=3",
        "events": ["at=1ms,gpu=1,slowdown=2", "at=2 ms,from=gpu0,to=switch0,bandwidth=1 GB/s"],
    }
    by_file = triosim.simulate(two_layers(), "ddp=4", topology=path)
    by_option = triosim.simulate(two_layers(), "ddp=4", topology=SWITCH, conditions=said)
    assert by_file.data.ranks == by_option.data.ranks
    assert by_file.step_time_s > triosim.simulate(two_layers(), "ddp=4", topology=SWITCH).step_time_s


def test_ranks_and_factors_as_text() -> None:
    assert parse_ranks("0-2, 7") == [0, 1, 2, 7]
    assert parse_ranks(3) == [3]
    assert parse_factors("1.2")["all_to_all"] == parse_factors("1.2")["send"] == 1.2
    assert "copy" not in parse_factors(1.2)
    assert parse_factors("copy=1.5,send=2") == {"copy": 1.5, "send": 2.0}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"compute_slowdown": 0.9}, "--compute-slowdown: '0.9' is not a factor"),
        ({"compute_slowdown": "all_reduc=1.2"}, "did you mean 'all_reduce'?"),
        ({"collective_slowdown": "nan"}, "--collective-slowdown: 'nan' is not a factor"),
        ({"slow_gpus": {9: 2}}, "there is no GPU 9; name one from 0 to 3"),
        ({"slow_gpus": "2"}, "write for example '4-7=1.5'"),
        ({"slow_gpus": {"2-1": 2}}, "'2-1' is not a list of ranks"),
        ({"slow_gpus": {1: math.inf}}, "--slow-gpus: 'inf' is not a factor"),
        ({"gpu_kinds": {1: "H1000"}}, "switch 4: gpu_kinds: 1: there is no GPU 'H1000' in the catalogue"),
        ({"gpu_kinds": {1: 3}}, "3 is not a GPU"),
        ({"stragglers": "normal"}, "distribution: unknown value 'normal'"),
        ({"stragglers": "uniform,spread=-1"}, "'-1' is not a spread"),
        ({"stragglers": "uniform,sped=1"}, "unknown key 'sped'; did you mean 'spread'?"),
        ({"stragglers": "uniform,seed=x"}, "'x' is not a seed"),
        ({"slow_links": "uniform,every=iteration"}, "unknown key 'every'; known: distribution, seed, spread"),
        ({"events": "gpu=1,slowdown=2"}, "is not an event"),
        ({"events": 5}, "5 is not a list of events"),
        ({"events": [{"at": -1, "gpu": 1, "slowdown": 2}]}, "-1 is not a time"),
        ({"events": [{"at": 1, "gpu": 1}]}, "needs either 'slowdown' or 'fails'"),
        ({"events": [{"at": 1, "gpu": "0-1", "slowdown": 2}]}, "'0-1' is not one GPU"),
        ({"events": [{"at": 1, "gpu": 1, "slowdwn": 2}]}, "did you mean 'slowdown'?"),
        ({"events": [{"at": 1, "from": "gpu0", "to": "gpu1", "bandwidth": "1 GB/s"}]}, "no link from gpu0 to gpu1"),
        ({"events": [{"at": 1, "from": "gpu0", "to": "switch0", "bandwidth": -1}]}, "-1 is not a positive bandwidth"),
        ({"event": []}, "--event: unknown key; did you mean 'events'?"),
    ],
)
def test_what_is_said_wrong(said: dict[str, Any], message: str) -> None:
    with pytest.raises(TriosimError) as error:
        triosim.simulate(two_layers(), "ddp=4", topology=SWITCH, conditions=said)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("said", "network", "note"),
    [
        ({"slow_gpus": {3: 2}}, "packet", "slow_gpus has no effect on GPU 3: the run uses 2 GPUs"),
        ({"events": "at=9999,gpu=0,slowdown=2"}, "packet", "the event at 9999 s has no effect: the run ends at"),
        (
            {"compute_slowdown": "send=1.2"},
            "packet",
            "compute_slowdown has no effect: the run has no send, only all_reduce",
        ),
        ({"slow_links": "uniform,spread=9"}, "photonic", "slow_links has no effect on optical circuits"),
    ],
)
def test_what_made_no_difference_is_said(said: dict[str, Any], network: str, note: str) -> None:
    options = {"topology": SWITCH, "network": network}
    plain = triosim.simulate(two_layers(), "ddp=2", **options)
    found = triosim.simulate(two_layers(), "ddp=2", conditions=said, **options)
    assert found.step_time_s == pytest.approx(plain.step_time_s, rel=1e-12)
    assert [one for one in found.notes if one.startswith(note)]
    assert not [one for one in found.notes if "longer in all" in one]


def test_a_file_that_says_it_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text("preset: dgx-h100\nslow_gpus: {1: 0.5}\n")
    with pytest.raises(TriosimError, match=r"slow.yaml:2: slow_gpus: '0.5' is not a factor"):
        Topology.load(path)


def test_a_network_whose_links_cannot_change_says_so() -> None:
    said = {"events": ["at=1,from=gpu0,to=switch0,fails=true"]}
    with pytest.raises(OptionError, match="AnalyticalNetwork cannot change links while it runs"):
        triosim.simulate(two_layers(), "ddp=4", topology=SWITCH, network="analytical", conditions=said)
