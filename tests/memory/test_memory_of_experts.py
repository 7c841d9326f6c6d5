"""The memory of ranks that share out the experts of a mixture: who keeps which, what is gathered, and what tokens take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import triosim
from triosim.compute.models.auto import AutoComputeModel
from triosim.config import RunConfig
from triosim.extrapolators.core.plan import ParallelPlan, plan
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.core.program.shape_differences import shape_differences
from triosim.memory import MemoryReport
from triosim.memory.extrapolated_memory import ExtrapolatedMemory
from triosim.memory.liveness.lifetimes import MEMORY_CATEGORIES
from triosim.models import Llama

#: Two layers of four experts, two for each of 2 x 32 tokens; a number has 4 bytes.
HIDDEN, INNER, EXPERTS, WORDS, ROWS = 128, 256, 4, 512, 2 * 32 * 2
MODEL = Llama(
    **{"layers": 2, "hidden": HIDDEN, "heads": 4, "kv_heads": 4, "feed_forward": INNER, "vocab": WORDS},
    **{"experts": EXPERTS, "sequence": 32, "name": "two-mixtures"},
)
TRACE = triosim.describe(MODEL, batch=2, dtype="float32", optimizer="adamw", stack="eager")
STACKED = 4 * EXPERTS * 3 * HIDDEN * INNER  # the experts of a layer
DENSE = 4 * (4 * HIDDEN * HIDDEN + EXPERTS * HIDDEN + 2 * HIDDEN)  # attention, router, two norms
ROOT = 4 * (2 * WORDS * HIDDEN + HIDDEN)  # words, projection to the vocabulary, last norm
ARRIVING = 4 * ROWS * HIDDEN  # tokens on their way to experts, where each rank gets as many


def memory(parallel: str, load: str = "balanced", **options: Any) -> MemoryReport:
    extra = {"load": load} if "ep" in parallel else {}
    found = triosim.rank_memory(TRACE, parallel, options=extra, **options)
    assert found.report().peak_live == found.fullest.peak_bytes
    return found.report(workspace=False)


def most(report: MemoryReport, category: str) -> int:
    """The most bytes of a category at any time."""
    return int(report.usage.live[:, MEMORY_CATEGORIES.index(category)].max())


def after_backward(report: MemoryReport) -> int:
    """The gradients that the optimizer finds."""
    first = next(i for i, one in enumerate(report.trace.operators) if one.phase == "optimizer")
    row = next(i for i, event in enumerate(report.usage.events) if event.operator >= first)
    return int(report.usage.live[row, MEMORY_CATEGORIES.index("gradient")])


@pytest.mark.parametrize(
    ("parallel", "dense", "experts"),  # among how many ranks each is divided
    [
        ("dp=2,ep=2", 1, 2),
        ("fsdp=2,ep=2", 2, 2),
        ("fsdp=4,ep=2", 4, 4),
        ("fsdp=8,ep=4", 8, 8),
        ("dp=2,fsdp=2,ep=2", 2, 2),
        ("dp=2,fsdp=2,ep=4", 2, 4),
        ("cp=2,fsdp=2,ep=2", 4, 4),
    ],
)
def test_a_rank_keeps_a_share_of_its_own_experts_and_of_all_else(parallel: str, dense: int, experts: int) -> None:
    expected = (ROOT + 2 * DENSE) / dense + 2 * STACKED / experts
    report = memory(parallel)
    assert most(report, "parameter") == pytest.approx(expected, rel=0.01)
    assert most(report, "optimizer_state") == pytest.approx(2 * expected, rel=0.01)
    assert after_backward(report) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("name", "gradients"), [("zero1", 1), ("zero2", 4)])
def test_the_zeros_keep_experts_whole_and_share_their_states(name: str, gradients: int) -> None:
    """Of four ranks two have the same two experts of each layer, so that each has the states of a quarter of all."""
    report = memory(f"{name}=4,ep=2")
    assert most(report, "parameter") == pytest.approx(ROOT + 2 * DENSE + 2 * STACKED / 2, rel=0.01)
    assert most(report, "optimizer_state") == pytest.approx(2 * (ROOT + 2 * DENSE + 2 * STACKED) / 4, rel=0.01)
    whole = ROOT + 2 * DENSE + 2 * STACKED / 2
    shares = (ROOT + 2 * DENSE + 2 * STACKED) / 4
    assert after_backward(report) == pytest.approx(whole if gradients == 1 else shares, rel=0.01)


def test_experts_are_gathered_beside_their_layer() -> None:
    """While a layer's experts run, forward: the root, the layer and its experts whole, the buffer that the experts came in,
    what was gathered of the next layer, and the tokens that arrive.
    """
    report = memory("fsdp=4,ep=2")
    expected = ROOT + DENSE + 2 * STACKED / 2 + DENSE + ARRIVING
    assert most(report, "communication") == pytest.approx(expected, rel=0.005)


def test_experts_that_no_other_rank_has_are_not_gathered() -> None:
    """While they run: the root and the layer whole, the buffer that the layer came in, the next layer, tokens."""
    assert most(memory("fsdp=2,ep=2"), "communication") == pytest.approx(ROOT + 3 * DENSE + ARRIVING, rel=0.005)


def test_experts_have_buckets_of_their_own() -> None:
    whole = ROOT + 2 * DENSE + 2 * STACKED / 2
    assert most(memory("ddp=4,ep=2"), "communication") == pytest.approx(whole + ARRIVING, rel=0.005)


def test_tokens_that_go_to_experts_evenly_take_as_much_as_at_home() -> None:
    assert most(memory("dp=2,ep=2"), "activation") == most(memory("dp=2"), "activation")


def test_the_busiest_rank_keeps_a_row_for_each_token_that_came() -> None:
    """Of a row what comes to the experts, both halves of their first product, its activation and the product of the two."""
    even, uneven = (memory("dp=2,ep=2", load) for load in ("balanced", "zipf"))
    arriving = most(uneven, "communication")
    rows = arriving / (4 * HIDDEN)
    assert rows > ROWS
    operators = [one for one in uneven.trace.operators if "grouped_mm" in one.name and one.phase == "forward"]
    extra = [one.inputs[0].shape[0] - ROWS for one in operators[::2]]  # the first product of each layer
    assert max(extra) == rows - ROWS
    kept = 4 * (HIDDEN + 2 * INNER + INNER + INNER)
    assert most(uneven, "activation") - most(even, "activation") == pytest.approx(sum(extra) * kept, abs=8 * 512)


def test_draws_say_in_how_many_a_rank_does_not_fit(tmp_path: Path) -> None:
    """A GPU with room for two of the four draws, of a step in which activations take most."""
    trace = triosim.describe(MODEL, batch=16, dtype="float32", optimizer="sgd")

    def gpu(nbytes: int) -> Path:
        path = tmp_path / "small.yaml"
        path.write_text(
            f"name: small\narchitecture: x86\nbandwidth: 100 GB/s\ncapacity: {nbytes}\nflops: {{float32: 1 TFLOP/s}}\n"
        )
        return path

    def peak(seed: int) -> int:
        extra = {"load": "zipf", "seed": str(seed)}
        return triosim.rank_memory(trace, "dp=2,ep=2", options=extra, gpu=gpu(10**9)).fullest.peak_bytes

    peaks = sorted(map(peak, range(4)))
    assert peaks[1] < peaks[2]
    system = {"gpu": gpu((peaks[1] + peaks[2]) // 2), "topology": "ring(2, bandwidth=1 GB/s)"}
    result = triosim.simulate(trace, "dp=2,ep=2", options={"load": "zipf"}, draws=4, **system)
    assert "in 2 of 4 draws a rank does not fit its GPU" in result.notes


def test_each_rank_of_a_group_has_the_memory_of_what_its_own_experts_get() -> None:
    """Of eight ranks two have the same experts, so that there are four kinds of rank: all parameters equal, activations not."""
    drawn = triosim.rank_memory(TRACE, "dp=8,ep=4", options={"load": "zipf", "skew": "2"})
    assert [one.ranks for one in drawn.ranks] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert len({one.by_category["parameter"] for one in drawn.ranks}) == 1
    activations = [most(drawn.report(one.rank, workspace=False), "activation") for one in drawn.ranks]
    even = triosim.rank_memory(TRACE, "dp=8,ep=4", options={"load": "balanced"})
    assert [len(one.ranks) for one in even.ranks] == [8]
    assert min(activations) < most(even.report(workspace=False), "activation") < max(activations)


def alone(plan: ParallelPlan, iteration: int, variant: int) -> ExtrapolatedMemory:
    """The memory of one of a plan's programs as if there were no other."""
    one = replace(plan, lowerings=((plan.lowerings[iteration][variant],),), program_axes=())
    return ExtrapolatedMemory(one, TRACE)


