"""ep beside fsdp, the zeros, sequence parallelism and pipelines: who has what, and how many bytes each group moves."""

from __future__ import annotations

from typing import Any

import pytest
from traces import collectives_of, draw, groups_of, operators_of, planned

from triosim import describe, simulate
from triosim.errors import OptionError
from triosim.extrapolators.core.mesh import ExpertReplicas, Mesh, Subgroups
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.expert.expert_loads import LoadDistribution
from triosim.models import Llama
from triosim.tasks import AllGather, AllToAll, Compute, ReduceScatter

#: Two layers of four experts, two for each of 2 x 8 tokens. fp32: 4 bytes.
HIDDEN, INNER, EXPERTS, WORDS, ROWS = 16, 32, 4, 64, 2 * 8 * 2
MODEL = Llama(
    **{"layers": 2, "hidden": HIDDEN, "heads": 4, "kv_heads": 4, "feed_forward": INNER, "vocab": WORDS},
    **{"experts": EXPERTS, "sequence": 8, "name": "two-mixtures"},
)
TRACE = describe(MODEL, batch=2, dtype="float32")
STACKED = 4 * EXPERTS * 3 * HIDDEN * INNER  # the experts of a layer
DENSE = 4 * (4 * HIDDEN * HIDDEN + EXPERTS * HIDDEN + 2 * HIDDEN)  # attention, router, two norms
ROOT = 4 * (2 * WORDS * HIDDEN + HIDDEN)  # words, projection to the vocabulary, last norm
SENT = 4.0 * ROWS * HIDDEN
GATHER, SCATTER, REDUCE = "all_gather", "reduce_scatter", "all_reduce"


def experts(parallel: str, *, load: str = "balanced", **options: Any) -> ParallelPlan:
    return planned(
        TRACE, parallel, options={"load": load, **options.pop("options", {})}, tp_style="megatron", **options
    )


def total(plan: ParallelPlan, kind: str, group: str, rank: int = 0) -> float:
    return sum(nbytes for one, nbytes in collectives_of(draw(plan.tasks(rank), rank), group) if one == kind)


def updated(plan: ParallelPlan, rank: int = 0) -> set[tuple[int, ...]]:
    found = operators_of(draw(plan.tasks(rank), rank))
    return {t.shape for o in found if o.phase == "optimizer" for t in o.outputs if len(t.shape) == 3}


def test_experts_are_sharded_over_the_ranks_that_have_the_same_and_the_rest_over_all() -> None:
    """Of four ranks two have the same two experts of each layer: each keeps one of these, and a quarter of the rest."""
    plan = experts("fsdp=4,ep=2", options={"reshard": "no"})
    groups = {name: group.ranks for name, group in groups_of(draw(plan.tasks(1), 1)).items()}
    assert groups == {"fsdp": (0, 1, 2, 3), "expert fsdp": (1, 3), "ep": (0, 1)}
    for kind in (GATHER, SCATTER):
        assert total(plan, kind, "fsdp") == ROOT + 2 * DENSE
        assert total(plan, kind, "expert fsdp") == 2 * STACKED / 2
    assert updated(plan) == {(1, 2 * INNER, HIDDEN), (1, HIDDEN, INNER)}


