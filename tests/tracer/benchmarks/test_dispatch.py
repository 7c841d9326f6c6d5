"""Operators of a trace are called as PyTorch's schema says, with what a trace leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from triosim.trace import Operator, Tensor
from triosim.tracer.benchmarks import dispatch

torch: Any = pytest.importorskip("torch")


def operator(name: str, inputs: list[Any], outputs: list[Any], **attributes: Any) -> Operator:
    def described(tensors: list[Any], first: int) -> tuple[Tensor, ...]:
        return tuple(Tensor(first + number, tuple(one.shape)) for number, one in enumerate(tensors))

    return Operator(0, name, "backward", "", described(inputs, 0), described(outputs, 100), 0.0, attributes=attributes)


def test_an_optimizer_reads_no_list_of_amsgrad_where_the_trace_has_none() -> None:
    """Parameters, gradients, both moments and steps are five lists of the schema's six; without gradients, moments decay."""
    ones, zeros, steps = [torch.ones(3, 2), torch.ones(5)], [torch.zeros(3, 2), torch.zeros(5)], [torch.tensor(1.0)] * 2
    means, squares = [one.clone() for one in ones], [one.clone() for one in ones]
    tensors = [*ones, *zeros, *means, *squares, *steps]
    dispatch.bind(torch, operator("aten::_fused_adamw_", tensors, ones), tensors)()
    assert [one.flatten()[0].item() for one in (*means, *squares)] == pytest.approx([0.9, 0.9, 0.999, 0.999])


def test_lists_belong_together_where_their_shapes_are_equal() -> None:
    """Six tensors are two lists of three, with a number as weight; three lists of two would have different shapes."""
    tensors = [torch.zeros(2), torch.zeros(3), torch.zeros(4), torch.ones(2), torch.ones(3), torch.ones(4)]
    dispatch.bind(torch, operator("aten::_foreach_lerp_", tensors, tensors[:3]), tensors)()
    assert [one[0].item() for one in tensors[:3]] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("places", [(0, 1), (1,), (0, 1, 2)])
def test_a_convolution_computes_the_gradients_that_the_trace_has(places: tuple[int, ...]) -> None:
    gradient, read, weight = torch.ones(2, 4, 5, 5), torch.ones(2, 3, 5, 5), torch.ones(4, 3, 3, 3)
    gradients = [read, weight, torch.ones(4)]
    one = operator(
        "aten::convolution_backward",
        [gradient, read, weight],
        [gradients[place] for place in places],
        **{"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "transposed": False, "output_padding": [0, 0]},
        groups=1,
    )
    found = dispatch.bind(torch, one, [gradient, read, weight])()
    assert tuple(place for place, made in enumerate(found) if made is not None) == places


def test_attention_whose_trace_names_no_sums_of_exponentials_is_called() -> None:
    """The kernel is a GPU's; without one it is the shapes alone that run."""
    tensors = [torch.empty(1, 2, 64, 16, device="meta") for _ in range(3)]
    one = operator("aten::_scaled_dot_product_efficient_attention", tensors, tensors[:1], is_causal=True)
    assert dispatch.bind(torch, one, tensors)()[0].shape == (1, 2, 64, 16)
