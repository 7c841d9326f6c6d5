"""Steps whose linear layers are computed in fp8."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from traces import collectives_of, draw, operators_of, planned

import triosim
from triosim.compute.families import calls_of
from triosim.errors import OptionError
from triosim.models import Llama
from triosim.models.description import describe
from triosim.operators.features import base_name, flops, output_bytes
from triosim.trace import Operator, Trace

LAYERS = 2
SIZES = Llama(layers=LAYERS, hidden=256, heads=4, kv_heads=2, feed_forward=768, vocab=4096)


def step(products: str = "fp8", kernels: str = "eager", sizes: Llama = SIZES) -> Trace:
    return describe(sizes, batch=2, sequence=512, products=products, kernels=kernels, optimizer="fused-adamw")  # type: ignore[arg-type]


def products_of(trace: Trace) -> list[Operator]:
    return [one for one in trace.operators if base_name(one.name) in ("mm", "scaled_mm")]


def test_each_linear_layer_has_three_products_in_eight_bits_and_the_logits_none() -> None:
    counts = Counter((base_name(one.name), one.phase) for one in products_of(step()))
    layers = 7 * LAYERS
    assert counts == {
        ("scaled_mm", "forward"): layers,
        ("scaled_mm", "backward"): 2 * layers,
        ("mm", "forward"): 1,
        ("mm", "backward"): 2,
    }
    for one in products_of(step()):
        if one.name == "aten::_scaled_mm":
            dtypes = [tensor.dtype for tensor in one.inputs]
            first = "float8_e4m3fn" if one.phase == "forward" else "float8_e5m2"
            assert dtypes == [first, "float8_e4m3fn", "float32", "float32"]
            assert one.outputs[0].dtype == "bfloat16"


def test_the_products_are_those_of_the_plain_step() -> None:
    narrow, plain = step(), step("plain")
    assert sum(map(flops, products_of(narrow))) == sum(map(flops, products_of(plain)))
    assert [one.shape for one in narrow.parameters.values()] == [one.shape for one in plain.parameters.values()]


def test_what_several_layers_read_is_cast_once() -> None:
    """Queries, keys and values read one input; gate and up another: 4 casts of activations a block, and 7 of weights."""
    casts = [
        one
        for one in step().operators
        if one.outputs and one.outputs[0].dtype == "float8_e4m3fn" and one.name == "aten::_to_copy"
    ]
    assert len(casts) == (4 + 7) * LAYERS
    gradients = [
        one
        for one in step().operators
        if one.outputs and one.outputs[0].dtype == "float8_e5m2" and one.name == "aten::_to_copy"
    ]
    assert len(gradients) == 7 * LAYERS


def test_a_compiled_step_makes_everything_before_it_is_read() -> None:
    """A scale is the largest of all numbers, so that no kernel can both make them and scale them."""
    trace = step(kernels="compiled")
    made = {
        t.storage
        for one in trace.operators
        for t in one.inputs
        if t.category in ("input", "buffer", "parameter", "optimizer_state")
    }
    for one in trace.operators:
        assert {t.storage for t in one.inputs} <= made, one
        made |= {t.storage for t in one.outputs}
    assert trace.seconds < step().seconds


def test_large_layers_gain_and_the_casts_cost() -> None:
    wide = replace(SIZES, layers=1, hidden=4096, heads=32, kv_heads=8, feed_forward=14336, vocab=512)
    sized = [
        describe(wide, batch=8, sequence=2048, kernels="compiled", products=one, optimizer="none")
        for one in ("fp8", "plain")
    ]  # type: ignore[arg-type]
    times = [sum(one.seconds for one in products_of(trace)) for trace in sized]
    assert 0.4 < times[0] / times[1] < 0.7
    assert sized[1].seconds > sized[0].seconds > times[0] + sized[1].seconds - times[1]


def test_sharded_parameters_may_travel_in_eight_bits() -> None:
    trace = step(kernels="compiled")
    wide, narrow = (
        triosim.simulate(trace, "fsdp=4", recompute="save=scaled_mm/2,attention", options=options).collectives
        for options in ({}, {"parameter_dtype": "fp8"})
    )
    gathered = [table[table["kind"] == "all_gather"]["bytes"].sum() for table in (wide, narrow)]
    assert gathered[0] == 2 * gathered[1]


def moved(products: str, kernels: str, sequence_parallel: bool) -> Counter[tuple[str, float]]:
    """How many collectives of which kind and size two ranks have."""
    trace = step(products, kernels)
    result = triosim.simulate(trace, "tp=2", tp_style="megatron", sequence_parallel=sequence_parallel)
    table = result.collectives
    return Counter(
        {(kind, size): count for kind, size, count in zip(table["kind"], table["bytes"], table["count"], strict=True)}
    )


@pytest.mark.parametrize("kernels", ["eager", "compiled"])
def test_tensor_parallelism_adds_up_what_it_does_of_plain_layers(kernels: str) -> None:
    """Outputs and gradients are in half precision. Scales are of each rank's own numbers, so that none travels."""
    assert moved("fp8", kernels, False) == moved("plain", kernels, False)


