"""A PyTorch profiler file and the execution trace of the same step, as ``torch.profiler`` writes them, in one directory.

An operator is the outermost ATen call of the forward pass, a node of the autograd graph in the backward pass, and a call of the
optimizer. Its time runs from its first kernel's start to its last kernel's end. The execution trace tells which tensors a call
took and gave; the profiler file tells the times. A profile without a GPU's work is of the host, whose calls are then timed.
"""

from __future__ import annotations

from pathlib import Path

from triosim.errors import TraceError
from triosim.trace import Trace
from triosim.trace_formats import execution_trace, kineto, roles
from triosim.trace_formats.pytorch_step import Step

NAME = "pytorch"


def recognises(path: Path) -> bool:
    """Whether the path is one of the two files, or a directory that holds one."""
    profiles, graphs = _files(path)
    return bool(profiles or graphs)


def read(path: Path, *, batch_size: int | None = None) -> Trace:
    """Return the trace of the last complete step; the batch size is the input's first dimension, unless it is given.

    Raises ``TraceError`` when one of the two files is missing or damaged.
    """
    profiles, graphs = _files(path)
    for kind, found, other in (("profiler file", profiles, graphs), ("execution trace", graphs, profiles)):
        if not found:
            raise TraceError(
                f"there is no {kind} beside {other[0].name if other else 'it'}",
                where=str(path),
                fix="give a directory with both, as triosim.tracer.capture() writes them, or register a "
                "torch.profiler.ExecutionTraceObserver for the step that is profiled",
            )
        if len(found) > 1:
            names = " and ".join(file.name for file in found[:2])
            raise TraceError(
                f"there is more than one {kind}: {names}", where=str(path), fix="keep one step a directory"
            )
    return _read(path, profiles[0], graphs[0], batch_size)


def _read(path: Path, profile_path: Path, graph_path: Path, batch_size: int | None) -> Trace:
    unlike = (KeyError, TypeError, IndexError, AttributeError, ValueError, OverflowError)
    try:
        profile = kineto.read(profile_path)
    except unlike as error:
        raise TraceError(f"is not as PyTorch's profiler writes it: {_said(error)}", where=str(profile_path)) from error
    try:
        nodes = execution_trace.read(graph_path, on_gpu=bool(profile.work))
    except unlike as error:
        raise TraceError(f"is not as PyTorch writes it: {_said(error)}", where=str(graph_path)) from error
    step = Step(profile, nodes, str(path))
    step.hints.batch_size = batch_size
    operators = step.operators()
    if not operators:
        raise TraceError("the trace has no operators", where=str(path), fix="capture at least one step")
    parameters = roles.parameters_of(operators, step.hints)
    batch = roles.batch_size(operators, step.hints, parameters)
    if not batch:
        raise TraceError("no operator reads an input, so the batch size is unknown", where=str(graph_path))
    return Trace(
        roles.build(operators, roles.assign(operators, step.hints)),
        batch,
        step.model,
        profile.gpu if profile.work else "CPU",
        "measured",
        software=profile.software,
        source=str(path),
    )


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the profiler files and the execution traces at a path; for a file, the ones that go with it."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and _may_be_json(file))
        graphs = [file for file in files if execution_trace.recognises(file)]
        return [file for file in files if file not in graphs and kineto.recognises(file)], graphs
    if not path.is_file():
        return [], []
    if execution_trace.recognises(path):
        return _files(path.parent)[0], [path]
    if kineto.recognises(path):
        return [path], _files(path.parent)[1]
    return [], []


def _may_be_json(file: Path) -> bool:
    return ".json" in file.suffixes[-2:] or file.suffix == ".json"


def _said(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
