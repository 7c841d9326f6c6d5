"""Captured streams run as their script ran: times by hand on a network that moves a byte a second."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import Script, run, same_on

from triosim.engine import Recording
from triosim.engine.recording import operator_times
from triosim.errors import DeadlockError, OptionError, TraceError
from triosim.extrapolators.captured import commands as captured_commands
from triosim.extrapolators.captured.captured_plan import CapturedPlan
from triosim.tasks import Compute
from triosim.trace.task_streams import TaskStreams


def starts(recording: Recording, rank: int = 0) -> dict[str, float]:
    """When each operator of a rank starts, by its layer."""
    assert recording.handles is not None
    mine = [handle for handle in recording.handles if handle.rank == rank and isinstance(handle.task, Compute)]
    return {operator.layer: start for handle in mine for operator, start, _ in operator_times(handle)}


def test_ddp_hides_a_bucket_behind_the_backward_pass_and_shows_the_last() -> None:
    ddp = Script().run(1).run(1, phase="backward").ask("all_reduce", "world", 2, work=0)
    ddp.run(1, 1, phase="backward").ask("all_reduce", "world", 2, work=1)
    ddp.mark("wait_work", "compute", 0).mark("wait_work", "compute", 1).run(1, phase="optimizer")
    recording, asked = run(same_on(2, ddp))
    # Forward until 1, backward until 4; buckets from 2 to 4 and from 4 to 6; the optimizer from 6 to 7.
    assert recording.end == 7
    assert asked == [("all_reduce", (0, 1), 2, None)] * 2
    assert starts(recording) == {"layer0": 0, "layer1": 1, "layer3": 2, "layer4": 3, "layer6": 6}


def test_the_slowest_rank_holds_up_a_collective() -> None:
    fast, slow = (
        Script().run(1).ask("all_reduce", "world", 2).run(1),
        Script().run(3).ask("all_reduce", "world", 2).run(1),
    )
    streams = TaskStreams({0: fast.trace(), 2: slow.trace()}, (0, 0, 2), {"world": ((0, 1, 2),)})
    recording, _ = run(streams)
    assert recording.end == 6
    assert [record.waiting_seconds for record in recording.ranks] == [2, 2, 0]


def test_what_nobody_is_to_wait_for_later_is_waited_for_at_once() -> None:
    recording, _ = run(same_on(2, Script().run(1).ask("all_gather", "world", 4).run(1)))
    assert recording.end == 6
    later = Script().run(1).ask("all_gather", "world", 4, work=7).run(1)
    assert run(same_on(2, later))[0].ranks[0].compute.merged() == [(0, 2)]


def fsdp(prefetch: bool) -> Script:
    """Two layers of three operators; the second's parameters are gathered on a stream of their own."""
    script = Script()

    def gather() -> None:
        script.run(0.5, stream="copy in").mark("record", "copy in", 1).mark("wait", "gather", 1)
        script.ask("all_gather", "world", 2, stream="gather").mark("record", "gather", 2)

    gather()
    script.mark("wait", "compute", 2)
    if prefetch:
        gather()
    script.run(1, 1, 1)
    if not prefetch:
        script.mark("record", "compute", 3).mark("wait", "copy in", 3)
        gather()
    return script.mark("wait", "compute", 2).run(1, 1, 1)


def test_parameters_are_gathered_on_a_side_stream_while_a_layer_is_computed() -> None:
    # Copied in from 0, gathered from 0.5 to 2.5, computed until 5.5; then all of it again.
    assert run(same_on(2, fsdp(prefetch=False)))[0].end == 11
    # The second layer's copy is issued before the first layer, and done at 1; its gathering runs from 2.5 to 4.5.
    recording, _ = run(same_on(2, fsdp(prefetch=True)))
    assert recording.end == 8.5
    assert recording.ranks[0].compute.merged() == [(0, 1), (2.5, 8.5)]


