"""fsdp, zero1 and zero2: what is gathered and scattered, in how many bytes, in which order, and whose share is updated."""

from __future__ import annotations

import pytest
import traces
from traces import collectives_of, draw, groups_of, operators_of, planned

from triosim import rank_memory, simulate
from triosim.errors import OptionError
from triosim.extrapolators.core.program import Block
from triosim.extrapolators.data.fsdp import ShardUnits
from triosim.operators.features import base_name
from triosim.tasks import AllGather, AllReduce, Compute, ReduceScatter, Task, TaskStream, Wait

GPT = traces.transformer(blocks=3)
BLOCK = 4 * (2 * 16 + 4 * 16 * 16 + 2 * 4 * 16 * 16)  # two norms, q k v and their projection, the two layers of the MLP
ROOT = 4 * (64 * 16 + 16 + 64 * 16)  # embedding, last norm, projection to the vocabulary
ALL = ROOT + 3 * BLOCK
GATHER, SCATTER = "all_gather", "reduce_scatter"


def options(**extra: str) -> dict[str, dict[str, str]]:
    return {"options": extra}


def test_fsdp_gathers_each_unit_before_its_use_and_scatters_its_gradients_after_it() -> None:
    tasks = draw(planned(GPT, "fsdp", 4).tasks(0))
    forward = [(GATHER, ROOT), *[(GATHER, BLOCK)] * 3]
    backward = [(GATHER, BLOCK), (SCATTER, BLOCK), (GATHER, BLOCK), (SCATTER, BLOCK), (SCATTER, BLOCK), (SCATTER, ROOT)]
    assert collectives_of(tasks) == [*forward, *backward]  # the last unit is kept from its forward to its backward pass


def test_the_next_unit_is_gathered_while_one_runs() -> None:
    tasks = draw(planned(GPT, "fsdp", 4).tasks(0))
    gathers = [place for place, task in enumerate(tasks) if isinstance(task, AllGather)]
    first_of = {
        unit: next(
            i for i, t in enumerate(tasks) if isinstance(t, Compute) and t.operators[0].layer.startswith(f"{unit}.")
        )
        for unit in ("h.0", "h.1", "h.2")
    }
    assert gathers[1] < first_of["h.0"] < gathers[3]
    assert gathers[2] < first_of["h.0"]  # h.1's, before h.0 runs
    assert gathers[3] < first_of["h.1"]


