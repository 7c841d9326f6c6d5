"""Measures operators one by one on a real device, forward and backward, with warm and with cold caches.

Each time is a median after warm-up, by CUDA's events on a GPU and by the clock on a CPU. The GPU is kept busy while the host
prepares a call, so that launches are not in the time. With a warm cache a call follows itself; before a call with a cold
one, a buffer larger than the cache is written (Phantora 4.4: what an operator finds in the cache decides how long it takes).
Rows are those of ``triosim.compute.fit.operator_table``. A measurement that was interrupted is resumed from its table.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from triosim import gpus
from triosim.compute.fit import operator_table
from triosim.compute.fit.operator_table import MeasuredOperator
from triosim.errors import OptionError, TriosimError, nearest
from triosim.operators import features
from triosim.operators.kinds import kind_of
from triosim.output_files import check_writable
from triosim.trace import Operator, Tensor, dtype_name
from triosim.tracer.benchmarks import cases, dispatch, planned_cases
from triosim.tracer.benchmarks.cases import BENCHMARKS, BenchmarkCase, SizeLimits
from triosim.tracer.benchmarks.software import versions
from triosim.tracer.benchmarks.timers import CallTimer, CpuTimer, CudaTimer
from triosim.tracer.pytorch_version import require_torch

DTYPES = ("float64", "float32", "float16", "bfloat16")
#: The table is written this often, so that an interruption loses little.
_BETWEEN_WRITES = 15.0
#: The largest cases: a share of the device's memory, and seconds at the device's peak rate.
_SHARE_OF_MEMORY, _MOST_SECONDS, _MOST_BYTES_ON_CPU = 0.3, 0.05, 256e6

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class MeasurementPlan:
    """The cases to measure: ``count`` of each operator and dtype, drawn from ``seed``, for at most ``seconds``.

    Or, where it is given, those of a ``file`` that ``triosim calibrate missing`` wrote.
    """

    operators: Sequence[str] = ()
    dtypes: Sequence[str] = ("float32", "bfloat16")
    count: int = 100
    seconds: float | None = None
    seed: int = 0
    limits: SizeLimits | None = None
    file: str | None = None


@dataclass(frozen=True)
class MeasurementOutcome:
    """The rows in the table, how many of them are new, and what was skipped, one line each."""

    rows: int
    new: int
    skipped: tuple[str, ...]


def measure(
    plan: MeasurementPlan, path: str, device: str | None = None, progress: Progress | None = None
) -> MeasurementOutcome:
    """Measure what is not in the table at ``path`` yet, and write it there, whole at any time, after Ctrl-C too.

    Raises ``OptionError`` without PyTorch or the device, ``TriosimError`` where the file is no such table.
    """
    require_torch("measuring")
    import torch

    planned = None if plan.file is None else planned_cases.read(plan.file)
    check_writable(path)
    timer, name = _device(torch, device)
    table = _MeasurementTable(path, name, versions(torch, timer.device))
    order = _drawn(plan, plan.limits or _limits(torch, timer, name)) if planned is None else planned
    until = time.monotonic() + (math.inf if plan.seconds is None else plan.seconds)
    too_large = []
    try:
        for done, (label, make) in enumerate(order):
            if time.monotonic() > until:
                break
            if progress is not None:
                progress(done, len(order), label)
            case = make()
            if case is None:
                too_large.append(f"{label}: no drawn case is small enough")
            elif not table.has(case):
                _measure_case(torch, case, timer, table)
    finally:
        table.write()
    if not table.rows:
        raise TriosimError("nothing was measured", where=path, fix=(*table.notes, "give it more time")[0])
    return MeasurementOutcome(len(table.rows), table.new, (*table.notes, *too_large))


def _drawn(plan: MeasurementPlan, limits: SizeLimits) -> list[tuple[str, Callable[[], BenchmarkCase | None]]]:
    """Return what each case is, and a function that draws it. Raises ``OptionError`` for unknown names."""
    names, dtypes = cases.chosen(plan.operators), tuple(dict.fromkeys(map(dtype_name, plan.dtypes)))
    if not dtypes:
        raise OptionError("names no dtype", where="--dtypes", fix=f"give some of {', '.join(DTYPES)}")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise OptionError(f"there are no benchmarks in '{dtype}'", where="--dtypes", fix=nearest(dtype, DTYPES))
    return [
        (f"{benchmark} in {dtype}, number {number}", partial(cases.case, benchmark, dtype, plan.seed, number, limits))
        for number in range(plan.count)
        for benchmark in names
        for dtype in dtypes
    ]


class _MeasurementTable:
    """The measured rows, from a file and new ones of a device; failed cases are notes, and not tried again."""

    def __init__(self, path: str, device: str, software: str) -> None:
        there = Path(path).is_file() and Path(path).stat().st_size
        self.rows = operator_table.read(path) if there else []
        self.notes = operator_table.notes(path) if there else []
        self.new = 0
        self._path, self._device, self._software = path, device, software
        self._done = {row.case for row in self.rows if row.device == device}
        self._written = time.monotonic()

    def has(self, case: BenchmarkCase) -> bool:
        """Whether a case was measured, or tried, on the device."""
        return case.name in self._done or any(note.startswith(self._of(case)) for note in self.notes)

    def add(self, case: BenchmarkCase, rows: Sequence[MeasuredOperator]) -> None:
        """Add a case's rows, and write the file if it was not written lately."""
        self.rows += [replace(row, device=self._device, case=case.name, software=self._software) for row in rows]
        self.new += len(rows)
        if time.monotonic() - self._written > _BETWEEN_WRITES:
            self.write()

    def skip(self, case: BenchmarkCase, reason: str) -> None:
        """Note why a case has no rows."""
        self.notes.append(f"{self._of(case)}{reason}")

    def write(self) -> None:
        """Write the file, if there are rows."""
        if self.rows:
            operator_table.write(self.rows, self._path, self.notes)
        self._written = time.monotonic()

    def _of(self, case: BenchmarkCase) -> str:
        return f"{case.name} on {self._device}: "


