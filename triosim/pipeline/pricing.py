"""The second step of a simulation, ``price``: finds the time of each operator on the wanted GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from triosim import gpus as catalogue
from triosim import plugins
from triosim.compute.compute_model import ComputeModel
from triosim.compute.learned import model_files
from triosim.compute.pricing import operator_times
from triosim.compute.pricing.repricing import on_gpu
from triosim.config import RunConfig, parsed
from triosim.gpus import Gpu
from triosim.pipeline.launches import Launches, with_launches
from triosim.pipeline.own_models import with_own_models
from triosim.pipeline.reading import Subject
from triosim.trace import Trace


@dataclass(frozen=True, slots=True)
class PricedSubject:
    """A subject whose operators have times, and the compute model that estimates those of other shapes.

    ``launches`` are what launches cost the host, None where they are free. ``gpu`` is what was asked for beside the trace's;
    ``options_read`` are the names of the options that the model reads.
    """

    subject: Subject
    model: ComputeModel
    launches: Launches | None
    gpu: Gpu | None
    options_read: tuple[str, ...]


@with_own_models
def price(subject: Subject, config: RunConfig) -> PricedSubject:
    """Return the subject with the times of ``--operator-times``, those of another GPU where one is asked for, and launches."""
    if config.operator_times is not None:
        file = config.operator_times
        entries = operator_times.load(file)
        subject = subject.changed(lambda trace: operator_times.apply(entries, trace, file))
    kind: Any = plugins.find("compute_models", config.compute_model)
    model: ComputeModel = plugins.make(kind, options=parsed(kind, config.options))
    target = None if config.gpu is None else config.gpu if isinstance(config.gpu, Gpu) else catalogue.find(config.gpu)
    predict = on_gpu if subject.streams is None else _captured_on_gpu
    with plugins.blamed():
        if target is not None:
            subject = subject.changed(lambda trace: predict(trace, target, model))
        if model_files.are_named() and not subject.described:
            subject = subject.changed(lambda trace: _predicted_anew(trace, model, predict))
    subject, launches = with_launches(subject, config)
    return PricedSubject(subject, model, launches, target, plugins.option_names(kind))


def _predicted_anew(trace: Trace, model: ComputeModel, predict: Callable[[Trace, Gpu, ComputeModel], Trace]) -> Trace:
    """Return a trace whose times were predicted when it was captured with those of the models at hand, on the same GPU."""
    own = catalogue.get(trace.gpu)
    if trace.times != "predicted" or own is None or not model_files.knows(own.name):
        return trace
    return replace(predict(replace(trace, gpu="unknown"), own, model), times=trace.times)


def _captured_on_gpu(trace: Trace, target: Gpu, model: ComputeModel) -> Trace:
    """Return a captured trace with the times of another GPU, or with times if it has none; communications have none."""
    if not any(operator.seconds for operator in trace.operators):
        trace = replace(trace, gpu="unknown", times="predicted")
    moved = on_gpu(trace, target, model)
    operators = tuple(
        old if old.communication is not None else new for old, new in zip(trace.operators, moved.operators, strict=True)
    )
    return replace(moved, operators=operators)
