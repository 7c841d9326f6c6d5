"""What is one kernel on a GPU is one operator without a GPU, also where PyTorch has no CUDA and would take it apart."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
torchgen = pytest.importorskip("torchgen")
yaml = pytest.importorskip("yaml")

from torch import nn  # noqa: E402

from triosim.tracer.device.operators.undecomposed_operators import KERNELS  # noqa: E402
from triosim.tracer.fake_device import fake_capture  # noqa: E402

FUNCTIONS = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"


def test_no_operator_with_a_cuda_kernel_is_left_to_be_taken_apart() -> None:
    """PyTorch lists for each of its operators the kernels that it has."""
    both = set()
    for function in yaml.load(FUNCTIONS.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader):
        keys = {key.strip() for keys in function.get("dispatch", ()) for key in keys.split(",")}
        if "CompositeImplicitAutograd" in keys and ("CUDA" in keys or "structured_delegate" in function):
            both.add(function["func"].partition("(")[0])
    assert both <= set(KERNELS)


@pytest.mark.parametrize(("activation", "name"), [(nn.SiLU(), "silu"), (nn.Mish(), "mish")])
def test_the_gradient_of_an_activation_is_one_operator(activation: nn.Module, name: str) -> None:
    assert made_in_the_backward_pass(activation) == [f"aten::{name}_backward"]


def test_a_root_mean_square_norm_is_one_operator_each_way() -> None:
    if not hasattr(torch.ops.aten, "_fused_rms_norm"):
        pytest.skip("this PyTorch has no such kernel")
    norm = nn.RMSNorm(64, elementwise_affine=False)
    assert made_in_the_backward_pass(norm) == ["aten::_fused_rms_norm_backward"]


def made_in_the_backward_pass(module: nn.Module) -> list[str]:
    """The operators that make a new tensor as large as the input, when what a module made of it is summed."""
    with fake_capture("H100-SXM") as captured:
        weight = nn.Parameter(torch.randn(8, 64, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            module(weight).sum().backward()
            optimizer.step()
    views = ("aten::detach", "aten::expand", "aten::view")
    return [
        one.name
        for one in captured.trace.operators
        if one.phase == "backward" and one.name not in views and any(made.shape == (8, 64) for made in one.outputs)
    ]