def _measure_case(torch: Any, case: BenchmarkCase, timer: CallTimer, table: _MeasurementTable) -> None:
    reason = ""
    try:
        table.add(case, list(_rows(torch, case, timer)))
    except (RuntimeError, MemoryError, NotImplementedError) as error:
        reason = _reason(case, error)
    if reason:  # now that the error, which holds the tensors, is gone
        table.skip(case, reason)
        timer.clear()


def _rows(torch: Any, case: BenchmarkCase, timer: CallTimer) -> Iterator[MeasuredOperator]:
    """Measure a case: its operator and its backward operator, each with a warm and with a cold cache."""
    if not case.benchmark:
        yield from _planned_rows(torch, case, timer)
        return
    one = case.operator
    inputs = [_made(torch, tensor, timer.device, case.integers.get(i)) for i, tensor in enumerate(one.inputs)]
    leaves = [tensor for tensor in inputs if BENCHMARKS[case.benchmark].backward and tensor.is_floating_point()]
    if case.benchmark == "batch_norm":  # the running statistics have no gradient
        leaves = leaves[:3]
    for leaf in leaves:
        leaf.requires_grad_()
    call = cases.call(torch, case.benchmark, inputs, one.attributes)
    for cache in operator_table.CACHES:
        seconds, runs = timer.time(call, cold=cache == "cold")
        yield MeasuredOperator(replace(one, seconds=seconds), "", cache, runs=runs)
    if not leaves:
        return
    result = call()
    gradient = torch.randn_like(result)
    operator = _backward(one, result, leaves)

    def differentiate() -> Any:
        return torch.autograd.grad(result, leaves, gradient, retain_graph=True)

    for cache in operator_table.CACHES:
        seconds, runs = timer.time(differentiate, cold=cache == "cold")
        yield MeasuredOperator(replace(operator, seconds=seconds), "", cache, forward=one.name, runs=runs)


