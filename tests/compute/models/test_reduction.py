"""Softmax and layer normalisation move their rows twice at least, and longer rows of as many bytes may take longer."""

from __future__ import annotations

import numpy as np
import pytest

from triosim import gpus
from triosim.compute.models.forest import Reduction
from triosim.trace import Operator, Tensor


def call(name: str, rows: int, width: int, dtype: str = "float32") -> Operator:
    inputs = (Tensor(0, (rows, width), dtype),)
    if name == "layer_norm":
        inputs = (*inputs, Tensor(1, (width,), dtype), Tensor(2, (width,), dtype))
    return Operator(0, f"aten::{name}", "forward", "", inputs, (Tensor(3, (rows, width), dtype),), 0.0)


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
@pytest.mark.parametrize("gpu", ["V100-PCIe-32GB", "L4", "A100-PCIe-80GB", "H100", "H200"])
def test_rows_are_moved_at_a_share_of_the_bandwidth(name: str, gpu: str) -> None:
    rows, width = 131072, 4096
    found = Reduction().estimate([call(name, rows, width)], gpu)
    share = 2 * 4 * rows * width / found.seconds[0] / gpus.find(gpu).bandwidth
    assert 0.25 < share < 1.05
    assert found.relative_error[0] > 0


def test_twice_the_rows_take_twice_the_time() -> None:
    one, two = (
        Reduction().estimate([call("softmax", 65536, 2048), call("softmax", 131072, 2048)], "A100-PCIe-40GB").seconds
    )
    assert two / one == pytest.approx(2.0, rel=0.15)


def test_half_precision_is_rows_of_half_the_bytes() -> None:
    half, full = (
        Reduction()
        .estimate([call("softmax", 131072, 4096, "bfloat16"), call("softmax", 131072, 2048, "float32")], "H100")
        .seconds
    )
    assert half == pytest.approx(full, rel=0.3)
    assert np.isfinite(half)
