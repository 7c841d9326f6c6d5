"""What is the same of several layers is divided and priced once; without that, every operator comes out the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from traces import planned

from triosim import describe, simulate
from triosim.compute.base import ComputeModel, Estimates
from triosim.compute.operators import each_once
from triosim.extrapolators.base import ParallelOptions
from triosim.extrapolators.plan import plan
from triosim.models import GPT, Llama
from triosim.trace import Operator

SIZES: dict[str, Any] = {"layers": 4, "hidden": 32, "heads": 4, "vocab": 64, "sequence": 8}
DENSE = describe(Llama(**SIZES, kv_heads=2, feed_forward=64), batch=4, dtype="float32")
GPTS = describe(GPT(**SIZES), batch=4, dtype="float16")
MIXTURES = describe(Llama(**SIZES, kv_heads=4, feed_forward=32, experts=4), batch=4, dtype="float32")
MEGATRON = {"tp_style": "megatron"}


@pytest.mark.parametrize(
    ("trace", "parallel", "options"),
    [
        (DENSE, "tp=4", MEGATRON),  # more ranks than heads of keys and values
        (DENSE, "tp=2,fsdp=2,pp=2", {**MEGATRON, "sequence_parallel": True, "recompute": "selective"}),
        (GPTS, "cp=2,dp=2", {}),
        (GPTS, "tp=2,dp=2", {**MEGATRON, "batch_size": 8}),
        (GPTS, "tp=2", {}),  # gathers
        (MIXTURES, "dp=4,ep=2", {"extra": {"load": "zipf"}}),
    ],
)
def test_layers_are_divided_and_priced_the_same_each_by_itself(trace: Any, parallel: str, options: Any) -> None:
    once, each = (planned(trace, parallel, once=asked, **options).program for asked in (True, False))
    assert once.stages == each.stages
    assert once.optimizers == each.optimizers
    assert once.notes == each.notes
    assert any(operator.predicted_by for operator in once.operators)  # shares were priced


class Counting(ComputeModel):
    """Takes a second for each operator, and counts those that it is asked about."""

    def __init__(self) -> None:
        self.asked = 0

    @each_once
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        self.asked += len(operators)
        return Estimates(np.ones(len(operators)), np.full(len(operators), 0.1), ["counting"] * len(operators))


def test_once_asks_as_often_for_many_layers_as_for_few_and_each_asks_for_all() -> None:
    def asked(layers: int, *, once: bool) -> int:
        model = Counting()
        trace = describe(GPT(**{**SIZES, "layers": layers}), batch=4, dtype="float16")
        plan(trace, "tp=2", gpus=None, options=ParallelOptions(once=once, tp_style="megatron"), model=model)
        return model.asked

    assert asked(8, once=True) == asked(4, once=True)
    assert asked(8, once=False) > 1.5 * asked(4, once=False) > 3 * asked(4, once=True)


def test_whoever_folds_nothing_gets_the_same_step() -> None:
    folded, every = (
        simulate(DENSE, "tp=2,dp=2,pp=2", topology="dgx-h100", tp_style="megatron", fold=fold) for fold in (True, False)
    )
    assert folded.step_time_s == pytest.approx(every.step_time_s, rel=1e-9)
    assert folded.memory is not None
    assert every.memory is not None
    assert folded.memory.ranks == every.memory.ranks
