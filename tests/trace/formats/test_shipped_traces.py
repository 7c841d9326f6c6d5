"""The traces that ship with triosim: known networks, with a dataflow that can be trusted and times that say what they are."""

from __future__ import annotations

import math
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import triosim
from triosim.memory import analyse
from triosim.operators.features import flops, is_free
from triosim.trace import Trace

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "traces"
# Their numbers of parameters, as published, and the batch.
NETWORKS = {
    "resnet50": (25_557_032, 128),
    "vgg11": (132_863_336, 128),
    "vgg13": (133_047_848, 128),
    "vgg19": (143_667_240, 128),
    "gpt2": (124_439_808, 8),
    "bert": (109_514_298, 8),
    "llama-1b": (1_235_814_400, 4),
}


def path_of(name: str) -> Path:
    return FOLDER / f"{name.replace('-', '_')}_a100_fake.json.gz"


@pytest.fixture(scope="module", params=NETWORKS)
def trace(request: pytest.FixtureRequest) -> Trace:
    return triosim.load_trace(path_of(request.param))


def test_all_of_them_are_known_here_and_they_are_small() -> None:
    paths = sorted(FOLDER.glob("*.json.gz"))
    assert paths == sorted(map(path_of, NETWORKS))
    assert sum(path.stat().st_size for path in paths) < 2_000_000


def test_the_networks_have_their_published_numbers_of_parameters(trace: Trace) -> None:
    elements, batch = NETWORKS[trace.model]
    assert sum(parameter.numel for parameter in trace.parameters.values()) == elements
    assert trace.batch_size == batch


def test_they_say_that_no_gpu_was_there_and_what_was_run(trace: Trace) -> None:
    assert (trace.times, trace.gpu) == ("predicted", "A100-SXM-80GB")
    assert trace.software["capture"] == "without a GPU"
    assert (FOLDER.parents[1] / trace.software["script"].split()[0]).is_file()
    for operator in trace.operators:
        assert (operator.predicted_by is None) == (operator.seconds == 0), operator


def test_forward_convolutions_and_products_take_as_many_operations_as_published(trace: Trace) -> None:
    # Per image, in GMACs (torchvision): ResNet-50 4.09, VGG-11, 13 and 19 7.61, 11.31 and 19.63. Per token: 2 a weight that is
    # multiplied, and in each layer of attention 4 t d, the masked half of a causal one included.
    llama = 16 * (2 * 2048**2 + 2 * 512 * 2048 + 3 * 2048 * 8192) + 2048 * 128256
    expected = {
        "resnet50": 2 * 4.09e9 * 128,
        "vgg11": 2 * 7.61e9 * 128,
        "vgg13": 2 * 11.31e9 * 128,
        "vgg19": 2 * 19.63e9 * 128,
        "gpt2": 8 * 1024 * (2 * (12 * 12 * 768**2 + 768 * 50257) + 12 * 4 * 1024 * 768),
        "bert": 8 * 512 * (2 * (12 * 12 * 768**2 + 768**2 + 768 * 30522) + 12 * 4 * 512 * 768),
        "llama-1b": 4 * 2048 * (2 * llama + 16 * 4 * 2048 * 2048),
    }[trace.model]
    heavy = ("aten::convolution", "aten::addmm", "aten::mm", "aten::_scaled_dot_product")
    done = sum(flops(one) or 0 for one in trace.operators if one.phase == "forward" and one.name.startswith(heavy))
    assert done == pytest.approx(expected, rel=0.01)


def test_everything_that_is_read_was_there_or_was_made_before(trace: Trace) -> None:
    there = {"input", "parameter", "buffer", "optimizer_state"}
    made: set[int] = set()
    for operator in trace.operators:
        for tensor in operator.inputs:
            assert tensor.category in there or tensor.storage in made, (operator, tensor)
        made.update(tensor.storage for tensor in operator.outputs)


