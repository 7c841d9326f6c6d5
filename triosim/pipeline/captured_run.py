"""What ``simulate`` does otherwise with task streams, which run as they were captured, than with a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from triosim.compute.compute_model import ComputeModel
from triosim.compute.pricing.repricing import on_gpu
from triosim.errors import OptionError, TraceError
from triosim.gpus import Gpu
from triosim.trace import Trace
from triosim.trace.task_streams import TaskStreams

#: What would change the step itself, which only capturing it again can.
_OPTIONS = (
    *("parallel", "batch_size", "global_batch_size", "training", "micro_batches", "stages"),
    *("balance_stages", "schedule", "virtual_stages", "tp_style", "sequence_parallel", "dp_style"),
    *("bucket_size", "first_bucket_size", "gradient_dtype", "recompute", "copy_input"),
)


def each(subject: Trace | TaskStreams, change: Callable[[Trace], Trace]) -> Trace | TaskStreams:
    """Return a trace, or the traces of all captured ranks, changed."""
    if isinstance(subject, Trace):
        return change(subject)
    return replace(subject, traces={rank: change(trace) for rank, trace in subject.traces.items()})


def representative(subject: Trace | TaskStreams) -> Trace:
    """Return the trace itself, or that of the first rank, by which the others are named."""
    return subject if isinstance(subject, Trace) else subject.traces[subject.like[0]]


def check_options(streams: TaskStreams, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse options that task streams cannot follow. Raises ``OptionError`` that names the option."""
    where = streams.source or None
    for name in _OPTIONS:
        if given[name] != defaults[name]:
            option = "--inference" if name == "training" else f"--{name.replace('_', '-')}"
            raise OptionError(
                f"{option} does not go with the task streams of {streams.world} ranks, which run as they were captured",
                where=where,
                fix="leave it out, or capture the script with it",
            )
    if given["gpus"] not in (None, streams.world):
        raise OptionError(
            f"the streams are those of {streams.world} ranks, not of {given['gpus']}",
            where=where,
            fix="leave --gpus out, or capture the script with another --world",
        )


def check_alone(trace: Trace) -> None:
    """Refuse the trace of one rank of a distributed step. Raises ``TraceError``."""
    if any(operator.communication is not None for operator in trace.operators):
        raise TraceError(
            "is the trace of one rank of a distributed step",
            where=trace.source or None,
            fix="give the task streams of all ranks, or a trace of the step on one GPU",
        )


def priced(trace: Trace, target: Gpu, model: ComputeModel) -> Trace:
    """Return a captured trace with the times of another GPU, or with times if it has none; communications have none."""
    if not any(operator.seconds for operator in trace.operators):
        trace = replace(trace, gpu="unknown", times="predicted")
    moved = on_gpu(trace, target, model)
    operators = tuple(
        old if old.communication is not None else new for old, new in zip(trace.operators, moved.operators, strict=True)
    )
    return replace(moved, operators=operators)


def check_times(streams: TaskStreams) -> None:
    """Refuse streams in which nothing takes time. Raises ``TraceError``."""
    if not any(operator.seconds for trace in streams.traces.values() for operator in trace.operators):
        raise TraceError("the streams have no times", where=streams.source or None, fix="give a GPU: --gpu H100")