def test_a_rank_looks_for_parameters_where_it_comes_to_another_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, in and after each of three units, forward and backward; not at each of the modules in a unit."""
    asked: list[str] = []
    needed = ShardUnits.parameters_needed

    def noted(self: ShardUnits, block: Block) -> TaskStream | None:
        asked.append(block.layer)
        return needed(self, block)

    monkeypatch.setattr(ShardUnits, "parameters_needed", noted)
    plan = planned(GPT, "fsdp", 4)
    draw(plan.tasks(0))
    assert len(asked) == 2 * 5 < len(plan.program.stages[0].blocks)


def test_an_option_may_be_a_number_or_a_bool_in_python() -> None:
    def steps(**extra: object) -> list[object]:
        return [type(task) for task in draw(planned(GPT, "fsdp", 4, options=extra).tasks(0))]

    assert steps(prefetch=0, reshard=False) == steps(prefetch="0", reshard="no") != steps()


def test_without_prefetch_a_unit_is_gathered_when_the_one_before_it_has_run() -> None:
    tasks = draw(planned(GPT, "fsdp", 4, **options(prefetch="0")).tasks(0))
    for place, task in enumerate(tasks):
        if isinstance(task, AllGather):
            wait = tasks[place + 1]
            assert isinstance(wait, Wait)
            assert wait.handles[0].task is task


def test_what_is_not_given_back_is_gathered_once() -> None:
    tasks = draw(planned(GPT, "fsdp", 4, **options(reshard="no")).tasks(0))
    assert [entry for entry in collectives_of(tasks) if entry[0] == GATHER] == [(GATHER, ROOT), *[(GATHER, BLOCK)] * 3]


def test_what_is_in_no_unit_is_gathered_first_though_it_is_used_last() -> None:
    """The last norm and the projection to the vocabulary, at the end of the last stage of a pipeline."""
    tasks = draw(planned(GPT, "fsdp=2,pp=2").tasks(2), 2)
    assert collectives_of(tasks, "fsdp")[0] == (GATHER, ROOT - 4 * 64 * 16)


def test_units_can_be_layers_or_the_whole_model() -> None:
    whole = collectives_of(draw(planned(GPT, "fsdp", 4, **options(unit="model")).tasks(0)))
    assert whole == [(GATHER, ALL), (SCATTER, ALL)]
    layers = collectives_of(draw(planned(GPT, "fsdp", 4, **options(unit="layer", reshard="no")).tasks(0)))
    assert sum(nbytes for kind, nbytes in layers if kind == GATHER) == ALL
    assert (GATHER, 4 * 16 * 16) in layers


def test_a_model_without_numbered_modules_is_one_unit_and_says_so() -> None:
    plan = planned(traces.mlp(), "fsdp", 4)
    assert [kind for kind, _ in collectives_of(draw(plan.tasks(0)))] == [GATHER, SCATTER]
    assert any("all parameters form one unit" in note for note in plan.notes)
    assert not any("one unit" in note for note in planned(GPT, "fsdp", 4).notes)


def test_parameters_and_gradients_have_a_dtype_each() -> None:
    plan = planned(GPT, "fsdp", 4, gradient_dtype="float32", **options(parameter_dtype="bf16", reshard="no"))
    found = collectives_of(draw(plan.tasks(0)))
    assert sum(nbytes for kind, nbytes in found if kind == GATHER) == ALL / 2
    assert sum(nbytes for kind, nbytes in found if kind == SCATTER) == ALL


def test_each_micro_batch_gathers_and_scatters_unless_gradients_are_kept_whole() -> None:
    each = collectives_of(draw(planned(GPT, "fsdp", 4, micro_batches=2).tasks(0)))
    once = collectives_of(draw(planned(GPT, "fsdp", 4).tasks(0)))
    assert each == once * 2
    last = collectives_of(draw(planned(GPT, "fsdp", 4, micro_batches=2, **options(reduce="last")).tasks(0)))
    assert last.count((SCATTER, BLOCK)) == 3
    assert last.count((GATHER, ROOT)) == 2


def test_the_optimizer_waits_for_all_scatters_and_updates_a_share() -> None:
    tasks = draw(planned(GPT, "fsdp", 4).tasks(0))
    whole = sum(t.numel for op in GPT.operators if op.phase == "optimizer" for t in op.outputs)
    updated = [operator for operator in operators_of(tasks) if operator.phase == "optimizer"]
    assert sum(tensor.numel for operator in updated for tensor in operator.outputs) == whole / 4
    waits = [task for task in tasks if isinstance(task, Wait)]
    assert sum(isinstance(handle.task, ReduceScatter) for handle in waits[-1].handles) == 4


def test_what_does_not_divide_is_updated_in_the_largest_share() -> None:
    operators = operators_of(draw(planned(GPT, "fsdp", 3).tasks(0)))
    shapes = {tensor.shape for op in operators if op.phase == "optimizer" for tensor in op.outputs}
    assert (22, 16) in shapes  # of 64 rows


@pytest.mark.parametrize("parallel", ["fsdp", "zero1", "zero2"])
def test_one_gpu_communicates_nothing(parallel: str) -> None:
    assert not collectives_of(draw(planned(GPT, parallel, 1).tasks(0)))


def test_replicas_of_the_shards_reduce_them_after_the_scatter() -> None:
    """Hybrid sharding: shards among neighbours, and copies of the shards at a distance."""
    plan = planned(GPT, "dp=2,fsdp=4")
    tasks = draw(plan.tasks(1), 1)
    groups = groups_of(tasks)
    assert groups["fsdp"].ranks == (0, 1, 2, 3)
    assert groups["dp"].ranks == (1, 5)
    reduced = [task for task in tasks if isinstance(task, AllReduce)]
    assert [task.nbytes for task in reduced] == [BLOCK / 4, BLOCK / 4, BLOCK / 4, ROOT / 4]
    for task in reduced:
        assert [type(handle.task) for handle in task.after] == [ReduceScatter]
    assert plan.global_batch_size == 8 * GPT.batch_size


@pytest.mark.parametrize("parallel", ["zero1", "zero2"])
def test_the_zeros_move_as_many_bytes_as_one_all_reduce(parallel: str) -> None:
    tasks = draw(planned(GPT, parallel, 4, first_bucket_size=BLOCK, bucket_size=BLOCK).tasks(0))
    found = collectives_of(tasks)
    assert sum(nbytes for kind, nbytes in found if kind == SCATTER) == ALL
    assert found[-1] == (GATHER, ALL)  # once, of the updated parameters
    last_update = max(i for i, t in enumerate(tasks) if isinstance(t, Compute))
    assert isinstance(tasks[last_update + 1], AllGather)


def test_stage_one_reduces_in_the_last_micro_batch_and_stage_two_in_each() -> None:
    def scattered(parallel: str) -> float:
        found = collectives_of(draw(planned(GPT, parallel, 4, micro_batches=2).tasks(0)))
        return sum(nbytes for kind, nbytes in found if kind == SCATTER)

    assert scattered("zero1") == ALL
    assert scattered("zero2") == 2 * ALL


def test_stage_one_can_all_reduce_instead() -> None:
    found = collectives_of(draw(planned(GPT, "zero1", 4, **options(reduce="all-reduce")).tasks(0)))
    assert sum(nbytes for kind, nbytes in found if kind == "all_reduce") == ALL
    assert found[-1] == (GATHER, ALL)


def test_in_a_pipeline_a_stage_gathers_its_own_parameters_and_keeps_them() -> None:
    plan = planned(GPT, "fsdp=2,pp=2", micro_batches=2)
    gathered = []
    for rank in range(4):
        tasks: list[Task] = draw(plan.tasks(rank), rank)
        gathered.append(sum(n for kind, n in collectives_of(tasks) if kind == GATHER))
    assert gathered[0] == gathered[1]
    assert gathered[0] + gathered[2] == ALL  # GPipe: all forward, then all backward, so once


def test_it_combines_with_tensor_parallelism() -> None:
    tasks = draw(planned(GPT, "fsdp=2,tp=2", tp_style="megatron").tasks(0))
    assert groups_of(tasks)["tp"].ranks == (0, 1)
    assert groups_of(tasks)["fsdp"].ranks == (0, 2)
    norms = 4 * (2 * 16)
    assert (GATHER, (BLOCK - norms) / 2 + norms) in collectives_of(tasks, "fsdp")


def test_only_the_first_gather_and_the_last_scatter_stand_alone() -> None:
    fast = "ring(2, bandwidth=1 TB/s, latency=0 s)"
    rank = simulate(GPT, "fsdp", gpus=2, topology=fast, compute_model="linear").data.ranks[0]
    assert rank.communication_s > 6 * BLOCK / 2 / 1e12
    assert rank.exposed_communication_s == pytest.approx(2 * ROOT / 2 / 1e12, rel=1e-3)


def test_two_ways_of_the_same_are_refused() -> None:
    with pytest.raises(OptionError, match="fsdp and zero1 both divide the data, so they cannot be combined"):
        planned(GPT, "fsdp=2,zero1=2")
    with pytest.raises(OptionError, match="dp and ddp both divide the data, so they cannot be combined"):
        planned(GPT, "dp=2,ddp=2")


def test_inference_has_no_optimizer_to_shard_but_can_gather() -> None:
    with pytest.raises(OptionError, match="inference has no optimizer"):
        planned(GPT, "zero1", 2, training=False)
    assert collectives_of(draw(planned(GPT, "fsdp", 2, training=False).tasks(0))) == [
        (GATHER, ROOT),
        *[(GATHER, BLOCK)] * 3,
    ]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"unit": "blok"}, "did you mean 'block'"),
        ({"prefetch": "-1"}, "-1 is less than 0"),
        ({"reshard": "maybe"}, "'maybe' is not known"),
        ({"parameter_dtype": "bf17"}, "unknown dtype 'bf17'"),
    ],
)
def test_options_that_are_none(extra: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        planned(GPT, "fsdp", 2, options=extra)


@pytest.mark.parametrize(
    ("stack", "options", "copies"),
    [
        ("megatron", {}, False),
        ("megatron", {"buffers": "copied"}, True),
        ("megatron", {"reshard": "no"}, True),
        ("eager", {}, True),
        ("eager", {"buffers": "flat"}, False),
    ],
)
def test_megatron_fsdp_keeps_units_where_they_are_gathered_and_reduced(
    stack: str, options: dict[str, str], copies: bool
) -> None:
    result = simulate("llama3.2-1b", parallel="fsdp=4", layers=2, seq=64, stack=stack, options=options)
    copied = {"split_with_sizes_copy", "chunk_cat"} & {base_name(one.name) for one in result.data.operators}
    assert bool(copied) == copies


def test_flat_buffers_hold_a_block_once() -> None:
    """At the peak the gradients of one block (60.8 million parameters in bf16) are also in the buffer that is reduced."""
    flat, copied = (
        rank_memory("llama3.2-1b", parallel="fsdp=4", layers=2, seq=64, options={"buffers": one}).report(
            workspace=False
        )
        for one in ("flat", "copied")
    )
    attention, network, norms = 2048 * (2 * 2048 + 2 * 512), 3 * 2048 * 8192, 2 * 2048
    assert copied.peak_allocated - flat.peak_allocated == 2 * (attention + network + norms)
