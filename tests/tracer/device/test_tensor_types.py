"""The older types of tensors on a GPU make, convert and tell tensors as they do in a build with CUDA."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from triosim.tracer.fake_device import FakeDevice  # noqa: E402


def test_types_make_tensors_of_sizes_and_of_values(device: FakeDevice) -> None:
    assert torch.cuda.FloatTensor(2, 3).shape == (2, 3)
    assert torch.cuda.HalfTensor(torch.Size([4])).dtype == torch.float16
    assert torch.cuda.FloatTensor().shape == (0,)
    made = torch.cuda.LongTensor([1, 2])
    assert (made.tolist(), made.device.type, made.dtype) == ([1, 2], "cuda", torch.int64)
    assert torch.cuda.FloatTensor(torch.ones(3)).is_cuda


@pytest.mark.parametrize("kind", ["torch.cuda.HalfTensor", torch.float16])
def test_tensors_are_converted_to_types(device: FakeDevice, kind: object) -> None:
    found = torch.ones(2, device="cuda").type(kind)
    assert (found.type(), found.dtype) == ("torch.cuda.HalfTensor", torch.float16)
    assert torch.ones(2).type(torch.cuda.DoubleTensor).type() == "torch.cuda.DoubleTensor"
    assert torch.ones(2).type() == "torch.FloatTensor"
    assert torch.ones(2).type("torch.DoubleTensor").dtype == torch.float64


def test_types_tell_their_tensors(device: FakeDevice) -> None:
    assert isinstance(torch.ones(2, device="cuda"), torch.cuda.FloatTensor)
    assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)
    assert not isinstance(torch.ones(2, device="cuda"), torch.cuda.LongTensor)


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_a_type_is_the_default_one(device: FakeDevice) -> None:
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    try:
        assert torch.ones(2).type() == "torch.cuda.DoubleTensor"
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.ones(2).type() == "torch.FloatTensor"
