"""tp: what each rank keeps of every layer, and every byte that is communicated."""

from __future__ import annotations

from collections import Counter

import pytest
import traces
from traces import collectives_of, draw, groups_of, operators_of, planned

from triosim.errors import TraceError
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.tasks import Collective, Compute, Wait
from triosim.trace import Operator, Trace

MLP = traces.mlp()
ACTIVATION = 2 * 8 * 16 * 4  # bytes of the transformer's residual stream


def layer(plan: ParallelPlan, name: str, phase: str = "forward") -> list[Operator]:
    return [op for op in operators_of(draw(plan.tasks(0))) if op.layer == name and op.phase == phase]


def megatron(trace: Trace, ranks: int = 2) -> ParallelPlan:
    return planned(trace, "tp", ranks, tp_style="megatron")


# ---- gather ---------------------------------------------------------------------------------------------------------


def test_gather_gathers_each_output_and_reduces_each_gradient_of_an_input() -> None:
    plan = planned(MLP, "tp", 4)
    assert collectives_of(draw(plan.tasks(0))) == [
        ("all_gather", 8 * 32 * 4),
        ("all_gather", 8 * 16 * 4),
        ("all_gather", 8 * 4 * 4),
        ("all_reduce", 8 * 16 * 4),  # the input of fc2
        ("all_reduce", 8 * 32 * 4),  # the input of fc1; that of fc0 is what the network is fed
    ]
    assert all(task.group.ranks == (0, 1, 2, 3) for task in draw(plan.tasks(3), 3) if isinstance(task, Collective))


def test_gather_keeps_a_share_of_the_output_features() -> None:
    (linear,) = layer(planned(MLP, "tp", 4), "fc0")
    assert [tensor.shape for tensor in linear.inputs] == [(8, 16), (8, 16), (8,)]
    assert linear.outputs[0].shape == (8, 8)
    (backward,) = layer(planned(MLP, "tp", 4), "fc1", "backward")
    data, weight, bias = backward.outputs
    assert (data.shape, weight.shape, bias.shape) == ((8, 32), (4, 32), (4,))
    assert backward.inputs[0].shape == (8, 4)


def test_the_optimizer_updates_the_shares_alone() -> None:
    for operator in layer(planned(MLP, "tp", 4), "optimizer", "optimizer"):
        whole = MLP.operators[operator.id - 1]
        assert [4 * tensor.numel for tensor in operator.inputs] == [tensor.numel for tensor in whole.inputs]
        assert operator.seconds < whole.seconds


def test_a_share_is_slower_than_its_part_of_the_whole() -> None:
    trace = traces.mlp(sizes=(64, 256, 512, 8), seconds=1e-3)
    whole = {operator.id: operator.seconds for operator in trace.operators}
    for operator in operators_of(draw(planned(trace, "tp", 4).tasks(0))):
        assert whole[operator.id] / 4 <= operator.seconds * 1.0000001 <= whole[operator.id] * 1.0000002


def test_operators_that_are_not_divided_keep_their_measured_time() -> None:
    (relu,) = layer(planned(MLP, "tp", 4), "relu0")
    assert relu is MLP.operators[1]


def test_where_features_do_not_divide_every_rank_is_charged_the_largest_share_and_it_is_noted() -> None:
    plan = planned(traces.mlp(sizes=(16, 32, 6)), "tp", 4)
    (linear,) = layer(plan, "fc1")
    assert linear.inputs[1].shape == (2, 32)
    assert collectives_of(draw(plan.tasks(0)))[1] == ("all_gather", 8 * 6 * 4)
    assert [note for note in plan.notes if "not divisible" in note] == [
        "tp: the output features of fc1 are not divisible by 4; every GPU is charged the largest share"
    ]


def test_convolutions_are_divided_by_channels() -> None:
    plan = planned(traces.convnet(), "tp", 2)
    (conv,) = layer(plan, "conv2")
    assert [tensor.shape for tensor in conv.inputs] == [(8, 8, 8, 8), (4, 8, 3, 3)]
    assert conv.outputs[0].shape == (8, 4, 8, 8)
    assert Counter(collectives_of(draw(plan.tasks(0)))) == {
        ("all_gather", 8 * 8 * 8 * 8 * 4): 2,
        ("all_gather", 8 * 10 * 4): 1,
        ("all_reduce", 8 * 8 * 4): 1,
        ("all_reduce", 8 * 8 * 8 * 8 * 4): 1,
    }


def test_inference_gathers_alone() -> None:
    tasks = draw(planned(MLP, "tp", 2, training=False).tasks(0))
    assert [kind for kind, _ in collectives_of(tasks)] == ["all_gather"] * 3


def test_one_gpu_communicates_nothing() -> None:
    tasks = draw(planned(MLP, "tp=1", 1).tasks(0))
    assert operators_of(tasks) == list(MLP.operators)
    assert not collectives_of(tasks)