def _planned_rows(torch: Any, case: BenchmarkCase, timer: CallTimer) -> Iterator[MeasuredOperator]:
    """Measure an operator of a plan, or the differentiation of its forward operator."""
    one = case.operator
    tensors = [_made(torch, tensor, timer.device, case.integers.get(i)) for i, tensor in enumerate(one.inputs)]
    if case.forward:
        call = planned_cases.differentiation(torch, case, tensors)
    else:
        call = dispatch.bind(torch, one, tensors)
    for cache in operator_table.CACHES:
        seconds, runs = timer.time(call, cold=cache == "cold")
        yield MeasuredOperator(replace(one, seconds=seconds), "", cache, case.forward, runs, call=case.call)


def _backward(forward: Operator, result: Any, leaves: Sequence[Any]) -> Operator:
    """Return the backward operator of a trace: named by the node of the autograd graph, unless the graph has several."""
    name = str(result.grad_fn.name()).rpartition("::")[2]
    bare = features.base_name(forward.name)
    if kind_of(name) != kind_of(bare):
        name = f"{forward.name}_backward"
    first = 1 + max(tensor.id for tensor in (*forward.inputs, *forward.outputs))
    dtype = forward.outputs[0].dtype
    gradients = tuple(Tensor(first + number, tuple(leaf.shape), dtype) for number, leaf in enumerate(leaves))
    return replace(forward, name=name, phase="backward", inputs=(*forward.outputs, *forward.inputs), outputs=gradients)


def _made(torch: Any, tensor: Tensor, device: str, below: int | None) -> Any:
    if below is not None:
        return torch.randint(0, below, tensor.shape, dtype=getattr(torch, tensor.dtype), device=device)
    if tensor.dtype == "bool":
        return torch.rand(tensor.shape, device=device) < 0.5
    dtype = getattr(torch, tensor.dtype)
    drawn = torch.rand(tensor.shape, dtype=torch.float32 if dtype.itemsize == 1 else dtype, device=device) + 0.1
    return drawn.to(dtype)


def _reason(case: BenchmarkCase, error: Exception) -> str:
    """Return why a case has no rows. Raises ``TriosimError`` for errors that any other case would have too."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "out of memory" in text or "allocate memory" in text:
        shapes = " ".join("x".join(map(str, tensor.shape)) for tensor in case.operator.inputs[:3])
        return f"{shapes} does not fit into memory"
    unsupported = isinstance(error, NotImplementedError) or "not implemented" in text or "not support" in text
    if unsupported or not case.benchmark:
        return text[:120]
    raise TriosimError(f"failed: {text[:300]}", where=case.name) from error


def _device(torch: Any, asked: str | None) -> tuple[CallTimer, str]:
    """Return the timer and the name of a device: the GPU where there is one, unless another is asked for."""
    kind = asked or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind not in ("cpu", "cuda"):
        raise OptionError(f"'{kind}' is not a device", where="--device", fix="use cpu or cuda")
    if kind == "cpu":
        return CpuTimer(torch), "CPU"
    if not torch.cuda.is_available():
        raise OptionError("PyTorch finds no GPU", where="--device", fix="use --device cpu")
    return CudaTimer(torch), str(torch.cuda.get_device_name())


def _limits(torch: Any, timer: CallTimer, name: str) -> SizeLimits:
    gpu = gpus.get(name)
    rate = gpu.rate("float32") if gpu is not None else 20e12
    if timer.device == "cpu":
        rate = min(rate, (os.cpu_count() or 1) * 50e9)
        return SizeLimits(_MOST_BYTES_ON_CPU, rate * _MOST_SECONDS)
    return SizeLimits(_SHARE_OF_MEMORY * float(torch.cuda.mem_get_info()[0]), rate * _MOST_SECONDS)
