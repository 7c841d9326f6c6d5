"""What a run that is written down by hand comes to."""

from __future__ import annotations

import pytest
from hand_made_run import BACKWARD, FORWARD, MS, OPTIMIZER, FakePlan, recording, result

from triosim.engine import Recording
from triosim.engine.recording import RankRecord
from triosim.errors import SimulationError
from triosim.results.values import step_of
from triosim.tasks import Compute


def test_a_step_takes_as_long_as_worked_out_by_hand() -> None:
    data = result().data
    assert data.step_time_s == pytest.approx(10 * MS)
    assert data.throughput_samples_per_s == pytest.approx(6400)
    first, second = data.ranks
    assert first.compute_s == pytest.approx(8 * MS)
    assert (first.communication_s, second.communication_s) == (pytest.approx(5 * MS), pytest.approx(4 * MS))
    assert first.exposed_communication_s == pytest.approx(2 * MS)
    assert first.waiting_s == pytest.approx(1 * MS)
    assert first.exposed_waiting_s == 0  # it computes meanwhile
    assert first.idle_s == 0


def test_the_parts_of_a_rank_are_the_whole_step() -> None:
    data = result().data
    for rank in data.ranks:
        assert rank.compute_s + rank.exposed_communication_s + rank.idle_s == pytest.approx(data.step_time_s, rel=1e-12)
        assert step_of(rank) == pytest.approx(data.step_time_s, rel=1e-12)


def test_two_iterations_halve_every_figure() -> None:
    once, twice = result().data, result(recording(iterations=2)).data
    assert twice.iterations == (pytest.approx(5 * MS), pytest.approx(10 * MS))
    assert twice.step_time_s == pytest.approx(once.step_time_s / 2)
    assert twice.ranks[0].communication_s == pytest.approx(once.ranks[0].communication_s / 2)
    assert twice.layers[0].total_s == pytest.approx(once.layers[0].total_s / 2)
    assert twice.collectives[0].count == once.collectives[0].count / 2
    assert twice.links[0].utilisation == once.links[0].utilisation


def test_layers_stand_in_the_order_of_the_model_with_their_phases_apart() -> None:
    a, b = result().data.layers
    assert (a.layer, b.layer) == ("a", "b")
    assert (a.forward_s, a.backward_s, a.optimizer_s) == tuple(pytest.approx(ms * MS) for ms in (1, 2, 1))
    assert a.total_s == pytest.approx(4 * MS)
    assert a.operators == 3
    assert [share.ranks for share in a.per_rank] == ["0-1"]


def test_a_layer_that_one_rank_runs_is_not_averaged_with_those_that_do_not() -> None:
    run = Recording([], end=7 * MS)
    for rank, operators in ((0, FORWARD), (1, BACKWARD)):
        task = Compute(operators)
        run.compute_counts[id(task)] = (task, {rank: 1})
        record = RankRecord(rank, compute_seconds=task.seconds)
        record.compute.add(0.0, task.seconds)
        run.ranks.append(record)
    a = result(run).data.layers[0]
    assert [(share.ranks, share.forward_s, share.backward_s) for share in a.per_rank] == [
        ("0", pytest.approx(1 * MS), 0.0),
        ("1", 0.0, pytest.approx(2 * MS)),
    ]
    assert a.total_s == pytest.approx(1.5 * MS)


def test_transfers_stand_with_the_longest_first() -> None:
    reduce, send = result().data.collectives
    assert (reduce.kind, reduce.group_size, reduce.bytes, reduce.count, reduce.axis) == ("all_reduce", 2, 10e6, 1, "dp")
    assert send.kind == "send"
    assert reduce.total_s > send.total_s


def test_utilisation_is_bytes_over_what_the_link_could_carry() -> None:
    forth, back = result().data.links
    assert forth.utilisation == pytest.approx(5e6 / (1e9 * 10 * MS))
    assert back.bytes == back.utilisation == 0


def test_a_run_in_which_nothing_was_computed_is_an_error() -> None:
    idle = Recording([RankRecord(0), RankRecord(1)], end=1.0)
    with pytest.raises(SimulationError, match="nothing was computed"):
        result(idle)


@pytest.mark.parametrize("end", [float("nan"), float("inf")])
def test_a_run_that_ends_at_no_time_is_not_blamed_on_the_trace(end: float) -> None:
    run = recording()
    run.end = end
    with pytest.raises(SimulationError, match="took no finite time"):
        result(run)


def test_a_rank_that_is_busy_for_longer_than_the_run_is_an_error() -> None:
    run = recording()
    run.end = 9 * MS
    with pytest.raises(SimulationError, match="rank 0 was busy"):
        result(run)


def test_gpus_that_do_not_talk_are_noted() -> None:
    run = recording()
    run.transfers.clear()
    assert "nothing was communicated between the 2 GPUs" in result(run).notes
    assert not any("nothing" in note for note in result().notes)


def test_notes_of_the_plan_and_of_the_caller_are_shown_once() -> None:
    assert result(notes=("no topology given", *FakePlan().notes)).notes == ("no topology given", *FakePlan().notes)


def test_equal_ranks_with_tasks_of_their_own_are_summed_alike() -> None:
    run = Recording([], end=8 * MS)
    for rank in (0, 1):
        record = RankRecord(rank, compute_seconds=8 * MS)
        record.compute.add(0.0, 8 * MS)
        run.ranks.append(record)
        for operators in (FORWARD, BACKWARD, OPTIMIZER):
            task = Compute(tuple(operators[:1]) + tuple(operators[1:]))
            run.compute_counts[id(task)] = (task, {rank: 1})
    assert [share.ranks for share in result(run).data.layers[0].per_rank] == ["0-1"]
