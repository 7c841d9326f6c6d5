"""Kept programs: what plans have in common is made once, and no result says whether it was."""

from __future__ import annotations

from typing import Any

import pytest
import traces

from triosim import simulate
from triosim.config import RunConfig
from triosim.extrapolators.core import plan as planning
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.core.program.kept_programs import KeptPrograms, ProgramSource, of_operators_alone
from triosim.extrapolators.tensor.tp import TensorParallel

GPT = traces.transformer(batch=32, tokens=16, blocks=6, heads=8, width=32)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptPrograms:
    """The programs that are kept during a test."""
    found = KeptPrograms()
    monkeypatch.setattr(planning, "KEPT", found)
    return found


def step(parallel: str, **options: Any) -> dict[str, Any]:
    found = {"topology": "switch(16, bandwidth=50 GB/s)", "global_batch_size": 32, "tp_style": "megatron", **options}
    result = simulate(GPT, parallel, **found).to_dict()
    return {name: value for name, value in result.items() if name != "inputs"}


POINTS = (
    ("ddp=4,tp=2,pp=2", {"micro_batches": 4}),
    ("zero1=4,tp=2,pp=2", {"micro_batches": 4, "schedule": "1f1b"}),
    ("ddp=2,tp=2,pp=4", {"micro_batches": 8, "schedule": "1f1b", "recompute": "full"}),
    ("ddp=4,tp=4", {"micro_batches": 4, "sequence_parallel": True}),
    ("ddp=4,tp=4", {"micro_batches": 4}),
    ("fsdp=16", {"micro_batches": 1}),
)


def test_results_are_those_of_a_process_that_has_kept_nothing(
    kept: KeptPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_others = [step(parallel, **options) for parallel, options in (*POINTS, *reversed(POINTS))]
    for (parallel, options), *found in zip(POINTS, after_others, reversed(after_others), strict=False):
        monkeypatch.setattr(planning, "KEPT", KeptPrograms(most=0))
        alone = step(parallel, **options)
        assert found == [alone, alone], parallel


def test_a_second_schedule_shards_nothing(kept: KeptPrograms, monkeypatch: pytest.MonkeyPatch) -> None:
    sharded = []
    transform = TensorParallel.transform

    def watched(self: TensorParallel, program: Program, mesh: Any) -> Program:
        sharded.append(self.size)
        return transform(self, program, mesh)

    monkeypatch.setattr(TensorParallel, "transform", watched)
    step("ddp=4,tp=2,pp=2", micro_batches=4, schedule="gpipe")
    step("zero1=2,tp=2,pp=4", micro_batches=8, schedule="1f1b")  # micro-batches of 2 samples, too
    assert sharded == [2]
    step("ddp=8,tp=2", micro_batches=1)  # of 4 samples
    step("ddp=4,tp=2,pp=2", micro_batches=4, tp_style="gather")
    assert sharded == [2, 2, 2]


def test_the_programs_that_were_used_longest_ago_go_first() -> None:
    program = traces.planned(GPT, "single").program
    found = KeptPrograms(most=2 * len(program.operators))
    made: list[int] = []

    def get(batch_size: int) -> None:
        def make() -> Program:
            made.append(batch_size)
            return program

        found.get(ProgramSource(GPT, None, "a model", batch_size, True, None, True), make)

    for batch_size in (1, 2, 1, 3, 1, 2):
        get(batch_size)
    assert made == [1, 2, 3, 2]


def test_a_model_that_says_nothing_of_itself_is_asked_each_time() -> None:
    first, second = traces.planned(GPT, "single").program, traces.planned(GPT, "single").program
    found, source = KeptPrograms(), ProgramSource(GPT, None, None, 1, True, None, True)
    assert found.get(source, lambda: first) is first
    assert found.get(source, lambda: second) is second


def test_a_derived_class_says_for_itself_what_it_reads() -> None:
    class Mine(TensorParallel):
        pass

    config = RunConfig.of(tp_style="megatron")
    assert of_operators_alone(TensorParallel(2, config))
    assert not of_operators_alone(Mine(2, config))
