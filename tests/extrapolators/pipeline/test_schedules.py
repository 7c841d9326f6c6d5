"""Pipeline schedules: their bubbles, what they hold, what they refuse, and that any order does the same step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import traces
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from traces import collectives_of, draw, operators_of, planned

import triosim
from triosim import plugins
from triosim.comparison.schedule_alone import ActionTimes, run_schedule, uniform_trace
from triosim.config import RunConfig
from triosim.errors import OptionError, PluginError, TraceError
from triosim.extrapolators.core.extrapolator import Extrapolator
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.core.schedule_table import Action, ActionPhase, ScheduleTable, in_flight
from triosim.extrapolators.pipeline.schedule import PipelineSchedule
from triosim.extrapolators.pipeline.schedule_choice import chosen_schedule, table_of
from triosim.extrapolators.pipeline.schedules.csv_file import read_table, write_table
from triosim.tasks import AllReduce, Recv, Send, Task
from triosim.trace import Operator, Phase

TRANSFORMER = traces.transformer(blocks=4)
UNEVEN = ActionTimes(1.0, 1.3, 0.7)


NAMES = tuple(plugins.BUILT_IN["schedules"])


def table(name: str, ranks: int, micro_batches: int, **options: Any) -> ScheduleTable:
    return table_of(chosen_schedule(RunConfig.of(schedule=name, **options)), ranks, micro_batches)


def drawn(plan: ParallelPlan) -> list[list[Task]]:
    return [draw(plan.tasks(rank), rank) for rank in range(plan.world)]


# ---- closed forms, run on the engine --------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (3, 7), (4, 8), (8, 4)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_gpipe_and_1f1b_lose_p_minus_1_micro_batches(name: str, p: int, m: int) -> None:
    run = run_schedule(name, p, m, times=UNEVEN)
    assert run.seconds == pytest.approx((m + p - 1) * UNEVEN.all, rel=1e-9)
    for rank in range(p):
        assert run.bubble(rank) / run.seconds == pytest.approx((p - 1) / (m + p - 1), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 2), (2, 6, 5), (3, 3, 3), (4, 4, 2), (4, 8, 3)])
def test_interleaved_loses_a_vth_of_that(p: int, m: int, v: int) -> None:
    """A rank has v stages of one unit each, so that a micro-batch takes it v units."""
    run = run_schedule("interleaved", p, m, virtual_stages=v, times=UNEVEN)
    assert run.busy[0] == pytest.approx(m * v * UNEVEN.all, rel=1e-9)
    for rank in range(p):
        assert run.bubble(rank) == pytest.approx((p - 1) * (v * UNEVEN.all) / v, rel=1e-9)


@pytest.mark.parametrize(("p", "m", "v"), [(1, 3, 1), (2, 4, 1), (4, 8, 1), (8, 4, 1), (2, 6, 5), (3, 3, 3), (4, 8, 3)])
def test_passes_side_by_side_lose_no_more_than_those_in_turn(p: int, m: int, v: int) -> None:
    """And hold the micro-batches of a whole pass more: with p stages, 2 (p - r) of 1F1B, and one more of interleaved."""
    name, options = ("1f1b", {}) if v == 1 else ("interleaved", {"virtual_stages": v})
    run = run_schedule(name, p, m, times=UNEVEN, ep_overlap=True, **options)
    assert run.seconds == pytest.approx((m * v + p - 1) * UNEVEN.all, rel=1e-9)
    alone, beside = (table(name, p, m, ep_overlap=said, **options) for said in (False, True))
    beside.check()
    for rank in range(p):
        expected = 2 * (p - rank) if v == 1 else in_flight(alone, rank) + 1
        assert in_flight(beside, rank) == min(expected, m * v)
        assert {len(slot) for slot in beside.rows[rank][1:-1]} >= ({2} if m > 2 * p else set())


@pytest.mark.parametrize("times", [ActionTimes(), UNEVEN, ActionTimes(1.0, 2.0, 0.5), ActionTimes(2.0, 1.0, 1.0)])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (3, 5), (4, 8), (6, 6)])
def test_zero_bubble_fills_with_weight_gradients(p: int, m: int, times: ActionTimes) -> None:
    """ZB-H1: (p - 1) (F + B - 2 W), where B is the whole backward pass."""
    run = run_schedule("zero-bubble", p, m, times=times)
    whole = times.input + times.weight
    for rank in range(p):
        assert run.bubble(rank) == pytest.approx((p - 1) * (times.forward + whole - 2 * times.weight), rel=1e-9)


@pytest.mark.parametrize("times", [ActionTimes(), ActionTimes(1.0, 1.0, 0.5), ActionTimes(2.0, 2.0, 1.5)])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 14), (6, 12), (8, 16)])
def test_dualpipe_loses_what_its_report_says(p: int, m: int, times: ActionTimes) -> None:
    """(p / 2 - 1) (F&B + B - 3 W); side by side a forward and a backward pass compute for F + B."""
    run = run_schedule("dualpipe", p, m, times=times)
    whole = times.input + times.weight
    expected = (p / 2 - 1) * ((times.forward + whole) + whole - 3 * times.weight)
    for rank in range(p):
        assert run.bubble(rank) == pytest.approx(expected, rel=1e-9, abs=1e-9)


# ---- what a place holds ---------------------------------------------------------------------------------------------


def test_micro_batches_that_are_held_at_once() -> None:
    """As Narayanan, Qi and DeepSeek say: all of them; p - r; p; p + 1."""
    assert [in_flight(table("gpipe", 4, 8), rank) for rank in range(4)] == [8] * 4
    assert [in_flight(table("1f1b", 4, 8), rank) for rank in range(4)] == [4, 3, 2, 1]
    assert [in_flight(table("zero-bubble", 4, 8), rank) for rank in range(4)] == [4] * 4
    assert [in_flight(table("dualpipe", 8, 20), rank) for rank in range(8)] == [9] * 8


def test_stages_of_a_rank_may_weigh_differently() -> None:
    """Interleaved, rank 1 of 2: two of its early stage, then one at a time of its late one."""
    schedule = table("interleaved", 2, 2, virtual_stages=2)
    assert in_flight(schedule, 1, lambda stage: 10.0 if stage == 3 else 1.0) == 2 * 1 + 10
    assert schedule.stages_of(1) == (1, 3)


# ---- any order is a step --------------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(1, 9), st.integers(2, 4))
@settings(max_examples=40, deadline=None)
@pytest.mark.slow
def test_every_schedule_can_run(p: int, m: int, v: int) -> None:
    for schedule in (
        table("gpipe", p, m),
        table("1f1b", p, m),
        table("zero-bubble", p, m),
        table("interleaved", p, m * p, virtual_stages=v),
    ):
        schedule.check()
    if p % 2 == 0:
        table("dualpipe", p, 2 * (p + m)).check()


@st.composite
def tables(draw: st.DrawFn) -> ScheduleTable:
    """Any placement of stages and any order that can run, some of it side by side, some backward passes split."""
    places, stages, micro_batches = draw(st.integers(1, 3)), draw(st.integers(2, 4)), draw(st.integers(1, 3))
    left: list[Action] = []
    for stage, index in product(range(stages), range(micro_batches)):
        halves: tuple[ActionPhase, ...] = draw(st.sampled_from((("backward",), ("input", "weight"))))
        left += [Action(stage, phase, index) for phase in ("forward", *halves)]
    where = {key: draw(st.integers(0, places - 1)) for key in product(range(stages), range(micro_batches))}
    rows: list[list[tuple[Action, ...]]] = [[] for _ in range(places)]
    done: set[Action] = set()
    while left:
        ready = [action for action in left if all(one & done for one in needed(action, stages))]
        action = draw(st.sampled_from(ready))
        row = rows[where[action.stage, action.micro_batch]]
        beside = row and draw(st.booleans()) and all(one & (done - set(row[-1])) for one in needed(action, stages))
        if beside and len(row[-1]) == 1:
            row[-1] = (*row[-1], action)
        else:
            row.append((action,))
        left.remove(action)
        done.add(action)
    assume(all(rows))
    return ScheduleTable(tuple(tuple(row) for row in rows))


def needed(action: Action, stages: int) -> list[set[Action]]:
    """What must run before an action: one of each set."""
    stage, index = action.stage, action.micro_batch
    if action.phase == "forward":
        return [{Action(stage - 1, "forward", index)}] if stage else []
    if action.phase == "weight":
        return [{Action(stage, "input", index)}]
    behind = {Action(stage + 1, phase, index) for phase in ("backward", "input")}  # type: ignore[arg-type]
    return [{Action(stage, "forward", index)}, *([behind] if stage + 1 < stages else [])]


@given(tables())
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_any_order_that_can_run_does(tmp_path_factory: pytest.TempPathFactory, schedule: ScheduleTable) -> None:
    """What is sent meets what is received in every placement and order, over links that take their time."""
    try:
        schedule.check()
    except OptionError:
        reject()  # two slots that wait for each other, side by side
    path = tmp_path_factory.mktemp("schedule") / "table.csv"
    write_table(schedule, path)
    result = triosim.simulate(
        uniform_trace(schedule.stages, UNEVEN),
        {"pp": len(schedule.rows)},
        topology={"topology": "switch", "bandwidth": 8.0, "latency": 0.1},
        schedule=str(path),
        batch_size=schedule.micro_batches,
        micro_batches=schedule.micro_batches,
    )
    work = schedule.micro_batches * schedule.stages * UNEVEN.all
    assert sum(rank.compute_s for rank in result.data.ranks) == pytest.approx(work)


@pytest.mark.parametrize("name", NAMES)
def test_a_real_step_does_the_same_work_in_any_order(name: str) -> None:
    """With tensor and data parallelism: every operator of every micro-batch once, and every gradient reduced."""
    everything = drawn(planned(TRANSFORMER, "dp=2,pp=2,tp=2", 8, schedule=name, micro_batches=8, batch_size=8))
    whole = drawn(planned(TRANSFORMER, "dp=2,tp=2", 4, micro_batches=8, batch_size=8))[0]
    pipeline = [everything[rank] for rank in (0, 4)]  # the ranks of one pipeline
    computed = [op for tasks in pipeline for op in operators_of(tasks)]
    for phase in ("forward", "backward"):
        seconds = sum(op.seconds for op in computed if op.phase == phase)
        assert seconds == pytest.approx(sum(op.seconds for op in operators_of(whole) if op.phase == phase))
    copies = 2 if name == "dualpipe" else 1
    assert sum(n for t in pipeline for _, n in collectives_of(t, "dp")) == copies * collectives_of(whole, "dp")[-1][1]
    along = [Counter(collectives_of(tasks, "tp")) for tasks in pipeline]
    assert along[0] + along[1] == Counter(collectives_of(whole, "tp"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("style", ["gather", "megatron"])
def test_a_real_step_runs_to_its_end(name: str, style: str) -> None:
    """Sends and receives meet, whatever their order, beside the collectives of the other axes."""
    result = triosim.simulate(
        TRANSFORMER,
        {"ddp": 2, "pp": 2, "tp": 2},
        schedule=name,
        topology="switch(8, bandwidth=10 GB/s)",
        micro_batches=8,
        batch_size=8,
        tp_style=style,  # type: ignore[arg-type]
        timeline=True,
    )
    assert result.recording is not None
    assert all(handle.done for handle in result.recording.handles or ())
    assert result.step_time_s > max(rank.compute_s for rank in result.data.ranks)


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zero-bubble"])
def test_ddp_reduces_a_gradient_when_the_last_micro_batch_has_computed_it(name: str) -> None:
    """Those of all stages of the rank, each once; with buckets of nothing, one by one."""
    options = {"micro_batches": 4, "batch_size": 8, "bucket_size": 1, "first_bucket_size": 1}
    plan = planned(TRANSFORMER, "ddp=2,pp=2", 4, schedule=name, **options)
    for place, tasks in enumerate(drawn(plan)[::2]):
        gradients = plan.program.held(place).gradients()
        reduced = [index for index, task in enumerate(tasks) if isinstance(task, AllReduce)]
        assert len(reduced) == len(gradients) > 0
        for index, gradient in zip(reduced, gradients, strict=True):
            ran = [op.id for op in operators_of(tasks[:index]) if op.id == gradient.ready]
            assert len(ran) == 4


def test_two_stages_of_a_rank_share_a_parameter_without_sending_it(tmp_path: Path) -> None:
    """A tied embedding in the stages 0 and 2, both on rank 0: one gradient, reduced once, when both stages have added to it."""
    b = traces.Builder(4)
    table, weight = b.parameter(32, 16), b.parameter(16, 16)
    words, hidden = b.tensor(4, 4, category="input", dtype="int64"), b.tensor(4, 4, 16)
    middle, logits = b.tensor(4, 4, 16), b.tensor(4, 4, 32)
    embedding = b.run("aten::embedding", [table, words], [hidden], layer="wte")
    linear = b.run("aten::linear", [hidden, weight], [middle], layer="fc")
    head = b.run("aten::linear", [middle, table], [logits], layer="head")
    gradient = b.tensor(4, 4, 32, category="gradient")
    for operator in (head, linear):
        found = b.backward("AddmmBackward0", operator, gradient)
        assert found is not None
        gradient = found
    b.backward("EmbeddingBackward0", embedding, gradient, data=False)
    path = written(tmp_path, "0,0,0F0", "0,1,2F0", "0,2,2B0", "0,3,0B0", "1,0,1F0", "1,1,1B0")
    first, _, second, _ = drawn(planned(b.trace(), "ddp=2,pp=2", 4, schedule=path, stages=("fc", "head")))
    boundary = hidden.nbytes
    assert [(task.destination, task.nbytes) for task in first if isinstance(task, Send)] == [(2, boundary)] * 2
    assert [(task.destination, task.nbytes) for task in second if isinstance(task, Send)] == [(0, boundary)] * 2
    assert collectives_of(first) == [("all_reduce", table.nbytes)]
    assert isinstance(first[-3], AllReduce)  # behind all computation: it is waited for, and the iteration ends


def test_dualpipe_adds_up_the_gradients_of_its_two_copies() -> None:
    plan = planned(traces.mlp(seconds=1e-3, sizes=(16, 16, 16)), "pp", 2, schedule="dualpipe", stages=("fc1",))
    nbytes = 2 * (16 * 16 + 16) * 4
    for rank, tasks in enumerate(drawn(plan)):
        last = [task for task in tasks if isinstance(task, Send)][-1]
        assert (last.destination, last.nbytes) == (1 - rank, nbytes)
        update = [op for op in operators_of(tasks) if op.phase == "optimizer"]
        assert sum(op.seconds for op in update) == pytest.approx(3e-3)  # both have all of it


# ---- the two parts of the backward pass -----------------------------------------------------------------------------


def products(operators: list[Operator]) -> int:
    return sum(op.name in ("aten::mm", "aten::bmm", "AddmmBackward0") for op in operators)


def test_weight_products_are_the_weight_part_and_data_products_are_not() -> None:
    """Of GPT-2: a layer has one product for its input and one for its weight, the last one too, which is tied."""
    trace = triosim.trace.formats.read(Path(__file__).parents[3] / "examples" / "traces" / "gpt2_a100_fake.json.gz")
    assert isinstance(trace, triosim.Trace)
    program = planned(trace, "pp", 2, schedule="zero-bubble", micro_batches=2).program
    backward = [op for stage in program.stages for block in stage.backward for op in block.operators]
    weight = [op for op in backward if op.id in program.weight_part]
    other = [op for op in backward if op.id not in program.weight_part]
    layers = 12 * 4 + 1
    assert products(weight) == products(other) == layers
    assert {op.name for op in weight} >= {"aten::mm", "aten::sum", "aten::embedding_dense_backward"}
    assert "aten::native_layer_norm_backward" in {op.name for op in other}
    assert not {op.name for op in weight} & {"aten::gelu_backward", "aten::mul", "aten::tanh_backward"}


def test_an_operator_that_computes_both_is_divided() -> None:
    """Half of its time each; the first layer's gives the weight's gradient alone, and is not."""
    plan = planned(traces.mlp(), "pp", 2, schedule="zero-bubble", stages=("fc1",), micro_batches=2, batch_size=16)
    backward = [op for stage in plan.program.stages for block in stage.backward for op in block.operators]
    parts: dict[str, list[float]] = {}
    for op in backward:
        if op.name == "AddmmBackward0":
            parts.setdefault(op.layer, []).append(op.seconds)
    assert parts == {"fc0": [2e-3], "fc1": [1e-3, 1e-3], "fc2": [1e-3, 1e-3]}
    weights = {op.layer for op in backward if op.id in plan.program.weight_part}
    assert weights == {"fc0", "fc1", "fc2"}


def test_the_gradient_of_the_input_does_not_wait_for_those_of_the_weights() -> None:
    tasks = drawn(planned(traces.mlp(), "pp", 2, schedule="zero-bubble", stages=("fc1",), micro_batches=2))[1]
    sent = next(index for index, task in enumerate(tasks) if isinstance(task, Send))
    before = [op for op in operators_of(tasks[:sent]) if op.phase == "backward"]
    assert not any(tensor.parameter is not None for op in before for tensor in op.outputs)


def test_a_trace_that_does_not_link_gradients_to_parameters_is_refused() -> None:
    trace = traces.mlp()
    bare = tuple(
        Operator(o.id, o.name, o.phase, o.layer, o.inputs, (), o.seconds, forward=o.forward)
        if o.phase == "backward"
        else o
        for o in trace.operators
        if o.phase != "optimizer"
    )
    with pytest.raises(TraceError, match="no weight gradients to delay"):
        planned(triosim.Trace(bare, 8), "pp", 2, schedule="zero-bubble", stages=("fc1",), micro_batches=2)


# ---- a schedule of one's own ----------------------------------------------------------------------------------------


def written(path: Path, *rows: str) -> str:
    file = path / "mine.csv"
    file.write_text("\n".join(("rank,slot,action", *rows)), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_that_is_written_and_read_is_the_same(name: str, tmp_path: Path) -> None:
    schedule = table(name, 4, 8)
    write_table(schedule, tmp_path / "table.csv")
    assert read_table(str(tmp_path / "table.csv")) == schedule
    assert run_schedule(str(tmp_path / "table.csv"), 4).seconds == run_schedule(name, 4, 8).seconds


def test_senders_and_receivers_may_have_another_order(tmp_path: Path) -> None:
    """Rank 0 makes 0, 1, 2; rank 1 takes 2, 0, 1. Units: F 1, B 2."""
    forward = [f"0,{slot},0F{index}" for slot, index in enumerate((0, 1, 2))]
    backward = [f"0,{3 + slot},0B{index}" for slot, index in enumerate((0, 1, 2))]
    last = [f"1,{slot},1{letter}{index}" for slot, (letter, index) in enumerate(
        (("F", 2), ("F", 0), ("F", 1), ("B", 1), ("B", 2), ("B", 0))
    )]  # fmt: skip
    path = written(tmp_path, *forward, *backward, *last)
    # Rank 1 starts at 3 and is busy for 9; its last backward pass is the first that rank 0 waits for: then 3 times 2.
    assert run_schedule(path, 2).seconds == pytest.approx(3 + 9 + 6, rel=1e-9)


def test_what_stands_in_one_slot_runs_side_by_side(tmp_path: Path) -> None:
    """While a forward pass gathers its output, the backward pass of another micro-batch computes."""
    b = traces.Builder(1)
    weight, data, out = b.parameter(1024, 2), b.tensor(1, 2, category="input"), b.tensor(1, 1024)
    linear = b.run("aten::linear", [data, weight], [out], layer="fc", seconds=1e-3)
    b.backward("AddmmBackward0", linear, b.tensor(1, 1024, category="gradient"), data=False, seconds=2e-3)
    both = written(tmp_path, "0,0,0F0", "0,1,0F1", "0,1,0B0", "0,2,0B1")
    apart = table("1f1b", 1, 2)
    write_table(apart, tmp_path / "apart.csv")
    topology = {"topology": "switch", "bandwidth": 2048e3, "latency": 0}  # half of 4,096 bytes in 1 ms
    seconds = [
        triosim.simulate(
            b.trace(), {"pp": 1, "tp": 2}, topology=topology, schedule=path, micro_batches=2, batch_size=2
        ).step_time_s
        for path in (both, str(tmp_path / "apart.csv"))
    ]
    assert seconds[1] - seconds[0] == pytest.approx(1e-3, rel=1e-6)


ONE = ("0,0,0F0", "0,1,0B0", "1,0,1F0", "1,1,1B0")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ONE[:3], "line 4: 1F0 needs 1B0, or 1I0 and 1W0; there is none"),
        ((*ONE, "1,2,1B0"), "line 6: 1B0 is already in line 5"),
        ((*ONE, "1,2,1W0"), "line 4: 1F0 needs 1B0, or 1I0 and 1W0; there is 1B0, 1W0"),
        (("0,0,0B0", "0,1,0F0", *ONE[2:]), "line 2: 0B0 waits for 0F0, which rank 0 never reaches"),
        ((*ONE[:2], "1,1,1F0", "1,0,1B0"), "line 5: 1B0 waits for 1F0, which rank 1 never reaches"),
        (("0,0,0F0", "1,1,0B0", *ONE[2:]), "line 3: 0B0 runs on rank 1, but 0F0 on rank 0"),
        ((*ONE, "0,4,0F2", "0,5,0B2"), "needs 0F1 elsewhere in the schedule"),
        (("0,0,0F0", "0,1,0G0", *ONE[2:]), "line 3: '0G0' is not an action"),
        (("0,0", *ONE), "line 2: 2 columns"),
        (("a,0,0F0",), "line 2: rank 'a' is not a number"),
        (("1,0,0F0",), "gives rank 0 nothing to do"),
        ((), "has no forward pass"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_line(rows: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as error:
        read_table(written(tmp_path, *rows))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_without_the_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bare.csv"
    path.write_text("0,0,0F0\n", encoding="utf-8")
    with pytest.raises(OptionError, match="line 1"):
        read_table(str(path))


@pytest.mark.parametrize(
    ("name", "places", "micro_batches", "virtual", "message"),
    [
        ("interleaved", 4, 6, None, "6 micro-batches are not divisible by 4 pipeline ranks"),
        ("interleaved", 4, 8, 1, "choose 1f1b"),
        ("dualpipe", 3, 8, None, "3 pipeline ranks are an odd number"),
        ("dualpipe", 4, 6, None, "even number of 8 or more"),
        ("dualpipe", 4, 9, None, "even number of 8 or more"),
        ("1f1b", 4, 8, 2, "'1f1b' has no virtual stages"),
        ("nowhere.csv", 4, 8, None, "cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(
    name: str, places: int, micro_batches: int, virtual: int | None, message: str
) -> None:
    with pytest.raises(OptionError) as error:
        table(name, places, micro_batches, virtual_stages=virtual)
    assert message in str(error.value)


def test_an_unknown_schedule_is_refused_as_any_unknown_part() -> None:
    with pytest.raises(PluginError, match="did you mean '1f1b'"):
        table("1f1B", 4, 8)


def test_a_table_for_other_numbers_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, *ONE)
    with pytest.raises(OptionError, match="is for 2 pipeline ranks, not 3"):
        table(path, 3, 1)
    with pytest.raises(OptionError, match="is for 1 micro-batches, not 4"):
        table(path, 2, 4)
    assert chosen_schedule(RunConfig.of(schedule=path)).micro_batches(2) == 1


def test_a_table_of_forward_passes_alone_is_for_inference(tmp_path: Path) -> None:
    schedule = chosen_schedule(RunConfig.of(schedule=written(tmp_path, "0,0,0F0", "1,0,1F0")))
    assert table_of(schedule, 2, 1, training=False).micro_batches == 1
    with pytest.raises(OptionError, match="line 2: 0F0 needs 0B0, or 0I0 and 0W0, in training; there is none"):
        table_of(schedule, 2, 1)


class Lazy(PipelineSchedule):
    """A schedule without a table."""


class Odd(PipelineSchedule):
    """A schedule whose table is what a test gives."""

    rows: ClassVar[list[list[Action]]] = []

    def table(self, ranks: int, micro_batches: int) -> ScheduleTable:
        """Return the table."""
        return ScheduleTable.of(self.rows)


def test_a_schedule_class_without_a_table_is_refused() -> None:
    with pytest.raises(PluginError, match="Lazy: does not define table"):
        chosen_schedule(RunConfig.of(schedule=Lazy))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[Action(0, "forward", 0), Action(0, "sideways", 0)]], "'sideways'.* is of an unknown kind; known: backward,"),  # type: ignore[arg-type]
        ([[Action(0, "forward", 0)]], "schedule, rank 0: 0F0 needs 0B0, or 0I0 and 0W0, in training"),
        ([[Action(0, "backward", 0)]], "is for 0 micro-batches, not 1"),
    ],
)
def test_what_a_schedule_class_returns_is_checked(
    rows: list[list[Action]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, "rows", rows)
    with pytest.raises(OptionError, match=message):
        table_of(chosen_schedule(RunConfig.of(schedule=Odd)), 1, 1)


def test_inference_runs_the_forward_passes_alone() -> None:
    for name in NAMES:
        everything = drawn(planned(TRANSFORMER, "pp", 2, schedule=name, training=False, micro_batches=4, batch_size=8))
        assert {op.phase for tasks in everything for op in operators_of(tasks)} == {"forward"}
        received = sum(isinstance(task, Recv) for tasks in everything for task in tasks)
        assert received == sum(isinstance(task, Send) for tasks in everything for task in tasks) > 0


# ---- with what others do to the backward pass -----------------------------------------------------------------------


class ComputedAgain(Extrapolator):
    """Every layer's forward operators run again ahead of its backward ones."""

    axis = "again"
    phase: Phase = "forward"

    def transform(self, program: Program, mesh: Mesh) -> Program:
        (stage,) = program.stages
        fresh = max(op.id for op in program.operators)
        blocks = []
        for block in stage.backward:
            again = [op for one in stage.forward if one.layer == block.layer for op in one.operators]
            copies = tuple(replace(op, id=fresh + 1 + i, phase=self.phase) for i, op in enumerate(again))
            fresh += len(copies)
            blocks.append(replace(block, items=(*copies, *block.items)))
        return replace(program, stages=(replace(stage, backward=tuple(blocks)),))


class AgainAsBackward(ComputedAgain):
    phase: Phase = "backward"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [ComputedAgain, AgainAsBackward])
def test_what_is_computed_again_goes_with_its_backward_pass(name: str, kind: type[Extrapolator]) -> None:
    """Forward operators in the backward pass are computed by the stage that has the layer, and nothing more is sent."""
    options = {"schedule": name, "micro_batches": 4, "batch_size": 8}
    trace = traces.mlp(sizes=(16, 16, 16, 16, 16))
    usual, again = (drawn(planned(trace, parallel, **options)) for parallel in ({"pp": 2}, {kind: 1, "pp": 2}))
    for plain, more in zip(usual, again, strict=True):
        forward = sum(op.seconds for op in operators_of(plain) if op.phase == "forward")
        assert total(more) == pytest.approx(total(plain) + forward)
        sent = [[(t.destination, t.nbytes) for t in tasks if isinstance(t, Send)] for tasks in (more, plain)]
        assert sent[0] == sent[1]


def total(tasks: list[Task]) -> float:
    return sum(op.seconds for op in operators_of(tasks))
