"""Profiles steps with PyTorch's profiler: one in full, then others alternately with its lightest form and without it.

The full profile has shapes, the execution trace, and annotations (``triosim.tracer.profiler.annotations``): it is slow, and
says what is called. Kineto alone then measures how long the calls take, and steps without a profiler how long a step takes.
They alternate because a machine's speed drifts.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile

from triosim.errors import CaptureError, OutputError
from triosim.trace import Trace
from triosim.trace.formats.pytorch import profiler_folder as pytorch
from triosim.tracer.profiler.annotations import (
    annotate_tensors,
    annotated_modules,
    annotated_optimizers,
    only_our_annotations,
)
from triosim.tracer.profiler.full_profile import FullProfile, quiet
from triosim.tracer.steps import StepObservations

PROFILER_FILE = "profiler.json"
EXECUTION_TRACE_FILE = "execution_trace.json"

StepKind = Literal["full", "warm", "plain", "light", "idle"]


def plan(steps: int, *, warmup: int = 1) -> list[StepKind]:
    """Return the kind of each step: one in full, ``warmup`` that are thrown away, then ``steps`` pairs of plain and light."""
    return ["full", *(["warm"] * warmup if steps else []), *(["plain", "light"] * steps)]  # type: ignore[list-item]


@dataclasses.dataclass(frozen=True, slots=True)
class ProfilingCost:
    """Seconds of a step without a profiler and under Kineto, medians of ``steps`` each, and of one under the full profiler.

    ``plain`` and ``light`` are None where no such step ran.
    """

    plain: float | None
    light: float | None
    full: float
    steps: int
    spread: float = 0.0  # interquartile range of the plain steps, relative to their median

    @property
    def overhead(self) -> float | None:
        """What the light profiler adds to a step, relative to the step."""
        return None if self.plain is None or self.light is None else self.light / self.plain - 1.0


class StepProfiler:
    """An observer of steps (``triosim.tracer.steps.Observer``) that profiles them as a ``plan`` says, into a folder."""

    def __init__(self, kinds: list[StepKind], folder: Path) -> None:
        self._kinds = kinds
        self._folder = folder
        self._times: dict[StepKind, list[float]] = {}
        self._light: list[Path] = []
        self._running = ExitStack()
        self._began = 0.0
        self._profiler: Any = None
        self._annotations: list[Any] = []

    def step_begins(self, number: int, observed: StepObservations) -> None:
        """Start the profiler that the plan says for a step."""
        if self._profiler is not None:  # the step before never ended
            self.close()
        kind = self._kind(number)
        if kind == "full":
            self._start_full(observed)
        elif kind in ("light", "warm"):
            self._start_light()
        _synchronize()
        self._began = time.perf_counter()

    def step_ends(self, number: int, observed: StepObservations) -> None:
        """Stop the profiler, and write its file."""
        kind = self._kind(number)
        if kind == "idle":
            return
        _synchronize()
        self._times.setdefault(kind, []).append(time.perf_counter() - self._began)
        if kind == "full":
            self._stop_full(observed)
        elif kind in ("light", "warm"):
            with quiet():
                self._running.close()
            if kind == "light":
                self._light.append(self._folder / f"{pytorch.LIGHT_PROFILE_PREFIX}{len(self._light)}.json")
                self._profiler.export_chrome_trace(str(self._light[-1]))
        self._profiler = None

    def close(self) -> None:
        """Stop a profiler that still runs: its step never ended."""
        with quiet():
            self._running.close()
        self._profiler = None

    @property
    def cost(self) -> ProfilingCost:
        """The seconds of the steps."""
        plain, light = self._times.get("plain", []), self._times.get("light", [])
        return ProfilingCost(
            median(plain) if plain else None,
            median(light) if light else None,
            self._times["full"][-1],
            min(len(plain), len(light)),
            _spread(plain),
        )

    def trace(self, observed: StepObservations) -> Trace:
        """Return the trace of the profiled step.

        Raises ``CaptureError`` without a step, ``TraceError`` for files that make no trace, ``OutputError`` for a full disk.
        """
        if "full" not in self._times:
            raise CaptureError("the capture has no step", fix="run at least one training step in it")
        self._check_files()
        trace, separate = pytorch.read_step(
            self._folder,
            self._folder / PROFILER_FILE,
            self._folder / EXECUTION_TRACE_FILE,
            lightly=self._light,
            batch_size=observed.batch_size,
        )
        model = observed.model_name or trace.model
        software = {**trace.software, "torch": torch.__version__, "profiler": self._description(separate)}
        return dataclasses.replace(trace, model=model, step_seconds=self.cost.plain, software=software, source="")

    def _check_files(self) -> None:
        """Raise ``OutputError`` where PyTorch could not write a file, which it does not report."""
        for path in (self._folder / PROFILER_FILE, self._folder / EXECUTION_TRACE_FILE, *self._light):
            if not path.exists() or not path.stat().st_size:
                fix = "make room, or set TMPDIR to a folder with some"
                raise OutputError("the profiler could not write it", where=str(path), fix=fix)

    def _description(self, separate: bool) -> str:
        cost = self.cost
        if cost.overhead is None or cost.plain is None:
            return "ran in full during the timed step, which it slows down"
        if not separate:
            return f"ran in full during the timed step, which took {cost.full / cost.plain:.2f} times as long"
        compared = f"medians of {cost.steps}, alternating; without it steps vary by {100 * cost.spread:.1f}%"
        if cost.steps == 1:
            compared = "one with it and one without; how much steps vary is not known"
        return f"adds {100 * cost.overhead:.1f}% to a step ({compared})"

    def _kind(self, number: int) -> StepKind:
        return self._kinds[number] if number < len(self._kinds) else "idle"

    def _start_full(self, observed: StepObservations) -> None:
        self._running.enter_context(only_our_annotations())
        self._profiler = FullProfile(
            _activities(),
            self._folder / EXECUTION_TRACE_FILE,
            lambda: annotate_tensors(observed.model, observed.optimizers),
        )
        self._running.enter_context(self._profiler)
        self._running.enter_context(annotated_modules())
        self._annotations = self._running.enter_context(annotated_optimizers())

    def _stop_full(self, observed: StepObservations) -> None:
        while self._annotations:
            self._annotations.pop()[1].__exit__(None, None, None)
        self._profiler.begin()
        annotate_tensors(observed.model, observed.optimizers)
        with quiet():
            self._running.close()
        self._profiler.export_chrome_trace(str(self._folder / PROFILER_FILE))

    def _start_light(self) -> None:
        self._running.enter_context(only_our_annotations())
        with quiet():
            self._profiler = self._running.enter_context(profile(activities=_activities()))


def _spread(times: list[float]) -> float:
    """Return the interquartile range of some times, relative to their median."""
    if len(times) < 2:
        return 0.0
    first, middle, third = quantiles(times, n=4, method="inclusive")
    return (third - first) / middle


def _activities() -> list[Any]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]


def _synchronize() -> None:
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()