def test_who_gathers_a_transformer_is_told_that_its_attention_is_whole() -> None:
    def told(plan: ParallelPlan) -> bool:
        return any("computes attention" in note and "whole" in note for note in plan.notes)

    assert told(planned(traces.transformer(), "tp", 2, tp_style="gather"))
    assert not told(megatron(traces.transformer()))
    assert not told(planned(MLP, "tp", 4))


def test_layers_are_sharded_in_pairs_where_there_is_attention() -> None:
    def collectives(trace: Trace, **options: str) -> list[tuple[str, int]]:
        return collectives_of(draw(planned(trace, "tp", 2, **options).tasks(0)))

    transformer = traces.transformer()
    assert collectives(transformer) == collectives(transformer, tp_style="megatron")
    assert collectives(transformer) != collectives(transformer, tp_style="gather")
    assert collectives(MLP) == collectives(MLP, tp_style="gather") != collectives(MLP, tp_style="megatron")


# ---- megatron -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_transformer_block_all_reduces_four_times(blocks: int) -> None:
    """Two in the forward pass, two in the backward pass; one for the embedding and one for the projection's input.
    Around the loss three of four bytes a token."""
    found = Counter(collectives_of(draw(megatron(traces.transformer(blocks=blocks)).tasks(0))))
    tokens = 2 * 8 * 4
    assert found == {("all_reduce", ACTIVATION): 4 * blocks + 2, ("all_reduce", tokens): 3}


def test_the_four_stand_where_megatron_has_them() -> None:
    tasks = draw(megatron(traces.transformer()).tasks(0))
    before = []
    for index, task in enumerate(tasks):
        if isinstance(task, Collective):
            previous = tasks[index - 1]
            assert isinstance(previous, Compute | Wait) or (isinstance(previous, Collective) and previous.blocks)
            if isinstance(previous, Compute):
                before.append((previous.operators[-1].layer, previous.operators[-1].phase))
    assert before == [
        ("wte", "forward"),
        ("h.0.attn.proj", "forward"),
        ("h.0.mlp.proj", "forward"),
        ("lm_head", "forward"),  # the maxima
        ("loss", "forward"),  # the sums
        ("lm_head", "backward"),
        ("h.0.mlp.fc", "backward"),
        ("h.0.attn.q", "backward"),  # once for q, k and v, after the last of them
    ]


def test_the_gradient_of_an_input_is_reduced_beside_the_product_of_the_weight_gradient() -> None:
    tasks = draw(megatron(traces.transformer()).tasks(0))
    for name in ("lm_head", "h.0.mlp.fc", "h.0.attn.q"):
        at = next(i for i, t in enumerate(tasks) if isinstance(t, Compute) and [o.layer for o in t.operators] == [name]
                  and t.operators[0].phase == "backward")  # fmt: skip
        reduction, weight_half, wait = tasks[at - 1], tasks[at], tasks[at + 1]
        assert isinstance(reduction, Collective)
        assert isinstance(weight_half, Compute)
        assert isinstance(wait, Wait)
        assert wait.handles[0].task is reduction
        data_half = tasks[at - 2]
        assert isinstance(data_half, Compute)
        assert data_half.operators[-1].seconds == weight_half.operators[0].seconds
        assert [t.category for t in weight_half.operators[0].outputs] == ["gradient"]


def test_an_all_reduce_that_is_not_asynchronous_follows_both_products() -> None:
    plan = planned(traces.transformer(), "tp", 2, tp_style="megatron", options={"async_allreduce": "no"})
    tasks = draw(plan.tasks(0))
    for name in ("lm_head", "h.0.mlp.fc", "h.0.attn.q"):
        backward = [
            index
            for index, task in enumerate(tasks)
            if isinstance(task, Compute) and any(o.layer == name and o.phase == "backward" for o in task.operators)
        ]
        reduction = tasks[max(backward) + 1]
        assert isinstance(reduction, Collective)
        assert reduction.blocks


def test_between_a_pair_each_rank_has_its_heads_and_its_features() -> None:
    plan = megatron(traces.transformer())
    (query,), (attention,), (projection,) = (layer(plan, f"h.0.attn{end}") for end in (".q", "", ".proj"))
    assert query.inputs[1].shape == (8, 16)
    assert query.outputs[0].shape == (2, 8, 8)
    assert [tensor.shape for tensor in (*attention.inputs, *attention.outputs)] == [(2, 2, 8, 4)] * 4
    assert [tensor.shape for tensor in projection.inputs] == [(2, 8, 8), (16, 8)]
    assert projection.outputs[0].shape == (2, 8, 16)
    (inner,), (gelu,) = layer(plan, "h.0.mlp.fc"), layer(plan, "h.0.mlp.act")
    assert inner.outputs[0].shape == gelu.inputs[0].shape == gelu.outputs[0].shape == (2, 8, 32)
    (backward,) = layer(plan, "h.0.mlp.proj", "backward")
    assert [tensor.shape for tensor in backward.outputs] == [(2, 8, 32), (16, 32)]


