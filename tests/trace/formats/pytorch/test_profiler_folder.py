"""PyTorch's profiler file and execution trace, joined: kernels to operators, operators to layers, backward to forward."""

from __future__ import annotations

import gzip
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import ADD_, LINEAR, Profile

import triosim
from triosim.errors import TraceError
from triosim.trace import Trace

SAMPLE = Path(__file__).parent / "data" / "cnn_cpu_torch213"

X, W, Y = (10, 11, [4, 8]), (20, 21, [16, 8]), (30, 31, [4, 16])


def read(profile: Profile, folder: Path) -> Trace:
    return triosim.load_trace(profile.write(folder))


def layered(profile: Profile) -> None:
    """A linear layer and its rectifier: two kernels and one."""
    profile.module("Net_0", 0, 100)
    profile.module("Linear_0", 1, 40)
    outer = profile.call("aten::linear", 10, 30, [X, W], [Y], sequence=5, schema=LINEAR)
    profile.call("aten::mm", 12, 28, [X, W], [Y], parent=outer, sequence=5)
    profile.kernel("gemm", 15, 100, 140)
    profile.kernel("split_k_reduce", 20, 150, 160)
    profile.call("aten::relu_", 50, 60, [Y], [Y], sequence=6)
    profile.kernel("relu", 52, 160, 165)


@pytest.mark.parametrize("function_ids", [True, False], ids=["by id", "by order"])
def test_an_operator_runs_from_its_first_kernel_to_its_last(tmp_path: Path, function_ids: bool) -> None:
    profile = Profile(function_ids=function_ids)
    layered(profile)
    trace = read(profile, tmp_path)
    linear, relu = trace.operators
    assert linear.seconds == pytest.approx(60e-6)
    assert linear.busy_seconds == pytest.approx(50e-6)
    assert linear.host_seconds == pytest.approx(20e-6)
    assert linear.kernels == ("gemm", "split_k_reduce")
    assert relu.seconds == pytest.approx(5e-6)


def test_gpu_model_batch_and_software_are_found(tmp_path: Path) -> None:
    profile = Profile()
    layered(profile)
    trace = read(profile, tmp_path)
    assert (trace.gpu, trace.model, trace.batch_size) == ("NVIDIA TestGPU", "Net", 4)
    assert trace.software == {"cuda": "12"}


def test_a_layer_is_the_path_of_modules_around_the_call(tmp_path: Path) -> None:
    profile = Profile()
    layered(profile)
    assert [operator.layer for operator in read(profile, tmp_path).operators] == ["Linear_0", "Net_0"]


def test_an_annotation_that_names_a_layer_is_its_name(tmp_path: Path) -> None:
    profile = Profile()
    outer = profile.call("layer: Net", 1, 50, scope=7)
    inner = profile.call("layer: block.fc", 2, 40, scope=7, parent=outer)
    profile.call("aten::linear", 10, 30, [X, W], [Y], parent=inner, schema=LINEAR)
    profile.kernel("gemm", 15, 100, 140)
    trace = read(profile, tmp_path)
    assert trace.model == "Net"
    assert [operator.layer for operator in trace.operators] == ["block.fc"]


def test_a_kernel_that_no_call_launched_is_an_operator_of_its_own(tmp_path: Path) -> None:
    profile = Profile()
    layered(profile)
    profile.kernel("custom_kernel", 70, 170, 200)
    profile.call("my region", 80, 90, scope=7)
    profile.kernel("other_kernel", 85, 200, 210)
    trace = read(profile, tmp_path)
    assert [operator.name for operator in trace.operators] == [
        "aten::linear",
        "aten::relu_",
        "custom_kernel",
        "my region",
    ]
    assert trace.seconds == pytest.approx((60 + 5 + 30 + 10) * 1e-6)


def test_time_in_which_two_streams_overlap_counts_once(tmp_path: Path) -> None:
    profile = Profile()
    layered(profile)
    profile.call("aten::add", 70, 80, [Y], [(40, 41, [4, 16])])
    profile.kernel("add", 75, 130, 170, stream=9)
    trace = read(profile, tmp_path)
    assert trace.seconds == pytest.approx(70e-6)  # from 100 to 170
    added = next(operator for operator in trace.operators if operator.name == "aten::add")
    assert added.busy_seconds == pytest.approx(40e-6)


