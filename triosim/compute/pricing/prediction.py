"""Predicts all operator times of a trace that was captured without a GPU, or of a described model."""

from __future__ import annotations

from dataclasses import replace

from triosim import gpus
from triosim.compute.compute_model import ComputeModel
from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.pricing.repricing import answers, with_prediction
from triosim.operators.features import is_free
from triosim.trace import Trace


def with_predicted_times(trace: Trace, model: ComputeModel | None = None) -> Trace:
    """Return a trace with the times that a compute model predicts for its GPU; by default, and where it knows none, ``auto``.

    Operators that only make a view take no time, nor do those that communicate, which the network times. Raises ``OptionError``
    for a GPU that is not in the catalogue.
    """
    target = gpus.find(trace.gpu)
    model = model or AutoComputeModel()
    working = [one for one in trace.operators if one.communication is None and not is_free(one)]
    found, _ = answers(model, working, lambda asked: asked.estimate(working, target.name))
    priced = {
        operator.id: with_prediction(operator.with_times(seconds, operator.busy_seconds, operator.flops), found, row)
        for row, (operator, seconds) in enumerate(zip(working, found.seconds.tolist(), strict=True))
    }
    operators = tuple(
        priced.get(one.id) or (one if one.seconds == 0.0 else one.with_times(0.0, one.busy_seconds, one.flops))
        for one in trace.operators
    )
    return replace(trace, operators=operators, times="predicted", step_seconds=None)
