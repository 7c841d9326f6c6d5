"""Attention on chips of faster exponentials."""

from __future__ import annotations

from dataclasses import replace

import pytest

from triosim import gpus
from triosim.compute.models import exponentials
from triosim.compute.models.auto import AutoComputeModel
from triosim.trace import Operator, Tensor


def attention(*, causal: bool) -> Operator:
    """Attention of 2 samples, 8 heads and 4,096 tokens."""
    tensors = tuple(Tensor(number, (2, 8, 4096, 128), "bfloat16") for number in range(4))
    what = "aten::_scaled_dot_product_flash_attention", "forward", "l"
    return Operator(0, *what, tensors[:3], tensors[3:], 0.0, attributes={"is_causal": causal})  # type: ignore[arg-type]


@pytest.mark.parametrize(("causal", "scores"), [(False, 2 * 8 * 4096**2), (True, 2 * 8 * 4096**2 / 2)])
def test_attention_is_shorter_by_the_time_that_its_exponentials_no_longer_take(causal: bool, scores: float) -> None:
    """A GB300 computes 10.7e12 a second, 16 a clock of its 152 multiprocessors at 2.062 GHz would be 5.01e12."""
    saved = scores / (16 * 152 * 2.062e9) - scores / 10.7e12
    left = exponentials.share_left(attention(causal=causal), None, 1e-3, gpus.find("GB300"))
    assert 1e-3 * (1.0 - left) == pytest.approx(saved)


def test_other_operators_and_other_chips_take_what_they_did() -> None:
    product = replace(attention(causal=True), name="aten::mm")
    assert exponentials.share_left(product, None, 1e-3, gpus.find("GB300")) == 1.0
    assert exponentials.share_left(attention(causal=True), None, 1e-3, gpus.find("GB200")) == 1.0


def test_attention_of_one_chip_is_shorter_on_the_other_and_products_are_not() -> None:
    def seconds(gpu: str) -> float:
        return float(AutoComputeModel().estimate([attention(causal=True)], gpu).seconds[0])

    assert 0.5 * seconds("B200") < seconds("B300") < seconds("B200")