def test_operators_stand_in_the_order_in_which_the_gpu_ran_them(tmp_path: Path) -> None:
    profile = Profile()
    profile.call("aten::linear", 10, 30, [X, W], [Y], schema=LINEAR)
    profile.kernel("gemm", 15, 100, 140)
    profile.call("aten::relu", 40, 50, [X], [(40, 41, [4, 8])])
    profile.kernel("relu", 45, 60, 70, stream=9)
    assert [operator.name for operator in read(profile, tmp_path).operators] == ["aten::relu", "aten::linear"]


def test_an_id_that_is_used_again_is_another_tensor(tmp_path: Path) -> None:
    profile = Profile()
    profile.call("aten::linear", 10, 30, [X, W], [Y], schema=LINEAR)
    profile.kernel("gemm", 15, 100, 140)
    again = (30, 31, [4, 4])
    profile.call("aten::sum", 40, 50, [X], [again])
    profile.kernel("sum", 45, 140, 150)
    first, second = (operator.outputs[0] for operator in read(profile, tmp_path).operators)
    assert (first.shape, second.shape) == ((4, 16), (4, 4))
    assert first.id != second.id
    assert first.storage != second.storage


def test_a_view_and_a_result_in_place_are_the_same_bytes(tmp_path: Path) -> None:
    profile = Profile()
    layered(profile)
    profile.call("aten::view", 70, 75, [Y], [(50, 31, [64])])
    linear, relu, view = read(profile, tmp_path).operators
    assert relu.outputs == linear.outputs
    assert view.outputs[0].storage == linear.outputs[0].storage
    assert view.outputs[0].id != linear.outputs[0].id
    assert view.seconds == 0


def trained(profile: Profile, start: float = 0) -> None:
    """A step of a linear layer: forward, backward with a transposed gradient, and an update in place."""
    seed, grad, grad_w, final = (60, 61, [4, 16]), (62, 63, [8, 16]), (64, 63, [16, 8]), (66, 63, [16, 8])
    engine = "autograd::engine::evaluate_function: "
    profile.call("aten::linear", start + 10, start + 20, [X, W], [Y], sequence=5, schema=LINEAR)
    profile.kernel("gemm", start + 15, start + 100, start + 140)
    profile.call("aten::ones_like", start + 21, start + 22, [Y], [seed])
    profile.kernel("fill", start + 21, start + 140, start + 141)
    outer = profile.call(engine + "AddmmBackward0", start + 30, start + 40)
    inner = profile.call("AddmmBackward0", start + 31, start + 39, [seed], [], parent=outer, sequence=5, scope=1)
    profile.call("aten::mm", start + 32, start + 38, [seed, X], [grad], parent=inner)
    profile.kernel("gemm_wgrad", start + 35, start + 141, start + 150)
    outer = profile.call(engine + "TBackward0", start + 41, start + 45)
    inner = profile.call("TBackward0", start + 41, start + 45, [grad], [], parent=outer, sequence=5, scope=1)
    profile.call("aten::t", start + 42, start + 44, [grad], [grad_w], parent=inner)
    outer = profile.call(engine + "torch::autograd::AccumulateGrad", start + 46, start + 50)
    inner = profile.call("torch::autograd::AccumulateGrad", start + 46, start + 50, [grad_w], [], parent=outer, scope=1)
    profile.call("aten::detach", start + 47, start + 49, [grad_w], [final], parent=inner)
    optimizer = profile.call("Optimizer.step#SGD.step", start + 51, start + 60, scope=7)
    profile.call("aten::add_", start + 52, start + 58, [W, final], [W], parent=optimizer, schema=ADD_)
    profile.kernel("axpy", start + 55, start + 150, start + 155)


