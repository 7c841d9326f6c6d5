"""pp: which stage runs what, what is sent between stages, and in which order micro-batches go through."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st
from traces import collectives_of, draw, groups_of, operators_of, planned

from triosim.config import RunConfig
from triosim.errors import OptionError, TraceError
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.pipeline.schedules.gpipe import GPipe
from triosim.extrapolators.pipeline.stages import balanced_starts
from triosim.tasks import Compute, Copy, Recv, Send, Task, Wait
from triosim.trace import Operator, Tensor, Trace

MLP, CONVNET = traces.mlp(), traces.convnet()
MAP = 8 * 8 * 8 * 8 * 4  # bytes of the convnet's feature maps


def sends(tasks: list[Task]) -> list[tuple[int, float]]:
    return [(task.destination, task.nbytes) for task in tasks if isinstance(task, Send)]


def receives(tasks: list[Task]) -> list[int]:
    return [task.source for task in tasks if isinstance(task, Recv)]


def layers(tasks: list[Task], phase: str) -> list[str]:
    return list(dict.fromkeys(op.layer for op in operators_of(tasks) if op.phase == phase))


def drawn(plan: ParallelPlan) -> list[list[Task]]:
    return [draw(plan.tasks(rank), rank) for rank in range(plan.world)]


# ---- stages ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 10), min_size=1, max_size=9), st.integers(1, 9))
def test_no_contiguous_partition_has_a_faster_slowest_stage(seconds: list[float], stages: int) -> None:
    if stages > len(seconds):
        with pytest.raises(OptionError, match=f"only {len(seconds)} layers"):
            balanced_starts(seconds, stages)
        return

    def slowest(starts: tuple[int, ...]) -> float:
        return max(sum(seconds[a:b]) for a, b in zip(starts, (*starts[1:], len(seconds)), strict=True))

    found = tuple(balanced_starts(seconds, stages))
    assert len(found) == stages
    assert list(found) == sorted(set(found))
    best = min(slowest((0, *cut)) for cut in combinations(range(1, len(seconds)), stages - 1))
    assert slowest(found) == pytest.approx(best, abs=1e-9)


def test_stages_balance_time_and_not_the_number_of_layers() -> None:
    plan = planned(CONVNET, "pp", 2, micro_batches=1)
    first, second = drawn(plan)
    # Forward and backward, conv1 takes 9 ms (with the sum of its gradients), conv2 12, the other five 14 together.
    assert layers(first, "forward") == ["conv1", "conv2"]
    assert layers(second, "forward")[0] == "add"


def test_stages_start_where_the_user_says() -> None:
    plan = planned(MLP, "pp", 3, stages=("relu0", "fc2"), micro_batches=2)
    assert [layers(tasks, "forward") for tasks in drawn(plan)] == [["fc0"], ["relu0", "fc1", "relu1"], ["fc2", "loss"]]
    assert [layers(tasks, "backward") for tasks in drawn(plan)] == [["fc0"], ["relu1", "fc1", "relu0"], ["loss", "fc2"]]


def test_a_module_stands_for_its_layers() -> None:
    plan = planned(traces.transformer(blocks=2), "pp", 2, stages=("h.1",), micro_batches=1)
    assert layers(drawn(plan)[1], "forward")[0] == "h.1.ln_1"


def test_stages_can_have_as_many_transformer_layers_each_as_megatrons() -> None:
    """The first stage has the words, and the last the projection, beside their two layers: whatever these take."""
    plan = planned(traces.transformer(blocks=4), "pp", 2, micro_batches=1, options={"stages": "equal"})
    first, second = (layers(tasks, "forward") for tasks in drawn(plan))
    assert (first[0], first[1], second[0]) == ("wte", "h.0.ln_1", "h.2.ln_1")
    assert second[-1] == "loss"


def test_stages_keep_transformer_layers_whole_where_there_are_enough_of_them() -> None:
    trace = traces.transformer(blocks=4)

    def units(**extra: str) -> list[set[str]]:
        plan = planned(trace, "pp", 3, micro_batches=1, options=extra)
        return [{one[:3] for one in layers(tasks, "forward") if one.startswith("h.")} for tasks in drawn(plan)]

    whole = units()
    assert sum(map(len, whole)) == len(set().union(*whole)) == 4
    assert units(stages="whole") == whole
    assert sum(map(len, units(stages="balanced"))) > 4  # some layer is in two stages


def test_more_stages_than_layers_divide_layers() -> None:
    every = drawn(planned(traces.transformer(blocks=1), "pp", 4, micro_batches=1))  # an embedding, a layer and a head
    assert all(layers(tasks, "forward") for tasks in every)
    assert sum(any(layer.startswith("h.0") for layer in layers(tasks, "forward")) for tasks in every) > 1


def test_the_logits_stay_in_the_stage_of_their_loss() -> None:
    """Two layers in two stages: only the activations between them are sent, not the logits, which are larger."""
    trace = traces.transformer(blocks=2)
    for rank, tasks in enumerate(drawn(planned(trace, "pp", 2, micro_batches=1))):
        assert [nbytes for _, nbytes, *_ in sends(tasks)] == [2 * 8 * 16 * 4], rank


@pytest.mark.parametrize(
    ("trace", "gpus", "options", "said"),
    [
        (traces.transformer(blocks=4), 3, {"options": {"stages": "equal"}}, "4 layers do not divide among 3 stages"),
        (MLP, 2, {"options": {"stages": "whole"}}, "no module has a number"),
        (MLP, 2, {"options": {"stages": "equal"}, "stages": ("fc1",)}, "--stages and --option stages="),
        (MLP, 2, {"options": {"stages": "thirds"}}, "'thirds' is not known"),
        (MLP, 2, {"options": {"stages": "equal"}, "balance_stages": True}, "--balance-stages"),
    ],
)
def test_stages_that_cannot_be(trace: Trace, gpus: int, options: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        planned(trace, "pp", gpus, micro_batches=1, **options)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("trace", [MLP, CONVNET, traces.transformer(blocks=2)])
def test_the_stages_together_are_the_whole(trace: Trace, stages: int) -> None:
    everything = [op for tasks in drawn(planned(trace, "pp", stages, micro_batches=1)) for op in operators_of(tasks)]
    ids = Counter(op.id for op in everything if op.phase != "optimizer")
    assert ids == {op.id: 1 for op in trace.operators if op.phase != "optimizer"}
    assert sum(op.seconds for op in everything) == pytest.approx(trace.seconds)
    for operator in trace.operators:
        parts = [op for op in everything if op.id == operator.id]
        assert Counter(t.id for p in parts for t in p.inputs) == Counter(t.id for t in operator.inputs)


def test_each_stage_updates_its_own_parameters_once_at_full_size() -> None:
    plan = planned(MLP, "pp", 2, stages=("fc2",), micro_batches=4)
    for tasks, mine in zip(drawn(plan), ((0, 1, 2, 3), (4, 5)), strict=True):
        updates = [op for op in operators_of(tasks) if op.name == "aten::_foreach_addcdiv_"]
        assert len(updates) == 1
        parameters = list(MLP.parameters.values())
        assert [t for t in updates[0].inputs if t.category == "parameter"] == [parameters[i] for i in mine]
        share = sum(parameters[i].nbytes for i in mine) / sum(p.nbytes for p in parameters)
        assert updates[0].seconds == pytest.approx(1e-3 * share)


def test_an_optimizer_that_names_no_parameters_is_divided_by_bytes_busy_time_included() -> None:
    bare = Operator(99, "aten::step", "optimizer", "optimizer", (), (), 1e-3, busy_seconds=8e-4)
    trace = Trace((*(op for op in MLP.operators if op.phase != "optimizer"), bare), 8)
    parts = [
        op for tasks in drawn(planned(trace, "pp", 2, micro_batches=1)) for op in operators_of(tasks) if op.id == 99
    ]
    assert len(parts) == 2
    assert sum(op.seconds for op in parts) == pytest.approx(1e-3)
    assert [op.busy_seconds for op in parts] == pytest.approx([0.8 * op.seconds for op in parts])


# ---- what is sent ---------------------------------------------------------------------------------------------------


def test_activations_go_forward_and_their_gradients_come_back() -> None:
    first, second = drawn(planned(MLP, "pp", 2, stages=("fc1",), micro_batches=2))
    nbytes = 8 // 2 * 32 * 4
    assert sends(first) == [(1, nbytes)] * 2
    assert sends(second) == [(0, nbytes)] * 2
    assert (receives(first), receives(second)) == ([1, 1], [0, 0])


def test_a_skip_connection_is_sent_to_each_stage_that_uses_it() -> None:
    """conv1's output goes to conv2 and to the sum; both gradients come back to conv1."""
    first, second, third = drawn(planned(CONVNET, "pp", 3, stages=("conv2", "add"), micro_batches=1))
    assert sends(first) == [(1, MAP), (2, MAP)]
    assert sends(second) == [(2, MAP), (0, MAP)]
    assert sends(third) == [(0, MAP), (1, MAP)]
    # The sum of the two gradients is where they are needed.
    assert ("add", "backward") in {(op.layer, op.phase) for op in operators_of(first)}


