"""Software stacks: what a framework's name stands for in the step of a described model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, get_args

import pytest

import triosim
from triosim.config import DESCRIBED
from triosim.config.stacks import STACKS, AttentionKind, KernelKind, ProductKind
from triosim.errors import OptionError
from triosim.models import GPT, Llama
from triosim.models.operators.optimizers import OPTIMIZERS
from triosim.trace import Trace

SIZES = GPT(layers=2, hidden=128, heads=4, vocab=512, sequence=64)
LLAMA = Llama(layers=2, hidden=128, heads=4, feed_forward=256, vocab=512, sequence=64)


def described(model: GPT | Llama, **choices: Any) -> Trace:
    return triosim.describe(model, batch=4, sequence=64, **choices)


def names(trace: Trace) -> list[str]:
    return [one.name for one in trace.operators]


def test_the_option_knows_every_stack() -> None:
    assert DESCRIBED["stack"].choices == tuple(STACKS)


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_says_what_its_options_can_be(name: str) -> None:
    stack = STACKS[name]
    assert stack.kernels in get_args(KernelKind)
    assert stack.attention in get_args(AttentionKind)
    assert stack.products in get_args(ProductKind)
    assert stack.optimizer in OPTIMIZERS


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_is_the_options_that_it_stands_for(name: str) -> None:
    stack = STACKS[name]
    written_out = {one: getattr(stack, one) for one in ("kernels", "attention", "optimizer", "products")}
    assert names(described(LLAMA, stack=name)) == names(described(LLAMA, **written_out))


def test_an_option_overrides_its_part_of_a_stack() -> None:
    found = names(described(LLAMA, stack="megatron", kernels="eager", attention="flash", optimizer="none"))
    assert found == names(described(LLAMA, stack="eager", optimizer="none"))


def test_a_model_is_trained_by_the_stack_that_its_published_steps_ran_on() -> None:
    """Megatron's GPTs by Megatron, Llamas compiled, and others kernel by kernel, as transformers' Llamas of 2024 were."""
    assert described(SIZES).software["stack"] == "megatron"
    assert described(LLAMA).software["stack"] == "compiled"
    assert described(replace(LLAMA, style="transformers-2024")).software["stack"] == "eager"
    assert triosim.describe("bert-base", layers=1).software["stack"] == "eager"
    assert "fused::bias_gelu" in names(described(SIZES))
    assert "fused::bias_gelu" not in names(described(SIZES, stack="eager"))


def test_parameters_in_fp32_are_their_own_master_copies() -> None:
    trace = described(SIZES, stack="megatron", dtype="fp32")
    count = sum(one.numel for one in trace.parameters.values())
    states = {one.storage: one for one in trace.tensors.values() if one.category == "optimizer_state"}
    steps = 4 * len(trace.parameters)
    assert sum(one.nbytes for one in states.values()) == 8 * count + steps


def test_the_result_names_the_stack() -> None:
    result = triosim.simulate("llama3.2-1b", layers=1, seq=64, stack="compiled")
    assert result.inputs["trace"]["stack"] == "compiled"


@pytest.mark.parametrize(
    ("gpu", "choice", "said"),
    [
        ("A100", {"stack": "te-fp8"}, "stack: A100-SXM-80GB has no tensor cores for fp8-delayed"),
        ("H100", {"products": "nvfp4"}, "products: H100-SXM has no tensor cores for nvfp4"),
        ("V100", {"products": "tf32", "dtype": "float32"}, "products: V100-SXM2-16GB has no tensor cores for tf32"),
    ],
)
def test_a_gpu_that_lacks_a_format_computes_no_products_in_it(gpu: str, choice: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        triosim.describe("llama3-8b", layers=1, gpu=gpu, **choice)


def test_fp8_is_refused_of_a_model_without_linear_layers_for_it() -> None:
    with pytest.raises(OptionError, match="stack: resnet18 has no linear layer"):
        triosim.describe("resnet18", stack="te-fp8")
    with pytest.raises(OptionError, match="fp8-delayed products need half precision"):
        described(LLAMA, stack="te-fp8", dtype="fp32")


@pytest.mark.parametrize(
    ("attention", "name", "kernel"),
    [("flash", "flash", None), ("cudnn", "cudnn", None), ("triton", "flash", "triton"), ("math", None, None)],
)
def test_attention_runs_by_the_kernel_that_was_chosen(attention: str, name: str | None, kernel: str | None) -> None:
    trace = described(LLAMA, attention=attention)
    calls = [one for one in trace.operators if "scaled_dot_product" in one.name]
    wanted = [] if name is None else [f"aten::_scaled_dot_product_{name}_attention"] * 2
    assert [one.name for one in calls if one.phase == "forward"] == wanted
    assert len([one for one in calls if one.phase == "backward"]) == len(wanted)
    assert {one.attributes.get("kernel") for one in calls} <= {kernel}


def test_delayed_scaling_casts_a_tensor_without_looking_at_it_before() -> None:
    current, delayed = (
        Counter(names(described(LLAMA, stack="megatron", products=one))) for one in ("fp8-current", "fp8-delayed")
    )
    assert delayed["aten::_scaled_mm"] == current["aten::_scaled_mm"] > 0
    assert delayed["aten::amax"] == 0 < current["aten::amax"]
    assert delayed["fused::cast_transpose"] == current["fused::cast_transpose"]


def test_megatron_clamps_gates_and_adds_biases_of_experts_operator_by_operator_unless_they_are_fused() -> None:
    """GPT-OSS's: each clamp of (rows, features) and its gradient, with one mask for the gate and two for what it multiplies."""
    sizes = replace(LLAMA, experts=4, experts_per_token=2, feed_forward=64)

    def more(**choices: Any) -> Counter[str]:
        plain, biased = (described(one, **choices) for one in (sizes, replace(sizes, expert_bias=True)))
        return Counter(names(biased)) - Counter(names(plain))

    found = more(stack="megatron", dtype="bf16", optimizer="none")
    once = {"clamp": 2, "le": 2, "ge": 1, "logical_and_": 1, "where": 2}
    assert {name: found[f"aten::{name}"] for name in once} == {name: 2 * count for name, count in once.items()}
    assert more(stack="te-fp8", dtype="bf16")["aten::clamp"] == 2 * LLAMA.layers
    fused = described(replace(sizes, expert_bias=True, fused_experts=True), stack="te-fp8", dtype="bf16")
    assert "aten::clamp" not in names(fused)
    kernels = {one.attributes.get("kernel") for one in fused.operators if one.name == "aten::_scaled_grouped_mm"}
    assert kernels == {"fused"}