def test_fewer_experts_than_ranks_are_sharded_along_their_rows() -> None:
    assert updated(experts("fsdp=8,ep=4")) == {(1, INNER, HIDDEN), (1, HIDDEN // 2, INNER)}


def test_experts_of_hybrid_sharding_are_reduced_among_the_copies_of_their_shards() -> None:
    plan = experts("dp=2,fsdp=4,ep=2")
    tasks = draw(plan.tasks(5), 5)
    groups = {name: group.ranks for name, group in groups_of(tasks).items()}
    assert groups["fsdp"] == (4, 5, 6, 7)
    assert groups["expert fsdp"] == (5, 7)
    assert (groups["dp"], groups["expert dp"]) == ((1, 5), (1, 5))
    assert total(plan, SCATTER, "expert fsdp", 5) == 2 * STACKED / 2
    assert (
        total(plan, REDUCE, "expert dp", 5) == 2 * STACKED / 2 / 2
    )  # of each layer's half, the half that is its share
    assert total(plan, REDUCE, "dp", 5) == (ROOT + 2 * DENSE) / 4


def test_where_experts_take_up_a_whole_group_of_shards_they_are_whole_and_their_copies_add_up() -> None:
    plan = experts("dp=2,fsdp=2,ep=2")
    tasks = draw(plan.tasks(0))
    assert "expert fsdp" not in groups_of(tasks)
    assert total(plan, REDUCE, "expert dp") == 2 * STACKED / 2
    assert not [t for t in tasks if isinstance(t, (AllGather, ReduceScatter)) and t.group.name != "fsdp"]


def test_experts_that_no_other_rank_has_are_not_reduced_at_all() -> None:
    plan = experts("dp=2,fsdp=2,ep=4")
    assert set(groups_of(draw(plan.tasks(0)))) == {"fsdp", "dp", "ep"}
    assert updated(plan) == {(1, 2 * INNER, HIDDEN), (1, HIDDEN, INNER)}


@pytest.mark.parametrize("name", ["zero1", "zero2"])
def test_the_zeros_scatter_and_gather_experts_among_those_that_have_the_same(name: str) -> None:
    plan = experts(f"{name}=4,ep=2")
    for kind in (GATHER, SCATTER):
        assert total(plan, kind, name) == ROOT + 2 * DENSE
        assert total(plan, kind, f"expert {name}") == 2 * STACKED / 2
    assert updated(plan) == {(1, 2 * INNER, HIDDEN), (1, HIDDEN, INNER)}


def test_the_zero_that_reduces_whole_gradients_does_so_for_experts_too() -> None:
    plan = experts("dp=2,zero1=2,ep=2", options={"reduce": "all-reduce"})
    assert total(plan, REDUCE, "expert dp") == 2 * STACKED / 2
    assert total(plan, REDUCE, "zero1") == total(plan, REDUCE, "dp") == ROOT + 2 * DENSE


def test_context_ranks_share_the_shards_of_experts() -> None:
    plan = experts("cp=2,fsdp=2,ep=2")
    assert groups_of(draw(plan.tasks(3), 3))["expert cp+fsdp"].ranks == (1, 3)
    assert total(plan, SCATTER, "expert cp+fsdp") == 2 * STACKED / 2
    assert total(plan, "all_to_all", "ep") == 2 * 4 * SENT / 2  # two layers, four times each, of half the tokens


def test_experts_are_gathered_while_their_layer_computes_attention_and_the_next_layer_while_they_run() -> None:
    tasks = draw(experts("fsdp=4,ep=2").tasks(0))
    begins = [
        next(i for i, t in enumerate(tasks) if isinstance(t, Compute) and any(name in o.layer for o in t.operators))
        for name in ("layers.0.self_attn", "layers.0.mlp.experts", "layers.1.self_attn")
    ]
    gathers = [(i, t.nbytes) for i, t in enumerate(tasks) if isinstance(t, AllGather)]
    assert [nbytes for _, nbytes in gathers[:5]] == [ROOT, DENSE, STACKED / 2, DENSE, STACKED / 2]
    assert gathers[2][0] < begins[0] < gathers[3][0] < begins[1] < gathers[4][0] < begins[2]


def test_a_layer_stays_whole_while_its_experts_run_and_the_last_ones_until_their_backward_pass() -> None:
    """Backward the first layer is gathered again, dense and experts; the last layer was kept."""
    plan = experts("fsdp=4,ep=2")
    assert total(plan, GATHER, "fsdp") == ROOT + 3 * DENSE
    assert total(plan, GATHER, "expert fsdp") == 3 * STACKED / 2


@pytest.mark.parametrize(("unit", "count"), [("layer", 2), ("model", 1)])
def test_other_units_hold_the_experts_of_a_layer_or_of_the_model(unit: str, count: int) -> None:
    plan = experts("fsdp=4,ep=2", options={"unit": unit, "reshard": "no"})
    gathers = collectives_of(draw(plan.tasks(0)), "expert fsdp")
    assert [nbytes for kind, nbytes in gathers if kind == GATHER] == [2 * STACKED / 2 / count] * count


def test_with_sequence_parallelism_a_rank_sends_its_share_of_the_tokens_and_gathers_what_came() -> None:
    """Megatron's order: to the experts' ranks, then all tokens of the tensor group, then back the same way."""
    tasks = draw(experts("dp=2,tp=2,ep=2", sequence_parallel=True, training=False).tasks(0))
    around = [
        (type(before), type(task), type(after))
        for before, task, after in zip(*(communicating(tasks)[i:] for i in range(3)), strict=False)
        if isinstance(task, AllToAll)
    ]
    assert around[:2] == [(ReduceScatter, AllToAll, AllGather), (ReduceScatter, AllToAll, AllGather)]
    assert {t.nbytes for t in tasks if isinstance(t, AllToAll)} == {SENT / 2}
    assert collectives_of(tasks, "tp").count((GATHER, SENT)) == collectives_of(tasks, "tp").count((SCATTER, SENT)) == 2


@pytest.mark.parametrize("seed", range(4))
def test_as_many_tokens_come_home_to_a_share_of_the_sequence_as_left_it(seed: int) -> None:
    """However odd the number of rows that experts got in between."""
    plan = experts("dp=2,tp=2,ep=2", load="zipf", sequence_parallel=True, options={"seed": str(seed)})
    tasks = [task for rank in range(4) for task in draw(plan.tasks(rank), rank)]
    assert {task.nbytes for task in tasks if isinstance(task, AllToAll)} == {SENT / 2}


def communicating(tasks: list[Any]) -> list[Any]:
    return [task for task in tasks if hasattr(task, "group")]


def test_uneven_loads_are_divided_among_the_ranks_of_the_tensor_group() -> None:
    plan = experts("dp=2,tp=2,ep=2", load="zipf", sequence_parallel=True)
    rows, _ = LoadDistribution("zipf").tokens(2, EXPERTS, ROWS, layer=0, iteration=0)
    sent = rows.reshape(2, 2, 2).sum(axis=2).ravel()
    (dispatch, *_) = [task for task in draw(plan.tasks(0)) if isinstance(task, AllToAll)]
    assert dispatch.shares == pytest.approx([row * HIDDEN * 4 / 2 for row in sent])
    firsts = [next(o for o in operators_of(draw(plan.tasks(r), r)) if "grouped" in o.name) for r in range(4)]
    first, second = rows.sum(axis=0).reshape(2, 2).sum(axis=1)
    assert [o.inputs[0].shape[0] for o in firsts] == [first, first, second, second]  # tensor groups see all that came


def test_a_stage_of_a_pipeline_shards_its_own_experts() -> None:
    plan = experts("fsdp=2,pp=2,ep=2,tp=2", sequence_parallel=True, stages=("model.layers.1",), micro_batches=2)
    for rank, exchanges in ((0, 8), (4, 8)):
        tasks = draw(plan.tasks(rank), rank)
        assert [t.nbytes for t in tasks if isinstance(t, AllToAll)] == [SENT / 2 / 2] * exchanges  # a sample at a time
    plan = experts("fsdp=4,pp=2,ep=2", stages=("model.layers.1",), micro_batches=2)
    for rank in (0, 4):
        assert total(plan, SCATTER, "expert fsdp", rank) == STACKED / 2


def test_a_step_with_everything_computes_what_one_gpu_would() -> None:
    result = simulate(
        TRACE,
        "dp=2,fsdp=2,tp=2,pp=2,ep=2",
        tp_style="megatron",
        sequence_parallel=True,
        schedule="1f1b",
        micro_batches=2,
        options={"load": "balanced"},
        topology="switch(16, bandwidth=100 GB/s)",
    )
    alone = simulate(TRACE).metrics.hardware_flops
    assert alone is not None
    assert result.metrics.hardware_flops == pytest.approx(4 * alone)  # there are four replicas
    assert {"fsdp", "dp", "tp", "ep", "pp", "expert dp"} == {row.axis for row in result.data.axes}


def test_parts_neither_within_a_group_of_shards_nor_made_of_whole_ones_are_refused() -> None:
    with pytest.raises(OptionError) as caught:
        experts("dp=2,fsdp=6,ep=4")
    assert "ep=4 neither divides the 6 GPUs of fsdp=6 nor is a multiple of them" in str(caught.value)


def test_ranks_beside_their_parts() -> None:
    """12 ranks: 2 tensor, 2 context, 3 data; parts of two neighbours are the context groups."""
    mesh = Mesh.of(tp=2, cp=2, dp=3)
    mesh = Mesh(mesh.axes, (Subgroups("ep", ("cp", "dp"), 2),))
    assert mesh.group("ep", 7).ranks == (5, 7)
    assert mesh.group(ExpertReplicas(("cp", "dp"), "ep"), 7).ranks == (3, 7, 11)
    assert mesh.group(ExpertReplicas(("cp",), "ep"), 7).ranks == (7,)
    assert mesh.group(ExpertReplicas(("dp",), "ep"), 7).name == "expert dp"
