"""FLOPs and bytes of operators, worked out by hand."""

from __future__ import annotations

from triosim.compute.features import base_name, flops, input_bytes, output_bytes
from triosim.trace import Category, Operator, Tensor


def tensor(number: int, *shape: int, category: Category = "activation") -> Tensor:
    return Tensor(number, shape, category=category)


def operator(name: str, inputs: list[Tensor], outputs: list[Tensor], forward: int | None = None) -> Operator:
    phase = "forward" if forward is None else "backward"
    return Operator(2, name, phase, "layer", tuple(inputs), tuple(outputs), 1e-3, forward=forward)


WEIGHT = tensor(2, 64, 3, 3, 3, category="parameter")
CONVOLUTION = operator("aten::conv2d", [tensor(1, 8, 3, 32, 32, category="input"), WEIGHT], [tensor(3, 8, 64, 32, 32)])


def test_a_name_is_known_however_the_tracer_spelled_it() -> None:
    assert base_name("aten::relu_") == "relu"
    assert base_name("autograd::engine::evaluate_function: ConvolutionBackward0") == "ConvolutionBackward0"
    assert base_name("aten.mm.default") == "mm"
    assert base_name("aten::_foreach_lerp_") == "foreach_lerp"


def test_a_product_costs_2mnk() -> None:
    linear = operator("aten::linear", [tensor(1, 4, 5, 16), tensor(2, 32, 16), tensor(3, 32)], [tensor(4, 4, 5, 32)])
    assert flops(linear) == 2 * 20 * 16 * 32
    addmm = operator("aten::addmm", [tensor(3, 32), tensor(1, 20, 16), tensor(2, 16, 32)], [tensor(4, 20, 32)])
    assert flops(addmm) == 2 * 20 * 16 * 32
    bmm = operator("aten::bmm", [tensor(1, 6, 10, 4), tensor(2, 6, 4, 10)], [tensor(3, 6, 10, 10)])
    assert flops(bmm) == 6 * 2 * 10 * 4 * 10


def test_a_convolution_counts_its_filter_once_for_each_output() -> None:
    assert flops(CONVOLUTION) == 2 * (8 * 64 * 32 * 32) * (3 * 3 * 3)


def test_a_grouped_convolution_sees_only_its_group() -> None:
    depthwise = operator("aten::conv2d", [tensor(1, 2, 16, 8, 8), tensor(2, 16, 1, 3, 3)], [tensor(3, 2, 16, 8, 8)])
    assert flops(depthwise) == 2 * (2 * 16 * 8 * 8) * 9


def test_the_backward_of_a_product_costs_as_much_for_each_gradient() -> None:
    inner = operator("aten::linear", [tensor(1, 20, 16), tensor(2, 32, 16, category="parameter")], [tensor(4, 20, 32)])
    node = operator("AddmmBackward0", [tensor(9, 20, 32)], [tensor(5, 20, 16), tensor(6, 32, 16)], forward=2)
    assert flops(node, inner) == 2 * flops(inner)


def test_what_the_network_is_fed_has_no_gradient() -> None:
    node = operator("ConvolutionBackward0", [tensor(9, 8, 64, 32, 32)], [tensor(6, 64, 3, 3, 3)], forward=2)
    assert flops(node, CONVOLUTION) == flops(CONVOLUTION)


def test_attention_is_its_two_products_and_two_and_a_half_times_that_in_backward() -> None:
    query, key = tensor(1, 2, 4, 10, 8), tensor(2, 2, 4, 12, 8)
    attention = operator("aten::scaled_dot_product_attention", [query, key, key], [tensor(4, 2, 4, 10, 8)])
    assert flops(attention) == 2 * (2 * 2 * 4 * 10 * 12 * 8)
    node = operator("ScaledDotProductFlashAttentionBackward0", [attention.outputs[0]], [query], forward=2)
    assert flops(node, attention) == 2.5 * flops(attention)


def test_anything_else_costs_one_an_element() -> None:
    assert flops(operator("aten::relu", [tensor(1, 8, 5)], [tensor(2, 8, 5)])) == 40


def test_a_for_each_operator_costs_one_an_element_of_every_tensor_of_its_list() -> None:
    first, second = tensor(1, 8, 5), tensor(2, 30)
    assert flops(operator("aten::_foreach_add_", [first, second, first, second], [first, second])) == 70
    assert flops(operator("aten::_fused_adam_", [first, second], [])) == 70
    assert flops(operator("aten::_fused_dropout", [first], [tensor(3, 8, 5), tensor(4, 8, 5)])) == 40


def test_bytes_are_those_of_the_tensors() -> None:
    assert input_bytes(CONVOLUTION) == 4 * (8 * 3 * 32 * 32 + 64 * 27)
    assert output_bytes(CONVOLUTION) == 4 * 8 * 64 * 32 * 32


def test_an_autograd_node_that_lists_a_part_of_its_tensors_is_completed_from_the_forward_operator() -> None:
    weight = tensor(2, 32, 16, category="parameter")
    linear = operator("aten::linear", [tensor(1, 20, 16), weight], [tensor(4, 20, 32)])
    node = operator("AddmmBackward0", [tensor(5, 16, 32)], [tensor(6, 32, 16)], forward=2)
    assert input_bytes(node, linear) == 4 * (20 * 32 + 20 * 16 + 32 * 16)
    assert output_bytes(node, linear) == 4 * (20 * 16 + 32 * 16)
