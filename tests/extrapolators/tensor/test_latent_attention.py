"""tp on DeepSeek's attention: what each rank has, what travels, and that it is what transformers' plan for it says."""

from __future__ import annotations

import fnmatch
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from traces import collectives_of, draw, operators_of, planned

from triosim import describe
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.models.architectures.deepseek import DeepSeek
from triosim.trace import Trace
from triosim.trace.formats.native import trace_json as json_format

#: One layer, without experts. 2 samples of 32 tokens; latent vectors of 48 and 32 numbers, 16 turn with the position.
TOKENS, HIDDEN, QUERY, LATENT, TURNED, HEADS = 2 * 32, 128, 48, 32, 16, 4
SIZES: dict[str, Any] = {
    **{"layers": 1, "hidden": HIDDEN, "heads": HEADS, "feed_forward": 192, "vocab": 512, "sequence": 32},
    **{"query_rank": QUERY, "kv_rank": LATENT, "nope_dim": 32, "rope_dim": TURNED, "value_dim": 32},
    **{"expert_width": 64, "experts": 8, "experts_per_token": 2, "groups": 2, "shared_experts": 2},
}
TRACE = describe(DeepSeek(dense_layers=1, **SIZES), batch=2, dtype="float32", optimizer="none")
MEGATRON = describe(DeepSeek(dense_layers=1, **SIZES), batch=2, dtype="float32", stack="megatron")


def plan(ranks: int = 2, trace: Trace = TRACE, **options: Any) -> ParallelPlan:
    return planned(trace, "tp", ranks, tp_style="megatron", **options)


def sent(made: ParallelPlan) -> Counter[tuple[str, float]]:
    """What is communicated, in numbers a token."""
    return Counter((kind, nbytes / 4 / TOKENS) for kind, nbytes in collectives_of(draw(made.tasks(0))))


def products(made: ParallelPlan, layer: str) -> list[tuple[int, ...]]:
    """The weights of a layer's forward products, as a rank has them: input by output features."""
    found = operators_of(draw(made.tasks(0)))
    return [o.inputs[1].shape for o in found if o.layer.endswith(layer) and o.phase == "forward" and "mm" in o.name]


