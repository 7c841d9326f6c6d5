"""Themis: the chunks of a collective visit the dimensions in orders that keep all dimensions busy."""

from __future__ import annotations

import random
from typing import get_args

import pytest
import simpy

import triosim
from tests.networks.collectives.test_collective_algorithms import prove
from triosim.networks import AnalyticalNetwork, PacketNetwork, Topology
from triosim.networks.collectives.algorithms.hierarchical import Hierarchical
from triosim.tasks import CollectiveKind

S, B = 8e9, 1e9
SQUARE = "Switch(2, bandwidth=1 GB/s, latency=0 ns)_Switch(2, bandwidth=1 GB/s, latency=0 ns)"
CUBE = "Ring(4, bandwidth=4 GB/s, latency=0 ns)_FC(4, bandwidth=2 GB/s, latency=0 ns)_Switch(4, bandwidth=1 GB/s, latency=0 ns)"


def seconds(notation: str, algorithm: Hierarchical, kind: CollectiveKind = "all_reduce", **options: object) -> float:
    env, topology = simpy.Environment(), Topology.load(notation)
    network = PacketNetwork(env, topology, algorithm=algorithm, **options)
    env.run(network.collective(kind, range(len(topology.gpus)), S))
    return float(env.now)


def test_two_chunks_that_go_opposite_ways_fill_both_dimensions() -> None:
    """In order, dimension 1 carries 2 x S/2. Two chunks, one each way: it carries 2 x (S/4 + S/8), and is never idle."""
    assert seconds(SQUARE, Hierarchical(64)) == pytest.approx(S / B, rel=1e-9)
    assert seconds(SQUARE, Hierarchical(2, "themis")) == pytest.approx(0.75 * S / B, rel=1e-9)
    assert seconds(SQUARE, Hierarchical(2, "themis"), "all_gather") == pytest.approx(0.375 * S / B, rel=1e-9)
    assert seconds(SQUARE, Hierarchical(2, "themis"), "reduce_scatter") == pytest.approx(0.375 * S / B, rel=1e-9)
    assert seconds(SQUARE, Hierarchical(2, "themis"), form="steps") == pytest.approx(0.75 * S / B, rel=1e-9)


def test_all_dimensions_together_limit_a_balanced_all_reduce() -> None:
    """A rank sends 2 x 63/64 S in all, whatever the order, by links of 7 GB/s together."""
    least = 2 * 63 / 64 * S / 7e9
    plain, balanced = (seconds(CUBE, Hierarchical(chunk_schedule=order)) for order in ("in-order", "themis"))
    assert plain > 1.3 * least
    assert least <= balanced < 1.05 * least


def test_messages_in_steps_take_what_the_pipelined_form_says() -> None:
    pipelined, steps = (seconds(CUBE, Hierarchical(16, "themis"), form=form) for form in ("pipelined", "steps"))
    assert steps == pytest.approx(pipelined, rel=0.1)


def test_one_rank_stands_for_all_and_the_closed_form_agrees() -> None:
    env, topology = simpy.Environment(), Topology.load(CUBE)
    closed = AnalyticalNetwork(env, topology, algorithm=Hierarchical(chunk_schedule="themis"))
    one, every = (seconds(CUBE, Hierarchical(chunk_schedule="themis"), fold=fold) for fold in ("always", "never"))
    assert one == pytest.approx(every, rel=1e-9) == pytest.approx(closed.seconds("all_reduce", range(64), S), rel=1e-9)


@pytest.mark.parametrize("kind", get_args(CollectiveKind))
def test_each_rank_ends_with_what_the_collective_promises(kind: CollectiveKind) -> None:
    topology = Topology.load("Ring(3, bandwidth=4 GB/s)_FC(2, bandwidth=2 GB/s)_Switch(4, bandwidth=1 GB/s)")
    prove(Hierarchical(5, "themis"), kind, range(24), topology, random.Random(1))


def test_a_run_takes_it_and_says_where_it_has_no_effect() -> None:
    options = {"gpus": 64, "batch_size": 1, "network": "analytical", "copy_input": False}
    plain = triosim.simulate("gpt2", "ddp", topology=CUBE, **options)
    balanced = triosim.simulate("gpt2", "ddp", topology=CUBE, chunk_schedule="themis", **options)
    assert balanced.step_time_s < 0.9 * plain.step_time_s
    for system, collective in (("dgx-h100(gpus=64)", None), (CUBE, "ring")):
        found = triosim.simulate(
            "gpt2", "ddp", topology=system, collective=collective, chunk_schedule="themis", **options
        )
        assert [note for note in found.notes if note.startswith("--chunk-schedule has no effect")]
