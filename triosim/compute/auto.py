"""For each operator the model that is expected to err least, among those that are calibrated for the GPU.

Asked are the models that ship with triosim (``forest``, ``elementwise``, ``reduction``), where their data cover the GPU and
the operator; ``linear`` within the trace, for the trace's own GPU; and ``roofline``, which knows every operator. Each says
its error from cross-validation or from the residuals of its fit; one that cannot say is taken to err by ``ASSUMED_ERROR``.
A ratio takes both its estimates from one model. Of equal errors, the one named first above is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module

import numpy as np

from triosim import gpus
from triosim.compute.base import ComputeModel, Estimates
from triosim.compute.linear import Linear
from triosim.compute.roofline import Roofline
from triosim.trace import Operator, Trace

#: The expected error of an estimate whose model cannot say it.
ASSUMED_ERROR = 0.3
#: The models that ship fitted, the most specific first: ``load(gpu name)`` returns one or None.
STORED = (
    "triosim.compute.forest:Forest",
    "triosim.compute.elementwise:Elementwise",
    "triosim.compute.reduction:Reduction",
)


class Auto(ComputeModel):
    """Chooses by expected error, operator by operator; each estimate names the model that it comes from."""

    def __init__(self) -> None:
        self._linear: Linear | None = None
        self._roofline = Roofline()

    def fit(self, trace: Trace) -> None:
        """Fit what learns within the trace."""
        self._linear = Linear()
        self._linear.fit(trace)
        self._roofline.fit(trace)

    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU by the model that is expected to err least."""
        return best(model.estimate(operators, gpu) for model in self._candidates(gpu))

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        """Return the ratio of each operator's times, by the model that is expected to err least in both."""
        if gpu == target:
            return best(model.ratios(before, after, gpu, gpu) for model in self._candidates(gpu))
        pairs = zip(stored(gpu), stored(target), strict=True)
        crossed = [_Crossing(one, other) for one, other in pairs if one is not None and other is not None]
        return best(model.ratios(before, after, gpu, target) for model in (*crossed, self._roofline))

    def _candidates(self, gpu: str) -> Iterator[ComputeModel]:
        yield from (model for model in stored(gpu) if model is not None)
        if self._linear is not None:
            yield self._linear
        yield self._roofline


class _Crossing(ComputeModel):
    """A kind of model that is fitted on two GPUs, as one model of both."""

    def __init__(self, source: ComputeModel, target: ComputeModel) -> None:
        self._source = source
        self._target = target

    def estimate(self, operators: Sequence[Operator], gpu: str) -> Estimates:
        return self._target.estimate(operators, gpu)

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        old, new = self._source.estimate(before, gpu), self._target.estimate(after, target)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = new.seconds / old.seconds
        return Estimates(ratio, np.fmax(old.relative_error, new.relative_error), new.model)


def best(found: Iterator[Estimates]) -> Estimates:
    """Return, operator by operator, what is known with the smallest expected error."""
    everything = list(found)
    errors = np.array([one.relative_error for one in everything])
    errors = np.where(np.isnan(errors), ASSUMED_ERROR, errors)
    seconds = np.array([one.seconds for one in everything])
    errors = np.where(np.isfinite(seconds), errors, np.inf)
    chosen = errors.argmin(axis=0)
    rows = np.arange(seconds.shape[1])
    said = np.array([one.relative_error for one in everything])[chosen, rows]
    return Estimates(seconds[chosen, rows], said, [everything[which].model[row] for row, which in enumerate(chosen)])


def stored(gpu: str) -> tuple[ComputeModel | None, ...]:
    """Return the models that ship fitted for a GPU, in the order of ``STORED``; None for each that does not."""
    known = gpus.get(gpu)
    return _load(known.name) if known is not None else (None,) * len(STORED)


@cache
def _load(gpu: str) -> tuple[ComputeModel | None, ...]:
    found: list[ComputeModel | None] = []
    for target in STORED:
        module, _, name = target.partition(":")
        load: Callable[[str], ComputeModel | None] = getattr(import_module(module), name).load
        found.append(load(gpu))
    return tuple(found)
