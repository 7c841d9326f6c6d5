"""ep: whose experts are where, how many tokens travel to them, what is exchanged, and whose gradients are added up."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import traces
from traces import collectives_of, draw, groups_of, operators_of, planned

from triosim import describe, simulate
from triosim.config import RunConfig
from triosim.errors import OptionError, TraceError
from triosim.extrapolators.core.lowering import Lowering
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.expert.ep import ExpertParallel
from triosim.extrapolators.expert.expert_loads import Load, LoadDistribution, load_of
from triosim.results.values import ResultData
from triosim.tasks import AllToAll, Compute, Task
from triosim.trace import Operator
from triosim.trace.formats.native import trace_json as json_format

#: Mixtral, captured: 16 tokens of 16 features, each with two of four experts, whose inner features are 16.
MIXTRAL = json_format.read(Path(__file__).parents[1] / "tensor" / "data" / "parts" / "mixtral.json.gz")
ROWS, HIDDEN, EXPERTS = 16 * 2, 16, 4
STACKED = EXPERTS * (32 * 16 + 16 * 16) * 4  # bytes of the experts' weights
ALL_PARAMETERS = sum(tensor.nbytes for tensor in MIXTRAL.parameters.values())
SENT = ROWS * HIDDEN * 4.0  # bytes that a rank sends


def experts(parallel: str, *, load: str = "balanced", **options: Any) -> ParallelPlan:
    extra = {"load": load, **options.pop("options", {})}
    return planned(MIXTRAL, parallel, options=extra, tp_style="megatron", **options)


def grouped_of(tasks: list[Task], phase: str = "forward") -> list[Operator]:
    return [o for o in operators_of(tasks) if "grouped" in o.name.lower() and o.phase == phase]


def test_each_rank_has_some_of_the_experts_and_the_tokens_that_come_to_them() -> None:
    first, second = grouped_of(draw(experts("dp=2,ep=2").tasks(0)))
    assert [tensor.shape for tensor in first.inputs[:2]] == [(ROWS, HIDDEN), (2, HIDDEN, 32)]
    assert [tensor.shape for tensor in second.inputs[:2]] == [(ROWS, 16), (2, 16, HIDDEN)]
    weights = [t.shape for o in grouped_of(draw(experts("dp=2,ep=2").tasks(0)), "backward") for t in o.outputs[:1]]
    assert weights == [(2, 16, HIDDEN), (2, HIDDEN, 32)]


def test_tokens_are_dispatched_and_combined_forward_and_backward() -> None:
    tasks = draw(experts("dp=4,ep=4").tasks(0))
    assert [(t.nbytes, t.shares) for t in tasks if isinstance(t, AllToAll)] == [(SENT, None)] * 4
    places = [place for place, task in enumerate(tasks) if isinstance(task, AllToAll)]
    between = [
        [o.name for t in tasks[a:b] if isinstance(t, Compute) for o in t.operators if "grouped" in o.name.lower()]
        for a, b in pairwise(places)
    ]
    assert between == [["aten::_grouped_mm"] * 2, [], ["GroupedMmBackward0"] * 2]


def test_passes_side_by_side_hide_the_exchanges_of_all_but_the_first_forward_and_the_last_backward() -> None:
    """Of four micro-batches, a fourth of the exchanges is exposed, as each is shorter than what is computed beside it."""
    trace = describe("mixtral-8x7b(layers=4)", batch=1, sequence=4096, dtype="bf16", stack="megatron")
    options: dict[str, Any] = {"options": {"load": "balanced"}, "batch_size": 4, "micro_batches": 4}

    def exposed(**more: Any) -> float:
        data = simulate(trace, "dp=8,ep=8", host_overhead="none", **options, **more).data
        return sum(one.exposed_s for one in data.exposed_communication if one.axis == "ep")

    in_turn = exposed()
    assert in_turn > 0
    assert exposed(ep_overlap=True) == pytest.approx(in_turn / 4, rel=1e-6)


def test_nothing_runs_beside_a_single_micro_batch_or_without_experts_to_exchange_with() -> None:
    alone = experts("dp=4,ep=4", ep_overlap=True)
    assert any("--ep-overlap has no effect with one micro-batch" in note for note in alone.notes)
    dense = planned(MIXTRAL, "dp=4", ep_overlap=True, batch_size=4, micro_batches=2)
    assert {len(slot) for slot in dense.program.schedule.rows[0]} == {1}


def test_inference_exchanges_twice() -> None:
    tasks = draw(experts("dp=4,ep=4", training=False).tasks(0))
    assert [type(task) for task in tasks if isinstance(task, AllToAll)] == [AllToAll] * 2


def test_it_reuses_the_ranks_that_see_other_data_and_reduces_experts_among_those_that_have_the_same() -> None:
    plan = experts("dp=8,ep=2")
    assert plan.world == 8
    assert plan.parallel == "dp=8,ep=2"
    tasks = draw(plan.tasks(3), 3)
    groups = {name: group.ranks for name, group in groups_of(tasks).items()}
    assert groups == {"dp": tuple(range(8)), "ep": (2, 3), "expert dp": (1, 3, 5, 7)}
    assert collectives_of(tasks, "dp") == [("all_reduce", ALL_PARAMETERS - STACKED)]
    assert collectives_of(tasks, "expert dp") == [("all_reduce", STACKED / 2)]


def test_where_every_rank_has_experts_of_its_own_their_gradients_stay() -> None:
    tasks = draw(experts("ddp=4,ep").tasks(0))
    assert set(groups_of(tasks)) == {"ddp", "ep"}
    reduced = sum(nbytes for kind, nbytes in collectives_of(tasks) if kind == "all_reduce")
    assert reduced == ALL_PARAMETERS - STACKED


def test_the_optimizer_updates_a_ranks_experts_alone() -> None:
    def updated(parallel: str) -> int:
        operators = operators_of(draw(experts(parallel).tasks(0)))
        return max(sum(t.nbytes for t in o.outputs) for o in operators if o.phase == "optimizer")

    assert updated("dp=4") - updated("dp=4,ep=4") == STACKED * 3 / 4


def test_context_ranks_are_reused_with_the_data_ranks() -> None:
    tasks = draw(experts("cp=2,dp=2,ep=4").tasks(0))
    assert groups_of(tasks)["ep"].ranks == (0, 1, 2, 3)
    assert [task.nbytes for task in tasks if isinstance(task, AllToAll)] == [SENT / 2] * 4  # of half the tokens


def test_tensor_parallelism_divides_the_inner_features_of_a_ranks_experts() -> None:
    tasks = draw(experts("dp=2,ep=2,tp=2").tasks(0))
    first, second = grouped_of(tasks)
    assert [tensor.shape for tensor in first.inputs[:2]] == [(ROWS, HIDDEN), (2, HIDDEN, 16)]
    assert [tensor.shape for tensor in second.inputs[:2]] == [(ROWS, 8), (2, 8, HIDDEN)]
    assert groups_of(tasks)["ep"].ranks == (0, 2)
    assert ("all_reduce", SENT) in collectives_of(tasks, "tp")
    assert collectives_of(tasks, "ep") == [("all_to_all", SENT)] * 4


def test_recomputed_experts_exchange_tokens_again() -> None:
    plain, again = (
        collectives_of(draw(experts("dp=4,ep=4", recompute=policy).tasks(0)), "ep") for policy in ("none", "full")
    )
    assert len(again) == len(plain) + 2


@pytest.mark.parametrize("parallel", ["dp=4,ep=4", "dp=8,ep=4"])
def test_each_rank_computes_the_rows_that_its_own_experts_get(parallel: str) -> None:
    plan = experts(parallel, load="zipf", options={"skew": "1.5", "seed": "7"})
    rows, _ = LoadDistribution("zipf", 1.5, 7).tokens(4, EXPERTS, ROWS, layer=0, iteration=0)
    loads = [grouped_of(draw(plan.tasks(rank), rank))[0].inputs[0].shape[0] for rank in range(plan.world)]
    assert loads == [*rows.sum(axis=0)] * (plan.world // 4)
    assert sum(loads) == plan.world * ROWS
    assert len(set(loads)) > 1


def test_what_was_drawn_goes_to_the_experts_and_comes_home_the_other_way() -> None:
    plan = experts("dp=4,ep=4", load="zipf", options={"skew": "1.5", "seed": "7"})
    rows, _ = LoadDistribution("zipf", 1.5, 7).tokens(4, EXPERTS, ROWS, layer=0, iteration=0)
    there, home = (tuple((sent * HIDDEN * 4).ravel()) for sent in (rows, rows.T))
    for rank in range(4):
        exchanges = [task for task in draw(plan.tasks(rank), rank) if isinstance(task, AllToAll)]
        assert [task.shares for task in exchanges] == [there, home, there, home]
        assert all(task.nbytes == pytest.approx(SENT) for task in exchanges)


def test_the_light_ranks_wait_for_the_busiest_and_compute_less() -> None:
    """With the same rows in all, and one rank that has most of them."""

    trace = describe("mixtral-8x7b", layers=1, batch=1, sequence=512, dtype="bf16", gpu="A100")

    def ran(load: str) -> ResultData:
        return simulate(trace, "dp=8,ep=8", options={"load": load, "skew": "1.5"}, topology="dgx-a100", gpus=8).data

    even, drawn = ran("balanced"), ran("zipf")
    assert len({rank.compute_s for rank in even.ranks}) == 1
    assert max(r.compute_s for r in drawn.ranks) > even.ranks[0].compute_s > min(r.compute_s for r in drawn.ranks)
    light = min(drawn.ranks, key=lambda rank: rank.compute_s)
    assert light.communication_s > max(drawn.ranks, key=lambda rank: rank.compute_s).communication_s
    assert drawn.step_time_s > even.step_time_s
    assert drawn.metrics.hardware_flops == pytest.approx(even.metrics.hardware_flops)
    assert drawn.metrics.model_flops == even.metrics.model_flops
    assert any("zipf, skew 1.5, seed 0" in note for note in drawn.notes)


def test_dropped_tokens_are_noted() -> None:
    plan = experts("dp=4,ep=4", load="zipf", options={"skew": "3", "capacity": "1"})
    rows = [grouped_of(draw(plan.tasks(rank), rank))[0].inputs[0].shape[0] for rank in range(4)]
    assert max(rows) == ROWS  # the mean: no expert takes more
    assert any("% of the tokens are dropped" in note for note in plan.notes)


def kernels() -> traces.Trace:
    """24 rows for 4 experts, 8 features by 16, whose gradients are made kernel by kernel: turned, then multiplied."""
    b = traces.Builder(4)
    data, out = b.tensor(24, 8, category="input"), b.tensor(24, 8)
    up, down, ends = b.parameter(4, 8, 16), b.parameter(4, 16, 8), b.tensor(4, dtype="int32")
    taken, inner, active = b.tensor(24, 8), b.tensor(24, 16), b.tensor(24, 16)
    mixed = b.tensor(24, 8)
    b.run("aten::index", [data], [taken], layer="mlp")
    first = b.run("aten::_grouped_mm", [taken, up, ends], [inner], layer="mlp")
    silu = b.run("aten::silu", [inner], [active], layer="mlp")
    second = b.run("aten::_grouped_mm", [active, down, ends], [mixed], layer="mlp")
    home = b.run("aten::mul", [mixed, mixed], [out], layer="mlp")
    gradient = b.tensor(24, 8, category="gradient")
    b.run(
        "aten::mul",
        [b.tensor(24, 8, category="gradient"), mixed],
        [gradient],
        layer="mlp",
        phase="backward",
        forward=home,
    )
    for product, weight, read in ((second, down, active), (first, up, taken)):
        turned = b.view(read, *read.shape[::-1])
        shown = b.view(weight, 4, weight.shape[2], weight.shape[1])
        b.run("aten::transpose", [read], [turned], layer="mlp", phase="backward", forward=product, seconds=0.0)
        made = [b.tensor(*weight.shape, category="gradient", of=weight)]
        b.run("aten::_grouped_mm", [turned, gradient, ends], made, layer="mlp", phase="backward", forward=product)
        b.run("aten::transpose", [weight], [shown], layer="mlp", phase="backward", forward=product, seconds=0.0)
        into = b.tensor(*read.shape, category="gradient")
        b.run("aten::_grouped_mm", [gradient, shown, ends], [into], layer="mlp", phase="backward", forward=product)
        if product is second:
            gradient = b.tensor(24, 16, category="gradient")
            b.run("aten::silu_backward", [into, inner], [gradient], layer="mlp", phase="backward", forward=silu)
    b.adam([up, down])
    return b.trace()


def test_gradients_that_are_made_kernel_by_kernel_travel_once() -> None:
    """Though the gradient that comes is read by two products, and what comes forward is turned for one."""
    tasks = draw(planned(kernels(), "dp=2,ep=2", options={"load": "balanced"}).tasks(0))
    assert collectives_of(tasks) == [("all_to_all", 24 * 8 * 4)] * 4
    made = [o.outputs[0].shape for o in grouped_of(tasks, "backward")]
    assert made == [(2, 16, 8), (24, 16), (2, 8, 16), (24, 8)]
    (turned, *_) = [o for o in operators_of(tasks) if o.name == "aten::transpose"]
    assert turned.outputs[0].shape == (16, 24)
    updated = {t.shape for o in operators_of(tasks) if o.phase == "optimizer" for t in o.outputs}
    assert updated == {(2, 8, 16), (2, 16, 8)}


# ---- how tokens are drawn -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", ["uniform", "zipf", "power-law", "balanced"])
def test_no_token_is_lost_without_a_capacity(load: Load) -> None:
    rows, dropped = LoadDistribution(load).tokens(8, 16, 1000, layer=2, iteration=3)
    assert rows.shape == (8, 16)
    assert list(rows.sum(axis=1)) == pytest.approx([1000] * 8)
    assert dropped == 0


def test_zipf_gives_the_first_expert_twice_what_the_second_gets() -> None:
    rows, _ = LoadDistribution("zipf").tokens(8, 8, 1_000_000, layer=0, iteration=0)
    loads = rows.sum(axis=0)
    harmonic = sum(1 / place for place in range(1, 9))
    expected = [8e6 / harmonic / place for place in range(1, 9)]
    assert np.sort(loads)[::-1] == pytest.approx(expected, rel=0.01)


def test_an_expert_takes_its_capacity_from_each_rank_and_no_more() -> None:
    """Of 100 rows to 4 experts with a factor of 1.2, 30 a rank and expert: 60 of two ranks."""
    rows, dropped = LoadDistribution("zipf", 4.0, capacity=1.2).tokens(2, 4, 100, layer=0, iteration=0)
    assert rows.max() == 30
    assert dropped == 200 - rows.sum()
    assert dropped > 100  # the first of them is asked for more than 90 times by each


def test_the_same_seed_draws_the_same_and_layers_and_iterations_draw_apart() -> None:
    def loads(seed: int, layer: int, iteration: int) -> list[float]:
        return (
            LoadDistribution("uniform", seed=seed)
            .tokens(4, 8, 500, layer=layer, iteration=iteration)[0]
            .ravel()
            .tolist()
        )

    assert loads(1, 0, 0) == loads(1, 0, 0)
    assert len({tuple(loads(*key)) for key in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))}) == 4


def test_iterations_are_drawn_one_by_one_and_give_a_distribution_of_step_times() -> None:
    def times(load: str) -> list[float]:
        options = {"load": load, "skew": "1.2"} if load != "balanced" else {"load": load}
        result = simulate(MIXTRAL, "dp=4,ep=4", iterations=4, options=options, topology="dgx-a100", gpus=4)
        return [round(after - before, 12) for before, after in pairwise((0.0, *result.data.iterations))]

    assert len(set(times("zipf"))) > 1
    assert times("zipf") == times("zipf")
    assert len(set(times("balanced"))) == 1


# ---- what cannot be -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parallel", "options", "said"),
    [
        ("dp=6,ep=4", {}, "ep=4 does not divide the 6 GPUs of dp=6"),
        ("cp=2,dp=3,ep=4", {}, "ep=4 does not divide the 6 GPUs of cp=2 x dp=3"),
        ("dp=8,ep=8", {}, "the 4 experts of model.layers.0.mlp.experts are not divisible by 8"),
        ("ep=4", {}, "ep adds no GPUs of its own: it divides those of data parallelism; write dp=8,ep=8"),
        ("tp=2,ep=2", {}, "ep adds no GPUs"),
        (
            "dp=2,ep=2",
            {"dp_style": "replicate"},
            "style replicate copies all parameters in each step, so experts cannot be divided",
        ),
        ("dp=2,ep=2", {"options": {"load": "ziph"}}, "'ziph' is not known; did you mean 'zipf'?"),
        ("dp=2,ep=2", {"options": {"capacity": "-1"}}, "'-1' is not a number above 0"),
    ],
)
def test_what_cannot_be_is_said_in_numbers(parallel: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        experts(parallel, **options)
    assert said in str(caught.value)


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(TraceError, match="the trace has no experts"):
        planned(traces.mlp(), "dp=2,ep=2")


def test_one_rank_keeps_all_experts() -> None:
    assert math.isclose(
        sum(o.seconds for o in operators_of(draw(experts("dp=1,ep=1").tasks(0)))),
        sum(o.seconds for o in MIXTRAL.operators),
    )


def test_the_program_of_a_rank_is_the_same_whichever_ranks_were_before_it() -> None:
    plan = planned(MIXTRAL, "dp=4")
    config = RunConfig.of(options={"load": "zipf", "skew": "2"})
    ranks = [replace(plan.program, coordinates=(("ep", rank),), iteration=n) for n in (0, 1) for rank in (3, 1, 0, 2)]
    one = ExpertParallel(4, config)
    together = [one.transform(program, plan.mesh) for program in ranks]
    assert together == [ExpertParallel(4, config).transform(program, plan.mesh) for program in ranks]
    rows = [next(o for o in one.operators if "grouped" in o.name.lower()).inputs[0].shape[0] for one in together]
    assert sum(rows[:4]) == sum(rows[4:]) == 4 * ROWS  # each rank's tokens go to two experts each, somewhere
    assert rows[:4] != rows[4:]


def test_what_follows_from_structure_alone_is_the_same_for_the_programs_of_all_ranks() -> None:
    plan = experts("dp=4,pp=2,ep=2", load="zipf", micro_batches=2)
    assert plan.differences is not None
    for (lowering,) in zip(*plan.lowerings, strict=True):
        held = [lowering.program.held(pipeline_rank) for pipeline_rank in (0, 1)]
        assert lowering.gradients == [stage.gradients() for stage in held]
        alone = Lowering(lowering.program, plan.mesh)
        assert lowering.slots == alone.slots


@pytest.mark.parametrize(
    ("text", "load"),
    [
        ("balanced", LoadDistribution("balanced")),
        ("uniform,seed=7", LoadDistribution("uniform", seed=7)),
        ("zipf=1.2,seed=3", LoadDistribution("zipf", 1.2, 3)),
        ("zipf, skew=0", LoadDistribution("zipf", 0)),
        ("power-law=1.5", LoadDistribution("power-law", 1.5)),
    ],
)
def test_a_load_is_written_as_its_name_exponent_and_seed(text: str, load: LoadDistribution) -> None:
    assert load_of(text, "--routing") == load


@pytest.mark.parametrize(
    "text",
    [
        *("", "even", "zipf=x", "zipf=-1", "zipf=nan", "zipf=1,seed=-1", "zipf=1,seed=1.5", "zipf=1,seed=1,seed=2"),
        *("balanced=1", "zipf=1,skew=2", "zipf=1,2", "power-law=0", "balanced,capacity=1"),
    ],
)
def test_what_is_no_load_is_an_error(text: str) -> None:
    with pytest.raises(OptionError, match="--routing"):
        load_of(text, "--routing")
