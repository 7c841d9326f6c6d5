"""A trace without times with those that a compute model expects: of a capture without a GPU, or of a described model."""

from __future__ import annotations

from dataclasses import replace

from triosim import gpus
from triosim.compute.base import ComputeModel, checked
from triosim.compute.models.auto import Auto
from triosim.compute.pricing.repricing import predicted as taken_from
from triosim.operators.features import is_free
from triosim.trace import Operator, Trace

#: The GPU that is assumed where nobody names one.
DEFAULT_GPU = "H100-SXM"


def predicted(trace: Trace, model: ComputeModel | None = None) -> Trace:
    """Return a trace without times with those that a compute model expects on its GPU; by default the best of ours.

    What only makes a view takes none, and what communicates takes what the network says. Raises ``OptionError`` for a GPU
    that is not in the catalogue.
    """
    target = gpus.find(trace.gpu)
    model = model or Auto()
    working = [operator for operator in trace.operators if _works(operator)]
    found = checked(model.estimate(working, target.name), working, model)
    priced = {
        operator.id: taken_from(operator.with_times(seconds, operator.busy_seconds, operator.flops), found, row)
        for row, (operator, seconds) in enumerate(zip(working, found.seconds.tolist(), strict=True))
    }
    operators = tuple(
        priced.get(one.id) or (one if one.seconds == 0.0 else one.with_times(0.0, one.busy_seconds, one.flops))
        for one in trace.operators
    )
    return replace(trace, operators=operators, times="predicted", step_seconds=None)


def _works(operator: Operator) -> bool:
    return operator.communication is None and not is_free(operator)
