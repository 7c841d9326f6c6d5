"""The engine's recording is cut where a step of the script ends."""

from __future__ import annotations

import pytest
import simpy

from triosim.engine import Recording
from triosim.engine.recording import RankRecord, TransferInterval, operator_times
from triosim.live.step_records import StepRecords
from triosim.networks import PacketNetwork, Topology
from triosim.results.link_loads import loads
from triosim.tasks import Compute, Handle
from triosim.trace import Operator


@pytest.fixture
def recorded() -> tuple[simpy.Environment, Recording, StepRecords]:
    """Return a clock, a recording of two ranks, and the records of their steps; both ranks run the script."""
    network = PacketNetwork(simpy.Environment(), Topology.load("ring(2, bandwidth=1 GB/s)"))
    recording = Recording([RankRecord(0), RankRecord(1)])
    return network.env, recording, StepRecords(recording, network, hosts=2)


def test_a_step_ends_with_its_last_rank_and_the_next_one_begins_there(
    recorded: tuple[simpy.Environment, Recording, StepRecords],
) -> None:
    env, recording, records = recorded
    first, second = recording.ranks
    env.run(until=1.0)
    first.compute.add(0.0, 1.0)
    records.ended(0)  # rank 0, at 1 s
    env.run(until=3.0)
    second.compute.add(0.0, 3.0)
    first.communication.add(1.0, 1.5, 3.0, "world")
    records.ended(0)  # rank 1, at 3 s
    second.compute_seconds = 3.0  # what ends at the same instant is noted after that
    env.run(until=7.0)
    first.compute.add(2.0, 6.0)  # 3 s of it in the second step
    first.compute_seconds = 5.0
    first.communication.add(2.0, 4.0, 7.0, "world")
    records.ended(1)
    records.ended(1)
    env.run(until=7.5)

    assert [(one.index, one.began_s, one.seconds) for one in records.steps] == [(0, 0.0, 3.0), (1, 3.0, 4.0)]
    ranks = records.kept[1].recording.ranks
    assert ranks[0].compute.merged() == [(0.0, 3.0)]
    assert ranks[0].communication.transfers == [TransferInterval(0.0, 1.0, 4.0, "world")]
    assert ranks[0].compute_seconds == 5.0
    assert ranks[1].compute.merged() == []
    assert [one.compute_seconds for one in records.kept[0].recording.ranks] == [0.0, 3.0]
    assert ranks[1].iterations == [4.0]


def test_steps_that_are_alike_are_recorded_once_and_leave_nothing_behind(
    recorded: tuple[simpy.Environment, Recording, StepRecords],
) -> None:
    env, recording, records = recorded
    for step in range(50):
        env.run(until=step + 1.0)
        for record in recording.ranks:
            record.compute.add(step + 0.25, step + 0.75)
            record.communication.add(step + 0.5, step + 0.5, step + 1.0, "world")
        recording.count_transfer(("all_reduce", "world", 2, 8.0), 0.5)
        records.ended(step)
        records.ended(step)
    env.run(until=50.5)
    assert list(records.kept) == [0, 1]  # the first one sets up the script
    assert records.near(records.steps[-1])[0] == records.steps[1]
    assert recording.transfers == {}
    assert [len(one.compute.merged()) for one in recording.ranks] == [1, 1]
    assert records.kept[1].recording.transfers["all_reduce", "world", 2, 8.0].count == 1


def test_a_timeline_holds_what_ended_in_a_step_on_its_own_clock() -> None:
    """A transfer of 2 GB at 1 GB/s and a computation of two operators go on over the end of the first step, at 1.5 s."""
    network = PacketNetwork(simpy.Environment(), Topology.load("ring(2, bandwidth=1 GB/s, latency=0 s)"), record=True)
    recording = Recording([RankRecord(0)], handles=[])
    records = StepRecords(recording, network, hosts=1)
    env = network.env
    env.run(until=1.0)
    network.transfer(0, 1, 2e9)
    operators = [Operator(number, "aten::mm", "forward", "", (), (), 1.0) for number in range(2)]
    running = Handle(0, Compute(tuple(operators)))
    running.arrived = running.started = 1.0
    assert recording.handles is not None
    recording.handles.append(running)
    env.run(until=1.5)
    records.ended(0)
    env.run(until=3.0)
    running.finished, running.dependents = 3.0, None
    env.run(until=3.5)
    records.ended(1)
    env.run(until=4.0)

    (early,) = records.kept[0].recording.handles or ()
    assert (early.started, early.finished) == (1.0, 1.5)
    assert [times for _, *times in operator_times(early)] == [[1.0, 1.5], [1.5, 1.5]]
    (handle,) = records.kept[1].recording.handles or ()
    assert (handle.started, handle.finished) == (0.0, 1.5)
    assert [times for _, *times in operator_times(handle)] == [[0.0, 0.5], [0.5, 1.5]]
    assert recording.handles == []  # nothing is kept twice
    for index, end, nbytes in ((0, 1.5, 0.5e9), (1, 2.0, 1.5e9)):
        (load,) = loads(records.kept[index].network.rates, end).values()
        assert load.carried([0.0, end]).sum() == pytest.approx(nbytes)
    assert network.rates == []
