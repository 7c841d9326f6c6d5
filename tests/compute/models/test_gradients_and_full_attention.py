"""Products' gradients are products of known shapes; attention that nobody calls causal is full."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.models.forest import Forest
from triosim.compute.models.roofline import Roofline
from triosim.compute.operator_sequence import OperatorSequence
from triosim.trace import Category, Operator, Tensor


def attention(batch: int, heads: int, length: int, width: int, *, masked: bool = False, **said: bool) -> Operator:
    shape = (batch, heads, length, width)
    inputs = [Tensor(number, shape, "bfloat16") for number in range(3)]
    inputs += [Tensor(3, (batch, 1, length, length), "bfloat16")] if masked else []
    out = (Tensor(4, shape, "bfloat16"),)
    name = "aten::scaled_dot_product_attention"
    return Operator(1, name, "forward", "", tuple(inputs), out, 0.0, attributes=said)


SIZES = list(product((1, 8, 64), (8, 32), (128, 512, 2048, 8192), (64, 128)))


@pytest.mark.parametrize("gpu", ["H100", "A100", "T4"])
def test_full_attention_takes_longer_than_causal_and_at_most_twice_as_long(gpu: str) -> None:
    causal = AutoComputeModel().estimate([attention(*one, is_causal=True) for one in SIZES], gpu)
    full = AutoComputeModel().estimate([attention(*one, is_causal=False) for one in SIZES], gpu)
    ratio = full.seconds / causal.seconds
    assert (ratio >= 1.0).all()
    assert (ratio <= 2.0).all()
    long = np.array([length >= 2048 for _, _, length, _ in SIZES]) & (causal.seconds > 1e-3)
    assert ratio[long].min() > 1.8
    assert (full.relative_error > causal.relative_error).all()  # no table holds it


def test_without_a_word_or_with_a_mask_attention_is_full_to_every_model() -> None:
    said = attention(8, 32, 2048, 128, is_causal=False)
    for other in (attention(8, 32, 2048, 128), attention(8, 32, 2048, 128, masked=True, is_causal=True)):
        for model in (Forest(), Roofline()):
            if model.__class__ is Roofline and len(other.inputs) > 3:
                continue  # which reads the mask too
            one, two = model.estimate([said], "H100"), model.estimate([other], "H100")
            assert one.seconds[0] == two.seconds[0]


def linear(m: int, n: int, k: int, dtype: str, data: Category = "activation") -> tuple[Operator, Operator]:
    """A linear layer and its backward, whose node lists what it makes."""
    given = Tensor(1, (m, k), dtype, category=data)
    weight = Tensor(2, (n, k), dtype, category="parameter")
    out = Tensor(3, (m, n), dtype)
    forward = Operator(1, "aten::linear", "forward", "l", (given, weight), (out,), 0.0)
    made = [Tensor(6, (n, k), dtype, category="gradient", parameter=2)]
    made += [Tensor(5, (m, k), dtype, category="gradient")] if data != "input" else []
    gradient = Tensor(4, (m, n), dtype, category="gradient")
    node = Operator(2, "AddmmBackward0", "backward", "l", (gradient, given, weight), tuple(made), 0.0, forward=1)
    return forward, node


def test_the_gradients_of_a_linear_layer_are_two_products() -> None:
    """Of (4096, 1024) by (1024, 8192): (4096, 8192) by (8192, 1024), and (1024, 4096) by (4096, 8192)."""
    found = OperatorSequence(linear(4096, 8192, 1024, "bfloat16")).gradients
    shapes = {tuple(int(calls[name][row]) for name in "bmnk") for _, calls in found for row in range(len(calls))}
    assert shapes == {(1, 4096, 1024, 8192), (1, 1024, 8192, 4096)}
    assert all(place == 1 for places, _ in found for place in places)


def test_what_the_network_is_fed_needs_the_weights_gradient_alone() -> None:
    ((_, calls),) = OperatorSequence(linear(4096, 8192, 1024, "bfloat16", "input")).gradients
    assert [int(calls[name][0]) for name in "bmnk"] == [1, 1024, 8192, 4096]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_large_gradients_take_about_twice_the_forward_product(dtype: str) -> None:
    """They are three products of equal FLOPs, all of them long enough to run near the peak."""
    found = Forest().estimate(linear(4096, 8192, 4096, dtype), "H100")
    assert found.seconds[1] / found.seconds[0] == pytest.approx(2.0, rel=0.15)
    assert found.relative_error[1] > found.relative_error[0]


def test_gradients_on_an_h100_are_within_what_is_stated() -> None:
    """AddmmBackward0 of VGG-13's first linear layer, 128 x 25088 by 4096 in float32, took 1196 us on an H100."""
    found = Forest().estimate(linear(128, 4096, 25088, "float32"), "H100")
    assert found.seconds[1] == pytest.approx(1196e-6, rel=found.relative_error[1])


def test_the_models_choose_the_trees_for_gradients() -> None:
    found = AutoComputeModel().estimate(linear(4096, 8192, 4096, "bfloat16"), "H100")
    assert found.model == ["forest", "forest"]
    assert found.relative_error[1] < Roofline().estimate(linear(4096, 8192, 4096, "bfloat16"), "H100").relative_error[1]