def test_weights_and_biases_of_experts_are_added_in_fp32() -> None:
    """The router's weights are in fp32, so that a bias times a weight is, and the sum until it is cast."""
    sizes = replace(LLAMA, experts=4, experts_per_token=2, feed_forward=64, expert_bias=True)
    trace = described(sizes, stack="megatron", dtype="bf16", optimizer="none")
    of_experts = [o for o in trace.operators if o.layer.endswith("mlp.experts") and o.phase == "forward"]
    dtypes = {o.name: (o.inputs[0].dtype, o.outputs[0].dtype) for o in of_experts}
    assert dtypes["aten::mul"] == dtypes["aten::cat"] == ("float32", "float32")
    assert (dtypes["aten::add"], dtypes["aten::_to_copy"]) == (("bfloat16", "float32"), ("float32", "bfloat16"))


def test_angles_with_a_factor_have_no_fused_kernel() -> None:
    fused, plain = (names(described(replace(LLAMA, yarn=yarn), stack="megatron")) for yarn in (False, True))
    assert fused.count("fused::rotary_embedding") == 2 * LLAMA.layers
    assert plain.count("fused::rotary_embedding") == 0 < plain.count("aten::neg")


def test_deepseeks_router_multiplies_in_tf32_where_kernels_are_fused() -> None:
    """In all three products of a layer with experts; rotary embeddings of queries and of the shared key are a kernel each."""

    def step(kernels: str) -> Trace:
        return triosim.describe(
            "deepseek-v3", layers=4, batch=1, sequence=64, dtype="bf16", optimizer="none", kernels=kernels
        )

    fused, eager = step("fused"), step("eager")
    in_tf32 = [[one.name for one in trace.operators if one.attributes.get("allow_tf32")] for trace in (fused, eager)]
    assert in_tf32 == [["aten::mm"] * 3, []]
    assert names(fused).count("fused::rotary_embedding") == 2 * 4
