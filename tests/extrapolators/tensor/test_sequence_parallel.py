"""Sequence parallelism: ten collectives a block, what stands beside what, and who works on a share of the sequence."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import traces
from traces import collectives_of, draw, operators_of, planned

from triosim import describe, simulate
from triosim.errors import OptionError, TraceError
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.models import Llama
from triosim.tasks import AllGather, AllReduce, Batch, Compute, ReduceScatter, Send, Task, Wait
from triosim.trace import Trace

STREAM = 2 * 8 * 16 * 4  # bytes of the residual stream
NORM = 16 * 4
GATHER, SCATTER = ("all_gather", STREAM), ("reduce_scatter", STREAM)


def by_sequence(trace: Any, parallel: str = "tp", gpus: int | None = 2, **options: Any) -> ParallelPlan:
    return planned(trace, parallel, gpus, tp_style="megatron", sequence_parallel=True, **options)


def place_of(tasks: list[Task], layer: str, phase: str) -> list[int]:
    return [
        i
        for i, t in enumerate(tasks)
        if isinstance(t, Compute) and any(o.layer == layer and o.phase == phase for o in t.operators)
    ]


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_transformer_block_gathers_and_scatters_ten_times(blocks: int) -> None:
    """Gather and scatter for each pair forward; backward two gathers and a scatter. The embedding has a scatter and, backward,
    a gather; the projection to the vocabulary a gather and, backward, another and a scatter."""
    found = Counter(collectives_of(draw(by_sequence(traces.transformer(blocks=blocks)).tasks(0))))
    norms = 2 * blocks + 1
    assert found == {
        GATHER: 6 * blocks + 3,
        SCATTER: 4 * blocks + 2,
        ("all_reduce", 2 * 8 * 4): 3,  # maxima, logits of the labels and sums of the loss
        ("all_reduce", norms * NORM): 1,
    }


def test_they_move_what_the_all_reduces_move_and_half_as_much_again_for_the_backward_gathers() -> None:
    """A ring's all-gather or reduce-scatter moves half of what its all-reduce does."""
    trace = traces.transformer(blocks=4)
    plain = collectives_of(draw(planned(trace, "tp", 2, tp_style="megatron").tasks(0)))
    halves = [n for kind, n in collectives_of(draw(by_sequence(trace).tasks(0))) if kind != "all_reduce"]
    wholes = [n for _, n in plain if n == STREAM]
    again = (2 * 4 + 1) * STREAM  # the inputs of two pairs a block and of the projection
    assert sum(halves) == 2 * sum(wholes) + again


def test_norms_and_residuals_work_on_a_share_of_the_sequence_and_pairs_on_all_of_it() -> None:
    tasks = draw(by_sequence(traces.transformer(), gpus=4).tasks(0))
    shapes = {o.layer: o.inputs[0].shape for o in operators_of(tasks) if o.phase == "forward"}
    assert shapes["h.0.ln_1"] == shapes["h.0"] == shapes["ln_f"] == (2, 2, 16)
    assert shapes["h.0.attn.q"] == shapes["h.0.mlp.fc"] == shapes["lm_head"] == (2, 8, 16)
    backward = {o.layer: o.outputs[0].shape for o in operators_of(tasks) if o.phase == "backward"}
    assert backward["h.0.ln_1"] == (2, 2, 16)
    assert backward["h.0.mlp.act"] == (2, 8, 16)


