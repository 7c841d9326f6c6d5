"""FLOPs of all that multiplies: every name that counts as a product or a convolution, by hand, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from triosim import gpus
from triosim.compute.families import calls_of
from triosim.compute.models.roofline import Roofline, class_of
from triosim.operators.features import flops, kind
from triosim.operators.kinds import names
from triosim.operators.products import recurrent_steps
from triosim.trace import Category, Operator, Tensor

Shape = tuple[int, ...]


def operator(name: str, inputs: list[Shape], outputs: list[Shape], **attributes: object) -> Operator:
    tensors = [Tensor(place, shape) for place, shape in enumerate([*inputs, *outputs], 1)]
    count = len(inputs)
    return Operator(
        7,
        f"aten::{name}",
        "forward",
        "layer",
        tuple(tensors[:count]),
        tuple(tensors[count:]),
        1e-3,
        attributes=attributes,
    )


def node(name: str, inputs: list[Shape], outputs: list[Shape]) -> Operator:
    """A node of the autograd graph; its tensors have ids that the forward operator's do not."""
    tensors = [Tensor(place, shape) for place, shape in enumerate([*inputs, *outputs], 101)]
    count = len(inputs)
    return Operator(8, name, "backward", "layer", tuple(tensors[:count]), tuple(tensors[count:]), 1e-3, forward=7)


#: Rows of 8 x 32 experts, 96 of them: the figures that PyTorch's counter gives for ``_grouped_mm``.
MNK = 2 * 20 * 32 * 16  # (20, 16) by (16, 32)
PRODUCTS: Mapping[str, tuple[list[Shape], list[Shape], int]] = {
    "linear": ([(4, 5, 16), (32, 16), (32,)], [(4, 5, 32)], MNK),
    "mkldnn_linear": ([(4, 5, 16), (32, 16), (32,)], [(4, 5, 32)], MNK),
    "inner": ([(20, 16), (32, 16)], [(20, 32)], MNK),
    "cdist": ([(20, 16), (32, 16)], [(20, 32)], MNK),
    "mm": ([(20, 16), (16, 32)], [(20, 32)], MNK),
    "matmul": ([(4, 5, 16), (16, 32)], [(4, 5, 32)], MNK),
    "linalg_matmul": ([(20, 16), (16, 32)], [(20, 32)], MNK),
    "int_mm": ([(20, 16), (16, 32)], [(20, 32)], MNK),
    "scaled_mm": ([(20, 16), (16, 32), (), ()], [(20, 32)], MNK),
    "addmm": ([(32,), (20, 16), (16, 32)], [(20, 32)], MNK),
    "addmm_activation": ([(32,), (20, 16), (16, 32)], [(20, 32)], MNK),
    "bmm": ([(3, 20, 16), (3, 16, 32)], [(3, 20, 32)], 3 * MNK),
    "baddbmm": ([(3, 20, 32), (3, 20, 16), (3, 16, 32)], [(3, 20, 32)], 3 * MNK),
    "addbmm": ([(20, 32), (3, 20, 16), (3, 16, 32)], [(20, 32)], 3 * MNK),
    "grouped_mm": ([(96, 32), (8, 32, 160), (8,)], [(96, 160)], 983_040),
    "scaled_grouped_mm": ([(96, 32), (8, 32, 160), (96,), (8, 160), (8,)], [(96, 160)], 983_040),
    "mv": ([(20, 16), (16,)], [(20,)], 2 * 20 * 16),
    "addmv": ([(20,), (20, 16), (16,)], [(20,)], 2 * 20 * 16),
    "dot": ([(16,), (16,)], [()], 32),
    "vdot": ([(16,), (16,)], [()], 32),
    "outer": ([(20,), (32,)], [(20, 32)], 640),
    "ger": ([(20,), (32,)], [(20, 32)], 640),
    "addr": ([(20, 32), (20,), (32,)], [(20, 32)], 1280),
    "kron": ([(2, 3), (4, 5)], [(8, 15)], 120),
    "bilinear": ([(3, 5), (3, 6), (7, 5, 6), (7,)], [(3, 7)], 2 * 3 * 7 * 5 * 6 + 2 * 3 * 7 * 6),
    "trilinear": ([(3, 5), (3, 6), (7, 5, 6)], [(3, 7)], 2 * 3 * 7 * 5 * 6 + 2 * 3 * 7 * 6),
    "tensordot": ([(4, 5, 16), (16, 32)], [(4, 5, 32)], MNK),
    "chain_matmul": ([(10, 100), (100, 5), (5, 50)], [(10, 50)], 2 * 7500),
    "linalg_multi_dot": ([(100,), (100, 5), (5, 50)], [(50,)], 2 * (500 + 250)),
    "einsum": ([(3, 20, 16), (3, 32, 16)], [(3, 20, 32)], 3 * MNK),
}
ATTRIBUTES = {"einsum": {"equation": "bqd,bkd->bqk"}}


