"""From what the user writes to a mesh and batch sizes, or to one line that says what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import traces
from traces import planned

from triosim.errors import OptionError, PluginError, TraceError, TriosimError
from triosim.extrapolators.core.parallelisms import gpus_named_by
from triosim.extrapolators.data.ddp import DistributedDataParallel
from triosim.tasks import AllReduce, Compute, Copy, Iteration, Wait
from triosim.trace import Trace

MLP = traces.mlp()


def test_one_name_takes_all_gpus() -> None:
    plan = planned(MLP, "ddp", 4)
    assert (plan.world, plan.batch_size, plan.global_batch_size) == (4, 8, 32)


@pytest.mark.parametrize(
    "written", ["dp=2,tp=4", "tp=4, dp=2", "dp,tp=4", "dp=2,tp", {"dp": 2, "tp": 4}, {"dp": None, "tp": 4}]
)
def test_the_order_of_writing_does_not_matter_and_one_size_may_be_left_open(written: object) -> None:
    plan = planned(MLP, written, 8)
    assert [(axis.name, axis.size) for axis in plan.mesh.axes] == [("tp", 4), ("dp", 2)]
    assert plan.global_batch_size == 16


def test_a_class_does_as_well_as_a_name() -> None:
    assert planned(MLP, DistributedDataParallel, 2).world == 2
    assert planned(MLP, {DistributedDataParallel: 2}, 2).world == 2


def test_without_a_number_of_gpus_the_sizes_say_it() -> None:
    assert planned(MLP, "dp=2,tp=4").world == 8
    assert gpus_named_by("dp=2,tp=4") == 8
    assert gpus_named_by("dp,tp=4") is None
    assert gpus_named_by("single") == 1


def test_single_is_one_gpu_and_keeps_every_measured_time() -> None:
    plan = planned(MLP, "single", 8)
    assert plan.world == 1
    assert traces.operators_of(traces.draw(plan.tasks(0))) == list(MLP.operators)
    assert plan.notes == ()


def test_a_plug_in_may_have_a_size_of_its_own() -> None:
    class Pair(DistributedDataParallel):
        default_size = 2

    assert gpus_named_by({Pair: None}) == 2
    assert planned(MLP, Pair, 8).world == 2  # whatever the number of GPUs, as for single
    assert planned(MLP, {Pair: None, "tp": 2}, 4).world == 4
    with pytest.raises(OptionError, match="= 4 GPUs, but 8 GPUs are asked for"):
        planned(MLP, {Pair: None, "tp": 2}, 8)


def test_a_global_batch_is_divided_among_the_replicas() -> None:
    plan = planned(MLP, "dp=2,tp=2", 4, global_batch_size=32)
    assert (plan.batch_size, plan.global_batch_size) == (16, 32)


def test_predicted_times_are_noted_whatever_changed_the_shapes() -> None:
    """Without a word of who measured the others: a trace may come from a roofline."""
    batch = "operator times are predicted for batch size 16 from those of the trace at 8"
    share = "operator times are predicted for each GPU's share of a layer (tp on 2 GPUs)"
    assert planned(MLP, "dp", 2, batch_size=16).notes == (batch,)
    assert planned(MLP, "tp", 2).notes == (share,)
    assert planned(MLP, "tp", 2, batch_size=16).notes == (batch, share)
    assert planned(MLP, "dp", 2).notes == ()


@pytest.mark.parametrize(
    ("parallel", "gpus", "options", "said"),
    [
        ("dp=2,tp=4", 6, {}, "dp=2 x tp=4 = 8 GPUs, but 6 GPUs are asked for"),
        ("dp,tp=4", 6, {}, "tp=4 does not divide 6 GPUs"),
        ("dp=3", 4, {}, "dp=3, but 4 GPUs are asked for"),
        ("dp=2,ep=2", 4, {}, "let the sizes multiply to the number of GPUs; ep=2 divides them and adds none"),
        ("dp,tp", 4, {}, "dp and tp have no size"),
        ("dp", None, {}, "dp has no size"),
        ("dp=x", 4, {}, "'x' is not a number of GPUs"),
        ("dp=0", 4, {}, "dp on 0 GPUs"),
        ("", 4, {}, "names no parallelism"),
        ("dp=2,dp=2", 4, {}, "axis 'dp' is given twice"),
        ("single=2", 2, {}, "'single' is one GPU, not 2"),
        ("dp", 3, {"global_batch_size": 32}, "a global batch of 32 does not divide among 3 data-parallel replicas"),
        (
            "dp",
            2,
            {"batch_size": 4, "global_batch_size": 8},
            "both the batch size of a replica and the global batch size",
        ),
        ("dp", 2, {"batch_size": 0}, "--batch-size: 0 is less than 1"),
        ("pp", 3, {}, "a batch of 8 does not divide into 3 micro-batches"),
        ("pp", 2, {"micro_batches": 5}, "a batch of 8 does not divide into 5 micro-batches"),
        ("pp", 8, {}, "8 pipeline stages are asked for, but the trace has only 6 layers"),
        ("pp=2,tp=2", 4, {"stages": ("fc1", "fc2")}, "2 layers at which a stage starts are given, but 2 stages need 1"),
        ("pp", 2, {"stages": ("fc8",)}, "stages: the trace has no layer 'fc8'; did you mean 'fc2'?"),
        ("pp", 3, {"stages": ("fc2", "fc1"), "micro_batches": 1}, "a stage cannot start at layer 'fc1'"),
        ("tp", 2, {"tp_style": "gahter"}, "--tp-style: 'gahter' is not known; did you mean 'gather'?"),
        ("dp", 2, {"gradient_dtype": "float31"}, "unknown dtype 'float31'; did you mean 'float32'?"),
    ],
)
def test_what_cannot_be_is_said_in_numbers(
    parallel: str, gpus: int | None, options: dict[str, object], said: str
) -> None:
    with pytest.raises(OptionError) as caught:
        planned(MLP, parallel, gpus, **options)
    assert said in str(caught.value)


def test_an_unknown_parallelism_is_answered_with_the_nearest() -> None:
    with pytest.raises(PluginError, match="did you mean 'ddp'"):
        planned(MLP, "dddp=4", 4)


def test_what_is_no_extrapolator_is_refused() -> None:
    class Nothing(DistributedDataParallel.__mro__[1]):  # type: ignore[misc]
        pass

    with pytest.raises(PluginError, match="neither 'transform' nor 'tasks'"):
        planned(MLP, Nothing, 2)
    with pytest.raises(PluginError, match="not a class derived"):
        planned(MLP, {str: 2}, 2)


def test_a_trace_without_a_forward_pass_is_refused() -> None:
    backward = tuple(operator for operator in MLP.operators if operator.phase == "backward")
    with pytest.raises(TraceError, match="forward pass"):
        planned(Trace(backward, 8), "single", 1)


def test_inference_is_the_forward_pass_alone() -> None:
    tasks = traces.draw(planned(MLP, "ddp", 4, training=False).tasks(0))
    assert {operator.phase for operator in traces.operators_of(tasks)} == {"forward"}
    assert not traces.collectives_of(tasks)


def test_iterations_repeat_the_step() -> None:
    tasks = traces.draw(planned(MLP, "ddp", 2, iterations=3).tasks(1))
    assert sum(isinstance(task, Iteration) for task in tasks) == 3
    third = len(tasks) // 3
    assert [type(task) for task in tasks[:third]] == [type(task) for task in tasks[third : 2 * third]]


def test_the_input_is_copied_from_the_host_before_the_forward_pass() -> None:
    tasks = traces.draw(planned(MLP, "single", 1, copy_input=True).tasks(0))
    copy, wait, compute = tasks[:3]
    assert isinstance(copy, Copy)
    assert (copy.source, copy.destination, copy.nbytes) == ("host", "device", 8 * 16 * 4 + 8 * 8)
    assert isinstance(wait, Wait)
    assert wait.handles[0].task is copy
    assert isinstance(compute, Compute)


def test_micro_batches_without_a_pipeline_accumulate_gradients_and_reduce_them_once() -> None:
    tasks = traces.draw(planned(MLP, "dp", 2, micro_batches=4).tasks(0))
    phases = [operator.phase for operator in traces.operators_of(tasks) if operator.layer == "fc1"]
    assert phases == ["forward", "backward"] * 4
    assert sum(isinstance(task, AllReduce) for task in tasks) == 1


def test_ranks_of_a_stage_share_their_compute_tasks() -> None:
    plan = planned(MLP, "ddp", 4)
    computes = [
        [id(task) for task in traces.draw(plan.tasks(rank), rank) if isinstance(task, Compute)] for rank in (0, 3)
    ]
    assert computes[0] == computes[1]


def test_a_plug_in_from_a_file_writes_its_own_tasks(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from triosim.config import Option\n"
        "from triosim.extrapolators import Extrapolator\n"
        "from triosim.tasks import AllReduce, Iteration, Wait\n"
        "class Mine(Extrapolator):\n"
        "    axis = 'mine'\n"
        "    options = (Option('period'),)\n"
        "    def tasks(self, rank):\n"
        "        loop = self.loop(rank)\n"
        "        yield from loop.forward()\n"
        "        yield from loop.backward()\n"
        "        yield Wait(((yield AllReduce(7.0, self.mesh.group('mine', rank))),))\n"
        "        yield from loop.optimizer()\n"
        "        yield Iteration()\n"
    )
    plan = planned(MLP, f"{path}:Mine=2", 2)
    tasks = traces.draw(plan.tasks(1), 1)
    assert traces.operators_of(tasks) == list(MLP.operators)
    assert traces.collectives_of(tasks) == [("all_reduce", 7.0)]
    assert plan.known_options == ("period",)
    with pytest.raises(OptionError, match="cannot be combined"):
        planned(MLP, f"{path}:Mine=2,dp=2", 4)


def test_every_error_is_a_users_error() -> None:
    with pytest.raises(TriosimError):
        planned(MLP, "no_such_file.py:Class", 2)


def test_of_many_layers_some_are_named() -> None:
    with pytest.raises(OptionError) as caught:
        planned(traces.transformer(blocks=12), "pp", 2, stages=("nowhere_at_all",))
    assert re.search(r"known: (\S+, ){9}\S+ and \d+ more$", str(caught.value))
