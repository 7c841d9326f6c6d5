"""What compiled code allocates: what kernels write and nothing inside of them, and nothing where they compute in place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from triosim.tracer import fake_capture  # noqa: E402

ROWS, WIDTH, WORDS = 4096, 64, 32768
LOGITS = ROWS * WORDS * 2  # bytes in bfloat16


class Head(nn.Module):
    """A product of many results, and a loss of them in fp32."""

    def __init__(self, *, capped: bool = False) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.capped = capped

    def forward(self, x: Any, labels: Any) -> Any:
        logits = self.head(x)
        if self.capped:
            logits = 30 * torch.tanh(logits / 30)
        return functional.cross_entropy(logits.float(), labels)


def peak_of(run: Callable[[], Any]) -> int:
    """The most bytes that a second run needs beside what is there before."""
    run()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() - before


def rounded(*sizes: int) -> int:
    return sum(-(-size // 512) * 512 for size in sizes)


@pytest.mark.parametrize("capped", [False, True])
def test_a_compiled_loss_has_one_copy_of_the_logits(*, capped: bool) -> None:
    """The gradient of the logits takes their place, and what is fp32 of them lies in no memory.

    While the gradients of the weight are made, there are these and those of the input.
    """
    with fake_capture("H100-SXM"):
        model = torch.compile(Head(capped=capped).cuda().bfloat16())
        x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        labels = torch.randint(0, WORDS, (ROWS,), device="cuda")

        def run() -> None:
            model(x, labels).backward()
            x.grad = None
            model.zero_grad()

        found = peak_of(run)
    gradients = rounded(WORDS * WIDTH * 2, ROWS * WIDTH * 2)
    numbers = 6 * ROWS * 8  # a few of each row
    assert LOGITS + gradients < found < LOGITS + gradients + numbers


def test_the_gradient_of_an_activation_takes_the_place_of_what_was_saved() -> None:
    """Between two products: the first one's result is saved for GELU's gradient, which reads it last."""
    with fake_capture("H100-SXM"):
        first, second = (nn.Linear(1024, 1024, bias=False).cuda() for _ in range(2))
        block = torch.compile(nn.Sequential(first, nn.GELU(), second))
        x = torch.randn(8192, 1024, device="cuda")
        unit = 8192 * 1024 * 4

        def run() -> None:
            block(x).backward(y)
            for layer in (first, second):
                layer.weight.grad = None

        y = torch.ones(8192, 1024, device="cuda")
        found = peak_of(run)
    # the first product's result, GELU's, and the gradient of GELU's result, or the second product's result; a weight's gradient
    assert found == 3 * unit + 1024 * 1024 * 4


@pytest.mark.parametrize("how", ["result", "argument", "order"])
def test_a_kernel_does_not_compute_in_place_of_what_is_needed(how: str) -> None:
    """Of two results of 4 MB: one is returned, is the caller's own, or is read in another order than it is written in."""
    unit = 1024 * 1024 * 4
    with fake_capture("H100-SXM"):
        x, order = torch.randn(1024, 1024, device="cuda"), torch.randperm(1024).cuda()

        @torch.compile
        def run(x: Any, order: Any) -> Any:
            product = x @ x
            if how == "result":
                return product, product + 1
            return product[order] if how == "order" else x + 1

        found = peak_of(lambda: run(x, order))
    assert found == {"result": 2, "argument": 1, "order": 2}[how] * unit


def test_a_kernel_computes_in_place_of_a_result_that_it_reads_last() -> None:
    with fake_capture("H100-SXM"):
        x = torch.randn(1024, 1024, device="cuda")
        found = peak_of(lambda: torch.compile(lambda x: (x @ x).relu() + 1)(x))
    assert found == 1024 * 1024 * 4


def test_a_result_in_another_type_is_converted_where_it_is_read() -> None:
    """A kernel after the product reads in bfloat16 what it computes with in fp32."""
    unit = 1024 * 1024 * 2
    with fake_capture("H100-SXM"):
        x = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)

        @torch.compile
        def run(x: Any) -> Any:
            rows = (x @ x).relu()
            wide = rows.float()
            return (wide * (rows @ x).amax()).bfloat16()

        found = peak_of(lambda: run(x))
    assert 2 * unit <= found < 2.1 * unit


def test_the_largest_magnitude_is_found_where_its_tensor_is_read() -> None:
    """As fp8 scales are: no kernel writes the magnitudes of all elements."""
    with fake_capture("H100-SXM"):
        x = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
        found = peak_of(lambda: torch.compile(lambda x: (x @ x).abs().max())(x))
    assert found < 1.1 * 1024 * 1024 * 2
