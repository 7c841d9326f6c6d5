"""Matrix products that keep a device busy beside what is measured, and how many of them it gets done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import TracebackType
from typing import Any

#: The side of a product and its dtype, by the kind of device: a product takes about a millisecond.
_PRODUCTS = {"cuda": (4096, "bfloat16"), "cpu": (256, "float32")}
_IN_A_ROW = 4


class BackgroundProducts:
    """A thread that multiplies without a pause, on a GPU on a stream of its own, while the block runs."""

    def __init__(self, torch: Any, device: str) -> None:
        side, dtype = _PRODUCTS[device]
        self._torch, self._on_gpu = torch, device == "cuda"
        self._factors = [torch.rand(side, side, device=device).to(getattr(torch, dtype)) for _ in range(2)]
        self._stream = torch.cuda.Stream() if self._on_gpu else None
        self._done, self._stopped = 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> BackgroundProducts:
        self._thread.start()
        while not self._done:  # the first product chooses its kernel
            time.sleep(1e-3)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join()

    def rate(self, work: Callable[[], object]) -> float:
        """Return how many products a second were done while the work ran."""
        before, started = self._done, time.perf_counter()
        work()
        return max(self._done - before, 1) / (time.perf_counter() - started)

    def _run(self) -> None:
        with self._torch.cuda.stream(self._stream) if self._on_gpu else nullcontext():
            while not self._stopped.is_set():
                for _ in range(_IN_A_ROW):
                    self._torch.mm(*self._factors)
                if self._stream is not None:
                    self._stream.synchronize()
                self._done += _IN_A_ROW