def test_a_training_step_comes_out_with_phases_links_and_categories(tmp_path: Path) -> None:
    profile = Profile()
    trained(profile)
    trace = read(profile, tmp_path)
    assert [(one.name, one.phase, one.layer, one.forward) for one in trace.operators] == [
        ("aten::linear", "forward", "linear_1", None),
        ("aten::ones_like", "backward", "linear_1", None),
        ("AddmmBackward0", "backward", "linear_1", 1),
        ("TBackward0", "backward", "linear_1", 1),
        ("aten::add_", "optimizer", "optimizer", None),
    ]
    x, weight = trace.operators[0].inputs
    assert (x.category, weight.category, trace.operators[0].outputs[0].category) == ("input", "parameter", "output")
    gradient = trace.operators[3].outputs[0]
    assert (gradient.category, gradient.shape, gradient.parameter) == ("gradient", (16, 8), weight.id)
    assert trace.operators[4].inputs == (weight, gradient)
    assert trace.operators[4].outputs == (weight,)


def test_of_several_steps_the_last_complete_one_is_taken(tmp_path: Path) -> None:
    profile = Profile()
    for number, start in enumerate((0, 200, 400)):
        profile.call(f"ProfilerStep#{number}", start, start + 190, scope=7)
        trained(profile, start)
    profile.call("ProfilerStep#3", 600, 601, scope=7)
    trace = read(profile, tmp_path)
    assert len(trace.operators) == 5
    assert trace.seconds == pytest.approx(55e-6)


def test_without_a_gpu_s_work_the_calls_are_timed(tmp_path: Path) -> None:
    profile = Profile()
    profile.call("aten::linear", 10, 30, [X, W], [Y], schema=LINEAR)
    trace = read(profile, tmp_path)
    assert trace.gpu == "CPU"
    assert trace.operators[0].seconds == pytest.approx(20e-6)
    assert trace.operators[0].busy_seconds is None


def spoilt(folder: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """Return what reading a step says whose kernels were changed."""
    profile = Profile()
    profile.call("aten::linear", 10, 30, [X, W], [Y], schema=LINEAR)
    profile.kernel("gemm", 20, 50, 60)
    for event in profile.events:
        if event["cat"] == "kernel":
            change(event)
    with pytest.raises(TraceError) as caught:
        read(profile, folder)
    return str(caught.value)


def test_kernels_that_would_seem_to_take_no_time_are_refused(tmp_path: Path) -> None:
    assert "no 'dur'" in spoilt(tmp_path, lambda kernel: kernel.pop("dur"))
    assert "has no kernels, only copies" in spoilt(tmp_path, lambda kernel: kernel.update(cat="gpu_memset"))
    assert "none has a correlation" in spoilt(tmp_path, lambda kernel: kernel.update(args={}))


def test_one_of_the_two_files_names_the_other(tmp_path: Path) -> None:
    profile = Profile()
    layered(profile)
    profile.write(tmp_path)
    whole = triosim.load_trace(tmp_path)
    for name in ("profile.pt.trace.json", "et.json"):
        assert triosim.load_trace(tmp_path / name).operators == whole.operators


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("et.json", "no execution trace next to it; profile with record_shapes=True.*ExecutionTraceObserver"),
        ("profile.pt.trace.json", "no profiler file"),
    ],
)
def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path, name: str, missing: str) -> None:
    profile = Profile()
    layered(profile)
    profile.write(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(TraceError, match=missing):
        triosim.load_trace(tmp_path)


def test_two_profiles_in_one_directory_are_too_many(tmp_path: Path) -> None:
    profile = Profile()
    layered(profile)
    profile.write(tmp_path)
    shutil.copy(tmp_path / "profile.pt.trace.json", tmp_path / "second.json")
    with pytest.raises(TraceError, match="more than one profiler file"):
        triosim.load_trace(tmp_path)


def test_files_of_different_runs_do_not_match(tmp_path: Path) -> None:
    profile = Profile()
    layered(profile)
    for node in profile.nodes:
        node["rf_id"] += 50_000
    with pytest.raises(TraceError, match="no call in common"):
        read(profile, tmp_path)


@pytest.mark.parametrize("schema", ["2.0.0", "1.9.0"])
def test_an_unknown_version_is_named(tmp_path: Path, schema: str) -> None:
    profile = Profile()
    layered(profile)
    profile.write(tmp_path)
    graph = json.loads((tmp_path / "et.json").read_text())
    (tmp_path / "et.json").write_text(json.dumps({**graph, "schema": schema}))
    with pytest.raises(TraceError, match=r"et\.json: schema: "):
        triosim.load_trace(tmp_path)


def broken(value: Any, key: str) -> Any:
    """The document with every value of ``key`` replaced by something else."""
    if isinstance(value, dict):
        return {name: ([None] if name == key else broken(child, key)) for name, child in value.items()}
    return [broken(child, key) for child in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("file", "key"),
    [("et.json", key) for key in ("nodes", "id", "inputs", "input_types", "input_shapes", "rf_id", "parent", "scope")]
    + [("profile.pt.trace.json", key) for key in ("traceEvents", "ts", "dur", "args", "deviceProperties")],
)
def test_a_file_unlike_pytorch_s_is_refused_by_name(tmp_path: Path, file: str, key: str) -> None:
    profile = Profile()
    layered(profile)
    profile.write(tmp_path)
    document = broken(json.loads((tmp_path / file).read_text()), key)
    (tmp_path / file).write_text(json.dumps(document))
    with pytest.raises(TraceError, match=str(tmp_path)):
        triosim.load_trace(tmp_path)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key and index of a document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([path] if path else []), *(place for key, child in children for place in places(child, (*path, key)))]


