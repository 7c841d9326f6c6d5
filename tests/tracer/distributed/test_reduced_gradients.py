"""A script that reduces the gradients of its whole model by itself has samples of its own on each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch._utils import _flatten_dense_tensors  # noqa: E402

from triosim.tracer.fake_device import fake_capture  # noqa: E402

Reduce = Callable[[nn.Module], None]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [one.grad for one in model.parameters() if one.grad is not None]


def each(model: nn.Module) -> None:
    for one in gradients(model):
        dist.all_reduce(one.data)


def buffer(model: nn.Module) -> None:
    dist.all_reduce(_flatten_dense_tensors(gradients(model)))


def largest(model: nn.Module) -> None:
    dist.all_reduce(gradients(model)[0])


def norm(model: nn.Module) -> None:
    dist.all_reduce(nn.utils.get_total_norm(gradients(model)))


def axes(reduce: Reduce, hooked: bool = False) -> Iterable[str]:
    with fake_capture("H100-SXM", world=4) as capture:
        dist.init_process_group("nccl")
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4)).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for one in model.parameters() if hooked else ():
            one.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(parameter.grad))
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 64, device="cuda")).sum().backward()
            reduce(model)
            optimizer.step()
    assert capture.groups is not None
    return capture.groups.sample_axes.data_parallel


@pytest.mark.parametrize("reduce", [each, buffer])
def test_ranks_that_reduce_all_gradients_have_samples_of_their_own(reduce: Reduce) -> None:
    assert axes(reduce) == {"world"}


def test_gradients_that_are_reduced_as_they_become_ready_are_counted_too() -> None:
    assert axes(lambda model: None, hooked=True) == {"world"}


@pytest.mark.parametrize("reduce", [largest, norm])
def test_some_gradients_and_norms_say_nothing_of_samples(reduce: Reduce) -> None:
    assert axes(reduce) == set()
