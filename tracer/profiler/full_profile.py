"""Runs PyTorch's profiler with shapes, memory and execution trace, and pauses it where the script swaps tensors.

While the profiler records shapes it holds weak references to tensors, and ``torch.utils.swap_tensors`` refuses tensors that
have one. PyTorch swaps the parameters of a model of distributed tensors when it is cast, moved or given memory (seen with
2.13); a script that does so is still building its model.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ExecutionTraceObserver, profile

from triosim.tracer.patches import Patch, Patches
from triosim.tracer.steps import module_hooks


class FullProfile:
    """The full profile of a block, with the file ``execution_trace``.

    When tensors are swapped outside of all modules, what was recorded is dropped, and recording begins again at the next call
    of a module, or where the block ends. ``begins`` is called each time that it begins.
    """

    def __init__(self, activities: list[Any], execution_trace: Path, begins: Callable[[], None]) -> None:
        self._profiler: Any = None
        self._activities, self._execution_trace, self._begins = activities, execution_trace, begins
        self._recording = ExitStack()
        self._around = ExitStack()
        self._depth = 0

    def __enter__(self) -> FullProfile:
        """Begin to record."""
        self._around.enter_context(Patches()).make([Patch(torch.utils, "swap_tensors", self._swapping())])
        self._around.enter_context(module_hooks(self._enters, self._leaves))
        self.begin()
        return self

    def begin(self) -> None:
        """Begin to record, unless it records."""
        if self._profiler is not None:
            return
        with quiet():
            observer = ExecutionTraceObserver().register_callback(str(self._execution_trace))
            self._recording.callback(observer.unregister_callback)
            self._profiler = self._recording.enter_context(
                profile(
                    activities=self._activities,
                    record_shapes=True,
                    profile_memory=True,
                    execution_trace_observer=observer,
                )
            )
        self._begins()

    def __exit__(self, *_: object) -> None:
        """Stop."""
        with self._around:
            self._recording.close()

    def export_chrome_trace(self, path: str) -> None:
        """Write what was recorded to a file, and drop it."""
        self._profiler.export_chrome_trace(path)
        self._drop()

    def _drop(self) -> None:
        if self._profiler is None:
            return
        with quiet():
            self._recording.close()
        self._profiler = None
        gc.collect()  # PyTorch's profiler and its results refer to each other

    def _swapping(self) -> Callable[[Any, Any], None]:
        swap: Callable[[Any, Any], None] = torch.utils.swap_tensors

        def swapping(first: Any, second: Any) -> None:
            if self._depth == 0:  # inside a module an annotation is open, and no profiler may stop
                self._drop()
            swap(first, second)

        return swapping

    def _enters(self, *_: Any) -> None:
        self._depth += 1
        self.begin()

    def _leaves(self, *_: Any) -> None:
        self._depth -= 1


@contextmanager
def quiet() -> Iterator[None]:
    """Silence PyTorch's C++ messages on standard error that a profiler starts and stops."""
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)