def test_a_copy_on_another_stream_takes_its_turn_between_two_operators_of_a_layer() -> None:
    script = Script().ask("all_gather", "world", 1.5, stream="side").run(0.25, 0.25, stream="side").run(1, 1, 1, 1)
    recording, _ = run(same_on(2, script))
    # Ready at 1.5, when an operator has the units; after that operator, at 2; and again after the next one, at 3.25.
    assert starts(recording) == {"layer3": 0, "layer4": 1, "layer1": 2, "layer5": 2.25, "layer2": 3.25, "layer6": 3.5}
    assert recording.end == 4.5


def pipeline(receive: Callable[[Script], Script], send: Callable[[Script], Script]) -> TaskStreams:
    """Two stages, two micro-batches, and two such pipelines: ranks 0 and 1 are the first stages."""
    first, second = Script(), Script()
    for _ in range(2):
        send(first.run(2))
    for _ in range(2):
        receive(second).run(3)
    return TaskStreams({0: first.trace(), 2: second.trace()}, (0, 0, 2, 2), {"pp": ((0, 2), (1, 3))})


def test_stages_of_a_pipeline_send_to_their_own_neighbours() -> None:
    streams = pipeline(
        lambda script: script.ask("recv", "pp", 1, peer=0), lambda script: script.ask("send", "pp", 1, peer=1)
    )
    recording, asked = run(streams)
    # Computed until 2, sent until 3; computed until 5, and sent when the receiver is ready, at 6; the rest until 10.
    assert recording.end == 10
    assert set(asked) == {(0, 2, 1), (1, 3, 1)}
    assert recording.ranks[0].finished == 7


def test_a_send_that_is_waited_for_later_leaves_its_stage_free() -> None:
    works = iter(range(9))
    streams = pipeline(
        lambda script: script.ask("recv", "pp", 1, peer=0, work=10).mark("wait_work", "compute", 10),
        lambda script: script.ask("send", "pp", 1, peer=1, work=next(works)),
    )
    recording, _ = run(streams)
    assert recording.ranks[0].compute.merged() == [(0, 4)]
    assert recording.end == 10  # the second activation waits for its receiver, from 5 to 6, and is there at 7


def test_opposite_sends_block_each_other_unless_they_are_a_batch() -> None:
    def swap(**batch: int) -> TaskStreams:
        each = [
            Script().ask("send", "pp", 3, peer=peer, **batch).ask("recv", "pp", 3, peer=peer, **batch)
            for peer in (1, 0)
        ]
        return TaskStreams({rank: script.run(1).trace() for rank, script in enumerate(each)}, (0, 1), {"pp": ((0, 1),)})

    assert run(swap(batch=5))[0].end == 4
    with pytest.raises(DeadlockError, match="deadlock: 2 ranks can never go on"):
        run(swap())


def test_a_batch_goes_when_its_last_part_is_issued_and_is_waited_for_by_any_part() -> None:
    script = Script().ask("send", "pp", 3, peer=1, batch=5, work=1).run(1).ask("recv", "pp", 3, peer=1, batch=5, work=2)
    script.mark("wait_work", "compute", 1).run(1)
    other = Script().ask("recv", "pp", 3, peer=0).ask("send", "pp", 3, peer=0)
    streams = TaskStreams({0: script.trace(), 1: other.trace()}, (0, 1), {"pp": ((0, 1),)})
    assert run(streams)[0].end == 8  # issued at 1; received by the other until 4, sent back until 7


def test_two_ranks_that_are_peers_in_two_families_do_not_mix_their_messages() -> None:
    first = Script().ask("send", "a", 1, peer=1, work=0).ask("send", "b", 5, peer=1, work=1).run(1)
    second = Script().ask("recv", "b", 5, peer=0).run(1).ask("recv", "a", 1, peer=0)
    streams = TaskStreams({0: first.trace(), 1: second.trace()}, (0, 1), {"a": ((0, 1),), "b": ((0, 1),)})
    recording, _ = run(streams)
    assert starts(recording, rank=1) == {"layer1": 5}


