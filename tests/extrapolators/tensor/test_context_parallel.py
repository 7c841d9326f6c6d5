"""cp: what each rank has of the sequence, what goes round the ring or is gathered, and who reduces gradients together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import traces
from traces import collectives_of, draw, groups_of, operators_of, planned

from triosim import simulate
from triosim.errors import OptionError, TraceError
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.tasks import Batch, Compute, Recv, Send, Task, Wait
from triosim.trace import Operator, Trace

TRACE = traces.transformer(tokens=16)
KEYS = 2 * (2 * 16 * 16 * 4)  # bytes of the keys and values of all tokens
ALL_PARAMETERS = sum(tensor.nbytes for tensor in TRACE.parameters.values())


def causal(trace: Trace) -> Trace:
    def of(operator: Operator) -> Operator:
        return replace(operator, attributes={"is_causal": True}) if operator.layer.endswith(".attn") else operator

    return replace(trace, operators=tuple(map(of, trace.operators)))


def gathering(parallel: str, trace: Trace = TRACE, **options: Any) -> ParallelPlan:
    return planned(trace, parallel, options={"cp": "all-gather"}, **options)


def rounds_of(tasks: list[Task]) -> list[float]:
    return [part.nbytes for task in tasks if isinstance(task, Batch) for part in task.parts if isinstance(part, Send)]


def attention_of(tasks: list[Task], phase: str = "forward") -> list[Operator]:
    return [o for o in operators_of(tasks) if o.layer == "h.0.attn" and o.phase == phase]


def test_every_operator_works_on_a_share_of_the_sequence() -> None:
    operators = operators_of(draw(planned(TRACE, "cp=4").tasks(0)))
    sizes = {o.layer: o.outputs[0].shape for o in operators if o.phase == "forward"}
    assert sizes["wte"] == sizes["h.0.ln_1"] == sizes["h.0.attn.proj"] == sizes["ln_f"] == (2, 4, 16)
    assert sizes["h.0.mlp.fc"] == sizes["lm_head"] == (2, 4, 64)
    (gradient,) = [o for o in operators if o.layer == "h.0.mlp.fc" and o.phase == "backward"]
    assert [tensor.shape for tensor in gradient.outputs] == [(2, 4, 16), (64, 16)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_keys_and_values_go_round_and_their_gradients_go_home(ranks: int) -> None:
    """N - 1 hops forward; backward N - 1 of keys and values and N of their gradients."""
    assert rounds_of(draw(planned(TRACE, "cp", ranks).tasks(0))) == [KEYS / ranks] * (3 * ranks - 2)


def test_a_block_comes_from_the_rank_before_and_goes_to_the_next_while_it_is_used() -> None:
    tasks = draw(planned(TRACE, "cp=4").tasks(1), 1)
    (first, *_) = [place for place, task in enumerate(tasks) if isinstance(task, Batch)]
    exchange, used, wait = tasks[first : first + 3]
    assert isinstance(exchange, Batch)
    send, receive = exchange.parts
    assert isinstance(send, Send)
    assert isinstance(receive, Recv)
    assert (send.destination, receive.source) == (2, 0)
    assert isinstance(used, Compute)
    assert [operator.name for operator in used.operators] == ["aten::scaled_dot_product_attention"]
    assert isinstance(wait, Wait)
    assert wait.handles[0].task is exchange


def test_each_rank_multiplies_its_queries_with_every_block() -> None:
    """A quarter of the queries by four quarters of the keys is a quarter of the work."""
    tasks = draw(planned(TRACE, "cp=4").tasks(0))
    forward = [o for o in attention_of(tasks) if "attention" in o.name]
    assert [o.inputs[1].shape for o in forward] == [(2, 4, 4, 4)] * 4
    whole = next(o for o in TRACE.operators if o.layer == "h.0.attn")
    assert sum(o.seconds for o in forward) == pytest.approx(whole.seconds / 4)
    backward = [o for o in attention_of(tasks, "backward") if "Backward" in o.name]
    assert len(backward) == 4


def test_causal_attention_is_balanced_in_zigzags() -> None:
    """The causal half of its own block, and of each other block all queries by half of the keys: as much work each."""
    forward = [o for o in attention_of(draw(planned(causal(TRACE), "cp=4").tasks(0))) if "attention" in o.name]
    assert [o.attributes["is_causal"] for o in forward] == [True, False, False, False]
    assert [(o.inputs[0].shape, o.inputs[1].shape) for o in forward] == [
        ((2, 4, 4, 4), (2, 4, 4, 4)),
        *[((2, 4, 4, 4), (2, 4, 2, 4))] * 3,
    ]
    assert rounds_of(draw(planned(causal(TRACE), "cp=4").tasks(0))) == [KEYS / 4] * 10  # blocks are sent whole


def test_keys_and_values_can_be_gathered_instead() -> None:
    tasks = draw(gathering("cp=4").tasks(0))
    assert not rounds_of(tasks)
    assert collectives_of(tasks, "cp")[:2] == [("all_gather", KEYS), ("reduce_scatter", KEYS)]
    (forward,) = [o for o in attention_of(tasks) if "attention" in o.name]
    assert [tensor.shape for tensor in forward.inputs] == [(2, 4, 4, 4), (2, 4, 16, 4), (2, 4, 16, 4)]


def test_gradients_are_reduced_as_ddp_does_where_nothing_else_does() -> None:
    reduced = [entry for entry in collectives_of(draw(planned(TRACE, "cp=4").tasks(0))) if entry[0] == "all_reduce"]
    assert reduced == [("all_reduce", ALL_PARAMETERS)]
    assert not collectives_of(draw(planned(TRACE, "cp=4", training=False).tasks(0)))


def test_axes_stand_tensor_context_data_and_gradients_are_reduced_over_the_last_two_together() -> None:
    plan = planned(TRACE, "dp=2,cp=2,tp=2", 8, tp_style="megatron")
    tasks = draw(plan.tasks(5), 5)
    assert plan.global_batch_size == 2 * TRACE.batch_size
    assert {name: group.ranks for name, group in groups_of(tasks).items()} == {"tp": (4, 5), "cp+dp": (1, 3, 5, 7)}
    exchange = next(task for task in tasks if isinstance(task, Batch))
    assert isinstance(exchange.parts[0], Send)
    assert exchange.parts[0].destination == 7


@pytest.mark.parametrize("by_sequence", [False, True])
def test_tensor_parallelism_divides_what_goes_round_and_context_parallelism_what_it_reduces(by_sequence: bool) -> None:
    tasks = draw(planned(TRACE, "cp=2,tp=2", 4, tp_style="megatron", sequence_parallel=by_sequence).tasks(0))
    assert rounds_of(tasks) == [KEYS / 2 / 2] * 4
    found = Counter(collectives_of(tasks, "tp"))
    stream = 2 * 8 * 16 * 4
    if by_sequence:
        assert found["all_gather", stream] + found["reduce_scatter", stream] == 10 + 5
        norm = next(o for o in operators_of(tasks) if o.layer == "h.0.ln_1")
        assert norm.outputs[0].shape == (2, 4, 16)
    else:
        assert found == {("all_reduce", stream): 6, ("all_reduce", 2 * 8 * 4): 3}


def test_tensor_parallelism_divides_what_is_gathered() -> None:
    tasks = draw(gathering("cp=2,tp=2", tp_style="megatron").tasks(0))
    assert collectives_of(tasks, "cp")[:2] == [("all_gather", KEYS / 2), ("reduce_scatter", KEYS / 2)]
    (forward,) = [o for o in attention_of(tasks) if "attention" in o.name]
    assert [tensor.shape for tensor in forward.inputs] == [(2, 2, 8, 4), (2, 2, 16, 4), (2, 2, 16, 4)]


def test_parameters_are_sharded_over_context_and_data_together() -> None:
    tasks = draw(planned(TRACE, "cp=2,fsdp=2").tasks(0))
    gathers = [nbytes for kind, nbytes in collectives_of(tasks, "cp+fsdp") if kind == "all_gather"]
    assert sum(gathers) == ALL_PARAMETERS


@pytest.mark.parametrize(("policy", "more"), [("full", 3), ("selective", 3)])
def test_recomputed_attention_goes_round_again(policy: str, more: int) -> None:
    plain = rounds_of(draw(planned(TRACE, "cp=4").tasks(0)))
    assert len(rounds_of(draw(planned(TRACE, "cp=4", recompute=policy).tasks(0)))) == len(plain) + more


def test_a_pipeline_sends_a_share_of_the_sequence() -> None:
    trace = traces.transformer(blocks=2, tokens=16)
    tasks = draw(planned(trace, "cp=2,pp=2", 4, micro_batches=1, stages=("h.1",)).tasks(0))
    assert [task.nbytes for task in tasks if isinstance(task, Send)] == [2 * 8 * 16 * 4]


@pytest.mark.parametrize("option", ["ring", "all-gather"])
def test_every_rank_gets_through_the_rounds(option: str) -> None:
    trace = causal(traces.transformer(blocks=2, tokens=16))
    result = simulate(trace, "dp=2,cp=2,tp=2", tp_style="megatron", options={"cp": option}, topology="dgx-a100", gpus=8)
    assert result.to_dict()["step_time_s"] > 0


def test_what_does_not_divide_is_refused_with_the_numbers() -> None:
    with pytest.raises(OptionError, match="a sequence of 12 tokens is not divisible by 8"):
        planned(traces.transformer(tokens=12), "cp=8")
    with pytest.raises(OptionError, match="a sequence of 12 tokens is not divisible by 8"):
        planned(causal(traces.transformer(tokens=12)), "cp=4")  # two pieces a rank
    assert planned(traces.transformer(tokens=12), "cp=4").world == 4
    with pytest.raises(TraceError, match="no input of the network has a sequence"):
        planned(traces.mlp(), "cp=2")
    with pytest.raises(OptionError, match="'rign' is not known; did you mean 'ring'"):
        planned(TRACE, "cp=2", options={"cp": "rign"})


def test_attention_that_is_written_out_as_products_is_refused() -> None:
    b = traces.Builder(2)
    words, table = b.tensor(2, 8, category="input", dtype="int64"), b.parameter(64, 16)
    stream, scores = b.tensor(2, 8, 16), b.tensor(2, 8, 8)
    turned = b.view(stream, 2, 16, 8)
    b.run("aten::embedding", [table, words], [stream], layer="wte")
    b.run("aten::transpose", [stream], [turned], layer="attn", seconds=0.0)
    b.run("aten::bmm", [stream, turned], [scores], layer="attn")
    with pytest.raises(TraceError, match="the attention of attn is written out as products"):
        planned(b.trace(), "cp=2", training=False)


def test_one_gpu_communicates_nothing() -> None:
    tasks = draw(planned(TRACE, "cp=1", 1).tasks(0))
    assert operators_of(tasks) == list(TRACE.operators)
