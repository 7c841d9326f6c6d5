"""Tensors are printed as PyTorch prints them on a GPU, and those of unknown contents as it prints tensors without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from triosim.tracer.fake_device import FakeDevice  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.arange(2, device="cuda"), "tensor([0, 1], device='cuda:0')"),
        (lambda: torch.ones(1, device="cuda").bfloat16(), "tensor([1.], device='cuda:0', dtype=torch.bfloat16)"),
        (
            lambda: torch.zeros(1, device="cuda", requires_grad=True),
            "tensor([0.], device='cuda:0', requires_grad=True)",
        ),
        (lambda: torch.rand(2, 3, device="cuda"), "tensor(..., device='cuda:0', size=(2, 3))"),
        (lambda: torch.rand(2, device="cuda").half(), "tensor(..., device='cuda:0', size=(2,), dtype=torch.float16)"),
        (lambda: torch.rand(3, device="cuda").sum(), "tensor(1., device='cuda:0')"),
        (
            lambda: nn.Linear(2, 2).cuda()(torch.rand(2, device="cuda")).sum(),
            "tensor(1., device='cuda:0', grad_fn=<SumBackward0>)",
        ),
        (
            lambda: nn.Linear(2, 1, device="cuda").bias,
            "Parameter containing:\ntensor(..., device='cuda:0', size=(1,), requires_grad=True)",
        ),
        (lambda: torch.rand(3, device="cuda").cpu(), "tensor(..., size=(3,))"),
    ],
)
def test_tensors_are_printed_as_on_a_gpu(make: Callable[[], Any], text: str) -> None:
    assert repr(make()) == text


def test_a_printed_number_is_read_and_assumed(device: FakeDevice) -> None:
    loss = torch.rand(3, device="cuda").sum()
    assert f"{loss:.2f} {loss}" == "1.00 1.0"
    assert [note.partition(": ")[2] for note in device.notes] == [
        "reads a tensor's value, which is not computed: it is assumed to be 1.0"
    ]
