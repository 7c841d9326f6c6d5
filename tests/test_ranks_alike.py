"""Folding: ranks that do the same are simulated once, and nothing in the result says which."""

from __future__ import annotations

from typing import Any

import pytest
import traces
from hypothesis import given, settings
from hypothesis import strategies as st

from triosim import simulate
from triosim.extrapolators.mesh import Mesh
from triosim.extrapolators.symmetry import Symmetry
from triosim.result import ResultData

GPT = traces.transformer(batch=4, tokens=16, blocks=4, heads=8, width=32)
SYSTEMS = (
    "dgx-a100(gpus={})",
    "dgx-h100(gpus={}, calibration=none)",
    "switch({}, bandwidth=25 GB/s, latency=1 us)",
    "ring({}, bandwidth=25 GB/s, latency=1 us)",
    "torus(4x{4}, bandwidth=25 GB/s, latency=500 ns)",
    "mesh(4x{4}, bandwidth=5 GB/s, latency=500 ns)",
    "fat_tree(k=4, bandwidth=5 GB/s)",
)
PARALLEL = (
    "ddp=16",
    "fsdp=16",
    "tp=8,dp=2",
    "tp=4,ddp=4",
    "dp=4,pp=4",
    "tp=2,ddp=4,pp=2",
    "tp=2,fsdp=2,dp=2,pp=2",
    "zero2=8,pp=2",
)


def run(fold: bool | None, parallel: str, system: str, **options: Any) -> ResultData:
    return simulate(
        GPT, parallel, topology=system, compute_model="linear", tp_style="megatron", fold=fold, **options
    ).data


def same(one: ResultData, other: ResultData) -> None:
    def figures(data: ResultData) -> list[float]:
        return [
            data.step_time_s,
            *(
                value
                for r in data.ranks
                for value in (r.compute_s, r.communication_s, r.exposed_communication_s, r.idle_s)
            ),
            *(value for layer in data.layers for value in (layer.total_s, layer.operators)),
            *(value for c in data.collectives for value in (c.count, c.total_s, c.bytes, c.group_size)),
            *(value for link in data.links for value in (link.bytes, link.utilisation)),
        ]

    assert figures(one) == pytest.approx(figures(other), rel=1e-9, abs=1e-15)
    assert [layer.per_rank for layer in one.layers] == [layer.per_rank for layer in other.layers]
    assert one.notes == tuple(note for note in other.notes if not note.startswith("every rank is simulated"))


@settings(max_examples=25)
@given(
    system=st.sampled_from(SYSTEMS),
    parallel=st.sampled_from(PARALLEL),
    form=st.sampled_from(["pipelined", "steps"]),
    network=st.sampled_from(["packet", "analytical"]),
    bucket=st.sampled_from(["1 kB", "25 MiB"]),
)
def test_results_are_the_same_with_folding_and_without(
    system: str, parallel: str, form: str, network: str, bucket: str
) -> None:
    options = {"collective_form": form, "network": network, "first_bucket_size": bucket, "micro_batches": 4}
    topology = system.replace("{4}", "4").format(16)
    same(run(False, parallel, topology, **options), run(True, parallel, topology, **options))


def test_a_thousand_ranks_cost_as_much_as_those_that_stand_for_them() -> None:
    folded = run(None, "tp=8,dp=128", "dgx-a100(gpus=1024)")
    few = run(False, "tp=8,dp=2", "dgx-a100(gpus=16)")
    assert len(folded.ranks) == 1024
    assert folded.ranks[1023].compute_s == few.ranks[0].compute_s
    assert sum(c.count for c in folded.collectives if c.axis == "dp") == 8
    counts = [sum(c.count for c in data.collectives if c.axis == "tp") for data in (folded, few)]
    assert counts[0] == 64 * counts[1] > 0


