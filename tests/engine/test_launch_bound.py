"""Steps in which the GPU waits for its host: small batches stop speeding up, and the result says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import traces

import triosim
from triosim.config.stacks import STACKS
from triosim.operators.features import flops
from triosim.trace import Operator, Trace

HOST = 50e-6


def launched(batch: int = 1024, per_flop: float = 1e-12) -> Trace:
    """An MLP whose every operator takes the host 50 us, and the GPU a time in proportion to its work."""
    trace = traces.mlp(batch=batch, sizes=(1024, 4096, 4096, 64))
    by_id = {operator.id: operator for operator in trace.operators}

    def seconds(operator: Operator) -> float:
        forward = by_id.get(operator.forward) if operator.forward is not None else None
        return 1e-6 if operator.phase == "optimizer" else per_flop * max(flops(operator, forward), 1.0)

    return replace(
        trace, operators=tuple(replace(op, seconds=seconds(op), host_seconds=HOST) for op in trace.operators)
    )


def test_a_step_takes_no_less_than_its_launches() -> None:
    trace = launched(per_flop=1e-16)
    result = triosim.simulate(trace, gpus=1, host_overhead="trace")
    floor = HOST * len(trace.operators)
    assert floor <= result.step_time_s <= floor + max(op.seconds for op in trace.operators) + 1e-9
    assert result.data.launch_wait_s + result.data.ranks[0].compute_s == pytest.approx(result.step_time_s)
    assert any("launch-bound" in note for note in result.notes)
    assert "launch-bound" in str(result)


def test_small_batches_stop_speeding_up() -> None:
    trace = launched()
    with_host, without = (
        [triosim.simulate(trace, gpus=1, batch_size=batch, host_overhead=host).step_time_s for batch in (1024, 2, 1)]
        for host in ("trace", "none")
    )
    assert with_host[0] == pytest.approx(without[0], rel=0.1)
    assert with_host[1] == pytest.approx(with_host[2], rel=0.05)
    assert without[1] < 0.8 * with_host[1]


def test_small_micro_batches_stop_speeding_up_a_pipeline() -> None:
    """With free launches, more micro-batches only shrink the bubble; with launches to pay, there is a best number."""
    trace = launched()
    times = {
        host: [
            triosim.simulate(
                trace, "pp=2", topology="switch(2, bandwidth=900 GB/s, latency=0.1 us)", micro_batches=many, host_overhead=host
            ).step_time_s
            for many in (4, 64, 1024)
        ]
        for host in ("trace", "none")
    }  # fmt: skip
    assert times["trace"][2] > 2 * times["trace"][1]
    assert times["none"][2] < 2 * times["none"][1]


def test_tensor_parallel_pieces_are_launched_too() -> None:
    trace = launched(per_flop=1e-16)
    alone = triosim.simulate(trace, gpus=1, host_overhead="trace")
    sliced = triosim.simulate(trace, "tp=2", topology="dgx-h100", host_overhead="trace")
    assert sliced.step_time_s >= 0.99 * alone.step_time_s


def test_a_long_step_waits_for_its_first_launch_only() -> None:
    result = triosim.simulate(launched(), gpus=1, host_overhead="trace")
    assert result.data.launch_wait_s == pytest.approx(HOST)
    assert not any("launch-bound" in note for note in result.notes)


def test_without_host_costs_nothing_waits() -> None:
    assert triosim.simulate(launched(), gpus=1, host_overhead="none").data.launch_wait_s == 0.0
    assert triosim.simulate(traces.mlp(), gpus=1).data.launch_wait_s == 0.0


def test_host_times_that_were_measured_count_by_default() -> None:
    default, asked = (triosim.simulate(launched(batch=8), gpus=1, host_overhead=one) for one in (None, "trace"))
    assert default.step_time_s == asked.step_time_s


def test_a_small_predicted_step_takes_as_long_as_its_stack_launches_kernels() -> None:
    result = triosim.simulate("llama3.2-1b", layers=1, seq=16, stack="eager")
    kernels = [
        one for one in triosim.describe("llama3.2-1b", layers=1, sequence=16, stack="eager").operators if one.seconds
    ]
    launches = STACKS["eager"].launch_seconds * len(kernels)
    assert launches < result.step_time_s < 1.5 * launches + sum(one.seconds for one in kernels if one.seconds > 1e-4)
    assert any("launch-bound" in note for note in result.notes)
    free = triosim.simulate("llama3.2-1b", layers=1, seq=16, stack="eager", host_overhead="none")
    assert free.step_time_s == pytest.approx(sum(one.seconds for one in kernels))


def test_a_view_costs_its_host_nothing_where_a_time_is_given() -> None:
    """Two kernels of 1 s, launched in 3 s each: the second ends at 7 s."""
    result = triosim.simulate(in_a_row(1.0, 0.0, 1.0), gpus=1, training=False, host_overhead="3 s")
    assert result.step_time_s == pytest.approx(7.0)


def test_a_trace_without_host_times_says_that_launches_cost_nothing() -> None:
    result = triosim.simulate(traces.mlp(), gpus=1, host_overhead="trace")
    assert any("no host times" in note for note in result.notes)


def test_the_raw_vgg_trace_is_bound_by_its_gpu_at_512_and_by_its_host_at_8(data_dir: Path) -> None:
    trace = triosim.load_trace(data_dir / "traces" / "h100_vgg13_bs512_raw")
    large, small, smaller = (
        triosim.simulate(trace, gpus=1, batch_size=batch, host_overhead="trace") for batch in (512, 8, 4)
    )
    host = sum(operator.host_seconds or 0.0 for operator in trace.operators)
    assert large.data.launch_wait_s < 0.01 * large.step_time_s
    assert small.step_time_s == pytest.approx(smaller.step_time_s, rel=0.01)
    assert small.step_time_s > 0.95 * host


def in_a_row(*seconds: float) -> Trace:
    """Operators of some lengths, each of which costs the host a second."""
    operators = [
        Operator(number, "aten::op", "forward", "l", (), (), time, host_seconds=1.0)
        for number, time in enumerate(seconds)
    ]
    return replace(traces.mlp(), operators=tuple(operators))


@pytest.mark.parametrize(("ahead", "end"), [(None, 9.0), (1024, 9.0), (2, 9.0), (1, 12.0)])
def test_a_host_that_waits_for_its_gpu_cannot_hide_launches_behind_a_long_operator(
    ahead: int | None, end: float
) -> None:
    """The first runs from 1 to 6, and the next three a second each; one ahead, each is launched when the last is through."""
    trace = in_a_row(5.0, 1.0, 1.0, 1.0)
    result = triosim.simulate(trace, gpus=1, training=False, host_overhead="trace", run_ahead=ahead)
    assert result.step_time_s == pytest.approx(end)


def test_views_are_no_launches_that_the_host_is_ahead_by() -> None:
    """One ahead: launch and run 1 s each, four times, and the views are launched meanwhile."""
    trace = in_a_row(1.0, 0.0, 1.0, 0.0, 1.0, 1.0)
    free = tuple(replace(one, host_seconds=1.0 if one.seconds else 0.0) for one in trace.operators)
    result = triosim.simulate(
        replace(trace, operators=free), gpus=1, training=False, host_overhead="trace", run_ahead=1
    )
    assert result.step_time_s == pytest.approx(8.0)


def test_calls_that_communicate_cost_the_host_as_much_as_operators() -> None:
    trace = launched(per_flop=1e-18)
    one = triosim.simulate(trace, gpus=1, host_overhead="trace").step_time_s
    sliced = triosim.simulate(trace, "tp=2", topology="switch(2, bandwidth=100 TB/s)", host_overhead="trace")
    calls = sum(collective.count for collective in sliced.data.collectives)
    assert sliced.step_time_s == pytest.approx(one + calls * HOST, rel=0.02)


def test_a_host_is_at_least_one_operator_ahead() -> None:
    with pytest.raises(triosim.errors.OptionError, match="run-ahead"):
        triosim.simulate(launched(), gpus=1, host_overhead="trace", run_ahead=0)


@pytest.mark.parametrize("parallel", ["tp=2,dp=2", "pp=2,dp=2", "fsdp=4"])
def test_ranks_that_do_the_same_are_simulated_once_however_far_hosts_are_ahead(parallel: str) -> None:
    trace = launched(per_flop=2e-14)
    once, each = (
        triosim.simulate(trace, parallel, topology="dgx-h100", host_overhead="trace", run_ahead=2, fold=fold)
        for fold in (True, False)
    )
    assert once.step_time_s == pytest.approx(each.step_time_s, rel=1e-9)
    free = triosim.simulate(trace, parallel, topology="dgx-h100", host_overhead="trace")
    assert once.step_time_s >= free.step_time_s * (1 - 1e-9)
