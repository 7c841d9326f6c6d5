"""What a script reads of unknown contents follows from one assumption, however it reads: each unknown element is 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from triosim.tracer.fake_device import FakeDevice  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
SAMPLES, CLASSES = 32, 10


@pytest.fixture
def predictions(device: FakeDevice) -> Any:
    model = torch.nn.Linear(64, CLASSES).cuda()
    return model(torch.randn(SAMPLES, 64, device="cuda")).argmax(1)


def accumulated(right: Any) -> Any:
    total = torch.zeros(1, device="cuda")
    total += right.sum()
    return total.item() / SAMPLES


def of_an_element(right: Any) -> Any:
    """As scripts count that reduce both numbers at once."""
    counts = torch.zeros(2, device="cuda")
    for part in (right[: SAMPLES // 2], right[SAMPLES // 2 :]):
        counts[0] += part.sum()
        counts[1] += len(part)
    assert counts.tolist()[1] == SAMPLES
    return (counts[0] / counts[1]).item()


def of_an_element_on_the_host(right: Any) -> Any:
    counts = torch.zeros(2)
    counts[0] += right.sum().cpu()
    counts[1:] += len(right)
    return float(counts[0] / counts[1])


def by_index(right: Any) -> Any:
    counts = torch.zeros(3, device="cuda")
    counts.index_add_(0, torch.tensor([1], device="cuda"), right.sum().float().view(1))
    return counts.cpu().numpy()[1] / SAMPLES


ACCURACIES: list[Callable[[Any], float]] = [
    lambda right: right.sum().item() / SAMPLES,
    lambda right: right.float().mean().item(),
    lambda right: (100 * right.float().sum(0) / SAMPLES).item() / 100,
    lambda right: right.cpu().sum().item() / SAMPLES,
    lambda right: right.cpu().numpy().mean(),
    lambda right: sum(right.tolist()) / SAMPLES,
    lambda right: int(right.count_nonzero()) / SAMPLES,
    lambda right: float(f"{right.float().mean():.5f}"),
    lambda right: 1 - (~right).sum().item() / SAMPLES,
    accumulated,
    of_an_element,
    of_an_element_on_the_host,
    by_index,
]


@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_an_accuracy_is_the_same_however_it_is_counted(predictions: Any, accuracy: Callable[[Any], float]) -> None:
    """Predictions are read as class 1, which two of the labels are."""
    assert predictions.tolist() == [1] * SAMPLES
    labels = torch.tensor([1, 1, *[3] * (SAMPLES - 2)], device="cuda")
    assert accuracy(predictions == labels) == 2 / SAMPLES
    assert (predictions.cpu().numpy() == labels.cpu().numpy()).mean() == 2 / SAMPLES


@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_with_unknown_labels_all_are_right(predictions: Any, accuracy: Callable[[Any], float]) -> None:
    labels = torch.randn(SAMPLES, device="cuda").long()
    assert accuracy(predictions == labels) == 1


def test_the_best_five_classes_are_counted_alike(predictions: Any) -> None:
    _, best = torch.randn(SAMPLES, CLASSES, device="cuda").topk(5, 1)
    labels = torch.tensor([1, 1, *[3] * (SAMPLES - 2)], device="cuda")
    right = best.t().eq(labels.view(1, -1).expand(5, -1))
    assert right[:1].reshape(-1).float().sum(0).item() == 2
    assert right.reshape(-1).float().sum(0, keepdim=True).item() == 10


def test_adding_what_is_assumed_adds_it_once(predictions: Any) -> None:
    total = torch.zeros(1, device="cuda")
    right = (predictions == torch.ones(SAMPLES, dtype=torch.int64, device="cuda")).sum()
    for count in range(1, 3):
        total += right
        assert total.item() == count * SAMPLES


def test_what_is_written_over_an_element_is_no_longer_assumed(predictions: Any) -> None:
    counts = torch.zeros(3, device="cuda")
    middle = counts[1]
    counts[:2] += (predictions == torch.ones(SAMPLES, dtype=torch.int64, device="cuda")).sum()
    assert (counts.tolist(), middle.item()) == ([SAMPLES, SAMPLES, 0], SAMPLES)
    middle.zero_()
    counts[2] = 5
    assert counts.tolist() == [SAMPLES, 0, 5]
    counts[0] = torch.randn(4, device="cuda").exp().max()
    assert counts.tolist() == [1, 0, 5]
    counts *= 2
    assert counts.tolist() == [2, 0, 10]
