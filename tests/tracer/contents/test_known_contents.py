"""What follows from the script's own numbers is known on the fake device too; what a network computes is not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

from torch import nn  # noqa: E402

from triosim.errors import CaptureWarning  # noqa: E402
from triosim.tracer.contents import storage_contents  # noqa: E402
from triosim.tracer.fake_device import FakeDevice  # noqa: E402

pytestmark = pytest.mark.usefixtures("device")


def on_gpu(*values: Any, **options: Any) -> Any:
    return torch.tensor(list(values), device="cuda", **options)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: on_gpu(0), [0]),
        (lambda: torch.arange(5, device="cuda").flip(0), [4, 3, 2, 1, 0]),
        (lambda: torch.from_numpy(torch.arange(3).numpy()).cuda() ** 2, [0, 1, 4]),
        (lambda: on_gpu(3, 1, 2).sort().values, [1, 2, 3]),
        (lambda: on_gpu(1, 2, 3).cumsum(0), [1, 3, 6]),
        (lambda: on_gpu(2, 0, 2).bincount(), [1, 0, 2]),
        (lambda: on_gpu(0, 1, 0, 1).nonzero(), [[1], [3]]),
        (lambda: torch.arange(4, device="cuda")[on_gpu(True, False, False, True)], [0, 3]),
        (lambda: torch.arange(3, device="cuda").repeat_interleave(on_gpu(2, 0, 1)), [0, 0, 2]),
        (lambda: on_gpu(3, 1, 3).unique(return_counts=True)[1], [1, 2]),
        (lambda: torch.zeros(3, device="cuda").index_add_(0, on_gpu(1, 1), on_gpu(1.0, 2.0)), [0, 3, 0]),
        (lambda: torch.empty(2, device="cuda").fill_(7), [7, 7]),
        (lambda: torch.zeros_like(nn.Linear(2, 2).cuda()(torch.ones(2, 2, device="cuda"))), [[0, 0], [0, 0]]),
        (lambda: on_gpu(1.5).half().float(), [1.5]),
        (lambda: torch.tensor(torch.zeros(3, 4, device="cuda").shape, device="cuda"), [3, 4]),
    ],
)
def test_what_follows_from_known_numbers_is_known(
    call: Callable[[], Any], value: list[Any], device: FakeDevice
) -> None:
    assert call().tolist() == value
    assert call().cpu().numpy().tolist() == value
    assert call().sum().item() == torch.tensor(value).sum().item()
    assert device.notes == []


def test_views_share_what_is_written_through_any_of_them() -> None:
    row = torch.zeros(6, device="cuda")
    part, matrix = row[2:5], row.view(2, 3)
    part.fill_(4)
    matrix[1, 2] = 9
    assert row.tolist() == [0, 0, 4, 4, 4, 9]
    assert matrix.t()[2].tolist() == [4, 9]


def test_a_copy_keeps_its_own_contents() -> None:
    first = torch.arange(3, device="cuda")
    second = first.clone()
    first.zero_()
    host = torch.ones(3, dtype=torch.int64).copy_(second)
    assert (first.tolist(), second.tolist(), host.tolist()) == ([0, 0, 0], [0, 1, 2], [0, 1, 2])


def test_a_permutation_on_the_device_is_one_and_follows_the_seed() -> None:
    torch.manual_seed(3)
    first = torch.randperm(50, device="cuda").tolist()
    assert sorted(first) == list(range(50)) != first
    torch.manual_seed(3)
    assert torch.randperm(50, device="cuda").tolist() == first


def test_random_numbers_of_the_device_are_not_drawn_from_the_host() -> None:
    torch.manual_seed(3)
    without = torch.rand(2).tolist()
    torch.manual_seed(3)
    torch.randperm(50, device="cuda")
    assert torch.rand(2).tolist() == without


def test_whole_numbers_on_the_host_are_real_at_any_size() -> None:
    """ImageNet has 1,281,167 images, which a sampler permutes."""
    drawn = torch.randperm(1_281_167)
    assert drawn[torch.arange(1_281_167)].sum().item() == 1_281_167 * 1_281_166 // 2
    assert len(list(torch.utils.data.RandomSampler(range(300_000)))) == 300_000


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.rand(3, device="cuda"),
        lambda: torch.zeros(3, device="cuda").normal_(),
        lambda: torch.ones(3, 3, device="cuda") @ torch.ones(3, 3, device="cuda"),
        lambda: nn.Linear(3, 3).cuda()(torch.ones(1, 3, device="cuda")) + 1,
        lambda: torch.zeros(3, device="cuda").add_(torch.rand(3, device="cuda")),
        lambda: torch.arange(2**16 + 1, device="cuda"),
    ],
)
def test_what_is_drawn_or_computed_by_a_network_is_not_known(call: Callable[[], Any]) -> None:
    with pytest.warns(CaptureWarning, match="assumed to be"):
        call().sum().item()


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_drawing_until_all_lie_between_bounds_ends(where: str) -> None:
    weight = torch.empty(600, 500, device=where)  # too large for the host to hold, and on the device
    assert nn.init.trunc_normal_(weight, std=0.02, a=-0.06, b=0.06) is weight


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
def test_that_all_are_finite_stays_true_however_often_it_is_asked() -> None:
    assert all(bool(torch.rand(3, device="cuda").isfinite().all()) for _ in range(200))


def test_what_a_known_mask_fills_is_known_of_unknown_numbers() -> None:
    filled = torch.rand(2, 2, device="cuda").masked_fill(on_gpu([True, False], [False, False]), 7.0)
    assert filled[0, 0].item() == 7.0
    assert storage_contents.is_known(filled[0, 0])
    assert not storage_contents.is_known(filled[0, 1])
