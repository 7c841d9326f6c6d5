"""A dtype that PyTorch refuses on a device is refused without one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from triosim.tracer.fake_device import FakeDevice  # noqa: E402

Make = Callable[..., torch.Tensor]
HALF = torch.bfloat16

REFUSED: dict[str, Callable[[Make], Any]] = {
    "mm": lambda ones: ones(4, 4) @ ones(4, 4, dtype=HALF),
    "mv": lambda ones: ones(4, 4) @ ones(4, dtype=HALF),
    "bmm": lambda ones: torch.bmm(ones(2, 4, 4), ones(2, 4, 4, dtype=HALF)),
    "linear": lambda ones: f.linear(ones(4, 4, dtype=HALF), ones(4, 4), ones(4)),
    "linear of integers": lambda ones: f.linear(ones(4, 4, dtype=torch.int64), ones(4, 4), ones(4)),
    "convolution": lambda ones: f.conv2d(ones(1, 3, 8, 8, dtype=HALF), ones(4, 3, 3, 3)),
    "transposed convolution": lambda ones: f.conv_transpose2d(ones(1, 3, 8, 8, dtype=HALF), ones(3, 4, 3, 3)),
    "attention": lambda ones: f.scaled_dot_product_attention(
        *(ones(1, 2, 8, 16, dtype=dtype) for dtype in (torch.float32, HALF, HALF))
    ),
    "classes": lambda ones: f.cross_entropy(ones(4, 4), ones(4, dtype=torch.int32)),
    "binary": lambda ones: f.binary_cross_entropy(ones(4, 4), ones(4, 4, dtype=HALF)),
    "index": lambda ones: torch.index_select(ones(4, 4), 0, ones(4)),
    "put": lambda ones: ones(4, 4).index_put_((ones(4, dtype=torch.int64),), ones(4, 4, dtype=HALF)),
    "add": lambda ones: ones(4, 4).index_add_(0, ones(4, dtype=torch.int64), ones(4, 4, dtype=HALF)),
    "mask": lambda ones: ones(4, 4).masked_fill_(ones(4, 4, dtype=torch.int64), 1.0),
    "softmax": lambda ones: torch.softmax(ones(4, 4, dtype=torch.int64), -1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_device_refuses_is_refused_without_one(name: str) -> None:
    call = REFUSED[name]
    with pytest.raises(RuntimeError):
        call(lambda *shape, dtype=torch.float32: torch.ones(*shape, dtype=dtype))
    with FakeDevice("H100-SXM"), pytest.raises(RuntimeError, match=r"dtype|expected"):
        call(lambda *shape, dtype=torch.float32: torch.ones(*shape, dtype=dtype, device="cuda"))


def test_autocast_makes_one_dtype_of_two() -> None:
    with FakeDevice("H100-SXM"), torch.autocast("cuda", HALF):
        layer = nn.Linear(4, 4).cuda()
        assert layer(torch.ones(4, 4, device="cuda", dtype=torch.float16)).dtype == HALF
        lstm = nn.LSTM(4, 4).cuda()
        assert lstm(torch.ones(3, 2, 4, device="cuda"))[0].dtype == HALF


def test_states_of_a_recurrent_layer_have_the_dtype_of_its_weights() -> None:
    with FakeDevice("H100-SXM"):
        lstm = nn.LSTM(4, 4).cuda()
        state = torch.ones(1, 2, 4, device="cuda", dtype=HALF)
        with pytest.raises((RuntimeError, ValueError), match="dtype"):
            lstm(torch.ones(3, 2, 4, device="cuda"), (state, state))
