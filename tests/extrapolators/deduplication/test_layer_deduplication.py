"""What is the same of several layers is divided and priced once; without that, every operator comes out the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from traces import planned

from triosim import describe, simulate
from triosim.compute.compute_model import ComputeModel, Estimates
from triosim.compute.operator_sequence import deduplicated
from triosim.config import RunConfig
from triosim.extrapolators.core.plan import plan
from triosim.extrapolators.deduplication.deduplicate import LayerDeduplication, UnequalLayersError
from triosim.models import GPT, T5, Llama
from triosim.trace import Operator, Trace

SIZES: dict[str, Any] = {"layers": 4, "hidden": 32, "heads": 4, "vocab": 64, "sequence": 8}
DENSE = describe(Llama(**SIZES, kv_heads=2, feed_forward=64), batch=4, dtype="float32")
GPTS = describe(GPT(**SIZES), batch=4, dtype="float16")
MIXTURES = describe(Llama(**SIZES, kv_heads=4, feed_forward=32, experts=4), batch=4, dtype="float32")
DEEP = {**SIZES, "layers": 9}
DEEP_DENSE = describe(Llama(**DEEP, kv_heads=2, feed_forward=64), batch=4, dtype="float32", stack="eager")
DEEP_GPTS = describe(GPT(**DEEP), batch=4, dtype="bfloat16", precision="mixed")
DEEP_MIXTURES = describe(Llama(**DEEP, kv_heads=4, feed_forward=32, experts=4), batch=4, dtype="float32")
T5S = describe(
    T5(layers=9, hidden=32, heads=4, head_dim=8, feed_forward=64, vocab=64, sequence=8), batch=4, dtype="float32"
)
MEGATRON = {"tp_style": "megatron"}
SEQUENCES = {**MEGATRON, "sequence_parallel": True}


@pytest.mark.parametrize(
    ("trace", "parallel", "options"),
    [
        (DENSE, "tp=4", MEGATRON),  # more ranks than heads of keys and values
        (DENSE, "tp=2,fsdp=2,pp=2", {**MEGATRON, "sequence_parallel": True, "recompute": "selective"}),
        (GPTS, "cp=2,dp=2", {}),
        (GPTS, "tp=2,dp=2", {**MEGATRON, "batch_size": 8}),
        (GPTS, "tp=2", {}),  # gathers
        (MIXTURES, "dp=4,ep=2", {"options": {"load": "zipf"}}),
        # With so many layers, most are not divided at all, but as others are.
        (DEEP_DENSE, "tp=4", MEGATRON),  # more ranks than heads of keys and values, whose layers the notes count
        (DEEP_DENSE, "tp=2,fsdp=2,pp=2", {**SEQUENCES, "recompute": "selective"}),
        (DEEP_DENSE, "tp=2", {"training": False}),
        (DEEP_GPTS, "tp=2,dp=2", SEQUENCES),  # weights are copied in another dtype
        (DEEP_GPTS, "tp=2", {}),
        (DEEP_MIXTURES, "tp=2,dp=2", MEGATRON),  # pairs with no other
        (T5S, "tp=2", SEQUENCES),  # all decoders read what the last encoder makes
    ],
)
def test_layers_are_divided_and_priced_the_same_each_by_itself(trace: Any, parallel: str, options: Any) -> None:
    once, each = (planned(trace, parallel, fold=asked, **options).program for asked in (True, False))
    assert once.stages == each.stages
    assert once.optimizers == each.optimizers
    assert once.notes == each.notes
    assert any(operator.predicted_by for operator in once.operators)  # shares were priced


class Counting(ComputeModel):
    """Takes a second for each operator, and counts those that it is asked about."""

    def __init__(self) -> None:
        self.asked = 0

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        self.asked += len(operators)
        return Estimates(np.ones(len(operators)), np.full(len(operators), 0.1), ["counting"] * len(operators))


def test_once_asks_as_often_for_many_layers_as_for_few_and_each_asks_for_all() -> None:
    def asked(layers: int, *, deduplicate: bool) -> int:
        model = Counting()
        trace = describe(GPT(**{**SIZES, "layers": layers}), batch=4, dtype="float16")
        plan(trace, "tp=2", gpus=None, config=RunConfig.of(fold=deduplicate, tp_style="megatron"), model=model)
        return model.asked

    assert asked(8, deduplicate=True) == asked(4, deduplicate=True)
    assert asked(8, deduplicate=False) > 1.5 * asked(4, deduplicate=False) > 3 * asked(4, deduplicate=True)


def repeats_of(trace: Trace) -> LayerDeduplication | None:
    return LayerDeduplication.of(planned(trace, "single").program)


@pytest.mark.parametrize("trace", [DEEP_DENSE, DEEP_GPTS, DEEP_MIXTURES, T5S])
def test_what_is_left_out_is_all_there_again(trace: Trace) -> None:
    whole = planned(trace, "single").program
    repeats = LayerDeduplication.of(whole)
    assert repeats is not None
    assert len(repeats.short.operators) < len(whole.operators)
    assert repeats.restored(repeats.short) == whole


def test_of_however_many_layers_as_many_are_worked_on() -> None:
    def worked_on(layers: int) -> int:
        repeats = repeats_of(describe(GPT(**{**SIZES, "layers": layers}), batch=4, dtype="float16"))
        assert repeats is not None
        return len(repeats.short.operators)

    assert worked_on(8) == worked_on(9) == worked_on(20)


def in_layer(trace: Trace, unit: str, change: Callable[[Operator], Operator]) -> Trace:
    """The trace in which a unit's first operator of the forward pass is another."""
    first = next(one for one in trace.operators if one.layer.startswith(unit))
    return replace(trace, operators=tuple(change(one) if one is first else one for one in trace.operators))


def test_a_layer_that_takes_another_time_is_not_like_the_others() -> None:
    slower = in_layer(DEEP_DENSE, "model.layers.4.", lambda one: replace(one, seconds=2 * one.seconds))
    assert repeats_of(slower) is None  # neither side has enough that are


def test_layers_are_not_alike_if_what_one_makes_is_read_elsewhere() -> None:
    made = next(one for one in DEEP_DENSE.operators if one.layer.startswith("model.layers.4.")).outputs
    skipping = in_layer(DEEP_DENSE, "model.norm", lambda one: replace(one, inputs=(*one.inputs, *made)))
    assert repeats_of(DEEP_DENSE) is not None
    assert repeats_of(skipping) is None


def test_layers_that_do_not_come_out_alike_are_not_taken_for_each_other() -> None:
    repeats = repeats_of(DEEP_DENSE)
    assert repeats is not None
    odd = repeats.short.stages[0].forward
    place = next(number for number, block in enumerate(odd) if block.layer.startswith("model.layers.2."))
    blocks = (*odd[:place], replace(odd[place], items=odd[place].items[:1]), *odd[place + 1 :])
    after = replace(repeats.short, stages=(replace(repeats.short.stages[0], forward=blocks),))
    with pytest.raises(UnequalLayersError):
        repeats.restored(after)


def test_whoever_folds_nothing_gets_the_same_step() -> None:
    folded, every = (
        simulate(DENSE, "tp=2,dp=2,pp=2", topology="dgx-h100", tp_style="megatron", fold=fold) for fold in (True, False)
    )
    assert folded.step_time_s == pytest.approx(every.step_time_s, rel=1e-9)
    assert folded.memory is not None
    assert every.memory is not None
    assert folded.memory.ranks == every.memory.ranks
