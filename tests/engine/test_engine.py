"""The engine runs streams as CUDA and NCCL do. The network here is as simple as can be, so that every time is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from triosim.engine import Engine, EngineOptions, Recording
from triosim.engine.intervals import length, overlap
from triosim.engine.recording import operator_times
from triosim.errors import DeadlockError, SimulationError
from triosim.tasks import (
    AllGather,
    AllReduce,
    Batch,
    Communicator,
    Compute,
    Copy,
    Handle,
    Host,
    Iteration,
    Poll,
    Record,
    Recv,
    Send,
    Synchronize,
    TaskStream,
    Wait,
    WaitAny,
)
from triosim.trace import Operator


class OneBytePerSecond:
    """A network without contention: a transfer or a collective of n bytes takes n seconds."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.topology = SimpleNamespace(
            node=lambda name: f"gpu{name}" if isinstance(name, int) else name,
            memory_of=lambda gpu, tier: f"{tier}0",
            memories={},
            name="test",
        )

    def transfer(self, source: object, destination: object, nbytes: float) -> simpy.Event:
        return self.env.timeout(nbytes)

    def collective(self, kind: str, group: object, nbytes: float, **_: Any) -> simpy.Event:
        return self.env.timeout(nbytes)


Program = Callable[[int], TaskStream]


def run(program: Program, world: int = 1, **options: Any) -> Recording:
    env = simpy.Environment()
    engine = Engine(env, OneBytePerSecond(env), EngineOptions(timeline=True, **options))  # type: ignore[arg-type]
    return engine.run({rank: program(rank) for rank in range(world)})


def times(recording: Recording, kind: type) -> list[tuple[float, float]]:
    assert recording.handles is not None
    return [(h.started, h.finished) for h in recording.handles if isinstance(h.task, kind)]  # type: ignore[misc]


def group(world: int, name: str = "world") -> Communicator:
    return Communicator(tuple(range(world)), name)


def test_tasks_of_one_stream_run_in_order() -> None:
    def program(rank: int) -> TaskStream:
        yield Compute.of("a", 2)
        yield Compute.of("b", 3)

    assert times(run(program), Compute) == [(0, 2), (2, 5)]


def test_two_streams_of_one_gpu_take_turns_unless_they_fill_a_part_of_it() -> None:
    def whole(rank: int) -> TaskStream:
        yield Compute.of("a", 2, stream="one")
        yield Compute.of("b", 3, stream="two")

    def part(rank: int) -> TaskStream:
        for stream in ("one", "two"):
            yield Compute(Compute.of("a", 2).operators, stream, share=0.5)

    assert run(whole).end == 5
    assert run(part).end == 2


def test_a_collective_waits_for_what_its_issuer_had_issued() -> None:
    def program(rank: int) -> TaskStream:
        yield Compute.of("backward 1", 4)
        yield AllReduce(3, group(2))
        yield Compute.of("backward 2", 5)  # runs beside the all-reduce

    recording = run(program, 2)
    assert times(recording, AllReduce) == [(4, 7), (4, 7)]
    assert recording.end == 9


def test_what_follows_a_collective_that_blocks_waits_for_it_and_other_streams_do_not() -> None:
    def program(rank: int) -> TaskStream:
        yield Compute.of("before", 1)
        yield AllReduce(3, group(2), blocks=True)
        yield Compute.of("after", 2)
        yield Compute.of("beside", 1, stream="other")

    # "beside" gets the GPU when "before" has ended; without ``blocks`` "after" would be ahead of it.
    recording = run(program, 2)
    assert times(recording, AllReduce)[0] == (1, 4)
    assert sorted(times(recording, Compute)[:3]) == [(0, 1), (1, 2), (4, 6)]


def test_a_collective_starts_when_its_last_member_arrives_and_waiting_is_counted() -> None:
    def program(rank: int) -> TaskStream:
        yield Compute.of("work", 1 + 3 * rank)
        handle = yield AllReduce(2, group(2))
        yield Wait((handle,))
        yield Compute.of("optimizer", 1)

    recording = run(program, 2)
    assert recording.end == 7
    first, last = recording.ranks
    assert (first.waiting_seconds, last.waiting_seconds) == (3, 0)
    assert length(first.communication.merged()) == 5
    assert length(last.communication.merged()) == 2


def test_two_groups_of_the_same_ranks_are_two_communicators() -> None:
    def program(rank: int) -> TaskStream:
        order = ("a", "b") if rank == 0 else ("b", "a")
        for name in order:
            yield AllReduce(1, group(2, name), stream=name)

    assert run(program, 2).end == 1  # on one communicator this would be a mismatch; here both run at once


