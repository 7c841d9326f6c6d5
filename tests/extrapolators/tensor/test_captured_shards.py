"""What tensor parallelism divides follows from what dimensions stand for, not from their sizes.

The samples in data/parts are captures on PyTorch 2.13 of whole models and of one rank's part of each (capture_parts.py made
them), at sizes chosen to mislead: batch, sequence, heads and the features of a head are equal, and so are the hidden size,
the inner features, the vocabulary and the number of tokens.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import traces
from traces import collectives_of, draw, planned

import triosim
from triosim.models import Llama, describe
from triosim.operators.features import base_name, flops
from triosim.operators.kinds import kind_of
from triosim.sharding.dataflow import is_view
from triosim.tasks import Collective
from triosim.trace import Operator, Tensor, Trace
from triosim.trace.formats.native import trace_json as json_format

DATA = Path(__file__).parent / "data" / "parts"
EXPECTED: dict[str, Any] = json.loads(gzip.decompress((DATA / "expected.json.gz").read_bytes()))
ROOT = Path(__file__).parents[3]
OTHERS = [
    ROOT / "tests" / "sharding" / "data" / f"{name}.json.gz" for name in ("bert", "t5", "vit", "resnet18", "convnet")
]
SHIPPED = sorted((ROOT / "examples" / "traces").glob("*.json.gz"))
#: Without those of which every rank has a part whole: one head, a router.
PARTS = [DATA / f"{name}.json.gz" for name in EXPECTED if name not in ("gemma", "mixtral")]


def divided(trace: Trace, ranks: int, style: str = "megatron") -> dict[int, list[Operator]]:
    """A rank's share of each operator of a trace, by its id; of one that is split, the two halves."""
    training = any(operator.phase == "backward" for operator in trace.operators)
    operators = planned(trace, "tp", ranks, tp_style=style, training=training).program.operators
    ids = {operator.id for operator in trace.operators}
    found = {operator.id: [operator] for operator in operators if operator.id in ids}
    for half in operators:
        if half.id not in ids:
            found[next(i for i, (o, *_) in found.items() if (o.forward, o.name) == (half.forward, half.name))].append(
                half
            )
    return found


def shapes(tensors: Sequence[Tensor]) -> list[list[int]]:
    return [list(tensor.shape) for tensor in tensors if tensor.shape]


def only(trace: Trace, ranks: int, style: str, layer: str, phase: str = "forward") -> Operator:
    """A rank's share of the one operator of a layer in a phase."""
    (found,) = [o for (o, *_) in divided(trace, ranks, style).values() if o.layer == layer and o.phase == phase]
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_a_capture_of_one_ranks_part_has_the_shapes_of_a_share(name: str) -> None:
    """Forward, backward and optimizer, operator by operator; a half of a split one has part of its outputs."""
    trace = json_format.read(DATA / f"{name}.json.gz")
    expected = EXPECTED[name]
    assert [operator.name for operator in trace.operators] == expected["names"]
    found = divided(trace, expected["ranks"])
    wrong = []
    changed = 0
    for whole, (inputs, outputs) in zip(trace.operators, expected["shapes"], strict=True):
        split_gradients = found[whole.id]
        made = [shape for half in split_gradients for shape in shapes(half.outputs)]
        if shapes(split_gradients[0].inputs) != inputs or sorted(made) != sorted(outputs):
            wrong.append((whole.id, whole.name, shapes(split_gradients[0].inputs), made, inputs, outputs))
        changed += [shapes(whole.inputs), shapes(whole.outputs)] != [inputs, outputs]
    assert wrong == []
    assert changed > 40


def products(trace: Trace, ranks: int, style: str) -> list[tuple[Operator, float]]:
    """Each product, convolution and attention, forward and backward, and how many times a rank's FLOPs it has."""
    shares = divided(trace, ranks, style)
    whole = {operator.id: operator for operator in trace.operators}
    found = []
    for operator in trace.operators:
        if kind_of(base_name(operator.name)) in ("product", "convolution", "attention"):
            of = operator.forward or 0
            mine = sum(flops(half, shares[of][0] if of else None) for half in shares[operator.id])
            found.append((operator, flops(operator, whole.get(of)) / mine))
    return found


