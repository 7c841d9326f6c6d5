"""Inputs of modules live until the modules return: Python refers to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import triosim
from triosim.config import RunConfig
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.memory.liveness.lifetimes import lifetimes
from triosim.memory.liveness.module_inputs import kept_for_modules, module_inputs
from triosim.models import Llama
from triosim.pipeline.planning import plan_step
from triosim.pipeline.pricing import price
from triosim.pipeline.reading import read
from triosim.trace import Operator, Phase, Tensor

BATCH, TOKENS, WIDTH, HIDDEN = 4, 16, 32, 64


def operator(
    number: int, layer: str, read: int, made: int, name: str = "aten::mm", phase: Phase = "forward"
) -> Operator:
    """An operator that reads one tensor and makes another."""
    tensors = (Tensor(one, (8,), "float32", storage=one) for one in (read, made))
    source, result = tensors
    return Operator(number, name, phase, layer, (source,), (result,), 1e-3)


#: A norm makes 1, of which a feed-forward layer makes 2 and then 3.
BLOCK = [
    operator(0, "layers.0.norm", 0, 1),
    operator(1, "layers.0.mlp.up", 1, 2),
    operator(2, "layers.0.mlp.down", 2, 3),
    operator(3, "layers.0", 3, 4),
]


def test_an_input_lives_until_the_module_that_it_is_given_to_returns() -> None:
    kept = kept_for_modules(BLOCK)
    assert 1 in kept[2]  # that of the feed-forward layer, which its last product does not read
    assert 0 in kept[3]  # that of the block
    assert not any(3 in storages for storages in kept.values() if storages is not kept[3])


def test_a_list_of_modules_is_not_called() -> None:
    blocks = [operator(number, f"layers.{number}", number, number + 1) for number in range(3)]
    assert kept_for_modules(blocks) == {number: frozenset({number}) for number in range(3)}


def test_compiled_blocks_free_what_they_have_read() -> None:
    compiled = [*BLOCK[:3], operator(3, "layers.0", 3, 4, name="fused::chain")]
    assert kept_for_modules(compiled) == {3: frozenset({0})}


def test_the_backward_pass_calls_no_modules() -> None:
    assert not kept_for_modules([operator(0, "layers.0.mlp", 0, 1, phase="backward")])


@pytest.mark.parametrize("parallel", [None, "dp=2"])
def test_a_feed_forward_layer_has_its_input_beside_its_result(parallel: str | None) -> None:
    """Without a backward pass nothing is saved, and the input would be gone after the product that reads it last."""
    model = Llama(layers=1, hidden=WIDTH, heads=4, feed_forward=HIDDEN, vocab=512, sequence=TOKENS)
    trace = triosim.describe(model, batch=BATCH, dtype="bf16", stack="eager", optimizer="none")
    last = max(i for i, one in enumerate(trace.operators) if one.layer.endswith("down_proj") and one.phase == "forward")
    if parallel is None:
        step = lifetimes(replace(trace, operators=tuple(one for one in trace.operators if one.phase == "forward")))
    else:
        step = triosim.rank_memory(trace, parallel, training=False).report().usage.lifetimes
    alive = [one for one in step.items if one.layer.endswith("post_attention_layernorm")]
    assert any(one.last_operator is not None and one.last_operator >= last for one in alive)


def test_recomputed_layers_of_every_stage_hold_what_they_hold_without_a_pipeline() -> None:
    """The backward passes of stages run from the last to the first: no layer is recomputed right behind the forward pass."""
    kept = []
    for parallel in ("single", "pp=2"):
        config = RunConfig.of(parallel=parallel, recompute="full", micro_batch_size=1, batch_size=4, gpu="H100")
        priced = price(read("gpt2(layers=4, hidden=64, heads=4)", config), config)
        planned = plan_step(priced, config)
        assert isinstance(planned, ParallelPlan)
        kept.append(module_inputs(planned.program))
    assert kept[0] == kept[1]