def test_where_ranks_differ_each_is_simulated_and_whoever_asked_hears_why() -> None:
    """On a ring, what a pipeline sends crosses the links of some replicas' all-reduces and not of others'."""
    system = "ring(16, bandwidth=1 GB/s, latency=1 us)"
    notes = run(True, "ddp=8,pp=2", system, micro_batches=4, first_bucket_size="1 kB").notes
    assert any(note.startswith("every rank is simulated") for note in notes)
    assert not any(note.startswith("every rank") for note in run(None, "ddp=8,pp=2", system, micro_batches=4).notes)


@pytest.mark.parametrize(
    "conditions",
    [{"slow_gpus": {3: 2.0}}, {"slow_links": "uniform,spread=9,seed=1"}, {"stragglers": "lognormal,spread=0.1,seed=1"}],
)
def test_unequal_ranks_are_all_simulated(conditions: dict[str, Any]) -> None:
    system = "switch(16, bandwidth=5 GB/s, latency=1 us)"
    same(
        run(False, "ddp=16", system, conditions=conditions),
        run(True, "ddp=16", system, conditions=conditions),
    )
    assert any(
        note.startswith("every rank is simulated: GPUs or links")
        for note in run(True, "ddp=16", system, conditions=conditions).notes
    )
    times = {rank.compute_s for rank in run(True, "ddp=16", system, conditions={"slow_gpus": {3: 2.0}}).ranks}
    assert len(times) == 2


@pytest.mark.parametrize(
    ("parallel", "options"),
    [("cp=4,tp=2,dp=2", {}), ("tp=4,dp=4", {"options": {"overlap": "ring"}, "sequence_parallel": True})],
)
def test_what_goes_round_a_ring_comes_from_ranks_that_are_simulated(parallel: str, options: dict[str, Any]) -> None:
    system = "dgx-a100(gpus=16)"
    same(run(False, parallel, system, **options), run(True, parallel, system, **options))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"timeline": True}, "each is on the timeline"),
        ({"links": True}, "the links of each are recorded"),
        ({"parallel": "hop"}, "nobody knows which ranks of these tasks do the same"),
    ],
)
def test_whoever_asked_to_fold_hears_what_prevents_it(options: dict[str, Any], why: str) -> None:
    found = {"parallel": "ddp=16", "system": "switch(16, bandwidth=5 GB/s, latency=1 us)", **options}
    assert f"every rank is simulated: {why}" in run(True, **found).notes
    assert not any(note.startswith("every rank") for note in run(None, **found).notes)


def test_a_slow_link_makes_ranks_differ() -> None:
    uneven = {
        "topology": "switch",
        "gpus": 16,
        "bandwidth": "5 GB/s",
        "latency": "1 us",
        "overrides": [{"from": "gpu5", "to": "switch0", "bandwidth": "1 GB/s"}],
    }
    one = simulate(GPT, "tp=2,dp=8", topology=uneven, compute_model="linear", fold=False).data
    other = simulate(GPT, "tp=2,dp=8", topology=uneven, compute_model="linear", fold=True).data
    same(one, other)
    assert any(note.startswith("every rank is simulated") for note in other.notes)


def test_who_stands_for_whom() -> None:
    symmetry = Symmetry(Mesh.of(tp=2, dp=3, pp=2), ["tp", "dp"])
    assert symmetry.representatives == (0, 6)
    assert [symmetry.representative(rank) for rank in range(12)] == [0] * 6 + [6] * 6
    pair = symmetry.copies((0, 6))
    assert pair is not None
    assert sorted(symmetry.by(move) for move in symmetry.moves(pair)) == [0, 1, 2, 3, 4, 5]
    group = symmetry.copies((0, 1))
    assert group is not None
    assert [symmetry.by(move) for move in symmetry.moves(group)] == [0, 2, 4]
    assert symmetry.then((0, 2), (1, 2), group) == (0, 1)
    assert symmetry.copies((0, 4)) is None  # the first and the last of three