def test_views_of_one_storage_are_sent_once() -> None:
    b = traces.Builder(4)
    data, weight, packed = b.tensor(4, 8, category="input"), b.parameter(24, 8), b.tensor(4, 24)
    b.run("aten::linear", [data, weight], [packed], layer="qkv")
    parts = [b.view(packed, 4, 8) for _ in range(3)]
    b.run("aten::split", [packed], parts, layer="qkv", seconds=0.0)
    b.run("aten::attention", [*parts, packed], [b.tensor(4, 8)], layer="attention")
    first, _ = drawn(planned(b.trace(), "pp", 2, stages=("attention",), training=False))
    assert sends(first) == [(1, packed.nbytes / 2)] * 2  # two micro-batches of half the samples


def test_an_in_place_result_is_new_data() -> None:
    """conv | relu_ | conv: the ReLU's result goes on, not what it was given."""
    b = traces.Builder(4)
    data, out = b.tensor(4, 3, 8, 8, category="input"), b.tensor(4, 8, 8, 8)
    b.run("aten::conv2d", [data, b.parameter(8, 3, 3, 3)], [out], layer="conv1")
    b.run("aten::relu_", [out], [out], layer="relu")
    b.run("aten::conv2d", [out, b.parameter(8, 8, 3, 3)], [b.tensor(4, 8, 8, 8)], layer="conv2")
    plan = planned(b.trace(), "pp", 3, stages=("relu", "conv2"), micro_batches=1, training=False)
    assert [sends(tasks) for tasks in drawn(plan)] == [[(1, out.nbytes)], [(2, out.nbytes)], []]


