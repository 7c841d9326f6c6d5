"""Computation and communication that slow each other down: the times of a step worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import traces
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import WORLD, overlapping, run, times

import triosim
from triosim.conditions import Interference
from triosim.conditions.interference import OperatorProgress
from triosim.engine.intervals import length, overlap
from triosim.engine.recording import operator_times
from triosim.tasks import AllReduce, Compute, Recv, Send, TaskStream


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


def test_of_several_transfers_the_largest_factor_counts() -> None:
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


def test_kinds_that_are_not_named_slow_nothing_down() -> None:
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