@pytest.mark.parametrize("path", [*PARTS, *OTHERS, *SHIPPED], ids=lambda path: path.parent.name + "-" + path.name)
def test_all_ranks_together_compute_as_much_as_one(path: Path) -> None:
    trace = triosim.load_trace(path)
    apart = {}
    for style in ("gather", "megatron"):
        found = products(trace, 2, style)
        assert len(found) > 5
        ratios = {(o.layer, o.name): ratio for o, ratio in found if "lm_head" not in o.layer}
        apart[style] = {key: ratio for key, ratio in ratios.items() if ratio != pytest.approx(2.0, rel=1e-12)}
    assert apart["megatron"] == {}
    # Without pairs, attention is not divided, which has no weights.
    assert set(apart["gather"].values()) <= {1.0}
    assert all("atten" in layer.lower() or "attn" in layer for layer, _ in apart["gather"])


@pytest.mark.parametrize("style", ["gather", "megatron"])
@pytest.mark.parametrize("path", [*PARTS, *OTHERS, *SHIPPED], ids=lambda path: path.parent.name + "-" + path.name)
def test_the_shares_of_a_parameter_come_to_the_whole(path: Path, style: str) -> None:
    trace = triosim.load_trace(path)
    mine = {t.storage: t for t in planned(trace, "tp", 2, tp_style=style).program.stages[0].parameters}
    for storage, whole in {t.storage: t for t in trace.parameters.values()}.items():
        if mine[storage].numel != whole.numel:  # a share, where the first dimension is odd the largest
            assert 2 * mine[storage].numel - whole.numel in (0, whole.numel // max(whole.shape))
    multiplied = [o for o in trace.operators if kind_of(base_name(o.name)) in ("product", "convolution")]
    weights = [t for o in multiplied for t in o.inputs if t.category == "parameter" and len(t.shape) > 1]
    assert weights
    assert [t.shape for t in weights if mine[t.storage].numel == t.numel] == []


def residual() -> Trace:
    """x + W x with a square weight: its two sides are one axis of the step, of which a rank has a share on one side only."""
    b = traces.Builder(8)
    data, weight, last = b.tensor(8, 8, category="input"), b.parameter(8, 8), b.parameter(8, 8)
    made, total, out = b.tensor(8, 8), b.tensor(8, 8), b.tensor(8, 8)
    first = b.run("aten::linear", [data, weight], [made], layer="fc")
    add = b.run("aten::add", [data, made], [total], layer="add")
    second = b.run("aten::linear", [total, last], [out], layer="head")
    gradient: Tensor | None = b.tensor(8, 8, category="gradient")
    for name, operator in (("AddmmBackward0", second), ("AddBackward0", add), ("AddmmBackward0", first)):
        assert gradient is not None
        gradient = b.backward(name, operator, gradient, data=operator is not first)
    b.adam([weight, last])
    return b.trace()


def test_of_a_square_weight_around_which_a_residual_goes_one_side_is_divided() -> None:
    forward = only(residual(), 4, "gather", "fc")
    assert (shapes(forward.inputs), shapes(forward.outputs)) == ([[8, 8], [2, 8]], [[8, 2]])
    backward = only(residual(), 4, "gather", "head", "backward")
    gradient, data, weight = backward.inputs
    assert [gradient.shape, data.shape, weight.shape] == [(8, 2), (8, 8), (2, 8)]
    assert [tensor.shape for tensor in backward.outputs] == [(8, 8), (2, 8)]
    add = only(residual(), 4, "gather", "add")
    assert shapes((*add.inputs, *add.outputs)) == [[8, 8]] * 3
    for operator in divided(residual(), 4, "gather").values():
        if operator[0].phase == "optimizer":
            assert {tensor.shape for tensor in operator[0].inputs} == {(2, 8)}


def test_heads_batch_and_ranks_of_one_number_and_inner_features_as_many_as_words() -> None:
    trace = traces.transformer(batch=4, tokens=8, width=16, heads=4, vocabulary=64)
    found = divided(trace, 4)
    (attention,) = [o for (o, *_) in found.values() if o.layer == "h.0.attn" and o.phase == "forward"]
    assert shapes((*attention.inputs, *attention.outputs)) == [[4, 1, 8, 4]] * 4
    (head,) = [o for (o, *_) in found.values() if o.layer == "lm_head" and o.phase == "forward"]
    assert shapes((*head.inputs, *head.outputs)) == [[4, 8, 16], [16, 16], [4, 8, 16]]
    (inner,) = [o for (o, *_) in found.values() if o.layer == "h.0.mlp.act" and o.phase == "forward"]
    assert shapes((*inner.inputs, *inner.outputs)) == [[4, 8, 16]] * 2


def test_a_sum_of_gradients_between_a_pair_is_of_shares() -> None:
    """The inner features are used twice (x * sigmoid(x)): their gradients are added by an operator that differentiates none."""
    b = traces.Builder(4)
    data, up, down = b.tensor(4, 8, category="input"), b.parameter(8, 8), b.parameter(8, 8)
    inner, gate, product, out = (b.tensor(4, 8) for _ in range(4))
    first = b.run("aten::linear", [data, up], [inner], layer="up")
    sigmoid = b.run("aten::sigmoid", [inner], [gate], layer="gate")
    mul = b.run("aten::mul", [inner, gate], [product], layer="mul")
    second = b.run("aten::linear", [product, down], [out], layer="down")
    into = b.backward("AddmmBackward0", second, b.tensor(4, 8, category="gradient"))
    assert into is not None
    one, two, total = (b.tensor(4, 8, category="gradient") for _ in range(3))
    b.run("MulBackward0", [into, inner, gate], [one, two], layer="mul", phase="backward", forward=mul)
    three = b.backward("SigmoidBackward0", sigmoid, two)
    assert three is not None
    b.run("aten::add", [one, three], [total], layer="sum", phase="backward")
    b.backward("AddmmBackward0", first, total, data=False)
    found = only(b.trace(), 2, "megatron", "sum", "backward")
    assert shapes((*found.inputs, *found.outputs)) == [[4, 4]] * 3


def test_a_weight_that_is_turned_first_is_divided_where_it_lies() -> None:
    b = traces.Builder(8)
    data, weight, out = b.tensor(8, 8, category="input"), b.parameter(8, 8), b.tensor(8, 8)
    turned = b.view(weight, 8, 8)
    b.run("aten::t", [weight], [turned], layer="fc", seconds=0.0)
    b.run("aten::mm", [data, turned], [out], layer="fc")
    turn, product = (shares[0] for shares in divided(b.trace(), 2, "gather").values())
    assert shapes((*turn.inputs, *turn.outputs)) == [[4, 8], [8, 4]]
    assert shapes((*product.inputs, *product.outputs)) == [[8, 8], [8, 4], [8, 4]]


def test_the_heads_of_flash_attention_stand_last_but_one() -> None:
    b = traces.Builder(4)
    data, weights = b.tensor(4, 4, 16, category="input"), [b.parameter(16, 16) for _ in range(4)]
    heads = []
    for name, weight in zip("qkv", weights[:3], strict=True):
        made = b.tensor(4, 4, 16)
        b.run("aten::linear", [data, weight], [made], layer=name)
        heads.append(b.view(made, 4, 4, 4, 4))
        b.run("aten::view", [made], [heads[-1]], layer=name, seconds=0.0)
    mixed, out = b.tensor(4, 4, 4, 4), b.tensor(4, 4, 16)
    b.run("aten::_flash_attention_forward", heads, [mixed], layer="attention")
    folded = b.view(mixed, 4, 4, 16)
    b.run("aten::view", [mixed], [folded], layer="out", seconds=0.0)
    b.run("aten::linear", [folded, weights[3]], [out], layer="projection")
    found = only(b.trace(), 2, "megatron", "attention")
    assert shapes((*found.inputs, *found.outputs)) == [[4, 4, 2, 4]] * 4


def test_a_normalisation_over_what_is_divided_ends_a_pair_and_one_beside_it_does_not() -> None:
    def between(name: str) -> Counter[str]:
        b = traces.Builder(4)
        data, up, down = b.tensor(4, 8, category="input"), b.parameter(8, 8), b.parameter(8, 8)
        inner, normed, out = b.tensor(4, 8), b.tensor(4, 8), b.tensor(4, 8)
        b.run("aten::linear", [data, up], [inner], layer="up")
        b.run(name, [inner], [normed], layer="norm")
        b.run("aten::linear", [normed, down], [out], layer="down")
        plan = planned(b.trace(), "tp", 2, tp_style="megatron", training=False)
        return Counter(kind for kind, _ in collectives_of(draw(plan.tasks(0))))

    assert between("aten::softmax") == between("aten::layer_norm") == {"all_gather": 2}
    assert between("aten::batch_norm") == {"all_reduce": 1}


def test_the_gradients_of_parameters_that_every_head_shares_are_added_up() -> None:
    """Qwen3 normalises queries and keys head by head, with one weight for all heads: 16 bytes each."""
    trace = json_format.read(DATA / "qwen3.json.gz")
    reduced = Counter(collectives_of(draw(planned(trace, "tp", 2, tp_style="megatron").tasks(0))))
    assert reduced["all_reduce", 4 * 4.0] == 2
    plain = Counter(
        collectives_of(draw(planned(json_format.read(DATA / "llama.json.gz"), "tp", 2, tp_style="megatron").tasks(0)))
    )
    assert reduced.total() == plain.total() + 2


def test_a_table_of_biases_for_the_heads_is_whole_and_its_gradient_is_added_up() -> None:
    """T5 adds a number for each head and distance to the scores: tables of 32 x 4 in the encoder and the decoder."""
    trace = json_format.read(ROOT / "tests" / "sharding" / "data" / "t5.json.gz")
    plan = planned(trace, "tp", 2, tp_style="megatron")
    assert Counter(collectives_of(draw(plan.tasks(0))))["all_reduce", 32 * 4 * 4.0] == 2
    tables = [t for t in plan.program.stages[0].parameters if t.shape == (32, 4)]
    assert len(tables) == 2
    scores = [o for o in plan.program.operators if "scaled_dot" in o.name and o.phase == "forward"]
    assert [o.inputs[3].shape[1] for o in scores if len(o.inputs[3].shape) == 4] == [2] * len(scores)


@pytest.mark.parametrize("style", ["gather", "megatron"])
@pytest.mark.parametrize("name", EXPECTED)
def test_the_same_dimensions_are_divided_at_any_batch_size(name: str, style: str) -> None:
    trace = json_format.read(DATA / f"{name}.json.gz")

    def dims(batch: int) -> dict[int, list[list[int]]]:
        """The dimensions in which a share differs from the whole at the same batch size."""
        whole = {op.id: op for op in planned(trace, "single", 1, batch_size=batch).program.operators}
        parts = planned(trace, "tp", 2, tp_style=style, batch_size=batch).program.operators
        return {
            part.id: [
                [place for place, (one, two) in enumerate(zip(t.shape, w.shape, strict=True)) if one != two]
                for t, w in zip(part.inputs, whole[part.id].inputs, strict=True)
            ]
            for part in parts
            if part.id in whole
        }

    assert dims(1) == dims(2) == dims(trace.batch_size) == dims(5 * trace.batch_size)


def test_keys_and_values_of_fewer_heads_than_ranks_are_on_several_ranks_each() -> None:
    """Llama with two heads of keys and values for four of queries, on four GPUs, as vLLM and Megatron-Core have it.

    A rank has one head of four features of each, and their gradients are added up between the two ranks that have them.
    """
    trace = json_format.read(ROOT / "tests" / "sharding" / "data" / "llama.json.gz")
    plan = planned(trace, "tp", 4, tp_style="megatron")
    assert any("each of the 2 key and value heads" in note and "on 2 GPUs" in note for note in plan.notes)
    key = only(trace, 4, "megatron", "model.layers.0.self_attn.k_proj")
    whole = next(o for o in trace.operators if o.layer == key.layer and o.phase == "forward")
    assert key.outputs[0].shape[-1] == whole.outputs[0].shape[-1] // 2
    tasks = [draw(plan.tasks(rank), rank) for rank in range(4)]
    groups = [{one.group.ranks for one in some if isinstance(one, Collective)} for some in tasks]
    assert groups == [{(0, 1, 2, 3), pair} for pair in ((0, 1), (0, 1), (2, 3), (2, 3))]
    assert not any("heads" in note for note in planned(trace, "tp", 2, tp_style="megatron").notes)


def test_heads_are_whole_where_views_are_between_a_layer_and_attention() -> None:
    """Qwen3 with two heads of keys and values, described: a product, a view of it, and a view by heads of that."""
    sizes = {"layers": 1, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "feed_forward": 64, "vocab": 64}
    trace = describe(Llama(**sizes, sequence=16, qk_norm=True), gpu="H100")
    plan = planned(trace, "tp", 4, tp_style="megatron")
    assert any("each of the 2 key and value heads" in note and "on 2 GPUs" in note for note in plan.notes)
    features = {
        one.layer.rpartition(".")[2]: one.outputs[0].shape[-1]
        for one in plan.program.operators
        if one.phase == "forward" and base_name(one.name) == "mm" and "self_attn" in one.layer
    }
    assert features == {"q_proj": 16, "k_proj": 16, "v_proj": 16, "o_proj": 64}


def test_heads_of_which_ranks_would_have_different_numbers_are_named() -> None:
    """Of four heads of keys and values on three GPUs."""
    trace = json_format.read(DATA / "llama.json.gz")
    assert any("are not divisible by 3" in note for note in planned(trace, "tp", 3, tp_style="megatron").notes)


def test_one_head_of_keys_and_values_is_on_every_rank() -> None:
    """Multi-query attention (Shazeer 2019): queries are divided, and the gradients of the shared head are added up."""
    trace = json_format.read(DATA / "gemma.json.gz")
    collectives = collectives_of(draw(planned(trace, "tp", 2, tp_style="megatron").tasks(0)))
    key = only(trace, 2, "megatron", "model.layers.0.self_attn.k_proj")
    whole = next(o for o in trace.operators if o.layer == key.layer and o.phase == "forward")
    assert key.inputs == whole.inputs
    assert collectives.count(("all_reduce", key.inputs[1].nbytes)) == 2  # of keys, of values
    assert not any(kind == "all_gather" for kind, _ in collectives)


def test_experts_are_divided_as_megatron_divides_a_feed_forward_layer() -> None:
    """Of every expert, a rank has a share of the inner features; the router is whole, and no features are gathered."""
    trace = json_format.read(DATA / "mixtral.json.gz")
    collectives = collectives_of(draw(planned(trace, "tp", 2, tp_style="megatron").tasks(0)))
    assert not any(kind == "all_gather" for kind, _ in collectives)
    first, second = (o for (o, *_) in divided(trace, 2).values() if o.name == "aten::_grouped_mm")
    rows, hidden, experts = 4 * 4 * 2, 16, 4  # each token goes to two experts
    assert [t.shape for t in first.inputs[:2]] == [(rows, hidden), (experts, hidden, 16)]  # of 32: gates and values
    assert [t.shape for t in second.inputs[:2]] == [(rows, 8), (experts, 8, hidden)]
    assert ("all_reduce", rows * hidden * 4) in collectives


def test_layers_that_pair_with_no_other_are_named() -> None:
    """A function of one's own between two layers: nobody knows whether it treats features separately."""
    b = traces.Builder(2)
    data, up, down = (
        b.tensor(2, 8, category="input"),
        b.tensor(16, 8, category="parameter"),
        b.tensor(8, 16, category="parameter"),
    )
    hidden, bent, out = b.tensor(2, 16), b.tensor(2, 16), b.tensor(2, 8)
    b.run("aten::linear", [data, up], [hidden], layer="up")
    b.run("BentFunction", [hidden], [bent], layer="bend")
    b.run("aten::linear", [bent, down], [out], layer="down")
    plan = planned(b.trace(), "tp", 2, tp_style="megatron", training=False)
    assert any("up, down cannot be paired with another layer" in note for note in plan.notes)


def test_an_operator_that_writes_into_what_it_returns_is_no_view() -> None:
    """T5 masks its table of biases with ``where(..., out=)``: what it returns is not what was there before."""
    b = traces.Builder(2)
    table, mask, old = b.tensor(4, 4), b.tensor(4, 4, dtype="bool"), b.tensor(4, 4, category="buffer")
    where = b.run("aten::where", [mask, table, old], [old], layer="bias")
    expand = b.run("aten::expand_as", [old, table], [b.view(old, 4, 4)], layer="bias")
    assert not is_view(where)
    assert is_view(expand)


def test_a_parameter_that_is_shown_to_each_sample_is_counted_once() -> None:
    b = traces.Builder(8)
    token, data = b.parameter(1, 1, 16), b.tensor(8, 1, 16, category="input")
    shown = b.view(token, 8, 1, 16)
    b.run("aten::expand", [token], [shown], layer="embedding", seconds=0.0)
    b.run("aten::cat", [shown, data], [b.tensor(8, 2, 16)], layer="embedding")
    (parameter,) = planned(b.trace(), "single", 1, training=False).program.stages[0].parameters
    assert parameter.nbytes == 16 * 4


def test_an_optimizers_tensor_that_is_about_nothing_known_is_divided_as_all_parameters_of_its_shape_are() -> None:
    def states(other: str) -> list[tuple[int, ...]]:
        b = traces.Builder(4)
        data, weight, another = b.tensor(4, 8, category="input"), b.parameter(8, 8), b.parameter(8, 8)
        made, out = b.tensor(4, 8), b.tensor(4, 8)
        layer = b.run("aten::linear", [data, weight], [made], layer="fc")
        b.run(other, [made, another], [out], layer="other")
        b.backward("AddmmBackward0", layer, b.tensor(4, 8, category="gradient"), data=False)
        state = b.tensor(8, 8, category="optimizer_state")
        b.run("aten::addcdiv_", [state], [state], layer="optimizer", phase="optimizer")
        return [o.inputs[0].shape for (o, *_) in divided(b.trace(), 2, "gather").values() if o.phase == "optimizer"]

    assert states("aten::linear") == [(4, 8)]
    assert states("aten::add") == [(8, 8)]
