"""dp and ddp: which gradients are reduced, in how many bytes, and when."""

from __future__ import annotations

import pytest
import traces
from traces import collectives_of, draw, planned

from triosim.errors import TraceError
from triosim.extrapolators.core.program import Gradient
from triosim.extrapolators.data.ddp import ReduceBuckets, buckets, completed
from triosim.tasks import AllReduce, Compute, Task, Wait
from triosim.trace import Tensor, Trace

MLP = traces.mlp()
FC0, FC1, FC2 = 4 * (32 * 16 + 32), 4 * (16 * 32 + 16), 4 * (4 * 16 + 4)  # bytes of each layer's parameters


def gradient(number: int, nbytes: int, dtype: str = "float32") -> Gradient:
    size = {"float32": 4, "bfloat16": 2}[dtype]
    return Gradient(Tensor(number, (nbytes // size,), dtype, "parameter"), float(nbytes), number)


def numbers(filled: tuple[tuple[Gradient, ...], ...]) -> list[list[int]]:
    return [[gradient.ready for gradient in bucket] for bucket in filled]


def place(tasks: list[Task], kind: type[Task]) -> list[int]:
    return [index for index, task in enumerate(tasks) if isinstance(task, kind)]


def test_dp_reduces_all_gradients_once_after_the_backward_pass_and_before_the_optimizer() -> None:
    tasks = draw(planned(MLP, "dp", 4).tasks(2))
    assert collectives_of(tasks) == [("all_reduce", FC0 + FC1 + FC2)]
    at = place(tasks, AllReduce)[0]
    assert {op.phase for op in traces.operators_of(tasks[:at])} == {"forward", "backward"}
    assert {op.phase for op in traces.operators_of(tasks[at:])} == {"optimizer"}
    wait = tasks[at + 1]
    assert isinstance(wait, Wait)
    assert wait.handles[0].task is tasks[at]


def test_one_gpu_reduces_nothing() -> None:
    for parallel in ("dp=1", "ddp=1"):
        assert not collectives_of(draw(planned(MLP, parallel, 1).tasks(0)))


def test_gradients_in_another_dtype_have_its_bytes() -> None:
    tasks = draw(planned(MLP, "dp", 2, gradient_dtype="bfloat16").tasks(0))
    assert collectives_of(tasks) == [("all_reduce", (FC0 + FC1 + FC2) / 2)]


def test_replicate_sends_everything_out_from_the_first_gpu_and_back_to_it() -> None:
    plan = planned(MLP, "dp", 4, dp_style="replicate")
    inputs, output = 8 * 16 * 4 + 8 * 8, 8 * 4 * 4
    for rank in (0, 3):
        tasks = draw(plan.tasks(rank), rank)
        assert collectives_of(tasks) == [
            ("broadcast", FC0 + FC1 + FC2),
            ("scatter", 4 * inputs),
            ("gather", 4 * output),
            ("reduce", FC0 + FC1 + FC2),
        ]
        updates = any(operator.phase == "optimizer" for operator in traces.operators_of(tasks))
        assert updates == (rank == 0)


def test_replicate_scatters_the_input_of_all_micro_batches_at_once() -> None:
    whole, parts = (
        collectives_of(draw(planned(MLP, "dp", 2, dp_style="replicate", micro_batches=count).tasks(0)))
        for count in (1, 4)
    )
    assert whole[:2] == parts[:2]
    assert [kind for kind, _ in parts].count("gather") == 4


def test_a_bucket_closes_when_it_has_reached_its_limit_so_it_may_be_larger() -> None:
    filled = buckets([gradient(i, 400) for i in range(8)], first_bytes=1000, later_bytes=1200)
    assert numbers(filled) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_gradient_larger_than_a_bucket_closes_it_at_once() -> None:
    filled = buckets(
        [gradient(0, 4000), gradient(1, 40), gradient(2, 40), gradient(3, 9000), gradient(4, 40)], 1000, 5000
    )
    assert numbers(filled) == [[0], [1, 2, 3], [4]]


def test_each_dtype_has_buckets_of_its_own() -> None:
    mixed = [gradient(0, 400), gradient(1, 400, "bfloat16"), gradient(2, 800), gradient(3, 800, "bfloat16")]
    assert numbers(buckets(mixed, 1000, 1000)) == [[0, 2], [1, 3]]


def test_buckets_are_in_the_order_in_which_they_close_and_those_that_never_do_at_the_end() -> None:
    """As ``compute_bucket_assignment_by_size`` returns them where it is given the order of the gradients."""
    mixed = [gradient(0, 400), gradient(1, 1000, "bfloat16"), gradient(2, 400, "bfloat16"), gradient(3, 600)]
    assert numbers(buckets(mixed, 1000, 1000)) == [[1], [0, 3], [2]]
    left = [gradient(0, 400), gradient(1, 400, "bfloat16"), gradient(2, 600, "bfloat16")]
    assert numbers(buckets(left, 1000, 1000)) == [[1, 2], [0]]


def test_a_bucket_waits_for_those_ahead_of_it() -> None:
    gradients = [gradient(i, 100) for i in range(4)]
    filled = ((gradients[1], gradients[2]), (gradients[0],), (gradients[3],))
    found = {number: [one.nbytes for one in due] for number, due in completed(gradients, filled).items()}
    assert found == {2: [{"": 200.0}, {"": 100.0}], 3: [{"": 100.0}]}


def test_ranks_stop_only_where_a_bucket_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    reduce = ReduceBuckets.gradient_ready
    monkeypatch.setattr(ReduceBuckets, "gradient_ready", lambda self, g: (heard.append(g.ready), reduce(self, g))[1])
    draw(planned(MLP, "ddp", 4, first_bucket_size=FC2, bucket_size=FC1).tasks(0))
    assert len(heard) == 3  # of six gradients


def test_ddp_reduces_each_bucket_as_soon_as_its_last_gradient_is_ready() -> None:
    plan = planned(MLP, "ddp", 4, first_bucket_size=FC2, bucket_size=FC1)
    tasks = draw(plan.tasks(0))
    assert collectives_of(tasks) == [("all_reduce", FC2), ("all_reduce", FC1), ("all_reduce", FC0)]
    before = [
        [op.layer for op in t.operators] for t in tasks if isinstance(t, Compute) and t.operators[0].phase == "backward"
    ]
    assert before == [["loss", "fc2"], ["relu1", "fc1"], ["relu0", "fc0"]]


def test_the_optimizer_waits_for_all_buckets() -> None:
    tasks = draw(planned(MLP, "ddp", 4, first_bucket_size=1, bucket_size=1).tasks(0))
    reductions = [task for task in tasks if isinstance(task, AllReduce)]
    assert len(reductions) == 6  # each weight and each bias
    wait = tasks[place(tasks, Wait)[-1]]
    assert isinstance(wait, Wait)
    assert [handle.task for handle in wait.handles] == reductions
    assert place(tasks, Compute)[-1] > place(tasks, Wait)[-1]


def test_gradients_that_are_accumulated_are_ready_in_the_last_micro_batch() -> None:
    tasks = draw(planned(MLP, "ddp", 2, micro_batches=2, first_bucket_size=1, bucket_size=1).tasks(0))
    first = place(tasks, AllReduce)[0]
    assert (
        sum(operator.layer == "fc2" and operator.phase == "backward" for operator in traces.operators_of(tasks[:first]))
        == 2
    )


def test_bytes_do_not_depend_on_the_buckets() -> None:
    for first, later in ((1, 1), (1000, 3000), (10**9, 10**9)):
        tasks = draw(planned(MLP, "ddp", 2, first_bucket_size=first, bucket_size=later).tasks(1))
        assert sum(nbytes for _, nbytes in collectives_of(tasks)) == FC0 + FC1 + FC2


def test_a_frozen_parameter_is_not_reduced() -> None:
    b = traces.Builder(4)
    frozen, trained = b.parameter(8, 8), b.parameter(2, 8)
    data, inner, out = b.tensor(4, 8, category="input"), b.tensor(4, 8), b.tensor(4, 2)
    b.run("aten::linear", [data, frozen], [inner], layer="backbone")
    head = b.run("aten::linear", [inner, trained], [out], layer="head")
    b.backward("AddmmBackward0", head, b.tensor(4, 2, category="gradient"), data=False)
    assert collectives_of(draw(planned(b.trace(), "dp", 2).tasks(0))) == [("all_reduce", trained.nbytes)]


def test_without_links_from_gradients_to_parameters_the_differentiated_operator_tells() -> None:
    b = traces.Builder(4)
    weight, data, out = b.parameter(2, 8), b.tensor(4, 8, category="input"), b.tensor(4, 2)
    linear = b.run("aten::linear", [data, weight], [out], layer="fc")
    gradients = [b.tensor(4, 2, category="gradient"), b.tensor(2, 8, category="gradient")]
    b.run("AddmmBackward0", gradients[:1], gradients[1:], layer="fc", phase="backward", forward=linear)
    assert collectives_of(draw(planned(b.trace(), "ddp", 2).tasks(0))) == [("all_reduce", weight.nbytes)]


@pytest.mark.parametrize("parallel", ["dp", "ddp"])
def test_a_trace_in_which_nothing_would_be_reduced_is_refused(parallel: str) -> None:
    forward = tuple(operator for operator in MLP.operators if operator.phase == "forward")
    with pytest.raises(TraceError, match="shows no backward pass, so data parallelism would reduce nothing"):
        planned(Trace(forward, 8), parallel, 2)