@pytest.mark.parametrize("name", sorted(names("product")))
def test_every_product_costs_two_for_each_multiply_add(name: str) -> None:
    inputs, outputs, expected = PRODUCTS[name]
    one = operator(name, inputs, outputs, **ATTRIBUTES.get(name, {}))
    assert kind(one) == class_of(one) == "product"
    assert flops(one) == expected


@pytest.mark.parametrize("name", sorted(names("convolution")))
def test_every_convolution_applies_its_filter_once_for_each_position(name: str) -> None:
    if "transpose" in name:
        one = operator(name, [(2, 16, 8, 8), (16, 4, 3, 3), (4,)], [(2, 4, 10, 10)])
        expected = 2 * (2 * 16 * 8 * 8) * (4 * 9)  # each of the inputs is spread over a filter of each output channel
    else:
        one = operator(name, [(2, 16, 8, 8), (32, 4, 3, 3), (32,)], [(2, 32, 8, 8)])
        expected = 2 * (2 * 32 * 8 * 8) * (4 * 9)
    assert kind(one) == class_of(one) == "convolution"
    assert flops(one) == expected


def test_a_call_inside_of_an_operator_is_known_by_the_same_name() -> None:
    one = operator("_slow_conv2d_forward", [(2, 16, 8, 8), (32, 16, 3, 3)], [(2, 32, 8, 8)])
    assert flops(one) == 2 * (2 * 32 * 8 * 8) * (16 * 9)


def test_groups_of_columns_and_of_depth_cost_what_they_multiply() -> None:
    """The two gradients of a grouped product are grouped products of other ranks: 96 rows in all, in 8 groups."""
    assert flops(operator("_grouped_mm", [(32, 96), (96, 160), (8,)], [(8, 32, 160)])) == 983_040
    assert flops(operator("_grouped_mm", [(8, 160, 32), (32, 96), (8,)], [(160, 96)])) == 983_040


def test_the_backward_of_experts_is_two_grouped_products() -> None:
    forward = operator("_grouped_mm", [(96, 32), (8, 32, 160), (8,)], [(96, 160)])
    both = node("GroupedMmBackward0", [(96, 160), (96, 32), (8,), (8, 32, 160)], [(8, 32, 160), (96, 32)])
    assert flops(both, forward) == 2 * 983_040
    only_the_weights = node("GroupedMmBackward0", [(96, 160), (96, 32), (8,)], [(8, 32, 160)])
    assert flops(only_the_weights, forward) == 983_040


def test_the_backward_of_an_einsum_is_a_product_for_each_factor() -> None:
    """As PyTorch's counter says: 15,552 for this one, whose forward costs 7,776."""
    forward = operator("einsum", [(6, 9, 8), (6, 9, 8)], [(6, 9, 9)], equation="bqd,bkd->bqk")
    backward = node("BmmBackward0", [(6, 9, 9), (6, 9, 8), (6, 8, 9)], [(6, 8, 9), (6, 9, 8)])
    assert flops(forward) == 7_776
    assert flops(backward, forward) == 15_552


