"""Gradients that are added to those of other micro-batches: by which kernel, how many bytes, how long."""

from __future__ import annotations

import pytest

import triosim
from triosim.compute.models.roofline import Roofline
from triosim.compute.pricing.gradient_accumulation import AddedGradient, with_added_gradients
from triosim.trace import Operator, Tensor

MATRIX = Tensor(1, (8192, 8192), "bfloat16")
PRODUCT = Operator(7, "aten::mm", "backward", "linear", (MATRIX, MATRIX), (MATRIX,), 2e-3)
TABLE = Operator(8, "aten::embedding_dense_backward", "backward", "embedding", (MATRIX,), (MATRIX,), 1e-3)
TURNED = Operator(9, "aten::t", "backward", "linear", (MATRIX,), (MATRIX,), 0.0)
MADE = 8192 * 8192 * 2.0
BANDWIDTH = 3.35e12  # of an H100, in bytes a second


def added_seconds(operator: Operator, kept: float) -> float:
    found = with_added_gradients([operator], [AddedGradient(operator.id, MADE, kept)], Roofline(), "H100-SXM")
    return found[operator.id].seconds - operator.seconds


@pytest.mark.parametrize(
    ("operator", "kept", "moved"),
    [
        (PRODUCT, MADE, MADE),  # reads the sum so far; that it writes a gradient is in its time
        (PRODUCT, 2 * MADE, 3 * MADE),  # reads and writes fp32, instead of writing bf16
        (TABLE, MADE, 3 * MADE),  # a kernel of its own reads the gradient and the sum, and writes the sum
    ],
)
def test_bytes_take_as_long_as_in_a_copy(operator: Operator, kept: float, moved: float) -> None:
    assert moved / BANDWIDTH < added_seconds(operator, kept) < 1.5 * moved / BANDWIDTH


def test_a_gradient_that_is_turned_is_added_by_its_product() -> None:
    found = with_added_gradients([PRODUCT, TURNED], [AddedGradient(9, MADE, MADE)], Roofline(), "H100-SXM")
    assert list(found) == [7]


def backward_seconds(stack: str, micro_batches: int, **options: str) -> float:
    """The time of the backward pass of a Llama of two layers without launches."""
    result = triosim.simulate(
        "llama3-8b", layers=2, seq=512, stack=stack, micro_batches=micro_batches, host_overhead="none", **options
    )
    return sum(one.total_s for one in result.data.operators if one.phase == "backward")


def test_each_micro_batch_adds_its_gradients_in_the_dtype_that_they_are_reduced_in() -> None:
    """Two layers of 218 million parameters, a table and an output layer of 525 million each: in fp32 4 bytes more of each."""
    more = [backward_seconds("megatron", n, gradient_dtype="fp32") - backward_seconds("megatron", n) for n in (1, 3)]
    least = 4 * (2 * 218e6 + 2 * 525e6) / BANDWIDTH
    assert least < more[0] < 1.5 * least
    assert more[1] == pytest.approx(3 * more[0])


def test_kernels_of_pytorch_add_the_gradients_of_all_micro_batches_but_the_first() -> None:
    """1.49 billion parameters in bf16: a kernel reads the gradient and the sum, and writes the sum."""
    once, thrice = (backward_seconds("eager", n, micro_batch_size=1) for n in (1, 3))
    least = 2 * 6 * (2 * 218e6 + 2 * 525e6) / BANDWIDTH
    assert least < thrice - 3 * once < 1.5 * least


@pytest.mark.parametrize(
    ("stack", "parallel", "adds"),
    [("eager", "ddp", True), ("eager", "zero2", False), ("eager", "fsdp", False), ("deepspeed", "ddp", False)],
)
def test_gradients_that_are_reduced_in_each_micro_batch_have_no_sum(stack: str, parallel: str, adds: bool) -> None:
    result = triosim.simulate("gpt2", parallel, gpus=2, layers=1, stack=stack, micro_batch_size=1, micro_batches=2)
    names = [(one.name, one.phase) for one in result.data.operators]
    assert (("aten::add_", "backward") in names) == adds