def test_heads_are_divided_and_what_they_are_made_of_is_whole() -> None:
    assert products(plan(), "q_a_proj") == [(HIDDEN, QUERY)]
    assert products(plan(), "kv_a_proj_with_mqa") == [(HIDDEN, LATENT + TURNED)]
    assert products(plan(), "q_b_proj") == [(QUERY, HEADS * (32 + TURNED) // 2)]
    assert products(plan(), "kv_b_proj") == [(LATENT, HEADS * (32 + 32) // 2)]
    assert products(plan(), "o_proj") == [(HEADS * 32 // 2, HIDDEN)]
    (shown,) = [o for o in operators_of(draw(plan().tasks(0))) if o.name == "aten::expand" and o.phase == "forward"]
    assert shown.outputs[0].shape == (2, HEADS // 2, 32, TURNED)


def test_the_gradients_of_latent_vectors_and_of_what_turns_are_added_up() -> None:
    """The embedding, attention and feed-forward forward; backward the latter, the projection, and three parts of attention."""
    assert sent(plan()) == {
        ("all_reduce", HIDDEN): 3 + 2,
        ("all_reduce", QUERY): 1,
        ("all_reduce", LATENT): 1,
        ("all_reduce", TURNED): 1,
        ("all_reduce", 1): 3,  # of the loss
    }


def test_by_sequence_the_short_vectors_are_gathered_and_not_the_long_ones() -> None:
    found = sent(plan(sequence_parallel=True))
    again = sent(plan(trace=MEGATRON, sequence_parallel=True))
    for size, weights in (
        (QUERY, 1),
        (LATENT, 1),
        (TURNED, 0),
    ):  # Megatron-LM gathers inputs again for weights' gradients
        assert found["all_gather", size] == 1
        assert again["all_gather", size] == 1 + weights
        assert found["reduce_scatter", size] == 1
    assert found["reduce_scatter", HIDDEN] == 3 + 2
    assert products(plan(sequence_parallel=True), "q_a_proj") == [(HIDDEN, QUERY)]


@pytest.mark.parametrize("by_sequence", [False, True])
@pytest.mark.parametrize("products", ["plain", "fp8"])
def test_a_compiled_step_sends_what_the_eager_one_does(products: Any, by_sequence: bool) -> None:
    """The norm of a latent vector is inside of a kernel, and what is shown to all heads is made by one."""

    def made(kernels: Any) -> ParallelPlan:
        model = DeepSeek(dense_layers=1, **SIZES)
        trace = describe(model, batch=2, dtype="bf16", optimizer="none", kernels=kernels, products=products)
        return planned(trace, "tp", 2, tp_style="megatron", sequence_parallel=by_sequence)

    assert made("compiled").notes == made("eager").notes
    assert sent(made("compiled")) == sent(made("eager"))


def test_compiled_queries_without_a_latent_vector_are_divided_themselves() -> None:
    model = DeepSeek(dense_layers=1, **{**SIZES, "query_rank": None})
    trace = describe(model, batch=2, dtype="float32", optimizer="none", kernels="compiled")
    made = planned(trace, "tp", 4, tp_style="megatron", sequence_parallel=True)
    assert products(made, "q_proj") == [(HIDDEN, HEADS * (32 + TURNED) // 4)]
    assert sent(made)["all_gather", TURNED] == sent(made)["reduce_scatter", TURNED] == 1


def test_only_the_layers_of_latent_vectors_are_noted() -> None:
    assert [note for note in plan().notes if "share of a layer" not in note] == [
        "tp: model.layers.0.self_attn.kv_a_proj_with_mqa, model.layers.0.self_attn.q_a_proj produce "
        "latent vectors shared by all heads, so every GPU keeps a full copy"
    ]


def test_queries_without_a_latent_vector_are_divided_themselves() -> None:
    trace = describe(
        DeepSeek(dense_layers=1, **{**SIZES, "query_rank": None}), batch=2, dtype="float32", optimizer="none"
    )
    made = planned(trace, "tp", 4, tp_style="megatron")
    assert products(made, "q_proj") == [(HIDDEN, HEADS * (32 + TURNED) // 4)]
    assert sent(made)["all_reduce", HIDDEN] == 3 + 2 + 1  # the gradient of q_proj's input
    assert sent(made)["all_reduce", LATENT] == sent(made)["all_reduce", TURNED] == 1


def test_a_capture_is_divided_as_its_description_is() -> None:
    """transformers writes keys into an empty tensor, part by part. 4 samples of 48 tokens, bfloat16; ``DECODER`` and what
    ``deepseek_v3`` has beside it in ``tests/models/test_described_captures.py``, of one layer.
    """
    captured = json_format.read(Path(__file__).parent / "data" / "deepseek_v3.json.gz")
    made = planned(captured, "tp", 2, tp_style="megatron")
    assert not any("cannot be paired" in note for note in made.notes)
    found = Counter((kind, nbytes / 2 / (4 * 48)) for kind, nbytes in collectives_of(draw(made.tasks(0))))
    of_the_loss = {
        ("all_reduce", 1.0),
        ("all_reduce", 2.0),
    }  # in numbers of four bytes, whatever the network computes in
    assert {k: n for k, n in found.items() if k not in of_the_loss} == {
        k: n for k, n in sent(plan()).items() if k not in of_the_loss
    }
    inside = [o for o in operators_of(draw(made.tasks(0))) if "self_attn" in o.layer]
    assert not [o.name for o in inside for t in (*o.inputs, *o.outputs) if t.shape[:3] == (4, HEADS, 48)]


def test_it_is_the_plan_that_transformers_publishes() -> None:
    """Of each layer that the plan divides, the same side of the weight is halved; the other layers are whole."""
    transformers = pytest.importorskip("transformers")
    published = transformers.DeepseekV2Config.base_model_tp_plan
    assert published["layers.*.self_attn.kv_a_proj_with_mqa"] == "mla_kv_a_proj"
    trace = describe(DeepSeek(dense_layers=0, **SIZES), batch=2, dtype="float32", optimizer="none")
    whole = planned(trace, "single")
    halved = planned(trace, "tp", 2, tp_style="megatron")
    sides = {(1, 1): "whole", (1, 2): "colwise", (2, 1): "rowwise"}
    for layer in (f"{part}_proj" for part in ("q_a", "q_b", "kv_b", "o", "gate", "up", "down")):
        (before,), (after,) = products(whole, f".{layer}"), products(halved, f".{layer}")
        found = sides[before[0] // after[0], before[1] // after[1]]
        where = "mlp.shared_experts" if layer in ("gate_proj", "up_proj", "down_proj") else "self_attn"
        styles = [style for name, style in published.items() if fnmatch.fnmatch(f"layers.0.{where}.{layer}", name)]
        assert found == (styles[0] if styles else "whole"), layer
    assert products(halved, "kv_a_proj_with_mqa") == products(whole, "kv_a_proj_with_mqa")