def test_roots_and_shares_are_those_of_each_rank_s_own_group() -> None:
    script = Script().run(1).ask("broadcast", "tp", 4, root=1).ask("all_gather", "tp", 4, shares=(1.0, 3.0))
    _, asked = run(same_on(4, script, tp=((0, 2), (3, 1))))
    assert sorted(asked) == [
        ("all_gather", (0, 2), 4, None),
        ("all_gather", (3, 1), 4, None),
        ("broadcast", (0, 2), 4, 2),
        ("broadcast", (3, 1), 4, 1),
    ]


def test_an_all_to_all_of_unequal_parts_moves_what_each_rank_sends_to_each() -> None:
    first = Script().run(1).ask("all_to_all", "world", 9, shares=(1.0, 8.0), work=0).mark("wait_work", "compute", 0)
    second = Script().run(1).ask("all_to_all", "world", 4, shares=(0.0, 4.0)).run(1)
    streams = TaskStreams({0: first.run(1).trace(), 1: second.trace()}, (0, 1), {"world": ((0, 1),)})
    recording, asked = run(streams)
    assert asked == [(0, 1, 8)]  # neither what a rank keeps, nor what is empty
    assert (recording.end, starts(recording)) == (10, {"layer0": 0, "layer2": 9})


def test_ranks_with_equal_parts_take_part_in_an_uneven_all_to_all() -> None:
    all_alike = Script().ask("all_to_all", "world", 4)
    more = Script().ask("all_to_all", "world", 12)
    _, asked = run(TaskStreams({0: all_alike.trace(), 1: more.trace()}, (0, 1), {"world": ((0, 1),)}))
    assert sorted(asked) == [(0, 1, 2), (1, 0, 6)]
    _, asked = run(same_on(2, all_alike))
    assert asked == [("all_to_all", (0, 1), 4, None)]


def test_an_uneven_all_to_all_does_not_take_the_message_of_another() -> None:
    def of(peer: int, *sent: float) -> Script:
        return (
            Script()
            .ask("all_to_all", "world", sum(sent), shares=sent, work=1)
            .ask("send" if peer else "recv", "world", 7, peer=peer)
        )

    streams = TaskStreams({0: of(1, 1, 2).trace(), 1: of(0, 3, 1).trace()}, (0, 1), {"world": ((0, 1),)})
    assert sorted(run(streams)[1]) == [(0, 1, 2), (0, 1, 7), (1, 0, 3)]


def test_a_rank_that_is_alone_in_its_group_communicates_with_nobody() -> None:
    script = Script().run(1).ask("all_reduce", "tp", 4, work=0).mark("wait_work", "compute", 0).run(1)
    recording, asked = run(same_on(2, script, tp=((0,), (1,))))
    assert (recording.end, asked) == (2, [])


def test_the_host_waits_for_a_barrier_and_issues_nothing_meanwhile() -> None:
    script = Script().run(1).ask("barrier", "world", 0).run(1)
    recording, asked = run(same_on(2, script))
    assert asked == [("all_reduce", (0, 1), 4, None)]  # an all-reduce of one float
    assert recording.end == 6


@pytest.mark.parametrize(
    ("stream", "number", "issued"),
    [(None, 1, 1), ("compute", None, 3), (None, None, 9)],
    ids=["event", "stream", "device"],
)
def test_the_host_waits_for_an_event_a_stream_or_the_device(
    stream: str | None, number: int | None, issued: float
) -> None:
    """A send that is issued after that begins when the host comes to it."""
    first = Script().ask("all_reduce", "world", 9, work=0).run(1).mark("record", "compute", 1).run(2)
    first.mark("synchronize", stream, number).ask("send", "world", 1, peer=1, stream="side", work=1)
    second = (
        Script()
        .ask("all_reduce", "world", 9, work=0)
        .ask("recv", "world", 1, peer=0, stream="side")
        .run(1, stream="side")
    )
    streams = TaskStreams({0: first.trace(), 1: second.trace()}, (0, 1), {"world": ((0, 1),)})
    recording, _ = run(streams)
    assert starts(recording, rank=1) == {"layer2": issued + 1}


