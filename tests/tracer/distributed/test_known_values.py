"""What is known stays known through collectives, as if every rank of the group held the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from collections.abc import Callable, Iterator  # noqa: E402
from typing import Any  # noqa: E402

import torch.distributed as dist  # noqa: E402
from torch.distributed import _functional_collectives as functional  # noqa: E402

from triosim.tracer.contents import storage_contents  # noqa: E402
from triosim.tracer.fake_device import FakeDevice  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
WORLD, RANK = 4, 1


@pytest.fixture(autouse=True)
def device() -> Iterator[FakeDevice]:
    with FakeDevice("H100-SXM", world=WORLD, rank=RANK) as entered:
        dist.init_process_group("nccl")
        yield entered


def numbers(*values: float) -> Any:
    return torch.tensor(values, device="cuda")


def reduced(operation: Any) -> Any:
    data = numbers(3, 5)
    dist.all_reduce(data, operation)
    return data


def gathered() -> Any:
    into = [numbers(0, 0) for _ in range(WORLD)]
    dist.all_gather(into, numbers(3, 5))
    return torch.cat(into)


def gathered_into_one() -> Any:
    into = torch.empty(2 * WORLD, device="cuda")
    dist.all_gather_into_tensor(into, numbers(3, 5))
    return into


def scattered() -> Any:
    mine = torch.empty(2, device="cuda")
    dist.reduce_scatter_tensor(mine, torch.arange(8.0, device="cuda"))
    return mine


def exchanged() -> Any:
    mine = torch.empty(WORLD, dtype=torch.int64, device="cuda")
    dist.all_to_all_single(mine, torch.arange(WORLD, device="cuda"))
    return mine


def counted_on_the_host() -> Any:
    count = torch.tensor([2, 7])
    dist.all_reduce(count, group=dist.new_group(backend="gloo"))
    return count


@pytest.mark.parametrize(
    ("call", "values"),
    [
        (lambda: reduced(dist.ReduceOp.SUM), [12, 20]),
        (lambda: reduced(dist.ReduceOp.AVG), [3, 5]),
        (lambda: reduced(dist.ReduceOp.MAX), [3, 5]),
        (lambda: reduced(dist.ReduceOp.PRODUCT), [81, 625]),
        (gathered, [3, 5] * WORLD),
        (gathered_into_one, [3, 5] * WORLD),
        (scattered, [8, 12]),  # 4 x the second part of 0 to 7
        (exchanged, [RANK] * WORLD),
        (counted_on_the_host, [8, 28]),
        (lambda: functional.all_reduce(numbers(3, 5), "sum", dist.group.WORLD) + 0, [12, 20]),
        (lambda: functional.all_gather_tensor(numbers(3), 0, dist.group.WORLD) + 0, [3] * WORLD),
    ],
)
def test_each_rank_contributes_what_this_one_does(
    call: Callable[[], Any], values: list[float], device: FakeDevice
) -> None:
    assert call().tolist() == values
    assert device.notes == []


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
def test_what_is_received_or_was_unknown_is_unknown(device: FakeDevice) -> None:
    received, gathered = numbers(3, 5), [numbers(3.0, 5.0) for _ in range(WORLD)]
    dist.recv(received, 0)
    dist.all_gather(gathered, torch.rand(2, device="cuda"))
    assert (received.tolist(), gathered[0].tolist()) == ([1, 1], [1, 1])
    assert len(device.notes) == 1


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
@pytest.mark.parametrize(
    "call", [dist.all_reduce, lambda data: data.copy_(functional.all_reduce(data, "sum", dist.group.WORLD))]
)
def test_a_count_is_known_after_it_was_summed_beside_an_unknown_loss(call: Callable[[Any], Any]) -> None:
    data = torch.stack([torch.rand((), device="cuda"), numbers(16)[0]])
    call(data)
    assert data[1].item() == 16 * WORLD
    assert not storage_contents.is_known(data[0])


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
def test_an_unknown_loss_is_assumed_to_be_the_same_on_every_rank() -> None:
    loss = torch.rand(2, device="cuda").sum()
    dist.all_reduce(loss)
    assert (loss / WORLD).item() == 1