def test_collectives_of_one_communicator_keep_their_order_even_on_two_streams() -> None:
    def program(rank: int) -> TaskStream:
        yield AllReduce(2, group(2), stream="one")
        yield AllReduce(2, group(2), stream="two")

    assert run(program, 2).end == 4


def test_a_send_is_over_when_its_data_is_delivered_and_waits_for_its_receive() -> None:
    def program(rank: int) -> TaskStream:
        if rank == 0:
            yield Send(1, 4)
        else:
            yield Compute.of("busy", 3)
            handle = yield Recv(0)
            yield Wait((handle,))
            yield Compute.of("use", 1)

    recording = run(program, 2)
    assert times(recording, Send) == [(3, 7)]
    assert recording.end == 8


def test_sends_and_receives_match_by_pair_tag_and_order() -> None:
    def program(rank: int) -> TaskStream:
        if rank == 0:
            yield Send(1, 5, tag=1, stream="a")
            yield Send(1, 2, tag=2, stream="b")
        else:
            yield Recv(0, tag=2, stream="b")
            yield Recv(0, tag=1, stream="a")

    recording = run(program, 2)
    assert sorted(times(recording, Recv)) == [(0, 2), (0, 5)]


def test_a_receive_that_stands_ready_counts_once_its_send_comes_and_holds_up_no_iteration() -> None:
    def program(rank: int) -> TaskStream:
        if rank == 0:
            yield Compute.of("busy", 3)
            yield Send(1, 4)
        else:
            yield Recv(0, stream=None, issuer=None, preposted=True)
            computed = yield Compute.of("step", 2)
            yield Iteration(of=(computed,))
            yield Iteration()

    recording = run(program, 2)
    receiver = recording.ranks[1]
    assert receiver.iterations == [2, 7]
    assert receiver.communication.merged() == [(3, 7)]
    assert receiver.waiting_seconds == 0


def test_opposite_sends_block_each_other_alone_but_not_in_a_batch() -> None:
    def alone(rank: int) -> TaskStream:
        yield Send(1 - rank, 2)
        yield Recv(1 - rank)

    def batched(rank: int) -> TaskStream:
        yield Batch((Send(1 - rank, 2), Recv(1 - rank)))

    with pytest.raises(DeadlockError, match="rank 0 in a send of 2 B to rank 1") as caught:
        run(alone, 2)
    assert "rank 1 in a send of 2 B to rank 0 (tag 0) which waits for a receive on rank 0" in str(caught.value)
    assert run(batched, 2).end == 2


def test_a_receive_in_a_batch_waits_for_its_own_partner() -> None:
    """Rank 0 sends to rank 1 at once, from 0 to 2; rank 2 sends after 10 s, from 10 to 13: from 2 on it only waits."""

    def program(rank: int) -> TaskStream:
        if rank == 0:
            yield Batch((Send(1, 2), Recv(2)), label="pp")
        elif rank == 1:
            yield Recv(0)
        else:
            yield Compute.of("late", 10)
            yield Send(0, 3)

    first = run(program, 3).ranks[0]
    assert first.waiting_seconds == 8
    assert [(one.arrived, one.started, one.finished, one.axis) for one in first.communication.transfers] == [
        (0, 0, 2, "pp"),
        (0, 10, 13, "pp"),
    ]


def test_events_order_two_streams() -> None:
    def program(rank: int) -> TaskStream:
        yield Compute.of("produce", 2)
        event = yield Record()
        yield Compute.of("go on", 5)
        yield Wait((event,), stream="side")
        yield Compute(Compute.of("use", 1).operators, "side", share=0.0)

    recording = run(program)
    assert times(recording, Compute)[2] == (2, 3)


def test_the_host_can_wait_look_and_work() -> None:
    seen: list[object] = []

    def program(rank: int) -> TaskStream:
        slow = yield Compute.of("slow", 5, stream="one")
        fast = yield Compute(Compute.of("fast", 2).operators, "two", share=0.0)
        seen.append((yield Poll((slow, fast))).done)
        found = yield WaitAny((slow, fast), 1)
        seen.append((found.now, found.done == (fast,)))
        yield Host(1)
        seen.append((yield Poll()).now)
        found = yield Synchronize()
        seen.append((found.now, found.done == (slow,)))

    run(program)
    assert seen == [(), (2, True), 3, (5, True)]


