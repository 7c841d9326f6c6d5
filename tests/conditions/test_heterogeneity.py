"""Unequal GPUs, stragglers and slow links: the times of a step follow from the factors."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import traces
from small_runs import SWITCH, compute, two_layers

import triosim
from triosim.conditions import Stragglers


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
    assert compute(first) == pytest.approx([one * Stragglers(spread=0.5, seed=1).draw(rank, 0) for rank in range(4)])
    anew = steps(spread=0.5, seed=1, every="iteration")
    mean = [sum(Stragglers(spread=0.5, seed=1).draw(rank, i) for i in range(3)) / 3 for rank in range(4)]
    assert compute(anew) == pytest.approx([one * factor for factor in mean])


@pytest.mark.parametrize(
    ("distribution", "mean"), [("uniform", 1.25), ("exponential", 1.5), ("lognormal", math.exp(0.125))]
)
def test_what_is_drawn_has_the_distributions_mean(distribution: Any, mean: float) -> None:
    drawn = [Stragglers(distribution, 0.5, 7).draw(rank, 0) for rank in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.02)
    if distribution == "lognormal":
        assert statistics.median(drawn) == pytest.approx(1, rel=0.02)
    else:
        assert min(drawn) >= 1


def test_links_slowed_by_chance_hold_back_what_crosses_them() -> None:
    """A switch: the all-reduce's ring goes at the pace of the slowest link, as it would if all were as slow."""
    said = Stragglers(spread=9, seed=4)
    slowest = max(said.draw(f"gpu{rank}", "switch0") for rank in range(4))
    assert 1 < slowest < 10
    options: dict[str, Any] = {"collective_form": "steps"}
    slow = triosim.simulate(
        two_layers(),
        "dp=4",
        topology="switch(4, bandwidth=1 MB/s)",
        conditions={"slow_links": "uniform,spread=9,seed=4"},
        **options,
    )
    alike = triosim.simulate(two_layers(), "dp=4", topology=f"switch(4, bandwidth={1e6 / slowest} B/s)", **options)
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
