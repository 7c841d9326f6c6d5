"""Images with their channels last stay so through a network, and a trace says it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from triosim.tracer import fake_capture  # noqa: E402


def captured(layout: torch.memory_format) -> dict[str, bool]:
    """Return for each operator on images whether the trace says that its channels are last."""
    with fake_capture("A100") as capture:
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.MaxPool2d(2), torch.nn.Conv2d(16, 8, 1)
        )
        model = model.cuda().to(memory_format=layout)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            images = torch.randn(4, 3, 32, 32, device="cuda").contiguous(memory_format=layout)
            model(images).sum().backward()
            optimizer.step()
    names = ("convolution", "convolution_backward", "native_batch_norm", "native_batch_norm_backward", "max_pool2d")
    found = {}
    for operator in capture.trace.operators:
        for name in names:
            if (
                operator.name.removeprefix("aten::").replace("cudnn_batch", "native_batch").startswith(name)
            ):  # build with CUDA
                found[name] = operator.attributes.get("channels_last", False)
    assert set(found) == set(names)
    return found


def test_channels_last_goes_through_convolutions_norms_and_their_gradients() -> None:
    assert all(captured(torch.channels_last).values())


def test_channels_first_is_not_called_channels_last() -> None:
    assert not any(captured(torch.contiguous_format).values())