def test_tasks_without_a_stream_are_ordered_by_after_alone() -> None:
    def program(rank: int) -> TaskStream:
        a = yield Compute(Compute.of("a", 3).operators, None, share=0.25)
        b = yield Compute(Compute.of("b", 1).operators, None, share=0.25)
        yield Compute(Compute.of("c", 1).operators, None, share=0.25, after=(b,))
        yield Compute(Compute.of("d", 1).operators, None, share=0.25, after=(a, b))

    assert times(run(program), Compute) == [(0, 3), (0, 1), (1, 2), (3, 4)]


def test_a_launch_bound_step_lasts_as_long_as_its_host() -> None:
    operators = tuple(Operator(i, "small", "forward", "l", (), (), 1e-6, host_seconds=5e-6) for i in range(100))

    def program(rank: int) -> TaskStream:
        yield Compute(operators)

    recording = run(program, launch_costs=True)
    assert recording.end == pytest.approx(100 * 5e-6 + 1e-6, rel=1e-12)
    assert recording.ranks[0].compute_seconds == pytest.approx(100e-6, rel=1e-12)
    assert length(recording.ranks[0].compute.merged()) == pytest.approx(100e-6, rel=1e-9)
    assert recording.handles is not None
    assert [start for _, start, _ in operator_times(recording.handles[0])][:2] == pytest.approx([5e-6, 10e-6])


def test_operators_share_the_time_by_which_their_task_is_longer_where_none_was_recorded() -> None:
    long = Operator(0, "long", "forward", "l", (), (), 1.0)
    short = Operator(1, "short", "forward", "l", (), (), 0.5)
    handle = Handle(0, Compute((long, short)))
    handle.started, handle.finished = 1.0, 2.65
    assert [found[1:] for found in operator_times(handle)] == [pytest.approx((1.0, 2.1)), pytest.approx((2.1, 2.65))]


def test_the_host_time_of_the_trace_delays_only_what_it_does_not_hide_behind() -> None:
    long = Operator(0, "long", "forward", "l", (), (), 1.0, host_seconds=0.1)
    short = Operator(1, "short", "forward", "l", (), (), 0.2, host_seconds=0.5)

    def program(rank: int) -> TaskStream:
        yield Compute((long, short, short))  # launched at 0.1, 0.6, 1.1

    assert run(program, launch_costs=True).end == pytest.approx(0.1 + 1.0 + 0.2 + 0.2)


def test_the_host_runs_ahead_of_the_device_by_a_bounded_number_of_launches() -> None:
    drawn: list[float] = []

    def program(rank: int) -> TaskStream:
        for _ in range(1100):
            drawn.append((yield Poll()).now)
            yield Compute.of("a", 1)

    run(program)
    assert drawn.count(0) == 1024
    assert drawn[-1] == 1100 - 1024


def test_copies_in_one_direction_follow_each_other_and_the_other_direction_is_free() -> None:
    def program(rank: int) -> TaskStream:
        yield Copy("host", "device", 2, stream="a")
        yield Copy("host", "device", 2, stream="b")
        yield Copy("device", "host", 3, stream="c")

    assert times(run(program), Copy) == [(0, 2), (2, 4), (0, 3)]


def test_an_iteration_ends_when_all_that_was_issued_is_done() -> None:
    def program(rank: int) -> TaskStream:
        for _ in range(2):
            yield Compute.of("step", 2)
            yield AllReduce(3, group(2))
            yield Iteration()

    assert [rank.iterations for rank in run(program, 2).ranks] == [[5, 8], [5, 8]]


def test_a_deadlock_names_ranks_tasks_and_partners() -> None:
    def program(rank: int) -> TaskStream:
        yield Compute.of("work", 1)
        if rank != 2:
            handle = yield AllReduce(1e6, group(4, "dp"))
            yield Synchronize((handle,))

    with pytest.raises(DeadlockError) as caught:
        run(program, 4)
    assert "ranks 0-1, 3 in all_reduce of 1.00 MB in 'dp', number 0 of its communicator" in str(caught.value)
    assert "waits for rank 2" in str(caught.value)


def test_members_that_mean_different_collectives_are_an_error() -> None:
    def kinds(rank: int) -> TaskStream:
        yield (AllReduce if rank else AllGather)(8, group(2))

    def sizes(rank: int) -> TaskStream:
        yield AllReduce(8 + rank, group(2))

    for program in (kinds, sizes):
        with pytest.raises(SimulationError, match="ranks 1 and 0 meet in collective 0"):
            run(program, 2)


