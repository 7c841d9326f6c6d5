"""Layers have the names of the script's own model, whatever wraps it or a part of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from triosim.tracer import fake_capture  # noqa: E402


class Pair(nn.Module):
    """Two parts, of which one may be wrapped."""

    def __init__(self, second: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8))
        self.second = second(nn.Sequential(nn.Linear(8, 8)))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first(data))
        return out


def layers(wrap: Callable[[nn.Module], nn.Module], wrap_second: Callable[[nn.Module], nn.Module]) -> set[str]:
    with fake_capture("H100-SXM", skip=0, world=2) as captured:
        torch.distributed.init_process_group("nccl")
        with torch.device("cuda"):
            model = wrap(Pair(wrap_second))
        optimizer = torch.optim.SGD(model.parameters())
        model(torch.ones(4, 8, device="cuda")).sum().backward()
        optimizer.step()
    return {one.layer for one in captured.trace.operators if one.name == "aten::addmm"}


def same(module: nn.Module) -> nn.Module:
    return module


@pytest.mark.parametrize(
    ("wrap", "wrap_second"),
    [
        pytest.param(same, same, id="bare"),
        pytest.param(DistributedDataParallel, same, id="the model"),
        pytest.param(same, DistributedDataParallel, id="a part"),
    ],
)
def test_layers_have_no_name_of_data_parallelism(
    wrap: Callable[[nn.Module], nn.Module], wrap_second: Callable[[nn.Module], nn.Module]
) -> None:
    assert layers(wrap, wrap_second) == {"first.0", "second.0"}
