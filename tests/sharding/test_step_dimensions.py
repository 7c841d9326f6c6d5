"""Which dimension is the batch, the sequence or a feature follows from what operators do, not from sizes.

The samples in data/ are captures of tiny models on PyTorch 2.13 (capture_samples.py made them), at sizes chosen to mislead: a
batch that equals the sequence, the hidden size, the channels or the heads. Their shapes at another batch size and another
sequence length were captured too.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import traces

import triosim
from triosim.sharding.dimensions import (
    LogicalAxis,
    concatenated,
    follows,
    guessed_view,
    join,
    leaves,
    new_dims,
    reshaped,
    size,
    sliced,
)
from triosim.sharding.kernel_patterns import pattern_of
from triosim.sharding.reshape import rescaled, resized
from triosim.sharding.step_dimensions import StepDimensions
from triosim.trace import Operator
from triosim.trace.formats.native import trace_json as json_format

DATA = Path(__file__).parent / "data"
EXPECTED: dict[str, Any] = json.loads(gzip.decompress((DATA / "expected.json.gz").read_bytes()))


def shapes(operators: list[Operator]) -> list[list[list[list[int]]]]:
    """As the samples have them: what is read and made, without single numbers."""
    return [[[list(t.shape) for t in some if t.shape] for some in (op.inputs, op.outputs)] for op in operators]


def differences(found: list[Operator], expected: Any) -> list[tuple[int, str, Any, Any]]:
    pairs = zip(found, shapes(found), expected, strict=True)
    return [(op.id, op.name, mine, captured) for op, mine, captured in pairs if mine != captured]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_capture_at_another_batch_size_has_the_shapes_that_were_predicted(name: str) -> None:
    trace = json_format.read(DATA / f"{name}.json.gz")
    batch, captured = EXPECTED[name]["batch"]
    found = rescaled(trace.operators, trace.batch_size, batch)
    assert not found.notes
    assert differences(found.operators, captured) == []


@pytest.mark.parametrize("name", [name for name, entry in EXPECTED.items() if "sequence" in entry])
def test_a_capture_at_another_sequence_length_has_the_shapes_that_were_predicted(name: str) -> None:
    trace = json_format.read(DATA / f"{name}.json.gz")
    old, new, captured = EXPECTED[name]["sequence"]
    found = resized(StepDimensions(trace.operators, trace.batch_size), "sequence", old, new)
    assert differences(found, captured) == []


@pytest.mark.parametrize("name", EXPECTED)
def test_there_and_back_again_is_the_same(name: str) -> None:
    trace = json_format.read(DATA / f"{name}.json.gz")
    other = rescaled(trace.operators, trace.batch_size, 5 * trace.batch_size).operators
    assert rescaled(other, 5 * trace.batch_size, trace.batch_size).operators == list(trace.operators)


def test_the_measured_vgg_at_batch_128_becomes_the_measured_one_at_512(data_dir: Path) -> None:
    """Two profiles of an H100 that two tools wrote: operators are matched by name, in order."""
    small, large = (triosim.load_trace(data_dir / "traces" / f"h100_vgg13_{name}") for name in ("bs128", "bs512_raw"))
    found = rescaled(small.operators, 128, 512)
    assert not found.notes

    def kept(operators: Any, name: str) -> list[Any]:
        chosen = [op for op in operators if op.name.endswith(name) and op.phase != "optimizer"]
        return [[sorted(t.shape for t in some if t.shape) for some in (op.inputs, op.outputs)] for op in chosen]

    names = {op.name.rpartition("::")[2] for op in small.operators if op.phase != "optimizer"}
    compared = 0
    for name in sorted(names - {"AddmmBackward0"}):  # of which the two tools list other views of the same gradients
        mine, measured = kept(found.operators, name), kept(large.operators, name)
        if len(mine) == len(measured):
            assert mine == measured, name
            compared += len(mine)
    assert compared >= 60


def test_a_batch_that_equals_the_hidden_size_does_not_change_a_weight() -> None:
    trace = traces.mlp(batch=16, sizes=(16, 16, 16))
    for before, after in zip(trace.operators, rescaled(trace.operators, 16, 48).operators, strict=True):
        for old, new in zip((*before.inputs, *before.outputs), (*after.inputs, *after.outputs), strict=True):
            if old.category == "parameter" or old.parameter is not None:
                assert new.shape == old.shape
            elif len(old.shape) == 2 and before.phase != "optimizer":
                assert new.shape == (48, 16)


def test_a_sequence_as_long_as_the_batch_is_told_apart_by_where_it_stands() -> None:
    b = traces.Builder(8)
    words, table = b.tensor(8, 8, category="input", dtype="int64"), b.parameter(100, 16)
    rows, turned = b.tensor(8, 8, 16), b.tensor(8, 8, 16)
    b.run("aten::embedding", [table, words], [rows], layer="wte")
    b.operators.append(
        Operator(2, "aten::transpose", "forward", "turn", (rows,), (turned,), 1e-3, attributes={"dim0": 0, "dim1": 1})
    )
    flow = StepDimensions(b.operators, 8)
    assert flow.follows(rows, "batch") == [0]
    assert flow.follows(rows, "sequence") == [1]
    assert flow.follows(turned, "batch") == [1]
    assert flow.follows(turned, "sequence") == [0]


def test_batch_and_sequence_folded_into_one_are_a_product() -> None:
    b = traces.Builder(4)
    words, rows = b.tensor(4, 10, category="input", dtype="int64"), b.tensor(4, 10, 16)
    b.run("aten::embedding", [b.parameter(100, 16), words], [rows], layer="wte")
    folded = b.view(rows, 40, 16)
    b.run("aten::view", [rows], [folded], layer="wte")
    flow = StepDimensions(b.operators, 4)
    assert flow.resized(folded, "batch", 4, 7) == (70, 16)
    assert flow.resized(folded, "sequence", 10, 3) == (12, 16)


def test_what_arange_counts_is_known_once_it_is_added_to_the_words() -> None:
    b = traces.Builder(4)
    words, rows = b.tensor(4, 10, category="input", dtype="int64"), b.tensor(4, 10, 16)
    positions, places, total = b.tensor(10, dtype="int64"), b.tensor(10, 16), b.tensor(4, 10, 16)
    b.run("aten::embedding", [b.parameter(100, 16), words], [rows], layer="wte")
    b.run("aten::arange", [], [positions], layer="model")
    b.run("aten::embedding", [b.parameter(64, 16), positions], [places], layer="wpe")
    b.run("aten::add", [rows, places], [total], layer="model")
    after = resized(StepDimensions(b.operators, 4), "sequence", 10, 20)
    assert after[1].outputs[0].shape == (20,)
    assert after[2].outputs[0].shape == (20, 16)


def test_a_class_token_lengthens_the_sequence_by_one_whatever_its_length() -> None:
    (sequence,) = new_dims(12)
    sequence[0].kind = "sequence"
    longer = concatenated([(), sequence])
    assert size(longer) == 13
    assert follows(longer, "sequence")
    assert sliced(longer, 12) != longer
    assert size(sliced(longer, 12)) == 12


def test_a_view_that_cuts_through_axes_has_no_dimensions() -> None:
    assert reshaped(new_dims(6, 4), (8, 3)) is None
    assert [size(dim) for dim in reshaped(new_dims(6, 4), (2, 12)) or ()] == [2, 12]


def test_a_batch_is_never_joined_with_the_features_of_a_parameter() -> None:
    (batch,), (features,) = new_dims(8), new_dims(8)
    batch[0].kind, features[0].owner = "batch", (1, 0)
    assert not join(batch, features)
    assert not follows(features, "batch")


def test_a_part_of_a_step_knows_nothing_of_what_joins_its_axes_elsewhere() -> None:
    """Around a square weight goes a residual: in the step its two sides are one axis, in the product alone they are two."""
    b = traces.Builder(8)
    data, weight, made = b.tensor(8, 4, category="input"), b.parameter(4, 4), b.tensor(8, 4)
    product = b.run("aten::linear", [data, weight], [made], layer="fc")
    b.run("aten::add", [data, made], [b.tensor(8, 4)], layer="add")
    step = StepDimensions(b.operators, 8)
    assert leaves(step[weight][0]) == leaves(step[weight][1])
    alone = StepDimensions([product], given={data.id: new_dims(8, 4), weight.id: new_dims(4, 4)})
    assert leaves(alone[weight][0]) == leaves(alone[made][1]) != leaves(alone[weight][1]) == leaves(alone[data][1])


def test_the_transpose_of_a_square_weight_has_its_dimensions_in_the_other_order() -> None:
    b = traces.Builder(4)
    data, weight, made = b.tensor(4, 4, category="input"), b.parameter(4, 4), b.tensor(4, 4)
    product = b.run("aten::linear", [data, weight], [made], layer="fc")
    turned, gradient = b.view(weight, 4, 4), b.tensor(4, 4, category="gradient")
    of_data, of_weight = b.tensor(4, 4, category="gradient"), b.tensor(4, 4, category="gradient", of=weight)
    b.run("MmBackward0", [gradient, data, turned], [of_weight, of_data], layer="fc", phase="backward", forward=product)
    flow = StepDimensions(b.operators, 4)
    rows, columns = flow[weight]
    assert flow[turned] == (columns, rows) == flow[of_weight]
    assert flow.follows(of_data, "batch") == [0] == flow.follows(gradient, "batch")
    assert leaves(flow[of_data][1]) == leaves(columns)


def test_a_gradient_that_a_node_adds_to_its_own_is_that_of_its_input() -> None:
    """A product of 4 x 4 x 4 whose backward node is also given the gradient that another user of its input has made."""
    b = traces.Builder(4)
    data, weight, made = b.tensor(4, 4), b.parameter(4, 4), b.tensor(4, 4)
    product = b.run("aten::linear", [data, weight], [made], layer="fc")
    gradient, sum_ = b.tensor(4, 4, category="gradient"), b.tensor(4, 4, category="gradient")
    own = b.tensor(4, 4, category="gradient", of=weight)
    node = b.run(
        "AddmmBackward0", [gradient, weight, data, sum_], [sum_, own], layer="fc", phase="backward", forward=product
    )
    alone = StepDimensions([product, node], given={data.id: new_dims(4, 4), weight.id: new_dims(4, 4)})
    assert leaves(alone[gradient][1]) == leaves(alone[weight][0])
    assert leaves(alone[sum_][1]) == leaves(alone[weight][1]) == leaves(alone[data][1])


def test_heads_are_known_from_what_attention_multiplies() -> None:
    b = traces.Builder(2)
    data, weight, made = b.tensor(2, 6, 12, category="input"), b.parameter(12, 12), b.tensor(2, 6, 12)
    b.run("aten::linear", [data, weight], [made], layer="q")
    unfolded, turned = b.view(made, 2, 6, 3, 4), b.view(made, 2, 3, 6, 4)
    b.run("aten::view", [made], [unfolded], layer="q")
    b.run("aten::transpose", [unfolded], [turned], layer="q")
    keys = b.view(turned, 2, 3, 4, 6)
    b.run("aten::transpose", [turned], [keys], layer="q")
    b.run("aten::matmul", [turned, keys], [b.tensor(2, 3, 6, 6)], layer="scores")
    flow = StepDimensions(b.operators, 2)
    assert [[axis.root.heads for axis in dim] for dim in flow[unfolded]] == [[False], [False], [True], [False]]


def test_a_view_that_nobody_recorded_may_have_been_turned_before_it_was_folded() -> None:
    batch, heads, length, features = new_dims(2, 3, 5, 4)
    assert guessed_view((batch, heads, length, features), (2, 5, 12)) == (batch, length, (*heads, *features))


def test_a_trace_whose_dataflow_is_broken_scales_by_sizes_and_says_so() -> None:
    b = traces.Builder(8)
    data, out = b.tensor(8, 4, category="input"), b.tensor(8, 2)
    b.run("aten::linear", [data, b.parameter(2, 4)], [out], layer="fc")
    lost = b.tensor(8, 2)  # nobody made it
    b.run("aten::relu", [lost], [b.tensor(8, 2)], layer="relu")
    found = rescaled(b.operators, 8, 16)
    assert "dataflow is broken" in found.notes[0]
    assert found.operators[0].outputs[0].shape == (16, 2)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_capture_made_here_and_now_has_the_shapes_that_were_predicted() -> None:
    import torch
    from torch import nn

    from triosim.tracer import capture_step

    def captured(batch: int) -> triosim.Trace:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        model = nn.Sequential(nn.Embedding(20, 16), layer, nn.Flatten(), nn.Linear(8 * 16, 5))
        words, target = torch.randint(0, 20, (batch, 8)), torch.randint(0, 5, (batch,))

        def step() -> None:
            model.zero_grad()
            nn.functional.cross_entropy(model(words), target).backward()

        return capture_step(step, model, batch_size=batch, warmup=1, steps=0)

    small, large = captured(8), captured(20)
    assert differences(rescaled(small.operators, 8, 20).operators, shapes(list(large.operators))) == []


def test_a_compiled_kernel_says_which_of_equal_sizes_is_which() -> None:
    """Rotated heads: tokens by (heads of features), all as many; the result has the heads outside."""
    b = traces.Builder(4)
    states, angles = b.tensor(4, 4, 16, category="input"), b.tensor(4, 4, category="buffer")
    turned = b.tensor(4, 4, 4, 4)
    kernel = b.run("fused::chain", [states, angles], [turned], layer="turn")
    kernel = replace(kernel, attributes={"axes": "a b c.d, b d -> a c b d"})
    step = StepDimensions([kernel], 4)
    (samples,), (tokens,), features = step[states]
    first, second, third, _ = step[turned]
    assert [axis.root for (axis,) in (first, third)] == [samples.root, tokens.root]
    assert leaves(second) < leaves(features)
    assert step.follows(angles, "sequence") == [0]


def test_the_pattern_of_a_kernel_writes_down_what_is_known_of_its_tensors() -> None:
    samples, tokens, heads, width = (LogicalAxis(size) for size in (2, 8, 4, 16))
    whole, parts = ((samples,), (tokens,), (heads, width)), ((samples,), (heads,), (tokens,), (width,))
    assert pattern_of([whole, ((),)], [parts]) == "a b c.d, 1 -> a c b d"
    assert pattern_of([whole], [whole]) == "a b c -> a b c"  # nothing tells heads and features apart
    scores = ((samples,), (heads,), (tokens,), (tokens,))
    assert pattern_of([scores, ((tokens,), (tokens,))], [scores]) == "a b c d, c d -> a b c d"
    three = LogicalAxis(192)
    three.terms = ((heads, width),) * 3
    assert pattern_of([parts], [((samples,), (tokens,), (three,))]) == "a b c d -> a c b.d+b.d+b.d"