def test_layer_norms_and_residuals_are_repeated_whole() -> None:
    trace = traces.transformer()
    plan = megatron(trace)
    for name in ("h.0.ln_1", "h.0", "ln_f"):
        assert layer(plan, name) == [op for op in trace.operators if op.layer == name and op.phase == "forward"]


def test_embedding_and_projection_are_divided_by_vocabulary() -> None:
    plan = megatron(traces.transformer(), 4)
    (embedding,), (projection,), (loss,) = layer(plan, "wte"), layer(plan, "lm_head"), layer(plan, "loss")
    assert embedding.inputs[0].shape == (16, 16)
    assert embedding.outputs[0].shape == (2, 8, 16)
    assert projection.inputs[1].shape == (16, 16)
    assert projection.outputs[0].shape == loss.inputs[0].shape == (2, 8, 16)


def test_an_mlp_pairs_its_layers_and_divides_the_last_before_the_loss() -> None:
    found = collectives_of(draw(megatron(MLP).tasks(0)))
    assert found == [
        ("all_reduce", 8 * 16 * 4),  # the output of fc1; fc0's stays divided through the ReLU
        ("all_reduce", 8 * 4),
        ("all_reduce", 8 * 4),
        ("all_reduce", 8 * 4),
        ("all_reduce", 8 * 16 * 4),  # the gradient of fc2's input; fc0's input has none
    ]


def test_a_tensor_that_is_used_elsewhere_ends_a_pair() -> None:
    """conv1's output is also added to conv2's: conv1 cannot stay divided."""
    found = [kind for kind, _ in collectives_of(draw(megatron(traces.convnet()).tasks(0)))]
    assert found[0] == "all_gather"
    assert "all_gather" in found[1:]


def test_heads_that_do_not_divide_are_not_divided() -> None:
    plan = megatron(traces.transformer(heads=2), 4)
    (attention,) = layer(plan, "h.0.attn")
    assert attention.inputs[0].shape == (2, 2, 8, 8)
    kinds = Counter(kind for kind, _ in collectives_of(draw(plan.tasks(0))))
    assert kinds["all_gather"] == 4  # q, k, v and the projection, in the style "gather"
    assert (
        "tp: the 2 heads of h.0.attn are not divisible by 4, so the outputs of the layers around them are all-gathered"
        in plan.notes
    )


def packed_attention() -> Trace:
    """q, k and v of one product, split, viewed as 4 heads and transposed, as GPT-2 has them."""
    b = traces.Builder(2)
    data, packing, output = b.tensor(2, 8, 16, category="input"), b.parameter(48, 16), b.parameter(16, 16)
    packed = b.tensor(2, 8, 48)
    first = b.run("aten::linear", [data, packing], [packed], layer="qkv")
    parts = [b.view(packed, 2, 8, 16) for _ in range(3)]
    split = b.run("aten::split", [packed], parts, layer="attn", seconds=0.0)
    heads = []
    for part in parts:
        unfolded, turned = b.view(part, 2, 8, 4, 4), b.view(part, 2, 4, 8, 4)
        b.run("aten::view", [part], [unfolded], layer="attn", seconds=0.0)
        b.run("aten::transpose", [unfolded], [turned], layer="attn", seconds=0.0)
        heads.append(turned)
    mixed = b.tensor(2, 4, 8, 4)
    b.run("aten::scaled_dot_product_attention", heads, [mixed, b.tensor(2, 4, 8)], layer="attn")
    turned, folded, out = b.view(mixed, 2, 8, 4, 4), b.view(mixed, 2, 8, 16), b.tensor(2, 8, 16)
    b.run("aten::transpose", [mixed], [turned], layer="attn", seconds=0.0)
    b.run("aten::reshape", [turned], [folded], layer="attn", seconds=0.0)
    b.run("aten::linear", [folded, output], [out], layer="proj")
    gradients = [b.tensor(2, 8, 16, category="gradient") for _ in range(3)]
    joined = b.tensor(2, 8, 48, category="gradient")
    b.run("SplitBackward0", gradients, [joined], layer="attn", phase="backward", forward=split)
    b.backward("AddmmBackward0", first, joined, data=False)
    return b.trace()