def test_what_is_no_view_and_not_changed_in_place_is_made_once(trace: Trace) -> None:
    made: set[int] = set()
    for operator in trace.operators:
        if is_free(operator):
            continue
        given = {tensor.storage for tensor in operator.inputs}
        fresh = {tensor.storage for tensor in operator.outputs} - given
        assert not made & fresh, operator
        made |= fresh


def test_each_parameter_gets_a_gradient_that_the_optimizer_reads(trace: Trace) -> None:
    made = {tensor.storage for one in trace.operators if one.phase == "backward" for tensor in one.outputs}
    read = [
        tensor
        for one in trace.operators
        if one.phase == "optimizer"
        for tensor in one.inputs
        if tensor.category == "gradient"
    ]
    parameters = trace.parameters
    assert {tensor.parameter or 0 for tensor in read} == set(parameters)
    assert {tensor.storage for tensor in read} <= made
    assert all(parameters[tensor.parameter or 0].shape == tensor.shape for tensor in read)


def test_each_forward_operator_with_parameters_is_differentiated(trace: Trace) -> None:
    differentiated = {operator.forward for operator in trace.operators}
    for operator in trace.operators:
        if operator.phase == "forward" and any(tensor.category == "parameter" for tensor in operator.inputs):
            assert operator.id in differentiated, operator


def test_residual_networks_add(trace: Trace) -> None:
    if trace.model not in ("resnet50", "vgg11", "vgg13", "vgg19", "gpt2"):
        pytest.skip("it also adds elsewhere")
    additions = sum(
        one.name in ("aten::add", "aten::add_") and one.phase == "forward" and len(one.inputs) == 2
        for one in trace.operators
        if not one.layer.endswith(".act")
    )
    assert additions == {"resnet50": 16, "gpt2": 25}.get(trace.model, 0)


def test_their_memory_is_known_from_birth_to_death(trace: Trace) -> None:
    """Adam keeps two numbers for each parameter, momentum one; there is as much memory at the end as at the start."""
    size = sum(parameter.nbytes for parameter in trace.parameters.values())
    held = {
        category: sum(one.nbytes for one in trace.storages if one.category == category and one.born < 0)
        for category in ("parameter", "optimizer_state")
    }
    assert held["parameter"] == size
    states = 1 if trace.model.startswith(("resnet", "vgg")) else 2
    assert held["optimizer_state"] == pytest.approx(states * size, rel=1e-5)
    report = analyse(trace)
    assert report.fits
    assert report.peak_reserved >= report.peak_live > size * (2 + states)


@pytest.mark.parametrize("parallel", ["ddp", "pp", "tp", "dp=2,tp=2"])
def test_they_run_on_four_gpus_and_a_gpu_has_less_to_do(trace: Trace, parallel: str) -> None:
    alone = {"compute_slowdown": 1}  # and not beside collectives
    result = triosim.simulate(trace, parallel, gpus=4, topology="dgx-a100", conditions=alone)
    assert not any("broken" in note for note in result.data.notes)
    each = math.fsum(rank.compute_s for rank in result.data.ranks) / 4
    # The style ``gather`` leaves all but the layers with weights whole, which is half of ResNet's time.
    assert each == pytest.approx(trace.seconds, rel=1e-9) if parallel == "ddp" else each < 0.9 * trace.seconds


def test_the_script_makes_the_very_same_trace(tmp_path: Path) -> None:
    """With the versions that made it; the smallest one, for the others take their time."""
    shipped = triosim.load_trace(path_of("vgg13"))
    for library in ("torch", "torchvision"):
        try:
            here = version(library)
        except PackageNotFoundError:
            pytest.skip(f"needs {library}")
        if here.split("+")[0] != shipped.software[library].split("+")[0]:
            pytest.skip(f"was made with {library} {shipped.software[library]}")
    command = [sys.executable, str(FOLDER / "make.py"), "--to", str(tmp_path), "vgg13"]
    subprocess.run(command, check=True, capture_output=True)
    made = triosim.load_trace(tmp_path / path_of("vgg13").name)
    assert made.operators == shipped.operators
    assert made.storages == shipped.storages
