"""Kernels that PyTorch has no name for are called as functions that read and write what they do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from triosim.trace import Operator, Tensor
from triosim.tracer.benchmarks import dispatch, fused_kernels
from triosim.tracer.benchmarks.not_callable import NotCallable

torch = pytest.importorskip("torch")
Shape = tuple[int, ...]


def operator(
    name: str, inputs: list[Shape], outputs: list[Shape], attributes: Mapping[str, Any] | None = None
) -> Operator:
    made = [
        tuple(Tensor(first + number, shape, "float32") for number, shape in enumerate(shapes))
        for first, shapes in ((0, inputs), (1000, outputs))
    ]
    return Operator(0, name, "forward", "", *made, 0.0, attributes=attributes or {})


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed is looked at, and compiling takes seconds."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.usefixtures("uncompiled")
def test_inputs_are_added_along_their_axes_and_summed_over_those_that_an_output_lacks() -> None:
    """(2, 3) of ones, and (3,) of 0, 1, 2 along b: rows of 1, 2, 3, turned; and summed over b, 6 each."""
    one = operator("fused::chain", [(2, 3), (3,)], [(3, 2), (2, 1)], {"axes": "a b, b -> b a, a 1"})
    turned, summed = dispatch.bind(torch, one, [torch.ones(2, 3), torch.arange(3.0)])()
    assert turned.tolist() == [[1, 1], [2, 2], [3, 3]]
    assert summed.tolist() == [[6], [6]]


@pytest.mark.usefixtures("uncompiled")
def test_a_folded_dimension_is_read_as_its_axes() -> None:
    one = operator("fused::chain", [(2, 6), (3,)], [(2, 2, 3)], {"axes": "a c.d, d -> a c d"})
    (found,) = dispatch.bind(torch, one, [torch.zeros(2, 6), torch.arange(3.0)])()
    assert found[1].tolist() == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.usefixtures("uncompiled")
def test_tensors_without_axes_are_broadcast_by_their_lengths() -> None:
    rotary = operator("fused::rotary_embedding", [(1, 2, 4, 8), (1, 1, 4, 8), (1, 1, 4, 8)], [(1, 2, 4, 8)])
    (found,) = dispatch.bind(torch, rotary, [torch.ones(tensor.shape) for tensor in rotary.inputs])()
    assert found.shape == (1, 2, 4, 8)
    assert found.unique().item() == 3.0
    with pytest.raises(NotCallable, match="differ in more than axes"):
        dispatch.bind(torch, operator("fused::other", [(4, 6)], [(4, 5)]), [torch.ones(4, 6)])


@pytest.mark.usefixtures("uncompiled")
def test_the_rows_of_experts_come_back_to_their_tokens() -> None:
    """Two tokens with two experts each: permuted, weighed by a half, and added up they are what they were."""
    x, places = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1, 0, 1], dtype=torch.int32)
    rows = dispatch.bind(torch, operator("fused::permute_tokens", [(2, 2), (4,)], [(4, 2)]), [x, places])()
    assert rows.tolist() == [[1, 2], [3, 4], [1, 2], [3, 4]]
    back = operator("fused::unpermute_tokens", [(4, 2), (2, 2), (4,)], [(2, 2)])
    order = torch.tensor([0, 2, 1, 3], dtype=torch.int32)
    assert dispatch.bind(torch, back, [rows, torch.full((2, 2), 0.5), order])().tolist() == x.tolist()


def test_the_copies_of_fsdp_move_all_bytes() -> None:
    copied = dispatch.bind(torch, operator("aten::split_with_sizes_copy", [(24,)], [(24,)]), [torch.ones(24)])()
    assert sum(part.numel() for part in copied) == 24
    joined = dispatch.bind(torch, operator("aten::chunk_cat", [(24,)], [(24,)]), [torch.ones(24)])()
    assert joined.numel() >= 24
    assert joined.sum().item() == 24.0


def test_groups_of_a_grouped_product_end_at_its_rows() -> None:
    """Ten rows in four groups of 2 or 3; where the groups lie along the sum, each has its own product."""
    ends = torch.zeros(4, dtype=torch.int32)
    forward = operator("aten::_grouped_mm", [(10, 16), (4, 16, 8), (4,)], [(10, 8)])
    rows, weights = torch.ones(10, 16, dtype=torch.bfloat16), torch.ones(4, 16, 8, dtype=torch.bfloat16)
    assert dispatch._with_even_groups(torch, forward, [rows, weights, ends])[2].tolist() == [2, 5, 7, 10]
    backward = operator("aten::_grouped_mm", [(16, 10), (10, 8), (4,)], [(4, 16, 8)])
    assert dispatch._with_even_groups(torch, backward, [rows.t(), rows, ends])[2].tolist() == [2, 5, 7, 10]


def test_what_cannot_be_compiled_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(function: Any, **_: Any) -> Any:
        def fails(*given: Any) -> Any:
            raise RuntimeError("Failed to find C compiler")

        return fails

    monkeypatch.setattr(torch, "compile", compiled)
    with pytest.raises(NotCallable, match="cannot be compiled here: Failed to find C compiler"):
        fused_kernels.bind(torch, operator("fused::swiglu", [(2, 8)], [(2, 4)]), [torch.ones(2, 8)])


@pytest.mark.slow
def test_a_fused_kernel_is_compiled() -> None:
    call = fused_kernels.bind(torch, operator("fused::swiglu", [(2, 8)], [(2, 4)]), [torch.ones(2, 8)])
    assert call is not None
    assert call()[0, 0].item() == pytest.approx(1.0 / (1.0 + 2.718281828**-1))