def test_every_send_has_its_receive_in_the_same_order() -> None:
    for trace in (MLP, CONVNET, traces.transformer(blocks=2)):
        everything = drawn(planned(trace, "pp", 4, micro_batches=2))
        sent = Counter((rank, to) for rank, tasks in enumerate(everything) for to, _ in sends(tasks))
        received = Counter((source, rank) for rank, tasks in enumerate(everything) for source in receives(tasks))
        assert sent == received


def test_each_peer_and_direction_has_a_stream_of_its_own() -> None:
    tasks = drawn(planned(CONVNET, "pp", 3, stages=("conv2", "add"), micro_batches=1))[1]
    streams = {(type(task).__name__, task.stream) for task in tasks if isinstance(task, Send | Recv)}
    assert streams == {
        ("Send", "send to 0"),
        ("Send", "send to 2"),
        ("Recv", "receive from 0"),
        ("Recv", "receive from 2"),
    }


def test_tied_parameters_add_up_their_gradients_before_the_update() -> None:
    b = traces.Builder(2)
    table = b.parameter(32, 16)
    words, hidden, logits = b.tensor(2, 4, category="input", dtype="int64"), b.tensor(2, 4, 16), b.tensor(2, 4, 32)
    embedding = b.run("aten::embedding", [table, words], [hidden], layer="wte")
    head = b.run("aten::linear", [hidden, table], [logits], layer="head")
    into = b.backward("AddmmBackward0", head, b.tensor(2, 4, 32, category="gradient"))
    assert into is not None
    b.backward("EmbeddingBackward0", embedding, into, data=False)
    first, second = drawn(planned(b.trace(), "pp", 2, micro_batches=1))
    assert sends(first) == [(1, hidden.nbytes), (1, table.nbytes)]
    assert sends(second) == [(0, hidden.nbytes), (0, table.nbytes)]


# ---- the schedule ---------------------------------------------------------------------------------------------------


def test_gpipe_runs_all_forward_then_all_backward() -> None:
    assert [(action.phase[0], action.micro_batch) for action in GPipe(RunConfig()).table(4, 3).actions(1)] == [
        ("f", 0), ("f", 1), ("f", 2), ("b", 0), ("b", 1), ("b", 2),
    ]  # fmt: skip


def test_micro_batches_are_computed_one_after_the_other_and_the_optimizer_once() -> None:
    tasks = drawn(planned(MLP, "pp", 2, stages=("fc1",), micro_batches=4, schedule="gpipe"))[1]
    phases = [task.operators[0].phase for task in tasks if isinstance(task, Compute)]
    assert phases == ["forward"] * 4 + ["backward"] * 4 + ["optimizer"]
    assert {op.inputs[0].shape for op in operators_of(tasks) if op.layer == "fc1" and op.phase == "forward"} == {
        (2, 32)
    }


