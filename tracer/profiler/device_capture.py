"""Captures a step on a real device, of a block of code, a function or a script, with PyTorch's profiler.

with triosim.tracer.capture(model, optimizer) as captured:
    for batch in loader:
        step(batch)
triosim.save_trace(captured.trace, "trace.json.gz")
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from triosim.errors import CaptureError, OptionError, OutputError
from triosim.trace import Trace
from triosim.tracer.eager import run_eagerly
from triosim.tracer.patches import only_capture
from triosim.tracer.profiler.step_profiler import ProfilingCost, StepKind, StepProfiler, plan
from triosim.tracer.pytorch_version import check_version
from triosim.tracer.script_runner import run_script
from triosim.tracer.steps import StepObservations, module_calls, optimizer_steps


class capture:  # noqa: N801  # it is used as a function is
    """A capture of a block of code; afterwards ``trace`` is the trace of a step, and ``cost`` the cost of profiling it.

    A step ends when ``optimizer.step()`` returns, or that of the optimizer that the block calls first. The first step is
    profiled, so that one is enough. If there are more, the first ``skip`` only warm up, the next one is profiled instead, and
    then ``steps`` are measured without the profiler, alternating with as many under its lightest form, from which the times
    come. Later steps are not observed. Without an optimizer (inference) the block is one step.

    ``batch_size`` is by default the first dimension of the model's first argument. With ``directory`` the profiler's files are
    kept there. Raises ``OptionError`` for another batch size, ``CaptureError`` when the block has no step.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        batch_size: int | None = None,
        skip: int = 3,
        steps: int = 5,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        _check(batch_size)
        again = plan(steps)
        self._kinds: list[StepKind] = again if not skip else ["full", *(["idle"] * (skip - 1)), *again]  # type: ignore[list-item]
        self._directory = directory
        self._observed = StepObservations(model=model, optimizer=optimizer, batch_size=batch_size)
        self._number = 0
        self._running = ExitStack()
        self._trace: Trace | None = None
        self._cost: ProfilingCost | None = None

    @property
    def trace(self) -> Trace:
        """The trace of the block's step. Raises ``CaptureError`` before the block is left."""
        if self._trace is None:
            raise CaptureError("the capture has no step yet", fix="leave the block first")
        return self._trace

    @property
    def cost(self) -> ProfilingCost:
        """Seconds of a step with and without the profiler."""
        if self._cost is None:
            raise CaptureError("the capture has no step yet", fix="leave the block first")
        return self._cost

    def __enter__(self) -> capture:
        """Begin the first step."""
        observed = self._observed
        self._profiler = self._running.enter_context(_profiling(self._kinds, self._directory))
        self._calls = self._running.enter_context(ExitStack())
        self._calls.enter_context(module_calls(observed))
        self._running.enter_context(optimizer_steps(self._over, observed))
        self._profiler.step_begins(0, observed)
        return self

    def _over(self, _: torch.optim.Optimizer) -> None:
        self._profiler.step_ends(self._number, self._observed)
        self._number += 1
        if "full" not in self._kinds[self._number :]:
            self._calls.close()  # observing calls costs each call of a module a little
        self._profiler.step_begins(self._number, self._observed)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Make the trace; an exception of the block goes on its way."""
        with self._running:
            if kind is not None:
                return
            if self._number == 0 and not self._observed.optimizers:
                self._observed.step_over()
                self._profiler.step_ends(0, self._observed)
            self._profiler.close()
            self._trace = self._profiler.trace(self._observed)
            self._cost = self._profiler.cost


def capture_step(
    step: Callable[[], Any],
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    batch_size: int | None = None,
    warmup: int = 3,
    steps: int = 5,
    directory: str | os.PathLike[str] | None = None,
) -> Trace:
    """Return the trace of a function that runs one training step, or one inference pass; it is called several times.

    First ``warmup`` times, then once to be profiled, then as ``capture`` does for its ``steps``. Raises as ``capture`` does.
    """
    _check(batch_size)
    for _ in range(warmup):
        step()
    observed = StepObservations(model=model, optimizer=optimizer, batch_size=batch_size)
    kinds = plan(steps)
    with _profiling(kinds, directory) as profiler, ExitStack() as calls:
        calls.enter_context(module_calls(observed))
        for number in range(len(kinds)):
            profiler.step_begins(number, observed)
            step()
            observed.step_over()
            profiler.step_ends(number, observed)
            calls.close()
        return profiler.trace(observed)


def capture_script(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    batch_size: int | None = None,
    skip: int = 3,
    warmup: int = 1,
    steps: int = 5,
    directory: str | os.PathLike[str] | None = None,
) -> tuple[Trace, ProfilingCost]:
    """Run a training script as Python would, and return the trace of a step of it, with what profiling cost.

    Of the steps after the first ``skip`` one is profiled in full, ``warmup`` are thrown away, and ``steps`` are measured
    without the profiler, alternating with as many under its lightest form; a script that ends before gives what it had.
    Raises as ``run_script`` does.
    """
    _check(batch_size)
    kinds = plan(steps, warmup=warmup)
    with _profiling(kinds, directory) as profiler:
        observed = run_script(path, arguments, profiler, skip=skip, steps=len(kinds), least=1, batch_size=batch_size)
        profiler.close()
        return profiler.trace(observed), profiler.cost


@contextmanager
def _profiling(kinds: list[StepKind], directory: str | os.PathLike[str] | None) -> Iterator[StepProfiler]:
    """Let this be the only capture, which runs eagerly, until the block is left; give its profiler."""
    with only_capture(), _folder(directory) as folder:
        profiler = StepProfiler(kinds, Path(folder))
        with closing(profiler), run_eagerly():
            yield profiler


def _folder(directory: str | os.PathLike[str] | None) -> AbstractContextManager[str]:
    """Return a folder for the profiler's files: the named one, or a temporary one that the block removes."""
    if directory is None:
        return tempfile.TemporaryDirectory(prefix="triosim-")
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be made: {error.strerror}", where=str(directory)) from error
    return nullcontext(os.fspath(directory))


def _check(batch_size: int | None) -> None:
    """Raise ``OptionError`` for a batch size that is none, and warn of an untested version of PyTorch."""
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise OptionError(f"{batch_size!r} is not a batch size", where="batch_size", fix="give a positive integer")
    check_version(device=True)
