"""What other parts of triosim need of a described step: batch and length that can be changed, layers that pair, gradients."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from sameness import flops
from traces import collectives_of, draw, groups_of, planned

import triosim
from triosim.memory import analyse
from triosim.models import GPT, Gemma, Llama
from triosim.models.catalogue import MODELS
from triosim.operators.features import unknown
from triosim.sharding.reshape import rescaled, resized
from triosim.sharding.step_dimensions import StepDimensions
from triosim.tasks import Send
from triosim.trace import Operator, Trace

NAMES = (
    "gpt2",
    "gpt3-1.3b",
    "llama3-8b",
    "gemma2-2b",
    "mixtral-8x7b",
    "deepseek-v3",
    "bert-base",
    "t5-small",
    "vit_b_16",
    "clip-vit-b-32",
    "convnextv2-atto",
    "resnet18",
)
SMALL = GPT(layers=2, hidden=128, heads=4, vocab=512, sequence=64)
GEMMA = Gemma(
    layers=2, hidden=128, heads=4, kv_heads=2, feed_forward=256, head_dim=32, vocab=512, sequence=64, capped=True
)
LLAMA = Llama(layers=2, hidden=128, heads=8, kv_heads=4, feed_forward=256, vocab=512)


def described(name: str, *, batch: int = 6, sequence: int = 128, **more: object) -> Trace:
    model = MODELS[name]
    if hasattr(model, "layers"):
        more["layers"] = 4 if name.startswith("deepseek") else 2
    if more.get("kernels") == "fused" and name.startswith(("bert", "t5", "vit", "clip", "convnext", "resnet")):
        del more["kernels"]
    if not model.sequence and not hasattr(model, "heads"):
        more.pop("attention", None)
    return triosim.describe(name, batch=batch, sequence=length(name, sequence), **more)  # type: ignore[arg-type]


def length(name: str, sequence: int) -> int | None:
    """What is asked for, as a share of 128 of the most that a model can tell apart; None of what reads images alone."""
    most = MODELS[name].sequence
    return sequence if most >= 128 else most * sequence // 128 or None


def shapes(operators: list[Operator] | tuple[Operator, ...]) -> list[object]:
    return [(one.name, [t.shape for t in (*one.inputs, *one.outputs)]) for one in operators]


@pytest.mark.parametrize(("attention", "kernels"), [("flash", "fused"), ("math", "eager")])
@pytest.mark.parametrize("name", NAMES)
def test_another_batch_size_is_what_would_be_described(name: str, attention: str, kernels: str) -> None:
    trace, other = (described(name, batch=size, attention=attention, kernels=kernels) for size in (6, 3))
    found = rescaled(trace.operators, 6, 3)
    assert found.notes == ()
    assert shapes(found.operators) == shapes(other.operators)


@pytest.mark.parametrize(("attention", "kernels"), [("flash", "fused"), ("math", "eager")])
@pytest.mark.parametrize("name", [name for name in NAMES if MODELS[name].sequence])
def test_another_sequence_length_is_what_would_be_described(name: str, attention: str, kernels: str) -> None:
    trace, other = (described(name, sequence=one, attention=attention, kernels=kernels) for one in (128, 96))
    lengths = length(name, 128), length(name, 96)
    assert lengths[0] is not None
    assert lengths[1] is not None
    assert shapes(resized(StepDimensions(trace.operators, 6), "sequence", *lengths)) == shapes(other.operators)


@pytest.mark.parametrize("precision", ["plain", "mixed"])
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_one_gradient_of_its_shape(name: str, precision: str) -> None:
    trace = described(name, precision=precision, optimizer="fused-adamw")
    update = next(one for one in trace.operators if one.name == "aten::_fused_adamw_")
    count = len(trace.parameters)
    owned, gradients = update.inputs[:count], update.inputs[count : 2 * count]
    assert {one.id for one in owned} == set(trace.parameters)
    assert [one.shape for one in gradients] == [one.shape for one in owned]
    assert [one.parameter for one in gradients] == [one.id for one in owned]
    assert {one.dtype for one in owned} == {"float32" if precision == "mixed" else "bfloat16"}


@pytest.mark.parametrize(("gpu", "dtype"), [("H100", "bfloat16"), ("V100", "float16"), ("M40", "float32")])
def test_a_step_computes_in_what_its_gpu_has(gpu: str, dtype: str) -> None:
    def made_by(**options: str) -> set[str]:
        operators = triosim.describe("gpt2", layers=1, gpu=gpu, optimizer="none", **options).operators
        return {one.outputs[0].dtype for one in operators if one.name == "aten::mm"}

    assert made_by() == {dtype}
    assert made_by(dtype="bf16") == {"bfloat16"}


@pytest.mark.parametrize("kernels", ["eager", "fused"])
@pytest.mark.parametrize("attention", ["flash", "math"])
@pytest.mark.parametrize("model", [SMALL, LLAMA, GEMMA], ids=["gpt", "llama", "gemma2"])
def test_megatron_reduces_twice_a_layer_and_pass(model: GPT | Llama | Gemma, attention: str, kernels: str) -> None:
    """Shoeybi et al. 2019, figure 4; the rest is after the embedding, before the words, and three in the loss."""
    trace = triosim.describe(model, batch=4, sequence=64, attention=attention, kernels=kernels)  # type: ignore[arg-type]
    plan = planned(trace, "tp", 2, tp_style="megatron")
    activation = 4 * 64 * 128 * 2
    assert Counter(collectives_of(draw(plan.tasks(0)))) == {
        ("all_reduce", activation): 1 + 4 * model.layers + 1,
        ("all_reduce", 4 * 64 * 4): 3,
    }
    assert not [note for note in plan.notes if "pair with no other layer" in note]


def test_three_dimensions_of_parallelism_run_on_a_described_step() -> None:
    trace = triosim.describe(SMALL, batch=8, sequence=64, dtype="fp16", attention="math")
    plan = planned(trace, "dp=2,pp=2,tp=4", tp_style="megatron", micro_batches=2, stages=["transformer.layers.1"])
    assert plan.world == 16
    tasks = draw(plan.tasks(0))
    assert set(groups_of(tasks)) == {"dp", "tp"}
    sent = [task for task in tasks if isinstance(task, Send)]
    tied = 512 * 128 * 2 / 4  # a rank's share of the gradient of the words' table, which both stages use
    assert [task.nbytes for task in sent] == [4 * 64 * 128 * 2, 4 * 64 * 128 * 2, tied]  # two micro-batches of four
    result = triosim.simulate(
        trace, "dp=2,pp=2,tp=4", gpus=16, tp_style="megatron", topology="switch(16, bandwidth=100 GB/s)"
    )
    assert result.step_time_s > 0


def test_stages_make_their_own_angles_of_positions() -> None:
    """Cosines and sines are the same for every batch: between two layers nothing crosses but the activation."""
    trace = triosim.describe(LLAMA, batch=4, sequence=64)
    plan = planned(trace, "pp", 2, micro_batches=2, stages=["model.layers.1"])
    for rank in range(2):
        sent = [task.nbytes for task in draw(plan.tasks(rank), rank) if isinstance(task, Send)]
        assert sent == [2 * 64 * 128 * 2] * 2


def test_memory_holds_parameters_gradients_and_two_states() -> None:
    trace = triosim.describe(SMALL, batch=4, sequence=64, optimizer="adamw")
    count = sum(one.numel for one in trace.parameters.values())
    report = analyse(trace, "H100")
    kept = {one.category: 0 for one in report.usage.lifetimes.items}
    for one in report.usage.lifetimes.items:
        kept[one.category] += one.nbytes
    assert kept["parameter"] == 2 * count
    assert kept["optimizer_state"] == 4 * count


def test_a_gpt_has_the_flops_of_its_formula() -> None:
    """Narayanan et al. 2021, appendix: 24 B s l h^2 (1 + s / (6 h) + V / (12 l h)) forward, twice that backward."""
    layers, hidden, words, batch, length = 2, 128, 512, 4, 64
    trace = triosim.describe(SMALL, batch=batch, sequence=length, attention="math")
    forward = 24 * batch * length * layers * hidden**2 * (1 + length / (6 * hidden) + words / (12 * layers * hidden))
    assert flops(trace) == pytest.approx(3 * forward, rel=1e-9)


@pytest.mark.parametrize("model", [SMALL, LLAMA], ids=["gpt", "llama"])
def test_fused_kernels_multiply_the_same_and_move_less(model: GPT | Llama) -> None:
    eager, fused = (triosim.describe(model, batch=4, sequence=64, kernels=one) for one in ("eager", "fused"))  # type: ignore[arg-type]
    assert flops(eager) == flops(fused)
    sizes = [sum(one.numel for one in either.parameters.values()) for either in (eager, fused)]
    assert sizes[0] == sizes[1]
    assert fused.seconds < eager.seconds
    assert unknown(fused.operators) == []


def test_master_copies_take_twelve_bytes_a_parameter() -> None:
    """Micikevicius et al. 2018: a copy of the parameter and two states, all fp32."""
    trace = triosim.describe(SMALL, batch=4, sequence=64, dtype="fp16", optimizer="master-adamw")
    count = sum(one.numel for one in trace.parameters.values())
    states = {one.storage: one for one in trace.tensors.values() if one.category == "optimizer_state"}
    assert sum(one.nbytes for one in states.values()) == 12 * count
    plan = planned(trace, "tp", 2, tp_style="megatron")
    update = next(one for one in plan.program.operators if one.name == "aten::_fused_adamw_")
    assert sum(one.numel for one in update.inputs) < 0.6 * 4 * count


@pytest.mark.parametrize(("dtype", "filled"), [("fp16", 0), ("fp32", 2)])
def test_only_half_precision_has_a_softmax_that_masks_by_itself(dtype: str, filled: int) -> None:
    """Megatron-LM's ``FusedScaleMaskSoftmax`` serves 16 bits; else each layer fills in what a word may not look at."""
    trace = triosim.describe(SMALL, batch=4, sequence=64, dtype=dtype, attention="math")
    names = Counter(one.name for one in trace.operators)
    assert names["aten::masked_fill_"] == names["aten::masked_fill"] == filled


