"""Whose communication is exposed: the parts add up, and each goes to the layers whose tensors are on their way."""

from __future__ import annotations

import math

import pytest
import traces
from hand_made_run import MS, result
from streams import Script, same_on

from triosim.engine.recording import RankRecord
from triosim.results.exposure import (
    by_axis,
    causes,
    causes_by_rank,
    exposed_shares,
    host_seconds,
    waiting_seconds,
    without,
)
from triosim.results.values import ExposedShare
from triosim.simulation import simulate
from triosim.tasks import Layers
from triosim.trace import Trace

RING = "ring(4, bandwidth=10 GB/s)"


def shares_of(record: RankRecord) -> dict[str, tuple[float, float]]:
    return {axis: (moving, waiting) for (axis, _), (moving, waiting, _) in causes(record).items()}


def test_a_bucket_of_two_layers_is_divided_by_their_bytes() -> None:
    """By hand: 2 ms of the all-reduce are exposed on both GPUs; three quarters of its bytes are layer a's."""
    a, b = result().data.exposed_communication
    assert (a.axis, a.layer, b.layer) == ("dp", "a", "b")
    assert (a.exposed_s, b.exposed_s) == (pytest.approx(1.5 * MS), pytest.approx(0.5 * MS))
    assert a.waiting_s == b.waiting_s == 0


def test_transfers_at_once_share_the_time() -> None:
    record = RankRecord(0)
    record.communication.add(0.0, 0.0, 4.0, "x")
    record.communication.add(2.0, 2.0, 6.0, "y")
    assert shares_of(record) == {"x": (3.0, 0.0), "y": (3.0, 0.0)}


def test_what_only_waits_gives_way_to_what_moves() -> None:
    record = RankRecord(0)
    record.communication.add(0.0, 5.0, 6.0, "waits")
    record.communication.add(1.0, 1.0, 3.0, "moves")
    assert shares_of(record) == {"waits": (1.0, 3.0), "moves": (2.0, 0.0)}
    assert waiting_seconds(causes(record)) == 3.0


def test_the_hosts_computation_is_a_part_of_its_own_and_hides_transfers() -> None:
    record = RankRecord(0)
    record.communication.add(0.0, 0.0, 4.0, "cpu optimizer", on_host=True)
    record.communication.add(3.0, 3.0, 5.0, "parameters")
    record.communication.add(2.0, 6.0, 7.0, "waits")
    found = causes(record)
    assert (host_seconds(found), waiting_seconds(found)) == (4.0, 1.0)
    shares = {one.axis: (one.exposed_s, one.waiting_s, one.host_s) for one in exposed_shares([found], steps=1)}
    assert shares == {"cpu optimizer": (4.0, 0.0, 4.0), "parameters": (1.0, 0.0, 0.0), "waits": (2.0, 1.0, 0.0)}


def test_what_is_computed_meanwhile_is_not_exposed() -> None:
    record = RankRecord(0)
    for start, end in ((1.0, 2.0), (3.0, 4.0)):
        record.compute.add(start, end)
    record.communication.add(0.0, 1.5, 5.0, "x")
    assert shares_of(record) == {"x": (2.0, 1.0)}


def test_the_mean_is_over_all_ranks_and_steps() -> None:
    busy, other = RankRecord(0), RankRecord(1)
    layers = Layers.of("fc")
    busy.communication.add(0.0, 0.0, 8.0, "tp", layers)
    assert exposed_shares(causes_by_rank([busy, other]), steps=2) == [ExposedShare("tp", "fc", 2.0, 0.0)]


def test_intervals_without_others() -> None:
    assert without([(0, 4), (6, 9)], [(1, 2), (3, 7), (8, 20)]) == [(0, 1), (2, 3), (7, 8)]
    assert without([(0, 1)], []) == [(0, 1)]


@pytest.mark.parametrize(
    ("trace", "parallel", "options"),
    [
        (traces.mlp(), "ddp=4", {"iterations": 3}),
        (traces.mlp(), "dp=2,pp=2", {"micro_batches": 4}),
        (traces.mlp(), "dp=4", {"dp_style": "replicate", "copy_input": True}),
        (traces.transformer(), "dp=2,tp=2", {"tp_style": "megatron"}),
        (traces.mlp(), "parameter-server=4", {"iterations": 3}),
    ],
)
def test_the_parts_are_the_whole(trace: Trace, parallel: str, options: dict[str, object]) -> None:
    topology = "dgx-a100" if options.get("copy_input") else RING
    data = simulate(trace, parallel, topology=topology, **options).data  # type: ignore[arg-type]
    mean = math.fsum(rank.exposed_communication_s for rank in data.ranks) / len(data.ranks)
    assert mean > 0
    assert math.fsum(row.exposed_s for row in data.exposed_communication) == pytest.approx(mean, rel=1e-9)
    assert all(0 <= row.waiting_s <= row.exposed_s for row in data.exposed_communication)
    waiting = math.fsum(rank.exposed_waiting_s for rank in data.ranks) / len(data.ranks)
    assert math.fsum(row.waiting_s for row in data.exposed_communication) == pytest.approx(waiting, rel=1e-9)


def test_gradients_are_their_layers() -> None:
    """Layers fc0, fc1, fc2 have 2176, 2112, 272 bytes of gradients; all of them are reduced at the end."""
    rows = simulate(traces.mlp(), "dp=4", topology=RING).data.exposed_communication
    assert [row.layer for row in rows] == ["fc0", "fc1", "fc2"]
    assert rows[0].exposed_s / rows[2].exposed_s == pytest.approx(2176 / 272)


def test_what_a_stage_waits_for_is_the_layer_of_the_stage_before() -> None:
    """The second stage begins with relu1: it waits for the first micro-batch of fc1, whose output crosses."""
    data = simulate(
        traces.mlp(), "pp=2", topology="ring(2, bandwidth=10 GB/s)", stages=["relu1"], micro_batches=1, training=False
    ).data
    rows = data.exposed_communication
    assert {(row.axis, row.layer) for row in rows} == {("pp", "fc1")}
    waited = data.ranks[1].exposed_communication_s
    assert waited == pytest.approx(data.ranks[0].compute_s + 8 * 16 * 4 / 10e9)
    assert math.fsum(row.waiting_s for row in rows) == pytest.approx(data.ranks[0].compute_s / 2)
    assert [rank.exposed_waiting_s for rank in data.ranks] == [0.0, pytest.approx(data.ranks[0].compute_s)]


def test_a_captured_collective_is_of_the_layer_that_asks_for_it() -> None:
    """By hand: 1 ms of computation in layer 0, then layer 1 reduces 10 MB over two links of 10 GB/s: another 1 ms."""
    streams = same_on(2, Script().run(1e-3).ask("all_reduce", "tp", 10e6).run(1e-3), tp=((0, 1),))
    data = simulate(streams, topology="ring(2, bandwidth=10 GB/s)").data
    assert data.exposed_communication == (ExposedShare("tp", "layer1", pytest.approx(1e-3), 0.0),)
    assert [(row.axis, row.bytes) for row in data.axes] == [("tp", 10e6)]


def test_axes_are_summed() -> None:
    rows = [ExposedShare("tp", "a", 1.0, 0.5), ExposedShare("dp", "a", 4.0, 0.0), ExposedShare("tp", "b", 2.0, 0.0)]
    assert by_axis(rows) == {"tp": (3.0, 0.5, 0.0), "dp": (4.0, 0.0, 0.0)}
