"""The kernels of a compiled step, against what they have to read and write by hand."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

import triosim
from triosim.memory import analyse
from triosim.models import GPT, Llama
from triosim.models.description import describe
from triosim.operators.features import base_name
from triosim.trace import Operator, Trace

TOKENS, HIDDEN, WIDE, VOCAB = 2 * 512, 256, 1024, 4096
SIZES = Llama(layers=3, hidden=HIDDEN, heads=4, kv_heads=2, feed_forward=WIDE, vocab=VOCAB)


@cache
def step(kernels: str = "compiled") -> Trace:
    return describe(SIZES, batch=2, sequence=512, kernels=kernels, optimizer="fused-adamw")  # type: ignore[arg-type]


def kernels_of(layer: str, phase: str) -> list[Operator]:
    """What is left of a module, without products, attention and views, in order."""
    return [
        one
        for one in step().operators
        if one.phase == phase
        and one.layer.startswith(layer)
        and one.seconds
        and one.name.startswith(("fused::", "aten::add", "aten::mul"))
    ]


def of_none(operator: Operator) -> bool:
    """Whether an operator is in no block."""
    return operator.phase != "optimizer" and not operator.layer.startswith("model.layers")


def traffic(operator: Operator) -> tuple[int, int]:
    """Bytes that are read and written."""
    return sum(t.nbytes for t in operator.inputs), sum(t.nbytes for t in operator.outputs)


ROW = 4 * TOKENS  # bytes of one single-precision number a token
STATES, SCORES = 2 * TOKENS * HIDDEN, 2 * TOKENS * WIDE  # bytes of activations in half precision


def test_the_forward_pass_of_a_block_reads_and_writes_what_a_hand_count_says() -> None:
    """Norm; rotation of queries and of keys; residual and norm; gate; residual, which the next block's norm does not share."""
    turns, keys = 2 * 512 * 64, STATES // 2
    assert [traffic(one) for one in kernels_of("model.layers.1", "forward")] == [
        (STATES + 2 * HIDDEN, ROW + STATES),
        (STATES + 2 * turns, STATES),
        (keys + 2 * turns, keys),
        (2 * STATES + 2 * HIDDEN, STATES + ROW + STATES),
        (2 * SCORES, SCORES),
        (2 * STATES, STATES),
    ]


def test_the_gate_is_differentiated_in_one_kernel_from_its_two_factors_and_the_gradient() -> None:
    """3 reads, 2 writes: silu is computed again, and the gradient is read once for both factors."""
    found = kernels_of("model.layers.1.mlp", "backward")
    assert [traffic(one) for one in found] == [(3 * SCORES, 2 * SCORES)]
    assert found[0].attributes["operators"] == ["mul", "mul", "silu_backward"]


def test_the_gradient_of_a_norm_s_weight_reads_the_rows_again_and_writes_one_number_a_feature() -> None:
    sums = [
        one for one in kernels_of("model.layers.1.post_attention", "backward") if one.attributes["operators"] == ["sum"]
    ]
    assert [sum(t.nbytes for t in one.outputs) for one in sums] == [2 * HIDDEN]
    # the gradients of both products that read the normed rows, the residual, and the root of each row
    assert [traffic(one)[0] for one in sums] == [3 * STATES + ROW]


def test_what_is_in_no_block_stays_as_it_is() -> None:
    """The last norm, the logits and the loss, whose logarithms of probabilities in single precision are kept."""
    found, eager = (
        [(base_name(one.name), one.inputs, one.outputs) for one in step(kernels).operators if of_none(one)]
        for kernels in ("compiled", "eager")
    )
    assert [[t.shape for t in (*read, *made)] for _, read, made in found] == [
        [t.shape for t in (*read, *made)] for _, read, made in eager
    ]
    kept = next(made for name, _, made in found if name == "log_softmax")
    assert sum(t.nbytes for t in kept) == 4 * TOKENS * VOCAB


@pytest.mark.parametrize(
    "sizes", [SIZES, GPT(layers=2, hidden=256, heads=4, vocab=4096, sequence=512, style="huggingface")]
)
def test_only_the_chains_change(sizes: Llama | GPT) -> None:
    """Products, attention, embeddings and the optimizer are the same, on the same shapes; nothing reads what nobody makes."""
    eager, fused = (
        describe(sizes, batch=2, sequence=512, kernels=one, optimizer="fused-adamw") for one in ("eager", "compiled")
    )
    kept = ("mm", "addmm", "bmm", "embedding", "embedding_dense_backward", "fused_adamw")

    def shapes(trace: Trace) -> Counter[object]:
        return Counter(
            (one.name, one.phase, *(t.shape for t in (*one.inputs, *one.outputs)))
            for one in trace.operators
            if base_name(one.name) in kept or "attention" in one.name
        )

    assert shapes(fused) == shapes(eager)
    assert {t.id for t in fused.parameters.values()} == {t.id for t in eager.parameters.values()}
    made = {t.storage for t in eager.parameters.values()} | {0}
    made |= {
        t.storage for one in eager.operators for t in one.inputs if t.category in ("input", "buffer", "optimizer_state")
    }
    for one in fused.operators:
        assert {t.storage for t in one.inputs} <= made, one
        made |= {t.storage for t in one.outputs}


def test_a_compiled_step_is_faster_and_keeps_less() -> None:
    eager, fused = step("eager"), step()
    assert fused.seconds < eager.seconds
    peaks = [analyse(one, "H100-SXM").usage.at_peak()["activation"] for one in (fused, eager)]
    assert peaks[0] < 0.9 * peaks[1]


@pytest.mark.parametrize("parallel", ["fsdp=4", "fsdp=2,tp=2", "pp=3", "cp=2", "dp=2,zero1=2"])
def test_compiled_steps_are_divided_like_others(parallel: str) -> None:
    """With checkpoints, so that kernels run again; collectives move what they move in an eager step."""
    options: dict[str, Any] = {"tp_style": "megatron"} if "tp" in parallel else {}
    stages = ("model.layers.1", "model.layers.2")
    options |= {"micro_batches": 2, "stages": stages} if "pp" in parallel else {}
    policy = "save=mm/2,attention"
    results = [triosim.simulate(step(one), parallel, recompute=policy, **options) for one in ("compiled", "eager")]
    assert results[0].step_time_s < results[1].step_time_s
    moved = [result.collectives["bytes"].sum() for result in results]
    assert moved[0] == pytest.approx(moved[1], rel=1e-9)