def test_as_many_micro_batches_as_stages_unless_the_user_says() -> None:
    assert planned(MLP, "pp", 4).program.micro_batches == 4
    assert planned(MLP, "pp", 4, micro_batches=8).program.micro_batches == 8


def test_a_stage_waits_for_what_it_needs_and_posts_the_next_receive_first() -> None:
    tasks = drawn(planned(MLP, "pp", 2, stages=("fc1",), micro_batches=2, training=False))[1]
    assert [type(task).__name__ for task in tasks] == [
        "Recv",
        "Recv",
        "Wait",
        "Compute",
        "Wait",
        "Compute",
        "Iteration",
    ]
    first = tasks[2]
    assert isinstance(first, Wait)
    assert first.handles[0].task is tasks[0]


def test_each_stage_copies_the_input_that_it_uses() -> None:
    everything = drawn(planned(MLP, "pp", 3, stages=("fc1", "fc2"), micro_batches=2, copy_input=True))
    copied = [[task.nbytes for task in tasks if isinstance(task, Copy)] for tasks in everything]
    assert copied == [[4 * 16 * 4] * 2, [], [4 * 8] * 2]  # samples at the front, labels at the loss


# ---- with the others, and what must not pass in silence -------------------------------------------------------------


def test_dp_reduces_each_stages_gradients_in_its_own_group() -> None:
    plan = planned(MLP, "dp=2,pp=2", 4, stages=("fc2",))
    everything = drawn(plan)
    assert [groups_of(tasks)["dp"].ranks for tasks in everything] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    reduced = [sum(nbytes for _, nbytes in collectives_of(tasks)) for tasks in everything]
    assert reduced[0] + reduced[2] == sum(tensor.nbytes for tensor in MLP.parameters.values())
    assert sends(everything[1])[0][0] == 3


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_stays_divided_between_a_pair_is_sent_divided(ranks: int) -> None:
    """The cut falls between the layers of a pair, and a view shows the whole tensor before it is used."""
    b = traces.Builder(2)
    data, weights = b.tensor(2, 16, category="input"), [b.parameter(32, 16), b.parameter(16, 32)]
    inner, active, out = b.tensor(2, 32), b.tensor(2, 32), b.tensor(2, 16)
    b.run("aten::linear", [data, weights[0]], [inner], layer="in")
    shown, back = b.view(inner, 2, 8, 4), b.view(inner, 2, 32)
    b.run("aten::view", [inner], [shown], layer="act", seconds=0.0)
    b.run("aten::view", [shown], [back], layer="act", seconds=0.0)
    b.run("aten::gelu", [back], [active], layer="act")
    b.run("aten::linear", [active, weights[1]], [out], layer="out")
    plan = planned(b.trace(), f"pp=2,tp={ranks}", stages=("act",), micro_batches=1, tp_style="megatron", training=False)
    assert sends(drawn(plan)[0]) == [(ranks, inner.nbytes / ranks)]


def test_each_of_the_gpus_that_have_the_same_can_send_its_part() -> None:
    """Megatron's scatter/gather: a half goes over the network, and both halves meet again among those that receive."""
    trace, written = traces.transformer(blocks=2), "tp=2,pp=2"
    options = {"stages": ("h.1.ln_1",), "micro_batches": 1, "tp_style": "megatron"}
    whole = [drawn(planned(trace, written, 4, **options, options=extra)) for extra in ({}, {"sends": "parts"})]
    for rank in range(4):
        before, after = (sends(tasks[rank]) for tasks in whole)
        assert after == [(peer, nbytes / 2) for peer, nbytes in before]
        gathered = [nbytes for kind, nbytes in collectives_of(whole[1][rank], "tp") if kind == "all_gather"]
        assert gathered == [nbytes for tasks in whole[0] for peer, nbytes in sends(tasks) if peer == rank]
    assert not any(kind == "all_gather" for kind, _ in collectives_of(whole[0][0], "tp"))


def test_parts_of_parts_are_refused() -> None:
    """With sequence parallelism a GPU has its own part of what crosses, and nothing else to send."""
    with pytest.raises(OptionError, match="with sequence parallelism each GPU sends its part already"):
        planned(
            traces.transformer(),
            "tp=2,pp=2",
            4,
            tp_style="megatron",
            sequence_parallel=True,
            options={"sends": "parts"},
        )