def test_views_between_a_pair_are_divided_by_heads() -> None:
    plan = megatron(packed_attention(), 4)
    views = [op for op in layer(plan, "attn") if op.name != "aten::scaled_dot_product_attention"]
    assert [tensor.shape for tensor in views[0].outputs] == [(2, 8, 4)] * 3
    assert [op.outputs[0].shape for op in views[1:]] == [
        *([(2, 8, 1, 4), (2, 1, 8, 4)] * 3),
        *[(2, 8, 1, 4), (2, 8, 4)],
    ]
    (backward,) = layer(plan, "attn", "backward")
    assert backward.outputs[0].shape == (2, 8, 12)
    assert backward.seconds == pytest.approx(1e-3 / 4)


def test_what_attention_saves_of_its_softmax_is_divided_by_heads() -> None:
    plan = megatron(packed_attention(), 4)
    attention = next(op for op in layer(plan, "attn") if op.name == "aten::scaled_dot_product_attention")
    assert [tensor.shape for tensor in attention.outputs] == [(2, 1, 8, 4), (2, 1, 8)]


@pytest.mark.parametrize("style", ["gather", "megatron"])
def test_a_tied_embedding_is_divided_by_vocabulary_as_its_projection_is(style: str) -> None:
    b = traces.Builder(2)
    table, words = b.parameter(32, 16), b.tensor(2, 4, category="input", dtype="int64")
    hidden, logits, loss = b.tensor(2, 4, 16), b.tensor(2, 4, 32), b.tensor()
    embedding = b.run("aten::embedding", [table, words], [hidden], layer="wte")
    head = b.run("aten::linear", [hidden, table], [logits], layer="head")
    b.run("aten::cross_entropy_loss", [logits], [loss], layer="loss")
    into = b.backward("MmBackward0", head, b.tensor(2, 4, 32, category="gradient"))
    assert into is not None
    b.backward("EmbeddingBackward0", embedding, into, data=False)
    plan = planned(b.trace(), "dp=2,tp=4", 8, tp_style=style)
    (lookup,), (projection,) = layer(plan, "wte"), layer(plan, "head")
    assert lookup.inputs[0].shape == projection.inputs[1].shape == (8, 16)
    tasks = draw(plan.tasks(0))
    assert collectives_of(tasks, "tp")[0] == ("all_reduce", hidden.nbytes)
    assert collectives_of(tasks, "dp") == [("all_reduce", table.nbytes / 4)]
    assert [tensor.nbytes for tensor in plan.program.stages[0].parameters] == [table.nbytes / 4]


# ---- what must not pass in silence, and combinations ----------------------------------------------------------------


def test_a_trace_in_which_nothing_can_be_divided_is_refused() -> None:
    relus = tuple(operator for operator in MLP.operators if operator.name == "aten::relu")
    with pytest.raises(TraceError, match="can be divided among 2 GPUs"):
        planned(Trace(relus, 8), "tp", 2)


def test_a_trace_without_links_from_backward_to_forward_is_refused() -> None:
    unlinked = tuple(Operator(o.id, o.name, o.phase, o.layer, o.inputs, o.outputs, o.seconds) for o in MLP.operators)
    with pytest.raises(TraceError, match="communicate nothing in the backward pass"):
        planned(Trace(unlinked, 8), "tp", 2)
    assert planned(Trace(unlinked, 8), "tp", 2, training=False).world == 2


def test_data_parallelism_reduces_a_share_of_the_gradients_across_tensor_groups() -> None:
    plan = planned(MLP, "dp=2,tp=4", 8)
    tasks = draw(plan.tasks(5), 5)
    assert groups_of(tasks)["tp"].ranks == (4, 5, 6, 7)
    assert groups_of(tasks)["dp"].ranks == (1, 5)
    whole = sum(tensor.nbytes for tensor in MLP.parameters.values())
    assert collectives_of(tasks, "dp") == [("all_reduce", whole / 4)]
    assert collectives_of(tasks, "tp") == collectives_of(draw(planned(MLP, "tp", 4).tasks(0)))


def test_a_parameter_that_one_operator_needs_whole_is_reduced_whole() -> None:
    """A bias that is added to two layers, one of which is divided: the whole of it is on every rank."""
    b = traces.Builder(2)
    data, weight, bias = b.tensor(2, 8, category="input"), b.parameter(8, 8), b.parameter(8)
    inner, out = b.tensor(2, 8), b.tensor(2, 8)
    linear = b.run("aten::linear", [data, weight, bias], [inner], layer="fc")
    norm = b.run("aten::native_layer_norm", [inner, bias], [out], layer="norm")
    into = b.backward("NativeLayerNormBackward0", norm, b.tensor(2, 8, category="gradient"))
    assert into is not None
    b.backward("AddmmBackward0", linear, into, data=False)
    tasks = draw(planned(b.trace(), "dp=2,tp=2", 4).tasks(0))
    assert collectives_of(tasks, "dp") == [("all_reduce", weight.nbytes / 2 + bias.nbytes)]
