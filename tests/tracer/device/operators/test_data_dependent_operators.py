"""What is as long as its contents say has a length without a GPU where something says it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from collections.abc import Callable, Iterator  # noqa: E402
from typing import Any  # noqa: E402

from torch import nn  # noqa: E402

from triosim.tracer.fake_device import FakeDevice  # noqa: E402


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with FakeDevice("H100-SXM") as entered:
        yield entered


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (lambda data, numbers: torch.bincount(numbers, minlength=10), [(10,)]),
        (lambda data, numbers: data.repeat_interleave(numbers, 0, output_size=20), [(20, 4)]),
        (lambda data, numbers: data.repeat_interleave(torch.full((8,), 3, device="cuda"), 0), [(24, 4)]),
        (lambda data, numbers: data.repeat_interleave(numbers, 0), [(8, 4)]),
        (lambda data, numbers: torch.unique_consecutive(numbers, return_counts=True), [(8,), (8,)]),
        (lambda data, numbers: torch.unique(data, dim=1, return_inverse=True), [(8, 4), (4,)]),
    ],
)
def test_a_result_is_as_long_as_is_said(
    device: FakeDevice, call: Callable[..., Any], shapes: list[tuple[int, ...]]
) -> None:
    data, numbers = torch.randn(8, 4, device="cuda"), torch.randn(8, 4, device="cuda").argmax(1)
    found = call(data, numbers)
    assert [tuple(one.shape) for one in (found if isinstance(found, tuple) else (found,))] == shapes


def test_what_is_taken_for_granted_is_said_and_what_is_known_is_not(device: FakeDevice) -> None:
    data, numbers = torch.randn(8, 4, device="cuda"), torch.randn(8, 4, device="cuda").argmax(1)
    data.repeat_interleave(torch.full((8,), 3, device="cuda"), 0)
    assert device.notes == []
    with pytest.warns(UserWarning, match="assumed to be none of 10 or more"):
        torch.bincount(numbers, minlength=10)
    with pytest.warns(UserWarning, match="assumed to be True"):
        assert torch.allclose(data, data + 1)
    assert len(device.notes) == 2


def test_a_mask_that_is_known_selects_as_many_elements_as_it_has(device: FakeDevice) -> None:
    data, mask = torch.randn(8, 4, device="cuda"), torch.arange(8).cuda() < 3
    assert data[mask].shape == (3, 4)
    assert data.log_softmax(1)[~mask].shape == (5, 4)
    assert data[2:5, torch.tensor([True, False, True, True])].shape == (3, 3)
    assert data.masked_select(mask[:, None]).shape == (12,)
    large = torch.zeros(1000, 1000, dtype=torch.bool, device="cuda")
    assert torch.randn(1000, 1000, device="cuda")[large].shape == (0,)
    assert device.notes == []


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
def test_a_mask_that_is_assumed_selects_as_many_elements_as_its_sum(device: FakeDevice) -> None:
    labels = torch.arange(8).cuda() % 4
    right = torch.randn(8, 4, device="cuda").argmax(1) == labels
    assert len(labels[right]) == right.sum().item() == 2
    unknown = torch.randn(8, device="cuda") > 0
    assert len(labels[unknown]) == 8


def test_factorizations_succeed(device: FakeDevice) -> None:
    data = torch.randn(2, 8, 8, device="cuda")
    for name in ("cholesky_ex", "inv_ex", "lu_factor_ex", "ldl_factor_ex"):
        assert not getattr(torch.linalg, name)(data @ data.mT).info.any()
    assert torch.linalg.solve_ex(data, data).info.tolist() == [0, 0]
    assert device.notes == []


def test_nothing_says_how_many_bins_there_are(device: FakeDevice) -> None:
    with pytest.raises(RuntimeError, match="bincount"):
        torch.bincount(torch.randn(8, 4, device="cuda").argmax(1))


@pytest.mark.parametrize("joined", [False, True])
def test_the_loss_of_sequences_has_shapes(device: FakeDevice, joined: bool) -> None:
    """Of 2 samples with 7 steps, 5 labels and targets of 3 and 2: 2 x 7 x (2 * 3 + 1) sums."""
    layer = nn.Linear(4, 5).cuda()
    targets = torch.ones(5 if joined else (2, 3), dtype=torch.int64, device="cuda")
    probabilities = layer(torch.randn(7, 2, 4, device="cuda")).log_softmax(-1)
    lengths = torch.tensor([7, 7]), torch.tensor([3, 2])
    nn.functional.ctc_loss(probabilities, targets, *lengths).backward()
    assert layer.weight.grad is not None
    assert device.recorder is not None
    made = {one.name: one.outputs for one in device.recorder.step.operators}
    _, sums = made["aten::_ctc_loss"]
    assert device.recorder.step.tensors[sums].shape == (2, 7, 7)
    assert "aten::_ctc_loss_backward" in made
