"""A script that runs without a GPU asks for one, reads values, compiles and loads, and PyTorch is afterwards as it was."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import importlib  # noqa: E402
import inspect  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from triosim.errors import CaptureError, CaptureWarning  # noqa: E402
from triosim.tracer import pytorch_version as module  # noqa: E402
from triosim.tracer.fake_device import FakeDevice, fake_capture  # noqa: E402
from triosim.tracer.patches import Patch, Patches  # noqa: E402
from triosim.tracer.surroundings.file_overlay import FileOverlay  # noqa: E402

PATCHED = (
    *(torch, torch._C, torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.nvtx, torch.cuda.streams),
    *(torch.accelerator, torch.accelerator.memory, torch.Tensor, torch.UntypedStorage, torch.nn.Module, torch.utils),
    *(torch.version, torch.backends.cuda, torch.backends.cudnn, DataLoader, FakeTensor, FakeTensorMode),
    importlib.import_module("torch.nn.attention.flex_attention"),
)
LISTS = tuple(importlib.import_module(name) for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"))


def state() -> list[object]:
    """Everything that a capture may change."""
    found: list[object] = [
        {name: id(value) for name, value in vars(owner).items() if not name.startswith("cache_")} for owner in PATCHED
    ]
    found += [list(owner._foreach_supported_types) for owner in LISTS]
    found.append(str(torch._C._accelerator_getAccelerator()))
    found.append(torch.__future__.get_swap_module_params_on_conversion())
    found.append(torch._C._only_lift_cpu_tensors())
    hooks = importlib.import_module("torch.nn.modules.module")
    found += [len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)]
    optimizer = LISTS[0]
    found += [len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks)]
    return found


def with_everything_loaded() -> list[object]:
    with fake_capture("H100-SXM"):
        train_a_step()  # what is imported and kept on the way stays so
    return state()


def train_a_step(rate: float = 0.1) -> None:
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(2):
        model(torch.randn(4, 8).cuda()).sum().backward()
        optimizer.step()


def test_pytorch_is_afterwards_as_it_was() -> None:
    before = with_everything_loaded()
    with fake_capture("H100-SXM"):
        train_a_step()
        assert state() != before
    assert state() == before


def test_pytorch_is_as_it_was_after_an_error_too() -> None:
    before = with_everything_loaded()
    with pytest.raises(ZeroDivisionError), fake_capture("H100-SXM"):
        train_a_step(1 / 0)
    assert state() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_is_there_only_during_the_capture() -> None:
    with fake_capture("H100-SXM"):
        assert torch.cuda.is_available()
        assert torch.zeros(2, device="cuda").is_cuda
        train_a_step()
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")
    data = torch.randn(3, requires_grad=True)
    data.sum().backward()
    assert data.grad is not None
    assert data.grad.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("gpu", "name", "memory", "capability", "cores"),
    [
        ("H100-SXM", "NVIDIA H100 80GB HBM3", 79.18, (9, 0), 132),
        ("A100-SXM-40GB", "NVIDIA A100-SXM4-40GB", 39.49, (8, 0), 108),
        ("H100-SXM(power=500 W)", "NVIDIA H100 80GB HBM3", 79.18, (9, 0), 132),
        ("V100-SXM2-16GB", "Tesla V100-SXM2-16GB", 15.77, (7, 0), 80),
        ("RTX-3090", "NVIDIA GeForce RTX 3090", 23.69, (8, 6), 82),
    ],
)
def test_the_gpu_says_what_pytorch_reports_of_it(
    gpu: str, name: str, memory: float, capability: tuple[int, int], cores: int
) -> None:
    """Memory is in GiB, as in the messages of PyTorch when it runs out."""
    with fake_capture(gpu):
        properties: Any = torch.cuda.get_device_properties(0)
        assert (torch.cuda.get_device_name(), torch.cuda.device_count()) == (name, 1)
        assert str(properties).startswith(f"_CudaDeviceProperties(name='{name}', major={capability[0]}")
        assert torch.cuda.get_device_capability() == (properties.major, properties.minor) == capability
        assert properties.multi_processor_count == cores
        assert torch.cuda.mem_get_info()[1] == properties.total_memory == round(memory * 2**30)
        data = torch.empty(1000, device="cuda")
        assert torch.cuda.memory_allocated() == 4096  # 4,000 bytes, in multiples of 512
        del data
        assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (0, 4096)
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0


def test_what_is_small_on_the_host_is_real() -> None:
    with fake_capture("H100-SXM"):
        rates = [one.item() for one in torch.linspace(0, 0.5, 6)]
        order = torch.randperm(100).tolist()
        weight = torch.empty(10_000, 10_000)  # 400 MB, which are not taken
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert sorted(order) == list(range(100))
    assert isinstance(weight, FakeTensor)


def test_a_value_that_is_read_is_taken_to_be_one_and_said_once_for_each_line() -> None:
    with fake_capture("H100-SXM") as capture:
        data = torch.randn(8, device="cuda")
        with pytest.warns(CaptureWarning, match=r"test_script_patches.py:\d+: reads a tensor's value.*1.0") as said:
            values = [data.sum().item() for _ in range(3)]
        assert values == [1.0, 1.0, 1.0]
        assert len(said) == 1
    assert len(capture.notes) == 1


def test_values_that_follow_from_the_script_are_known() -> None:
    with fake_capture("H100-SXM") as capture:
        assert torch.zeros((), device="cuda").item() == 0.0
        assert (torch.full((3,), 4.0, device="cuda") * 2).max().item() == 8.0
        assert bool((torch.ones(3, device="cuda") == 1).all())
        assert torch.tensor(7, device="cuda").item() == 7
    assert capture.notes == []


def test_a_value_that_steers_the_script_is_said() -> None:
    with fake_capture("H100-SXM") as capture:
        loss = torch.randn((), device="cuda")
        with pytest.warns(CaptureWarning, match="assumed to be False"):
            assert not loss > 3
    assert len(capture.notes) == 1


def test_what_has_as_many_results_as_a_mask_has_is_taken_to_have_all() -> None:
    with fake_capture("H100-SXM"), warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        data = torch.randn(6, 5, device="cuda")
        mask = data > 0
        assert data[mask].shape == (30,)
        assert data[data[:, 0] > 0].shape == (6, 5)
        assert mask.nonzero().shape == (30, 2)
        assert torch.masked_select(data, mask).shape == (30,)
        assert data.unique().shape == (30,)
        assert data.cpu().numpy().shape == (6, 5)


def test_loaders_and_checkpoints_of_the_script_are_left_out_and_said() -> None:
    with fake_capture("H100-SXM") as capture, warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
        model = nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data, 16, shuffle=True, num_workers=3, pin_memory=True, persistent_workers=True)
        for samples, target in loader:
            loss = nn.functional.cross_entropy(model(samples.cuda(non_blocking=True)), target.cuda())
            loss.backward()
            optimizer.step()
        torch.save(model.state_dict(), "/nowhere/model.pt")
        assert f"{loss:.2f}" == "1.00"
    said = " ".join(capture.notes)
    for what in ("3 processes are not started", "writes nothing", "reads a tensor's value"):
        assert what in said
    assert capture.trace.batch_size == 16


def test_a_loader_keeps_its_signature() -> None:
    """Lightning makes a loader anew, with a sampler for each rank, from what the signature names."""
    expected = inspect.signature(DataLoader.__init__)
    with FakeDevice("H100-SXM"):
        assert inspect.signature(DataLoader.__init__) == expected


@pytest.mark.parametrize("on_host", [True, False])
def test_a_profiler_of_the_gpu_profiles_the_host_in_silence(on_host: bool, capfd: pytest.CaptureFixture[str]) -> None:
    profiler = torch.profiler
    activities = [profiler.ProfilerActivity.CPU] * on_host + [profiler.ProfilerActivity.CUDA]
    with fake_capture("H100-SXM") as capture, profiler.profile(activities=activities, profile_memory=True) as profile:
        train_a_step()
    seconds = {row.key: row.device_time_total for row in profile.key_averages()}
    assert "aten::addmm" in seconds
    assert set(seconds.values()) == {0}
    assert "CUDA event" not in capfd.readouterr().err
    assert any("the host alone" in note for note in capture.notes)


def test_pinned_memory_and_generators_are_as_on_the_host() -> None:
    with fake_capture("H100-SXM"):
        generator = torch.Generator(device="cuda").manual_seed(3)
        assert torch.randn(4, device="cuda", generator=generator).shape == (4,)
        assert torch.randn(4).pin_memory().shape == (4,)
        torch.cuda.manual_seed_all(1)
        torch.cuda.set_rng_state(torch.cuda.get_rng_state())


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_profile_that_the_script_exports_goes_into_the_overlay(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("kept")
    files = FileOverlay(str(tmp_path / "overlay"))
    host = [torch.profiler.ProfilerActivity.CPU]
    with FakeDevice("H100-SXM", files=files), torch.profiler.profile(activities=host) as profiler:
        nn.Linear(4, 4).cuda()(torch.ones(2, 4, device="cuda"))
        profiler.stop()
        profiler.export_chrome_trace(str(tmp_path / name))
        written = Path(files.to_read(str(tmp_path / name)))
        assert written.stat().st_size > 100
    assert (tmp_path / name).read_text() == "kept"


def test_a_model_keeps_its_parameters_and_ties_when_it_moves() -> None:
    with fake_capture("H100-SXM"):
        model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
        model[1].weight = model[0].weight
        before = list(model.parameters())
        model.cuda()
        assert model[1].weight is model[0].weight is before[0]
        assert model[0].weight.is_cuda
        assert model[0].weight.requires_grad
        model.half()
        assert model[1].weight.dtype == torch.float16


def test_what_a_version_of_pytorch_lacks_is_named() -> None:
    with Patches() as patches, pytest.raises(CaptureError, match=r"has no torch\.cuda\.no_such_thing") as error:
        patches.make([Patch(torch.cuda, "is_available", None), Patch(torch.cuda, "no_such_thing", None)])
    assert torch.cuda.is_available is not None  # none of them was made
    assert torch.__version__ in str(error.value)


def test_an_untried_version_of_pytorch_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TESTED", ("1.0",))
    with pytest.warns(UserWarning, match="were tested with PyTorch 1.0"), fake_capture("H100-SXM"):
        train_a_step()


def test_data_of_another_device_moves_a_tensor_that_others_refer_to() -> None:
    """FSDP1 moves its flat parameter, of which the optimizer and the autograd graph hold references, to save it."""
    with fake_capture("H100-SXM"):
        parameter = torch.nn.Parameter(torch.ones(4, device="cuda"))
        held = (parameter * parameter, parameter.exp().mul(parameter), torch.optim.SGD([parameter]), [parameter] * 20)
        parameter.data = torch.randn(6, device="cuda").cpu()
        assert (parameter.device.type, tuple(parameter.shape)) == ("cpu", (6,))
        parameter.data = parameter.data.cuda()
        assert parameter.device.type == "cuda"
        assert all(one is parameter for one in held[3])


@pytest.mark.parametrize("size", [4, 2048])  # of real and of fake tensors on the host
def test_a_parameter_keeps_what_is_noted_of_it_when_it_moves(size: int) -> None:
    """DeepSpeed and Megatron note of a parameter over which ranks its gradient is reduced."""
    with FakeDevice("H100-SXM"):
        layer = nn.Linear(size, size)
        noted: Any = layer.weight
        noted.allreduce, noted._partition = False, 3
        for move in (layer.cuda, layer.bfloat16, layer.cpu, lambda: layer.to("cuda")):
            move()
            assert layer.weight is noted
            assert (noted.allreduce, noted._partition) == (False, 3)
        noted.data = noted.data.cpu()
        assert (noted.allreduce, noted.device.type, noted.shape) == (False, "cpu", (size, size))
        assert not hasattr(layer.bias, "allreduce")
