"""Second derivatives by ``torch.func`` run, also where they are trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.func import functional_call, grad, hessian, jacfwd, jvp, vmap  # noqa: E402

from triosim.tracer.fake_device import FakeDevice  # noqa: E402

POINTS = 16


@pytest.mark.parametrize(
    ("transform", "shape"),
    [
        (lambda of: vmap(hessian(of)), (POINTS, 2, 2)),
        (lambda of: vmap(jacfwd(grad(of))), (POINTS, 2, 2)),
        (lambda of: vmap(lambda x: jvp(grad(of), (x,), (torch.ones_like(x),))[1]), (POINTS, 2)),
    ],
)
def test_second_derivatives_have_gradients(
    device: FakeDevice, transform: Callable[[Any], Any], shape: tuple[int, ...]
) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).cuda()
    parameters = dict(network.named_parameters())
    found = transform(lambda x: functional_call(network, parameters, (x,)).squeeze())(
        torch.rand(POINTS, 2, device="cuda")
    )
    assert (found.shape, found.device.type) == (shape, "cuda")
    found.square().mean().backward()
    assert all(one.grad is not None for one in list(parameters.values())[:3])