@pytest.mark.parametrize(
    ("parallel", "options"),
    [
        ("dp=4,ep=4", {}),
        ("fsdp=4,ep=2", {"recompute": "full"}),
        ("dp=2,tp=2,ep=2", {"sequence_parallel": True, "tp_style": "megatron"}),
        ("dp=2,pp=2,ep=2", {"micro_batches": 2, "schedule": "zero-bubble"}),
        ("zero2=4,ep=4", {"iterations": 2}),
    ],
)
def test_programs_that_differ_in_rows_have_the_memory_that_each_has_alone(
    parallel: str, options: dict[str, Any]
) -> None:
    config = RunConfig.of(parallel=parallel, options={"load": "zipf", "skew": "2"}, **options)
    found = plan(TRACE, parallel, gpus=None, config=config, model=AutoComputeModel())
    together = ExtrapolatedMemory(found, TRACE)
    for one in together.ranks:
        variant = found.variant(one.rank)
        each = [alone(found, iteration, variant) for iteration in range(len(found.lowerings))]
        memory = max(each, key=lambda step: step.of_rank(one.rank).peak_bytes)
        assert replace(memory.of_rank(one.rank), ranks=one.ranks) == one
        assert together.lifetimes_of(one.rank)[1].items == memory.lifetimes_of(one.rank)[1].items


def test_programs_of_other_calls_are_not_taken_for_alike() -> None:
    def program(parallel: str, **options: Any) -> Program:
        config = RunConfig.of(parallel=parallel, **options)
        return plan(TRACE, parallel, gpus=None, config=config, model=AutoComputeModel()).program

    plain = program("dp=2,ep=2")
    differences = shape_differences([plain, program("dp=2,ep=2", options={"seed": "1"})])
    assert differences is not None
    assert differences.operators
    assert shape_differences([plain, program("dp=2,ep=2", recompute="full")]) is None
    assert shape_differences([plain, program("dp=2")]) is None
