"""What a call returns is remembered, and is what PyTorch's own rules for shapes say, to the strides and the storage."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from typing import Any  # noqa: E402

import torch.distributed as dist  # noqa: E402
from fake_models import NETWORKS, train  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

from triosim.trace import Trace  # noqa: E402
from triosim.tracer.device.shape_cache import ShapeCache  # noqa: E402
from triosim.tracer.fake_device import FakeDevice, fake_capture  # noqa: E402


def nothing_is_known(shapes: ShapeCache, *_: Any) -> None:
    """So that PyTorch's rules run for each call."""


def captured(name: str) -> Trace:
    with fake_capture("H100-SXM") as capture:
        made = NETWORKS[name]("cuda")
        train(made, torch.optim.AdamW(made[0].parameters(), lr=1e-3))
    return capture.trace


@pytest.mark.parametrize("name", ["convolutional", "gpt2"])
def test_a_step_is_the_one_that_pytorch_says_without_a_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = captured(name)
    monkeypatch.setattr(ShapeCache, "find", nothing_is_known)
    assert captured(name) == remembered


def test_the_second_call_of_a_kind_makes_a_tensor_of_its_own() -> None:
    with FakeDevice("H100-SXM"):
        data = torch.empty(4, 6, device="cuda")
        first, second = (data.t() * 2.0 for _ in range(2))
        assert first.stride() == second.stride() == (1, 6)
        assert first.untyped_storage()._cdata != second.untyped_storage()._cdata
        assert second.untyped_storage().nbytes() == 4 * 6 * 4
        assert second.device == torch.device("cuda", 0)


def test_the_second_view_of_a_kind_is_of_its_own_argument() -> None:
    with FakeDevice("H100-SXM"):
        for base in (torch.empty(4, 6, device="cuda"), torch.empty(4, 6, device="cuda")):
            part = base[1:3]
            left, right = part.split(3, dim=1)
            assert right.storage_offset() == 9
            assert right.stride() == (6, 1)
            assert left.untyped_storage()._cdata == right.untyped_storage()._cdata == base.untyped_storage()._cdata
            assert base.add_(1) is base


def test_numbers_are_told_apart_by_their_type() -> None:
    with FakeDevice("H100-SXM"):
        whole = torch.arange(3, device="cuda")
        kinds = [(whole + number).dtype for number in (1, 1.0, True, 1, 1.0)]
    assert kinds == [torch.int64, torch.float32, torch.int64, torch.int64, torch.float32]


def test_settings_that_results_follow_are_part_of_what_is_remembered() -> None:
    with FakeDevice("H100-SXM", devices=2):
        before = torch.ones(2, device="cuda")
        torch.set_default_dtype(torch.float64)
        try:
            after = torch.ones(2, device="cuda")
        finally:
            torch.set_default_dtype(torch.float32)
        torch.cuda.set_device(1)
        elsewhere = torch.ones(2, device="cuda")
    assert (before.dtype, after.dtype) == (torch.float32, torch.float64)
    assert (before.device.index, elsewhere.device.index) == (0, 1)


def test_a_call_that_changes_the_shape_of_its_argument_does_so_each_time() -> None:
    with FakeDevice("H100-SXM"):
        for _ in range(2):
            data = torch.empty(4, 6, device="cuda")
            assert data.t_().shape == (6, 4)
            assert data.resize_(3).shape == (3,)
            result = torch.empty(0, device="cuda")
            torch.add(data, data, out=result)
            assert result.shape == (3,)


@pytest.mark.parametrize("kind", ["all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"])
def test_a_collective_of_a_kind_asks_pytorch_for_its_shape_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DTensor calls thousands of these in a step."""
    asked = []
    rules = FakeTensorMode.__torch_dispatch__

    def counted(mode: Any, function: Any, *given: Any) -> Any:
        asked.append(function)
        return rules(mode, function, *given)

    with FakeDevice("H100-SXM", world=4):
        dist.init_process_group("nccl")
        group = dist.group.WORLD
        call = getattr(torch.ops._c10d_functional, kind)
        ends = {"all_gather_into_tensor": (4,), "reduce_scatter_tensor": ("sum", 4), "all_reduce": ("sum",)}[kind]
        monkeypatch.setattr(FakeTensorMode, "__torch_dispatch__", counted)
        made = [call(torch.empty(8, 6, device="cuda"), *ends, group.group_name) for _ in range(3)]
    rows = {"all_gather_into_tensor": 32, "reduce_scatter_tensor": 2, "all_reduce": 8}[kind]
    assert [tuple(one.shape) for one in made] == [(rows, 6)] * 3
    assert asked.count(call.default) == 1
    assert len({one.untyped_storage()._cdata for one in made}) == 3


def test_a_list_of_distributed_tensors_is_divided_as_each_of_them_is() -> None:
    """DTensor is asked about one tensor of each kind; what it says must hold for the others in their places."""
    with FakeDevice("H100-SXM", world=4):
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (2, 2))
        placed = [(Shard(0), Replicate()), (Shard(0), Shard(1)), (Shard(0), Replicate()), (Replicate(), Shard(0))] * 2
        whole = [torch.empty(8, 4 * (1 + place % 2), device="cuda") for place in range(len(placed))]
        tensors = [distribute_tensor(one, mesh, where) for one, where in zip(whole, placed, strict=True)]
        others = [distribute_tensor(one, mesh, (Replicate(), Replicate())) for one in whole]
        together = [torch._foreach_mul(tensors, 2.0), torch._foreach_add(tensors, others), torch._foreach_norm(tensors)]
        alone = [[one * 2.0 for one in tensors], [one + other for one, other in zip(tensors, others, strict=True)]]
        alone.append([torch.linalg.vector_norm(one) for one in tensors])
        for results, expected in zip(together, alone, strict=True):
            assert [one.placements for one in results] == [one.placements for one in expected]
            assert [one.to_local().shape for one in results] == [one.to_local().shape for one in expected]
            assert [one.shape for one in results] == [one.shape for one in expected]
        torch._foreach_add_(tensors, others)
        assert [one.placements for one in tensors] == placed
