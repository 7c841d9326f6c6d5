"""Folding: ranks that do the same are simulated once, and nothing in the result says which."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import simpy
import traces
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import Script

from triosim import describe, simulate
from triosim.errors import AsymmetryError
from triosim.extrapolators.core.mesh import Mesh, Subgroups
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.folding.dry_run import PatternUse, TransferPattern, dry_run
from triosim.folding.link_folding import find_link_classes
from triosim.folding.uncontended import UncontendedCollectives
from triosim.models import Llama
from triosim.networks import PacketNetwork
from triosim.networks.base import Network
from triosim.networks.topology import Topology
from triosim.results.values import ResultData
from triosim.tasks import AllReduce, Communicator, Compute, Handle, Iteration, Record, TaskStream, Wait
from triosim.trace import Trace
from triosim.trace.formats.native import trace_json as json_format
from triosim.trace.task_streams import TaskStreams

GPT = traces.transformer(batch=4, tokens=16, blocks=4, heads=8, width=32)
SIX = traces.transformer(batch=4, tokens=12, heads=2)
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
    "cp=8,dp=2",
    "cp=2,tp=2,fsdp=2,pp=2",
)
MIXTRAL = json_format.read(
    Path(__file__).parents[1] / "extrapolators" / "tensor" / "data" / "parts" / "mixtral.json.gz"
)
EXPERTS = (
    "ddp=16,ep=4",
    "fsdp=4,dp=4,ep=2",
    "fsdp=4,dp=4,ep=4",
    "tp=2,fsdp=8,ep=4",
    "cp=2,fsdp=8,ep=4",
    "zero2=4,tp=2,pp=2,ep=2",
)


def run(fold: bool | None, parallel: str, system: str, trace: Trace = GPT, **options: Any) -> ResultData:
    return simulate(
        trace, parallel, topology=system, compute_model="linear", tp_style="megatron", fold=fold, **options
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
@pytest.mark.slow
def test_results_are_the_same_with_folding_and_without(
    system: str, parallel: str, form: str, network: str, bucket: str
) -> None:
    options = {"collective_form": form, "network": network, "first_bucket_size": bucket, "micro_batches": 4}
    topology = system.replace("{4}", "4").format(16)
    same(run(False, parallel, topology, **options), run(True, parallel, topology, **options))


@settings(max_examples=25)
@given(
    system=st.sampled_from(SYSTEMS),
    parallel=st.sampled_from(EXPERTS),
    form=st.sampled_from(["pipelined", "steps"]),
    network=st.sampled_from(["packet", "analytical"]),
    load=st.sampled_from(["balanced", "zipf"]),
)
@pytest.mark.slow
def test_ranks_with_experts_do_the_same_where_these_get_as_many_tokens(
    system: str, parallel: str, form: str, network: str, load: str
) -> None:
    """With drawn tokens these are the ranks with the same experts: of a group, each is simulated."""
    options = {"collective_form": form, "network": network, "micro_batches": 2, "options": {"load": load}}
    found = {"parallel": parallel, "system": system.replace("{4}", "4").format(16), "trace": MIXTRAL, **options}
    same(run(False, **found), run(True, **found))


@pytest.mark.parametrize("parallel", ["cp=8,ep=4", "cp=4,dp=2,ep=2"])
@pytest.mark.parametrize("system", ["dgx-h100", "ring(8, bandwidth=25 GB/s, latency=1 us)"])
@pytest.mark.parametrize("load", ["balanced", "zipf"])
def test_experts_may_be_divided_within_a_ring_of_attention(parallel: str, system: str, load: str) -> None:
    sizes = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 4, "feed_forward": 64, "vocab": 64}
    trace = describe(Llama(**sizes, experts=8, sequence=32, name="experts"), batch=1, dtype="float32")
    found = {"parallel": parallel, "system": system, "trace": trace, "options": {"load": load}}
    same(run(False, **found), run(True, **found))


def test_of_groups_that_drew_the_same_tokens_one_is_simulated() -> None:
    few, many = (counted(f"dp={n},ep=4", n, trace=MIXTRAL, options={"load": "zipf"}) for n in (16, 128))
    assert few == many
    collectives = run(False, "dp=16,ep=4", "dgx-a100(gpus=16)", trace=MIXTRAL, options={"load": "zipf"}).collectives
    assert sum(c.count for c in collectives if c.axis == "ep") == 4 * 4  # groups, exchanges


def test_parts_of_an_axis_are_alike_and_so_are_the_ranks_in_one() -> None:
    """Of eight ranks, two by two: the neighbours are alike, and so is what the four pairs do; or the pairs alone."""
    mesh = replace(Mesh.of(tp=2, dp=8), subgroups=(Subgroups("ep", ("dp",), 2),))
    both = Symmetry(mesh, ["tp", "dp", "ep"])
    assert [(rotation.stride, rotation.size) for rotation in both.rotations] == [(1, 2), (2, 2), (4, 4)]
    assert both.group_multiplicity((0, 2)) == 8  # experts of a layer
    assert both.group_multiplicity((0, 4, 8, 12)) == 4  # those who have the same
    assert both.group_multiplicity(tuple(range(0, 16, 2))) == 2
    assert Symmetry(mesh, ["dp"]).representatives == (0, 1, 2, 3)
    mixed = replace(
        Mesh.of(cp=3, dp=2), subgroups=(Subgroups("ep", ("cp", "dp"), 2),)
    )  # of which one part is half of two rows
    assert Symmetry(mixed, ["cp", "dp", "ep"]).representatives == tuple(range(6))


def test_a_thousand_ranks_cost_as_much_as_those_that_stand_for_them() -> None:
    folded = run(None, "tp=8,dp=128", "dgx-a100(gpus=1024)")
    few = run(False, "tp=8,dp=2", "dgx-a100(gpus=16)")
    assert len(folded.ranks) == 1024
    assert folded.ranks[1023].compute_s == few.ranks[0].compute_s
    assert sum(c.count for c in folded.collectives if c.axis == "dp") == 8
    counts = [sum(c.count for c in data.collectives if c.axis == "tp") for data in (folded, few)]
    assert counts[0] == 64 * counts[1] > 0


def test_nodes_in_a_number_that_is_no_power_of_two_are_folded_too() -> None:
    """Calibrated collectives go from GPU to GPU of a node, and from node to node: rings of 8 and of 6 turn as a whole."""
    topology = Topology.load("dgx-h100(gpus=48)")
    network = PacketNetwork(simpy.Environment(), topology)
    group = tuple(range(48))
    sent = {TransferPattern("all_reduce", group): PatternUse(48e6)}
    classes, folded = find_link_classes(network, topology, Symmetry(Mesh.of(ddp=48), ["ddp"]), sent)
    assert classes is not None
    assert [axis.size for axis in folded] == [48]
    assert [(part.stride, part.size) for part in classes.permutations] == [(1, 8), (8, 6)]
    same(*(run(fold, "ddp=48", "dgx-h100(gpus=48)") for fold in (False, True)))


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
    same(run(False, "ddp=16", system, conditions=conditions), run(True, "ddp=16", system, conditions=conditions))
    assert any(
        note.startswith("every rank is simulated: GPUs or links")
        for note in run(True, "ddp=16", system, conditions=conditions).notes
    )
    times = {rank.compute_s for rank in run(True, "ddp=16", system, conditions={"slow_gpus": {3: 2.0}}).ranks}
    assert len(times) == 2


@pytest.mark.parametrize(
    ("parallel", "options"),
    [
        ("cp=4,tp=2,dp=2", {}),
        ("cp=8,dp=2", {"options": {"cp": "all-gather"}}),
        ("tp=4,dp=4", {"options": {"overlap": "ring"}, "sequence_parallel": True}),
    ],
)
@pytest.mark.parametrize("network", ["packet", "analytical"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_what_goes_round_a_ring_comes_from_the_rank_that_stands_for_the_one_before(
    parallel: str, options: dict[str, Any], network: str, system: str
) -> None:
    found = {"parallel": parallel, "system": system.replace("{4}", "4").format(16), "network": network, **options}
    same(run(False, **found), run(True, **found))


def test_one_hop_of_a_ring_stands_for_all_of_them() -> None:
    few, many = counted("cp=8", 8, training=False), counted("cp=8,dp=16", 128, training=False)
    assert few == many == ["transfer"] * 4 * 4 * 7  # of each layer and micro-batch, from one rank
    sends = run(False, "cp=8,dp=16", "dgx-a100(gpus=128)", training=False, micro_batches=4).collectives
    assert sum(c.count for c in sends if c.axis == "cp") == 128 * len(many)


def test_along_an_axis_that_is_not_alike_ranks_are_simulated_and_stand_for_others_along_the_rest() -> None:
    """On a line the last hop of a ring goes all the way back; what each of eight such lines does is the same."""
    line = "mesh(4x8, bandwidth=5 GB/s, latency=500 ns)"
    every, folded = (run(fold, "cp=4,dp=8", line, training=False) for fold in (False, True))
    same(every, folded)
    assert not any(note.startswith("every rank") for note in folded.notes)


def test_groups_of_which_some_span_nodes_are_not_alike_though_nothing_shares_links() -> None:
    data = [run(fold, "cp=3,dp=8", "dgx-a100(gpus=24)", network="analytical", trace=SIX) for fold in (False, True)]
    same(*data)
    assert any(note == "every rank is simulated: copies of a transfer take different times" for note in data[1].notes)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"timeline": True}, "the timeline shows every rank"),
        ({"links": True}, "the load of every link is recorded"),
        ({"parallel": "hop"}, "no parallelism or trace tells which ranks run the same tasks"),
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
    pair = symmetry.orbit((0, 6))
    assert pair is not None
    assert sorted(symmetry.rank_offset(move) for move in symmetry.shifts(pair)) == [0, 1, 2, 3, 4, 5]
    group = symmetry.orbit((0, 1))
    assert group is not None
    assert [symmetry.rank_offset(move) for move in symmetry.shifts(group)] == [0, 2, 4]
    assert symmetry.combined_shift((0, 2), (1, 2), group) == (0, 1)
    assert symmetry.orbit((0, 4)) is None  # the first and the last of three


def test_who_sends_to_the_next_one_stands_for_all_that_do_and_the_last_sends_to_the_first() -> None:
    symmetry = Symmetry(Mesh.of(tp=2, cp=3, pp=2), ["tp", "cp"], rings=True)
    hop = symmetry.transfer_orbit(0, 2)
    assert hop is not None
    moved = {tuple(symmetry.shifted(rank, move) for rank in (0, 2)) for move in symmetry.shifts(hop)}
    assert moved == {(0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (5, 1)}
    assert {symmetry.representative_transfer(*pair) for pair in moved} == {(0, 2)}
    assert symmetry.transfer_multiplicity(0, 6) == 6  # to the next stage
    assert Symmetry(Mesh.of(tp=2, cp=3), ["cp"]).transfer_orbit(0, 2) is None
    assert [one.representatives for one in symmetry.without_one_axis()] == [(0, 1, 6, 7), (0, 2, 4, 6, 8, 10)]


class Counting(PacketNetwork):
    """A network that counts what is asked of it."""

    asked: ClassVar[list[str]] = []

    def transfer(self, *args: Any, **options: Any) -> simpy.Event:
        self.asked.append("transfer")
        return super().transfer(*args, **options)

    def collective(self, kind: Any, *args: Any, **options: Any) -> simpy.Event:
        self.asked.append(kind)
        return super().collective(kind, *args, **options)


def counted(parallel: str, gpus: int, **options: Any) -> list[str]:
    Counting.asked = []
    run(True, parallel, f"dgx-a100(gpus={gpus})", network=Counting, micro_batches=4, **options)
    return sorted(Counting.asked)


def test_what_is_sent_does_not_grow_with_the_ranks_that_do_the_same() -> None:
    few, many = counted("tp=8,dp=4,pp=2", 64), counted("tp=8,dp=64,pp=2", 1024)
    assert few == many
    sends = run(False, "tp=8,dp=4,pp=2", "dgx-a100(gpus=64)", micro_batches=4).collectives
    assert sum(c.count for c in sends if c.axis == "pp") == 8 * 4 * few.count("transfer") > 0


def test_a_collective_with_links_of_its_own_is_simulated_once_however_often_it_comes() -> None:
    asked = counted("tp=8,dp=2", 16)
    collectives = run(True, "tp=8,dp=2", "dgx-a100(gpus=16)", micro_batches=4).collectives
    assert sum(c.count for c in collectives if c.axis == "tp") / 2 > 10 * asked.count("all_reduce") > 0  # of two groups


def test_a_collective_that_overlaps_with_one_on_its_links_is_not_alone() -> None:
    topology = Topology.load("switch(4, bandwidth=1 GB/s, latency=0 s)")
    env, kind = simpy.Environment(), TransferPattern("all_reduce", (0, 1, 2, 3))
    lone = UncontendedCollectives(env, PacketNetwork(simpy.Environment(), topology), {kind: list(topology.links)})

    def start(network: Network) -> simpy.Event:
        return network.collective("all_reduce", kind.ranks, 1e9)

    for _ in range(2):
        env.run(until=lone.run(kind, 1e9, start))
    assert env.now == pytest.approx(2 * 1.5)  # each rank sends 2 (n - 1) / n of the bytes
    assert sum(lone.bytes_by_link().values()) == pytest.approx(2 * 4 * 2 * 1.5e9)  # into the switch, and out of it
    lone.run(kind, 1e9, start)
    with pytest.raises(AsymmetryError, match="before the last one has ended"):
        lone.run(kind, 1e9, start)


def test_tasks_that_were_drawn_to_see_what_ranks_send_run_again_with_new_handles() -> None:
    group = Communicator((0, 1), "dp")

    def stream() -> TaskStream:
        first = yield Compute(())
        summed = yield AllReduce(64.0, group, after=(first,))
        yield Record()
        yield Wait((summed,))
        yield Iteration()

    found = dry_run({0: stream()})
    assert list(found.patterns) == [TransferPattern("all_reduce", (0, 1))]
    again = found.recorded[0].stream()
    handles: list[Handle] = []
    with suppress(StopIteration):
        task = next(again)
        while True:
            handles.append(Handle(0, task))
            task = again.send(handles[-1])
    assert [type(handle.task) for handle in handles] == [Compute, AllReduce, Record, Wait, Iteration]
    assert handles[1].task.after == (handles[0],)
    assert handles[3].task.handles == (handles[1],)  # type: ignore[attr-defined]


TP, FSDP = tuple(tuple(range(4 * n, 4 * n + 4)) for n in range(4)), tuple(tuple(range(n, 16, 4)) for n in range(4))
STEP = (
    Script()
    .run(1e-3, 2e-3)
    .ask("all_gather", "fsdp", 4e6, stream="gather", work=0)
    .ask("all_reduce", "tp", 2e6)
    .run(3e-3)
    .mark("synchronize", "gather")
    .ask("reduce_scatter", "fsdp", 8e6)
    .ask("all_reduce", "world", 64.0)
)


def streams(like: tuple[int, ...], **groups: tuple[tuple[int, ...], ...]) -> TaskStreams:
    return TaskStreams({rank: STEP.trace() for rank in set(like)}, like, {"world": (tuple(range(16)),), **groups})


@pytest.mark.parametrize(
    "system", ["dgx-h100(gpus=16, calibration=none)", "switch(16, bandwidth=25 GB/s, latency=1 us)"]
)
@pytest.mark.parametrize("like", [(0,) * 16, (0, 0, 0, 0) * 2 + (8, 8, 8, 8) * 2, (0,) * 15 + (15,)])
def test_captured_ranks_that_do_the_same_are_simulated_once(system: str, like: tuple[int, ...]) -> None:
    asked = streams(like, tp=TP, fsdp=FSDP)
    every, folded = (simulate(asked, topology=system, iterations=2, fold=fold).data for fold in (False, True))
    same(every, folded)
    assert any("no parallelism or trace tells" in note for note in folded.notes) == (
        15 in like
    )  # which differs along both axes


def test_captured_groups_that_are_no_mesh_are_all_simulated() -> None:
    crossed = tuple(tuple(n + place for place in places) for n in (0, 8) for places in ((0, 1, 2, 4), (3, 5, 6, 7)))
    asked = streams((0,) * 16, tp=crossed, fsdp=FSDP)
    notes = simulate(asked, topology="dgx-h100(gpus=16)", fold=True).data.notes
    assert any(note.startswith("every rank is simulated") for note in notes)