@pytest.mark.parametrize(("batch", "tokens", "heads"), [(2, 4, 4), (4, 4, 4), (2, 8, 8), (4, 8, 4), (2, 2, 2)])
def test_as_many_tokens_as_heads_or_samples_are_not_mixed_up_where_nobody_recorded_views(
    batch: int, tokens: int, heads: int
) -> None:
    """Attention says which dimension counts tokens: of 4 x 4 x 4 numbers too."""
    trace = traces.transformer(batch=batch, tokens=tokens, heads=heads)
    tasks = draw(by_sequence(trace).tasks(0))
    kinds = Counter(kind for kind, _ in collectives_of(tasks))
    assert (kinds["all_gather"], kinds["reduce_scatter"]) == (6 + 3, 4 + 2)
    shapes = {
        o.layer: {t.shape for t in o.inputs if len(t.shape) > 2} for o in operators_of(tasks) if o.phase == "forward"
    }
    assert shapes["h.0.attn"] == {(batch, heads // 2, tokens, 16 // heads)}
    assert shapes["h.0.attn.proj"] == {(batch, tokens, 8)}
    assert shapes["h.0.ln_2"] == {(batch, tokens // 2, 16)}


def test_a_share_of_a_norm_takes_less_time() -> None:
    trace = traces.transformer()
    whole = next(o.seconds for o in trace.operators if o.layer == "ln_f")
    share = next(o.seconds for o in operators_of(draw(by_sequence(trace).tasks(0))) if o.layer == "ln_f")
    assert share == pytest.approx(whole / 2)


def test_the_input_is_gathered_again_beside_the_product_that_gives_its_gradient() -> None:
    """And its gradient is scattered beside the product that gives the weight's, which waits for the gathered input."""
    tasks = draw(by_sequence(traces.transformer()).tasks(0))
    data, weight = place_of(tasks, "h.0.mlp.fc", "backward")
    gather, scatter, wait = tasks[data - 1], tasks[data + 1], tasks[data + 2]
    assert isinstance(gather, AllGather)
    assert isinstance(scatter, ReduceScatter)
    assert isinstance(wait, Wait)
    assert wait.handles[0].task is gather
    assert weight == data + 3
    last = tasks[weight + 1]
    assert isinstance(last, Wait)
    assert last.handles[0].task is scatter


def test_three_layers_of_one_input_gather_it_once_and_scatter_the_sum_of_their_gradients() -> None:
    tasks = draw(by_sequence(traces.transformer()).tasks(0))
    begin, end = place_of(tasks, "h.0.attn.v", "backward")[0], place_of(tasks, "h.0.attn.q", "backward")[-1]
    kinds = [type(task) for task in tasks[begin - 1 : end] if not isinstance(task, Compute | Wait)]
    assert kinds == [AllGather, ReduceScatter]


def test_the_gradients_of_norms_are_added_up_once_just_before_the_optimizer() -> None:
    tasks = draw(by_sequence(traces.transformer(blocks=2), micro_batches=2).tasks(0))
    sums = [place for place, t in enumerate(tasks) if isinstance(t, AllReduce) and t.nbytes == 5 * NORM]
    assert len(sums) == 1
    assert isinstance(tasks[sums[0] + 1], Wait)
    after = tasks[sums[0] + 2]
    assert isinstance(after, Compute)
    assert after.operators[0].phase == "optimizer"


def test_a_pipeline_sends_a_share_of_the_sequence_and_each_stage_adds_up_its_own_norms() -> None:
    plan = by_sequence(traces.transformer(blocks=2), "tp=2,pp=2", 4, micro_batches=1, stages=("h.1",))
    first, last = draw(plan.tasks(0)), draw(plan.tasks(2), 2)
    assert [task.nbytes for task in first if isinstance(task, Send)] == [STREAM / 2]
    assert [task.nbytes for task in last if isinstance(task, Send)] == [STREAM / 2]
    assert collectives_of(first)[-1] == ("all_reduce", 2 * NORM)
    assert collectives_of(last)[-1] == ("all_reduce", 3 * NORM)
    blocks = Counter(collectives_of(first))
    assert blocks[GATHER] + blocks[SCATTER] == 10 + 2


@pytest.mark.parametrize(("policy", "more"), [("full", 4), ("selective", 0)])
def test_recomputing_a_block_gathers_and_scatters_again(policy: str, more: int) -> None:
    trace = traces.transformer(blocks=3)
    plain = Counter(collectives_of(draw(by_sequence(trace).tasks(0))))
    again = Counter(collectives_of(draw(by_sequence(trace, recompute=policy).tasks(0))))
    assert sum((again - plain).values()) == more * 3


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_gather_and_a_product_can_go_round_in_chunks(ranks: int) -> None:
    """Each product of one chunk of tokens beside the hop of a chunk; the bytes are those of the collectives."""
    plain = draw(by_sequence(traces.transformer(), gpus=ranks, training=False).tasks(0))
    tasks = draw(by_sequence(traces.transformer(), gpus=ranks, training=False, options={"overlap": "ring"}).tasks(0))
    layers = [o for o in operators_of(tasks) if o.layer == "h.0.mlp.fc"]
    assert [(o.inputs[0].shape, o.outputs[0].shape) for o in layers] == [
        ((2, 8 // ranks, 16), (2, 8 // ranks, 64 // ranks))
    ] * ranks
    hops = [task for task in tasks if isinstance(task, Batch)]
    assert len(hops) == (ranks - 1) * 5  # of two pairs and the projection; the embedding's scatter follows no product
    assert all(part.nbytes == STREAM / ranks for task in hops for part in task.parts if isinstance(part, Send))
    assert collectives_of(tasks) == [SCATTER, *[entry for entry in collectives_of(plain) if entry[0] == "all_reduce"]]
    first = tasks.index(hops[0])
    product, wait = tasks[first + 1 : first + 3]
    assert isinstance(product, Compute)
    assert [o.layer for o in product.operators] == ["h.0.attn.q"]
    assert isinstance(wait, Wait)
    assert wait.handles[0].task is hops[0]


def test_the_products_of_a_ring_cost_the_host_what_one_launch_does() -> None:
    trace = traces.transformer()
    trace = replace(trace, operators=tuple(one.with_host_seconds(12e-6) for one in trace.operators))
    tasks = draw(by_sequence(trace, gpus=4, training=False, options={"overlap": "ring"}).tasks(0))
    layers = [one for one in operators_of(tasks) if one.layer == "h.0.mlp.fc"]
    assert [one.host_seconds for one in layers] == pytest.approx([3e-6] * 4)


def test_what_goes_round_after_a_product_are_its_sums() -> None:
    tasks = draw(by_sequence(traces.transformer(), gpus=4, training=False, options={"overlap": "ring"}).tasks(0))
    names = [o.name for o in operators_of(tasks) if o.layer == "h.0.mlp.proj"]
    assert names == ["aten::linear", *["aten::linear", "aten::add_"] * 3]


def test_rings_run_in_training_too_and_need_a_divided_sequence() -> None:
    trace = traces.transformer(blocks=2)
    tasks = draw(by_sequence(trace, options={"overlap": "ring"}).tasks(0))
    gathers = [entry for entry in collectives_of(tasks) if entry[0] == "all_gather"]
    assert gathers == [GATHER] * (2 * 2 + 1 + 1)  # the inputs again, which overlap already, and that of the embedding
    result = simulate(
        trace, "tp=4", tp_style="megatron", sequence_parallel=True, options={"overlap": "ring"}, topology="dgx-a100"
    )
    assert result.step_time_s > 0
    with pytest.raises(OptionError, match="the overlap in a ring needs --sequence-parallel"):
        planned(trace, "tp", 2, tp_style="megatron", options={"overlap": "ring"})


def test_inference_gathers_and_scatters_forward_alone() -> None:
    found = Counter(collectives_of(draw(by_sequence(traces.transformer(), training=False).tasks(0))))
    assert found == {GATHER: 3, SCATTER: 3, ("all_reduce", 64): 3}


def test_data_parallelism_reduces_the_same_gradients_with_it() -> None:
    def reduced(**options: Any) -> list[tuple[str, float]]:
        plan = planned(traces.transformer(), "dp=2,tp=2", 4, tp_style="megatron", **options)
        return collectives_of(draw(plan.tasks(0)), "dp")

    assert reduced(sequence_parallel=True) == reduced()


def test_a_pooling_of_tokens_gets_them_all() -> None:
    b = traces.Builder(2)
    words, table, weight = b.tensor(2, 8, category="input", dtype="int64"), b.parameter(64, 16), b.parameter(16, 16)
    stream, pooled, out = b.tensor(2, 8, 16), b.tensor(2, 16), b.tensor(2, 16)
    b.run("aten::embedding", [table, words], [stream], layer="wte")
    b.run("aten::mean", [stream], [pooled], layer="pool")
    b.run("aten::linear", [pooled, weight], [out], layer="head")
    plan = by_sequence(b.trace(), training=False)
    tasks = draw(plan.tasks(0))
    assert collectives_of(tasks) == [SCATTER, GATHER]
    assert place_of(tasks, "pool", "forward")[0] > next(i for i, t in enumerate(tasks) if isinstance(t, AllGather))
    assert "tp: pool need all tokens, which are all-gathered" in plan.notes


def test_what_does_not_divide_is_refused_with_the_numbers() -> None:
    with pytest.raises(OptionError, match="a sequence of 6 tokens is not divisible by 4"):
        by_sequence(traces.transformer(tokens=6), gpus=4)
    with pytest.raises(OptionError, match=r"the 2 heads of h\.0.attn are not divisible by 4"):
        by_sequence(traces.transformer(heads=2), gpus=4)
    with pytest.raises(TraceError, match="no input of the network has a sequence"):
        by_sequence(traces.mlp())


def test_the_style_that_gathers_features_is_refused() -> None:
    with pytest.raises(OptionError, match="use --tp-style megatron"):
        planned(traces.transformer(), "tp", 2, tp_style="gather", sequence_parallel=True)
    with pytest.raises(OptionError, match="use --tp-style megatron"):
        planned(traces.mlp(), "tp", 2, sequence_parallel=True)  # without attention the layers' outputs are gathered


def test_a_step_runs_and_says_where_the_option_does_nothing() -> None:
    plain = simulate(traces.transformer(), "tp=4", tp_style="megatron", topology="dgx-a100")
    shared = simulate(traces.transformer(), "tp=4", tp_style="megatron", sequence_parallel=True, topology="dgx-a100")
    assert shared.to_dict()["step_time_s"] < plain.to_dict()["step_time_s"]
    alone = simulate(traces.transformer(), "dp=2", sequence_parallel=True, topology="dgx-a100")
    assert any("--sequence-parallel has no effect without tp" in note for note in alone.notes)


def described(stack: Any, batch: int = 4) -> Trace:
    """Two layers of a Llama on samples of 16 tokens."""
    model = Llama(layers=2, hidden=64, heads=4, kv_heads=4, feed_forward=96, vocab=256, sequence=16)
    return describe(model, batch=batch, dtype="bf16", stack=stack, optimizer="none")


def stream_copies(trace: Trace, **options: Any) -> Counter[str]:
    """The copies of all tokens' features that a rank makes, by phase; attention's own are of a head's."""
    found = operators_of(draw(by_sequence(trace, **options).tasks(0)))
    return Counter(
        o.phase for o in found if o.name == "aten::clone" and o.inputs[0].numel == trace.batch_size * 16 * 64
    )


def test_dtensor_gathers_an_input_once_and_megatron_again_for_the_gradients_of_weights() -> None:
    stream = 4 * 16 * 64 * 2
    kept, again = (Counter(collectives_of(draw(by_sequence(described(s)).tasks(0)))) for s in ("eager", "megatron"))
    inputs = 2 * 2 + 1  # of attention and the feed-forward network of each layer, and of the output layer
    assert again["all_gather", stream] == kept["all_gather", stream] + inputs
    assert again["reduce_scatter", stream] == kept["reduce_scatter", stream] == 2 * inputs


def test_dtensor_copies_what_it_gathers_and_scatters_along_the_sequence() -> None:
    """A gather ahead of five inputs, and a scatter of four outputs and the embedding's; their gradients backward."""
    assert stream_copies(described("eager")) == {"forward": 5 + 5, "backward": 5 + 5}
    assert stream_copies(described("eager", batch=1)) == {"forward": 5, "backward": 5}  # a gathered sample is in order
    assert not stream_copies(described("megatron"))
    assert not stream_copies(described("eager"), options={"overlap": "ring"})