@pytest.mark.parametrize("name", ["llama3.2-1b", "gemma-2b"])
def test_transformers_of_2024_repeated_keys_so_that_a_kernel_served_fp32(name: str) -> None:
    """The memory-efficient kernel takes as many heads of keys as of queries; the loss copied logits that have a next word."""
    now = replace(MODELS[name], layers=1)  # type: ignore[type-var]
    then = replace(now, style="transformers-2024")  # type: ignore[call-arg]
    choices = {"batch": 2, "sequence": 64, "dtype": "fp32", "optimizer": "none", "stack": "eager"}
    traces = [triosim.describe(one, **choices) for one in (now, then)]
    names = [{operator.name for operator in trace.operators} for trace in traces]
    assert "aten::_scaled_dot_product_efficient_attention" in names[1] - names[0]
    assert "aten::_softmax" in names[0] - names[1]
    losses = [
        [t.shape for o in trace.operators if o.name == "aten::_log_softmax" for t in o.outputs] for trace in traces
    ]
    assert losses == [[(128, now.vocab)], [(126, now.vocab)]]


@pytest.mark.parametrize(("dtype", "multiplied"), [("fp16", "float16"), ("bf16", "bfloat16"), ("fp32", "float32")])
def test_a_t5_of_2024_keeps_the_softmax_of_its_scores_in_fp32(dtype: str, multiplied: str) -> None:
    """Of each of six attentions: the softmax, the mask of what was dropped, and what is multiplied with the values."""
    model = replace(MODELS["t5-small"], layers=2, style="transformers-2024")  # type: ignore[call-arg, type-var]
    trace = triosim.describe(model, batch=2, sequence=128, dtype=dtype, optimizer="none")
    report = triosim.rank_memory(trace).report(workspace=False)
    backward = next(place for place, one in enumerate(report.trace.operators) if one.phase == "backward")
    alive = report.usage.alive(sum(event.operator < backward for event in report.usage.events))
    items = (report.usage.lifetimes.items[number] for number in alive)
    kept = Counter(one.dtype for one in items if one.shape in ((2, 8, 128, 128), (16, 128, 128)))
    assert kept == Counter(["float32", "bool", multiplied] * 6)