def test_a_node_of_an_einsum_of_three_is_one_of_its_products() -> None:
    forward = operator("einsum", [(3, 20, 16), (3, 16, 32), (3, 32, 8)], [(3, 20, 8)], equation="bij,bjk,bkl->bil")
    backward = node("BmmBackward0", [(3, 20, 32), (3, 20, 16), (3, 16, 32)], [(3, 20, 16), (3, 16, 32)])
    assert flops(backward, forward) == 2 * 3 * MNK


def test_a_recurrent_layer_applies_its_weights_at_each_step() -> None:
    """Ten steps of five samples: 50 times 64 x 16 for the input and as much for what is remembered."""
    weights: list[Shape] = [(64, 16), (64, 16), (64,), (64,)]
    lstm = operator("lstm", [(5, 10, 16), (1, 5, 16), (1, 5, 16), *weights], [(5, 10, 16), (1, 5, 16), (1, 5, 16)])
    assert flops(lstm) == 2 * 50 * (2 * 64 * 16) == 204_800
    assert class_of(lstm) == "product"
    unbiased = operator(
        "lstm", [(5, 10, 16), (1, 5, 16), (1, 5, 16), *weights[:2]], [(5, 10, 16), (1, 5, 16), (1, 5, 16)]
    )
    assert flops(unbiased) == flops(lstm)
    gru = operator("gru", [(5, 10, 16), (1, 5, 16), (48, 16), (48, 16), (48,), (48,)], [(5, 10, 16), (1, 5, 16)])
    assert flops(gru) == 2 * 50 * (2 * 48 * 16)
    cell = operator("lstm_cell", [(5, 16), (5, 16), (5, 16), *weights], [(5, 16), (5, 16)])
    assert flops(cell) == 2 * 5 * (2 * 64 * 16)
    backward = node("MkldnnRnnLayerBackward0", [(10, 5, 16)], [(64, 16)])
    assert flops(backward, lstm) == 2 * flops(lstm)
    assert recurrent_steps(lstm) == 10
    assert recurrent_steps(cell) == 1


def test_parameters_of_a_recurrent_layer_are_told_from_its_state() -> None:
    """A batch of 64 has the shape of a weight; what the trace calls a parameter is one."""
    kinds: list[Category] = ["input", "activation", "activation", "parameter", "parameter"]
    shapes: list[Shape] = [(64, 16), (64, 16), (64, 16), (64, 16), (64, 16)]
    inputs = tuple(
        Tensor(number, shape, category=of) for number, (shape, of) in enumerate(zip(shapes, kinds, strict=True))
    )
    cell = Operator(7, "aten::lstm_cell", "forward", "l", inputs, (Tensor(9, (64, 16)),), 1e-3)
    assert flops(cell) == 2 * 64 * (2 * 64 * 16)


def test_every_dense_product_is_one_to_the_models_of_products() -> None:
    for name in ("linear", "mkldnn_linear", "mm", "matmul", "linalg_matmul", "addmm", "addmm_activation"):
        inputs, outputs, _ = PRODUCTS[name]
        ((_, found),) = calls_of([operator(name, inputs, outputs)])
        assert [float(found[column][0]) for column in "bmnk"] == [1, 20, 32, 16], name


def test_the_roofline_charges_experts_for_their_arithmetic() -> None:
    """65,536 rows of 4,096 by 8 experts of 14,336: 7.7 TFLOP cannot take less than at the peak of an A100."""
    experts = operator("_grouped_mm", [(65536, 4096), (8, 4096, 14336), (8,)], [(65536, 14336)])
    assert Roofline().estimate([experts], "A100").seconds[0] > 2 * 65536 * 4096 * 14336 / gpus.find("A100").rate(
        "float32"
    )