@pytest.mark.parametrize("kernels", ["eager", "compiled"])
def test_a_sequence_s_shares_are_gathered_in_eight_bits_for_the_products_and_scattered_in_sixteen(kernels: str) -> None:
    narrow, plain = (moved(products, kernels, True) for products in ("fp8", "plain"))
    states = 2 * 512 * 256  # numbers
    assert narrow["reduce_scatter", 2 * states] == plain["reduce_scatter", 2 * states]
    assert narrow["all_gather", states] == 2 * LAYERS  # inputs of two pairs a block, which DTensor keeps
    assert narrow["all_gather", 2 * states] + narrow["all_gather", states] == plain["all_gather", 2 * states]


def by_transformer_engine(products: str, sizes: Llama = SIZES, optimizer: str = "master-adamw") -> Trace:
    choices = {"stack": "te-fp8", "products": products, "optimizer": optimizer}
    return describe(sizes, batch=2, sequence=512, gpu="B200", **choices)  # type: ignore[arg-type]  # words that it checks


def casts_of(trace: Trace) -> list[Operator]:
    return [one for one in trace.operators if one.name == "fused::cast_transpose"]


@pytest.mark.parametrize("products", ["fp8-delayed", "mxfp8", "nvfp4"])
def test_transformer_engine_casts_by_one_kernel_into_both_layouts(products: str) -> None:
    """A block has four linear layers, since queries, keys and values are one, and gates another: four inputs and gradients.

    The optimizer keeps copies of the weights in fp32, and writes them in the narrow format: they are not cast.
    """
    trace = by_transformer_engine(products)
    assert Counter(one.phase for one in casts_of(trace)) == {"forward": 4 * LAYERS, "backward": 4 * LAYERS}
    numbers = 0.5 if products == "nvfp4" else 1
    for one in casts_of(trace):
        assert one.outputs[0].nbytes == numbers * one.inputs[0].numel
        assert output_bytes(one) == 2 * (one.outputs[0].nbytes + 4)
    assert sum(map(flops, products_of(trace))) == sum(map(flops, products_of(by_transformer_engine("plain"))))


def test_weights_without_copies_in_fp32_are_cast_as_well() -> None:
    trace = by_transformer_engine("fp8-delayed", optimizer="fused-adamw")
    assert Counter(one.phase for one in casts_of(trace)) == {"forward": 8 * LAYERS, "backward": 4 * LAYERS}


@pytest.mark.parametrize(
    ("products", "form"), [("fp8-current", "float8_e4m3fn"), ("mxfp8", "float8_e4m3fn"), ("nvfp4", "float4_e2m1fn_x2")]
)
def test_each_recipe_is_priced_in_its_format(products: str, form: str) -> None:
    forward = [one for one in products_of(by_transformer_engine(products)) if one.phase == "forward"]
    assert {calls.dtype for _, calls in calls_of(forward)} == {form, "bfloat16"}  # the logits stay in half precision


@pytest.mark.parametrize("products", ["plain", "fp8-delayed", "nvfp4"])
@pytest.mark.parametrize("gpus", [2, 4])
def test_packed_layers_are_divided_like_others(products: str, gpus: int) -> None:
    """Each rank has its groups of heads with their keys and values, and as many gates as there are rows up."""
    wide = replace(SIZES, hidden=512, heads=8, kv_heads=4)
    trace = by_transformer_engine(products, wide)
    plan = planned(trace, "tp", gpus, tp_style="megatron")
    inside = [one for one in products_of(trace) if "lm_head" not in one.layer]
    own = [one for one in operators_of(draw(plan.tasks(0))) if one.name in ("aten::mm", "aten::_scaled_mm")]
    shared = sum(flops(one) for one in own if "lm_head" not in one.layer)
    assert shared == sum(map(flops, inside)) / gpus
    activation = 2 * 512 * 512 * 2
    assert Counter(collectives_of(draw(plan.tasks(0))))["all_reduce", activation] == 4 * LAYERS + 2


MIXTURE = replace(SIZES, feed_forward=256, experts=8, experts_per_token=2)


def test_experts_multiply_in_the_format_where_the_optimizer_writes_their_weights_in_it() -> None:
    narrow, plain = by_transformer_engine("mxfp8", MIXTURE), by_transformer_engine("plain", MIXTURE)
    counts = Counter((one.name, one.phase) for one in narrow.operators if "grouped_mm" in one.name)
    assert counts == {
        ("aten::_scaled_grouped_mm", "forward"): 2 * LAYERS,
        ("aten::_scaled_grouped_mm", "backward"): 4 * LAYERS,
    }
    assert sum(map(flops, narrow.operators)) == pytest.approx(sum(map(flops, plain.operators)), rel=0.01)
    without = by_transformer_engine("mxfp8", MIXTURE, optimizer="fused-adamw")
    assert "aten::_scaled_grouped_mm" not in {one.name for one in without.operators}


def test_experts_in_fewer_bits_are_divided_like_others() -> None:
    trace = by_transformer_engine("mxfp8", MIXTURE)
    result = triosim.simulate(trace, "fsdp=4,ep=4", options={"load": "balanced"})
    table = result.collectives
    assert table[table["kind"] == "all_to_all"]["count"].sum() == 4 * LAYERS


@pytest.mark.parametrize(
    ("model", "dtype", "said"),
    [
        ("resnet18", "bf16", "products: resnet18 has no linear layer that fp8 can compute; leave it out"),
        ("gpt2", "fp32", "products: fp8 products need half precision; give bfloat16"),
    ],
)
def test_what_has_none_is_refused(model: str, dtype: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        triosim.describe(model, dtype=dtype, products="fp8")
    assert str(caught.value) == said