def test_a_script_can_run_several_steps() -> None:
    recording, _ = run(same_on(2, Script().run(1).ask("all_reduce", "world", 2).run(1)), iterations=3)
    assert recording.ranks[1].iterations == [4, 8, 12]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_joining_operators_changes_no_time(data: st.DataObject) -> None:
    """Whatever two streams do, and whichever of their operators are joined to one task.

    Times are different powers of two, so that no two things happen at once by chance, and sums are exact.
    """
    script = Script()
    powers = iter(data.draw(st.permutations(range(40))))
    for number in range(data.draw(st.integers(1, 8), label="parts")):
        stream, other = data.draw(st.permutations(["compute", "side"]))
        script.run(*(2.0 ** -next(powers) for _ in range(data.draw(st.integers(1, 4)))), stream=stream)
        what = data.draw(st.sampled_from(["go on", "look", "order", "gather"]))
        if what == "look":
            script.run(0.0, 0.0, stream=stream)
        elif what == "order":
            script.mark("record", stream, number).mark("wait", other, number)
        elif what == "gather":
            script.ask("all_gather", "world", 2.0 ** -next(powers), stream=stream)
    together, _ = run(same_on(2, script))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured_commands, "MOST_JOINED", 1)
        apart, _ = run(same_on(2, script))
    assert together.end == apart.end
    views = {operator.layer for operator in script.operators if operator.seconds == 0}
    assert {layer: start for layer, start in starts(together).items() if layer not in views} == {
        layer: start for layer, start in starts(apart).items() if layer not in views
    }
    assert together.ranks[0].compute.merged() == apart.ranks[0].compute.merged()


def test_while_one_stream_waits_for_its_launches_another_may_compute() -> None:
    """A launch takes a second; the copy is ready at 3.5, when the first stream's next launch is not over."""
    script = Script(host_seconds=1).ask("all_gather", "world", 2.5, work=0).mark("wait_work", "side", 0)
    script.run(1, stream="side").run(0.25, 0.25, 0.25)
    recording, _ = run(same_on(2, script), launch_costs=True, call_overhead=1.0)
    assert starts(recording) == {"layer1": 3.5, "layer2": 3, "layer3": 4.5, "layer4": 5}
    assert recording.ranks[0].compute.merged() == [(3, 3.25), (3.5, 4.75), (5, 5.25)]
    assert recording.ranks[0].compute_seconds == 1.75


def test_launches_that_are_over_hold_up_nothing() -> None:
    """Three operators are launched by 1.5, the copy by 2; they take turns as without launches."""
    script = Script(host_seconds=0.5).run(2, 2, 2).run(1, stream="side")
    recording, _ = run(same_on(1, script), launch_costs=True)
    assert starts(recording) == {"layer0": 0.5, "layer3": 2.5, "layer1": 3.5, "layer2": 5.5}
    assert recording.end == 7.5


def test_a_mark_that_waits_for_no_work_is_named() -> None:
    script = Script().run(1).mark("wait_work", "compute", 3).run(1)
    with pytest.raises(
        TraceError, match="before operator 1 waits for communication 3, which no earlier operator started"
    ):
        CapturedPlan(same_on(1, script))


def test_a_rank_without_a_group_is_named() -> None:
    script = Script().run(1).ask("all_reduce", "tp", 4)
    with pytest.raises(TraceError, match="rank 2 communicates in the group 'tp', of which it is no member"):
        run(same_on(3, script, tp=((0, 1),)))


def test_fewer_than_one_step_is_refused() -> None:
    with pytest.raises(OptionError, match="0 is less than 1"):
        CapturedPlan(same_on(1, Script().run(1)), iterations=0)