@pytest.mark.parametrize(
    ("written", "division", "why"),
    [("dp=2,pp=2", "auto", "without tp no two GPUs"), ("tp=2,pp=3", "balanced", "a stage begins inside a layer")],
)
def test_parts_are_of_what_all_gpus_of_a_layer_have(written: str, division: str, why: str) -> None:
    options = {"sends": "parts", "stages": division}
    with pytest.raises(OptionError, match=why):
        planned(traces.transformer(blocks=4), written, tp_style="megatron", micro_batches=1, options=options)


@pytest.mark.parametrize("written", ["dp=2,pp=2,tp=2", "tp=2,pp=2,dp=2"])
@pytest.mark.parametrize("style", ["gather", "megatron"])
def test_all_three_together(written: str, style: str) -> None:
    trace = traces.transformer(blocks=2)
    plan = planned(trace, written, 8, tp_style=style)
    everything = drawn(plan)
    assert groups_of(everything[7])["tp"].ranks == (6, 7)
    assert groups_of(everything[7])["dp"].ranks == (5, 7)
    assert sends(everything[1])[0][0] == 5
    alone = sum(nbytes for kind, nbytes in collectives_of(draw(planned(trace, "tp", 2, tp_style=style).tasks(0))))
    stages = [collectives_of(everything[rank], "tp") for rank in (0, 4)]
    assert sum(nbytes for stage in stages for _, nbytes in stage) == alone  # two micro-batches of half the bytes


def test_an_asynchronous_all_reduce_is_awaited_before_its_gradient_is_sent_on() -> None:
    """The stage starts at the first layer of a pair: the gradient of its input is reduced, then sent."""
    plan = planned(traces.transformer(), "tp=2,pp=2", 4, stages=("h.0.mlp.fc",), micro_batches=1, tp_style="megatron")
    tasks = draw(plan.tasks(2), 2)
    residual, normed = (index for index, task in enumerate(tasks) if isinstance(task, Send))
    assert isinstance(tasks[residual - 1], Compute)  # needs no sum, and does not wait for one
    weight_half, before = tasks[normed - 2 : normed]
    assert isinstance(weight_half, Compute)
    assert isinstance(before, Wait)
    assert before.handles[0].task.stream == "tp communication"


def test_a_stage_to_which_nothing_would_be_sent_is_refused() -> None:
    def bare(number: int, layer: str) -> Operator:
        tensor = Tensor(number, (8, 4), category="input")
        return Operator(number, "op", "forward", layer, (tensor,), (Tensor(10 + number, (8, 4)),), 1e-3)

    with pytest.raises(TraceError, match="nothing would be sent to pipeline stage 1"):
        planned(Trace((bare(1, "a"), bare(2, "b")), 8), "pp", 2, training=False)


def test_a_backward_pass_without_links_and_layers_is_refused() -> None:
    unlinked = tuple(
        Operator(o.id, o.name, o.phase, "?" if o.phase == "backward" else o.layer, o.inputs, o.outputs, o.seconds)
        for o in MLP.operators
    )
    with pytest.raises(TraceError, match="cannot be divided into stages"):
        planned(Trace(unlinked, 8), "pp", 2)


def test_stages_inside_of_layers_are_noted() -> None:
    """A network without repeated modules has no layers to divide between, and is divided anywhere."""
    deep = traces.transformer(blocks=2)
    what = "5 stages are more than there are whole layers, embedding and loss counted"
    assert any(what in note for note in planned(deep, "pp", 5, micro_batches=1).notes)
    assert not any("whole layers" in note for note in planned(deep, "pp", 4, micro_batches=1).notes)
    assert not any("whole layers" in note for note in planned(traces.mlp(), "pp", 2, micro_batches=1).notes)


def test_stages_without_a_layer_are_noted() -> None:
    """Frameworks can have them, for the embedding or the loss, but no layer is divided."""
    deep = traces.transformer(blocks=2)

    def noted(stages: int) -> list[str]:
        return [note for note in planned(deep, "pp", stages, micro_batches=1).notes if "stages are more" in note]

    assert noted(2) == []
    assert noted(3)[0].startswith("pp: 3 stages are more than the 2 layers, so stage ")
    both = "so stages 0, 3 have no layer, only the embedding or the loss"
    assert noted(4) == [f"pp: 4 stages are more than the 2 layers, {both}"]
