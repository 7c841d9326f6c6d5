"""Times calls: by the clock on a CPU, by CUDA events on a GPU; the median of several runs after warm-up."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

Call = Callable[[], Any]
_WARM_UP = 3
#: A call is run at least and at most this often; in between until its runs took this many seconds.
_LEAST_RUNS, _MOST_RUNS, _ENOUGH_SECONDS = 5, 50, 0.02
#: Writing the buffer takes longer than most calls.
_MOST_COLD_RUNS = 9
#: Bytes written before a call with a cold cache: more than any GPU's L2 (H100: 50 MB), or most CPUs' last level, holds.
_FLUSHED_BYTES = 256 << 20
#: The GPU waits this multiple of a call's launch time, and this many seconds more, while the host launches the call.
_AHEAD, _AHEAD_SECONDS = 2.0, 50e-6


class CallTimer(ABC):
    """A timer of calls on one ``device``."""

    device: str

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._flushed = torch.zeros(_FLUSHED_BYTES // 4, dtype=torch.int32, device=self.device)

    def time(self, call: Call, *, cold: bool) -> tuple[float, int]:
        """Return the median seconds of a call, and how often it was run for that."""
        self._warm_up(call)
        times: list[float] = []
        most = _MOST_COLD_RUNS if cold else _MOST_RUNS
        while len(times) < _LEAST_RUNS or (len(times) < most and sum(times) < _ENOUGH_SECONDS):
            if cold:
                self._flushed.add_(1)
            times.append(self._once(call))
        return statistics.median(times), len(times)

    def _warm_up(self, call: Call) -> None:
        for _ in range(_WARM_UP):
            call()

    @abstractmethod
    def _once(self, call: Call) -> float:
        """Return the seconds of one run."""

    def clear(self) -> None:  # noqa: B027 - a CPU has nothing to do
        """Free what a failed call may have left behind."""


class CpuTimer(CallTimer):
    """A timer that reads the clock. The cost of the call on the host is included, as it is in a CPU profile."""

    device = "cpu"

    def _once(self, call: Call) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started


class CudaTimer(CallTimer):
    """A timer that records events around the call, after a wait on the GPU during which the host launches all of it."""

    device = "cuda"

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self._clock_hz = 2e9  # cycles of the wait a second, about; no GPU's clock is much higher
        self._host_seconds = 0.0

    def _warm_up(self, call: Call) -> None:
        super()._warm_up(call)
        self._torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        self._host_seconds = time.perf_counter() - started
        self._torch.cuda.synchronize()

    def _once(self, call: Call) -> float:
        cuda = self._torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda._sleep(int(self._clock_hz * (_AHEAD * self._host_seconds + _AHEAD_SECONDS)))
        start.record()
        call()
        end.record()
        cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def clear(self) -> None:
        """Free the memory that PyTorch caches."""
        self._torch.cuda.empty_cache()