ODD = [None, True, -1, 0, 3, 2**70, 1.5, math.nan, math.inf, "x", "", [], {}, [None], [1, 2], {"a": 1}]


@settings(max_examples=250, deadline=None)
@given(data=st.data())
@pytest.mark.slow
def test_whatever_is_changed_in_the_files_they_are_read_or_named(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    profile = Profile()
    trained(profile)
    profile.module("Net_0", 0, 100)
    folder = profile.write(tmp_path_factory.mktemp("mutant"))
    file = folder / data.draw(st.sampled_from(["et.json", "profile.pt.trace.json"]))
    document = json.loads(file.read_text())
    *above, last = data.draw(st.sampled_from(places(document)))
    target = document
    for key in above:
        target = target[key]
    if data.draw(st.booleans()):
        target[last] = data.draw(st.sampled_from(ODD))
    else:
        del target[last]
    file.write_text(json.dumps(document))
    message = str(folder)
    try:
        triosim.save_trace(triosim.load_trace(folder), folder / "out.txt")
        triosim.load_trace(folder / "out.txt")
    except TraceError as error:
        message = str(error)
    assert str(folder) in message
    assert "out.txt" not in message  # what was accepted can be written and read


class TestSample:
    """A small network's step on the CPU, captured with torch 2.13 (execution-trace schema 1.1.1)."""

    def test_the_sample_is_of_the_newest_schema(self) -> None:
        graph = json.loads(gzip.decompress((SAMPLE / "execution_trace.json.gz").read_bytes()))
        assert graph["schema"] == "1.1.1-chakra.0.0.4"

    def test_parameters_buffers_and_batch_are_found(self) -> None:
        trace = triosim.load_trace(SAMPLE)
        # Two convolutions, a batch norm, a linear layer: 8*3*9+8 + 2*8 + 16*8*9+16 + 10*1024+10.
        assert sum(parameter.numel for parameter in trace.parameters.values()) == 11_658
        assert (trace.batch_size, trace.model, trace.gpu) == (4, "Net", "CPU")
        count, norm = (
            operator for operator in trace.operators if operator.layer == "bn" and operator.phase == "forward"
        )
        assert [(one.category, one.shape) for one in count.outputs] == [("buffer", ())]
        assert [one.shape for one in norm.inputs if one.category == "buffer"] == [(8,), (8,)]

    def test_each_backward_operator_differentiates_one_of_its_layer(self) -> None:
        trace = triosim.load_trace(SAMPLE)
        by_id = {operator.id: operator for operator in trace.operators}
        pairs = [
            (operator.name, by_id[operator.forward].name)
            for operator in trace.operators
            if operator.forward is not None and operator.layer in ("conv1", "bn", "fc")
        ]
        assert pairs == [
            ("AddmmBackward0", "aten::linear"),
            ("TBackward0", "aten::linear"),
            ("NativeBatchNormBackward0", "aten::batch_norm"),
            ("ConvolutionBackward0", "aten::conv2d"),
        ]

    def test_each_parameter_has_a_gradient_and_a_momentum(self) -> None:
        trace = triosim.load_trace(SAMPLE)
        for category in ("gradient", "optimizer_state"):
            owned = {
                tensor.storage: tensor.parameter for tensor in trace.tensors.values() if tensor.category == category
            }
            assert sorted(filter(None, owned.values())) == sorted(trace.parameters), category


@pytest.fixture(scope="module")
def raw(data_dir: Path) -> Path:
    return data_dir / "traces" / "h100_vgg13_bs512_raw"


@pytest.fixture(scope="module")
def vgg(raw: Path) -> Trace:
    return triosim.load_trace(raw)


class TestMeasured:
    """One step of VGG-13 on an H100, batch 512, execution-trace schema 1.0.1."""

    def test_operator_times_together_are_the_time_in_which_the_gpu_was_busy(self, raw: Path, vgg: Trace) -> None:
        events = json.loads(gzip.decompress((raw / "profiler.json.gz").read_bytes()))["traceEvents"]
        work = sorted(
            (event["ts"], event["ts"] + event["dur"])
            for event in events
            if event.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy")
        )
        busy = until = 0
        for start, end in work:
            busy += max(0, end - max(start, until))
            until = max(until, end)
        assert vgg.seconds == pytest.approx(busy * 1e-6, rel=0.02)
        assert sum(len(operator.kernels) for operator in vgg.operators) == len(work)

    def test_every_parameter_is_found_with_its_shape(self, vgg: Trace) -> None:
        assert sum(parameter.numel for parameter in vgg.parameters.values()) == 133_047_848
        widths = [3, 64, 64, 128, 128, 256, 256, 512, 512, 512, 512]
        expected = [shape for a, b in pairwise(widths) for shape in ((b, a, 3, 3), (b,))]
        for features, inputs in ((4096, 25088), (4096, 4096), (1000, 4096)):
            expected += [(features, inputs), (features,)]
        assert [parameter.shape for parameter in vgg.parameters.values()] == expected

    def test_gpu_batch_and_layers_are_found(self, vgg: Trace) -> None:
        assert (vgg.gpu, vgg.batch_size, vgg.model) == ("NVIDIA H100 80GB HBM3", 512, "VGG")
        kinds = Counter(operator.layer.rpartition(".")[2].rpartition("_")[0] for operator in vgg.operators)
        assert kinds["Conv2d"] == 20  # each of the ten forward and backward
        assert "Sequential_0.Conv2d_3" in {operator.layer for operator in vgg.operators}

    def test_each_parameter_has_a_gradient_and_two_states(self, vgg: Trace) -> None:
        storages = {
            tensor.storage: (tensor.category, tensor.parameter) for tensor in vgg.tensors.values() if tensor.parameter
        }
        owned = Counter(storages.values())
        assert owned == {
            **{("gradient", parameter): 1 for parameter in vgg.parameters},
            **{("optimizer_state", parameter): 2 for parameter in vgg.parameters},
        }

    def test_storages_in_the_step_are_not_confused(self, vgg: Trace) -> None:
        sizes: dict[int, set[int]] = {}
        for tensor in vgg.tensors.values():
            sizes.setdefault(tensor.storage, set()).add(tensor.nbytes)
        assert all(len(found) == 1 for found in sizes.values())

    def test_it_survives_writing_and_reading(self, vgg: Trace, tmp_path: Path) -> None:
        triosim.save_trace(vgg, tmp_path / "trace.json.gz")
        assert triosim.load_trace(tmp_path / "trace.json.gz").operators == vgg.operators
