"""NVIDIA's profilers without a GPU: calls to them do nothing, and end with the capture."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from triosim.tracer.fake_device import FakeDevice  # noqa: E402


def test_calls_to_nvidias_profilers_do_nothing() -> None:
    before = torch.cuda.cudart
    with FakeDevice("H100"):
        torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())
        with torch.cuda.profiler.profile(), torch.cuda.nvtx.range("a"):
            torch.cuda.nvtx.range_pop()
            torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("b"))
    assert torch.cuda.cudart is before