def test_what_is_no_task_is_an_error_and_so_is_a_stranger_in_a_group() -> None:
    def nothing(rank: int) -> TaskStream:
        yield "all_reduce"  # type: ignore[misc]

    def stranger(rank: int) -> TaskStream:
        yield AllReduce(1, Communicator((1, 2)))

    with pytest.raises(SimulationError, match="yield tasks"):
        run(nothing)
    with pytest.raises(SimulationError, match="does not belong"):
        run(stranger)


def test_long_chains_of_empty_tasks_need_no_recursion() -> None:
    def program(rank: int) -> TaskStream:
        yield Compute.of("a", 1)
        for _ in range(1000):
            yield Record()

    assert run(program).end == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=30), st.integers(1, 4))
def test_compute_time_is_the_sum_of_the_operators(seconds: list[float], world: int) -> None:
    def program(rank: int) -> TaskStream:
        for one in seconds:
            yield Compute.of("op", one)
            yield AllReduce(1, group(world))

    for rank in run(program, world).ranks:
        assert rank.compute_seconds == pytest.approx(math.fsum(seconds), rel=1e-12, abs=1e-300)
        assert length(rank.compute.merged()) == pytest.approx(math.fsum(seconds), rel=1e-9, abs=1e-12)


def test_a_copy_that_waits_for_one_on_the_same_engine_starts_once() -> None:
    """Of two queued copies the second starts when the first is over, and what waits for the first comes behind it."""

    def program(rank: int) -> TaskStream:
        first = yield Copy("host", "device", 2, stream="a")
        yield Copy("host", "device", 3, stream="b")
        yield Copy("host", "device", 4, stream="c", issuer=None, after=(first,))

    assert run(program, 1).end == 2 + 3 + 4


def test_overlap_of_intervals() -> None:
    assert overlap([(0, 2), (4, 6)], [(1, 5)]) == 2
    assert overlap([], [(1, 5)]) == 0


def test_a_transfer_too_waits_for_its_launch() -> None:
    def program(rank: int) -> TaskStream:
        yield AllReduce(1, group(2))

    assert run(program, 2, launch_costs=True, call_overhead=10).end == 11


def test_a_host_of_limited_run_ahead_waits_for_communication_that_its_gpu_waits_for() -> None:
    """An all-reduce of 3 s between two operators that take 1 s to launch and 1 s to run, on two GPUs.

    A free host launches the second operator while the all-reduce runs, from 2 to 5; one that waits launches it from 5 to 6.
    """
    one = Operator(0, "one", "forward", "l", (), (), 1.0, host_seconds=1.0)

    def program(rank: int) -> TaskStream:
        yield Compute((one,))
        yield AllReduce(3, group(2), blocks=True)
        yield Compute((one,))

    def awaiting(rank: int) -> TaskStream:
        yield Compute((one,))
        pending = yield AllReduce(3, group(2))
        yield Wait((pending,))
        yield Compute((one,))

    for stream in (program, awaiting):
        assert run(stream, 2, launch_costs=True).end == pytest.approx(6.0)
        assert run(stream, 2, launch_costs=True, run_ahead=4).end == pytest.approx(7.0)


def test_a_network_with_a_life_of_its_own_does_not_keep_a_run_from_ending() -> None:
    class Ticking(OneBytePerSecond):
        def __init__(self, env: simpy.Environment) -> None:
            super().__init__(env)
            env.process(self.tick())

        def tick(self) -> Any:
            while True:
                yield self.env.timeout(1)

    def program(rank: int) -> TaskStream:
        yield AllReduce(5.5, group(2))

    env = simpy.Environment()
    assert Engine(env, Ticking(env)).run({rank: program(rank) for rank in range(2)}).end == 5.5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "share"), [(-1, 1), (math.nan, 1), (math.inf, 1), (1, 2), (1, -0.1), (1, math.nan)]
)
def test_a_computation_that_cannot_be_is_refused(seconds: float, share: float) -> None:
    operator = Operator(0, "odd", "forward", "", (), (), seconds)
    with pytest.raises(SimulationError, match=r"a computation (of|that fills)"):
        Compute((operator,), share=share)


def test_tasks_that_are_no_generator_are_refused() -> None:
    def program(rank: int) -> Any:
        return [Compute.of("a", 1)]

    with pytest.raises(SimulationError, match="rank 0: the tasks are a list; yield them from a generator"):
        run(program)
