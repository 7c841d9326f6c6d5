"""Adapters of frameworks: each is made when its framework is imported, and undone with the capture."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from triosim.tracer.fake_device import FakeDevice  # noqa: E402
from triosim.tracer.frameworks.adapters import ADAPTERS  # noqa: E402

#: Frameworks as far as the adapters see them, by module.
STAND_INS = {
    "deepspeed.runtime.engine": """
import torch.distributed as dist
class DeepSpeedEngine:
    def _configure_distributed_model(self): self.data_parallel_group = dist.new_group([0, 1, 2, 3])
""",
    "megatron.core.distributed.distributed_data_parallel": """
class DistributedDataParallel:
    def __init__(self, group): self.dp_group = group
""",
    "torchtitan": "",
    "transformers.utils.import_utils": "def is_fake_tensor(x): return True",
}


@pytest.fixture
def frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stand-ins of all frameworks, which a capture imports."""
    for name, text in STAND_INS.items():
        *packages, module = name.split(".")
        folder = tmp_path
        for package in packages:
            folder = folder / package
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    names = {one.partition(".")[0] for one in STAND_INS}
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in names}
    for name in before:
        del sys.modules[name]
    yield
    for name in [one for one in sys.modules if one.partition(".")[0] in names]:
        del sys.modules[name]
    sys.modules.update(before)


def test_each_adapter_says_for_which_version_it_was_written_and_why() -> None:
    assert {one.module for one in ADAPTERS} == STAND_INS.keys()
    assert len({one.module for one in ADAPTERS}) == len(ADAPTERS)
    assert all(one.framework and one.version[0].isdigit() and one.reason for one in ADAPTERS)


@pytest.mark.usefixtures("frameworks")
def test_torchtitan_finds_the_timeouts_of_a_later_pytorch() -> None:
    had = hasattr(dist, "set_timeout")
    with FakeDevice("H100", world=2):
        importlib.import_module("torchtitan")
        dist.init_process_group("nccl")
        dist.set_timeout(1.0, None)  # type: ignore[attr-defined]
    assert hasattr(dist, "set_timeout") == had


@pytest.mark.usefixtures("frameworks")
def test_transformers_takes_no_tensor_for_a_fake_one() -> None:
    with FakeDevice("H100"):
        module = importlib.import_module("transformers.utils.import_utils")
        assert not module.is_fake_tensor(torch.ones(1, device="cuda"))
    assert module.is_fake_tensor(None)


@pytest.mark.usefixtures("frameworks")
def test_ranks_of_frameworks_that_reduce_gradients_themselves_have_samples_of_their_own() -> None:
    with FakeDevice("H100", world=4) as device:
        dist.init_process_group("nccl")
        assert device.groups is not None
        assert device.groups.sample_axes.data_parallel == set()
        importlib.import_module("deepspeed.runtime.engine").DeepSpeedEngine()._configure_distributed_model()
        assert len(device.groups.sample_axes.data_parallel) == 1
        half = dist.new_group([0, 1], group_desc="half")
        importlib.import_module("megatron.core.distributed.distributed_data_parallel").DistributedDataParallel(half)
        assert "half" in device.groups.sample_axes.data_parallel
        dist.destroy_process_group()
