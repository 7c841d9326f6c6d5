"""Triton kernels that a script launches without a GPU: one operator each, which reads and writes what the kernel does."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import warnings  # noqa: E402

import triton.language as tl  # noqa: E402
from torch import nn  # noqa: E402
from torch.library import custom_op, triton_op, wrap_triton  # noqa: E402

from triosim.errors import CaptureWarning  # noqa: E402
from triosim.operators.features import base_name, input_bytes, is_free, output_bytes  # noqa: E402
from triosim.trace import Operator  # noqa: E402
from triosim.tracer import fake_capture  # noqa: E402

ROWS, WIDTH = 128, 64
NBYTES = 4 * ROWS * WIDTH


@triton.jit
def total(first, second, out, n, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    tl.store(out + places, tl.load(first + places, mask=mask) + tl.load(second + places, mask=mask), mask=mask)


@triton.jit
def transpose(data, n, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    tl.store(data + places, 2 * tl.load(data + places, mask=mask), mask=mask)


@triton.autotune([triton.Config({"BLOCK": size}) for size in (32, 64)], key=["n"])
@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def scaled(data, out, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(data + places, mask=places < n), mask=places < n)


def added(first: Any, second: Any, launch: Any = total) -> Any:
    out = torch.empty_like(first)
    launch[lambda chosen: (triton.cdiv(out.numel(), chosen["BLOCK"]),)](first, second, out, out.numel(), BLOCK=32)
    return out


@triton_op("triosim_tests::visible", mutates_args={})
def visible(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return added(first, second, wrap_triton(total))


@custom_op("triosim_tests::opaque", mutates_args=())
def opaque(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return added(first, second).matmul(second.t())


@custom_op("triosim_tests::plain", mutates_args=())
def plain(data: torch.Tensor) -> torch.Tensor:
    return data.cpu().to(data.device)


opaque.register_fake(lambda first, second: first.new_empty(first.shape[0], first.shape[0]))
plain.register_fake(torch.empty_like)
for one in (visible, opaque):
    one.register_autograd(lambda context, gradient: (None, None))


class Net(nn.Module):
    """A layer, and operators of the script's own."""

    def __init__(self, *operators: Any) -> None:
        super().__init__()
        self.layer, self.operators = nn.Linear(WIDTH, WIDTH), operators

    def forward(self, x: Any) -> Any:
        made = torch.relu(self.layer(x))
        return made.sum() + sum(operator(made.detach(), x).sum() for operator in self.operators)


def captured(*operators: Any, compiled: bool = False) -> list[Operator]:
    """Return the operators of a step of a network with these, or what a compiler makes of it, without views."""
    with fake_capture("H100-SXM") as capture:
        model = Net(*operators).cuda()
        called = torch.compile(model) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            called(torch.ones(ROWS, WIDTH, device="cuda")).backward()
            optimizer.step()
    return [one for one in capture.trace.operators if not is_free(one)]


def kernels(operators: list[Operator]) -> list[Operator]:
    return [one for one in operators if one.name.startswith("triton::")]


def test_a_launch_is_one_operator_that_reads_and_writes_what_its_kernel_does() -> None:
    (found,) = kernels(captured(added))
    assert (found.name, found.phase) == ("triton::total", "forward")
    assert input_bytes(found) == 2 * NBYTES
    assert output_bytes(found) == NBYTES


@pytest.mark.parametrize("compiled", [False, True])
def test_operators_that_launch_kernels_are_what_they_launch(compiled: bool) -> None:
    """The opaque one is a kernel and a product; one that launches none is itself, with its shapes."""
    found = captured(visible, opaque, lambda made, x: plain(made), compiled=compiled)
    assert [one.name for one in kernels(found)] == ["triton::total"] * 2
    names = [one.name for one in found]
    assert names.count("triosim_tests::plain") == 1
    assert not {"triosim_tests::visible", "triosim_tests::opaque"} & set(names)
    assert [one.outputs[0].shape for one in found if base_name(one.name) == "mm" and one.phase == "forward"] == [
        (ROWS, ROWS)
    ]


def test_a_kernel_in_compiled_code_is_not_copied_for_and_ends_a_fused_kernel() -> None:
    """What comes after it reads what it wrote: the sum of its result reads ``NBYTES``."""
    found = captured(added, compiled=True)
    names = [base_name(one.name) for one in found]
    assert len(kernels(found)) == 1
    assert "clone" not in names
    after = found[names.index("triton::total") + 1]
    assert input_bytes(after) >= NBYTES


def test_a_kernel_that_changes_its_argument_reads_and_writes_it_whatever_its_name() -> None:
    """A kernel named like a view is none; what was known of the changed tensor is unknown."""
    with fake_capture("H100-SXM") as capture:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            data = torch.zeros(ROWS, device="cuda")
            transpose[(4,)](data, ROWS, 32)
            transpose[(0,)](data, ROWS, 32)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CaptureWarning)
                assert data.tolist() == [1.0] * ROWS
            model(torch.ones(ROWS, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
    (found,) = kernels([one for one in capture.trace.operators if not is_free(one)])
    assert (input_bytes(found), output_bytes(found)) == (4 * ROWS, 4 * ROWS)
    assert len(capture.notes) == 1


def test_a_tuned_kernel_takes_its_first_configuration_and_runs_once() -> None:
    asked = []

    def run(made: Any, x: Any) -> Any:
        out = torch.empty_like(made)

        def grid(chosen: Any) -> tuple[int]:
            asked.append((chosen["BLOCK"], chosen["EVEN"]))
            return (triton.cdiv(out.numel(), chosen["BLOCK"]),)

        scaled[grid](made, out, out.numel())
        return out

    assert [one.name for one in kernels(captured(run))] == ["triton::scaled"]
    assert set(asked) == {(32, True)}


def test_the_driver_knows_the_gpu() -> None:
    with fake_capture("A100-SXM"):
        active = triton.runtime.driver.active
        assert active.get_active_torch_device() == torch.device("cuda", 0)
        assert (active.get_current_target().backend, active.get_current_target().arch) == ("cuda", 80)
        assert active.utils.get_device_properties(0)["multiprocessor_count"] == 108
        assert triton.testing.get_dram_gbps() == pytest.approx(2039, rel=0.02)
        assert total.warmup(*[torch.ones(4, device="cuda")] * 3, 4, BLOCK=32, grid=(1,)).n_spills == 0
