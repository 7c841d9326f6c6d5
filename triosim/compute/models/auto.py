"""Operator times by whichever compute model expects the smallest error, chosen operator by operator.

Candidates are the models that are fitted to measured tables (the user's own, and those that ship with triosim: ``forest``,
``elementwise``, ``reduction``) or to published rates (``attention kernels``), where their data cover the operator;
``linear`` within the trace, for the trace's own GPU; and ``roofline``, which knows every operator. Each states its error
from cross-validation or from the residuals of its fit; where it cannot, ``ASSUMED_ERROR`` is taken. What
was fitted within a trace saw few operators of one size, and may state a small error by chance: it goes before a table's
model where it states less than half of that one's error. The user's own regressions (``calibrated``) go before the models
that they were compared with on the user's rows: those that ship, and the roofline; but a regression that states an error of
more than 100% has learned nothing, and others may go before it. A ratio takes both its estimates from one model; for another
GPU, a regression of that GPU may also replace the operator's time. Of equal errors, the model named first above is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module

import numpy as np
import numpy.typing as npt

from triosim import gpus
from triosim.compute.compute_model import ComputeModel, Estimates, ratio
from triosim.compute.learned import model_files
from triosim.compute.models.calibrated import Calibrated
from triosim.compute.models.linear import Linear
from triosim.compute.models.roofline import Roofline
from triosim.compute.operator_sequence import OperatorSequence, deduplicated
from triosim.trace import Operator, Trace

#: The expected error of an estimate whose model cannot say it.
ASSUMED_ERROR = 0.3
#: The factor by which the errors of models that were fitted within a trace are multiplied.
WITHIN_A_TRACE = 2.0
#: The models that are fitted to tables, the most specific first: ``load(gpu name)`` returns one or None.
STORED = (
    "triosim.compute.models.calibrated:Calibrated",
    "triosim.compute.models.forest:Forest",
    "triosim.compute.models.attention_kernels:AttentionKernels",
    "triosim.compute.models.elementwise:Elementwise",
    "triosim.compute.models.forest:Reduction",
)

#: A regression that states a larger error than this has learned nothing, and does not go before other models.
NOTHING_LEARNED = 1.0
#: The models that the user's own regressions were compared with when they were fitted.
_COMPARED = ("forest", "attention kernels", "elementwise", "reduction", "roofline")


class Auto(ComputeModel):
    """Chooses by expected error, operator by operator; each estimate names the model that it comes from."""

    def __init__(self) -> None:
        model_files.check_named()
        self._linear: Linear | None = None
        self._roofline = Roofline()

    def fit(self, trace: Trace) -> None:
        """Fit the models that learn within the trace."""
        self._linear = Linear()
        operators = OperatorSequence(trace.operators)
        self._linear.learn(operators, trace.gpu)
        self._roofline.learn(operators, trace.gpu)

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU by the model with the smallest expected error."""
        return best((model.estimate(operators, gpu), weight) for model, weight in self._candidates(gpu))

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        """Return the ratio of each operator's times, both by the one model with the smallest expected error."""
        before, after = OperatorSequence.of(before), OperatorSequence.of(after)
        if gpu == target:
            return best((model.ratios(before, after, gpu, gpu), weight) for model, weight in self._candidates(gpu))
        pairs = zip(stored(gpu), stored(target), strict=True)
        crossed = [_FittedPair(one, other) for one, other in pairs if one is not None and other is not None]
        alone = _TargetModel(Calibrated(target))
        return best((model.ratios(before, after, gpu, target), 1.0) for model in (alone, *crossed, self._roofline))

    def _candidates(self, gpu: str) -> Iterator[tuple[ComputeModel, float]]:
        """Yield the models to ask about one GPU, and the factors of their errors."""
        yield from ((model, 1.0) for model in stored(gpu) if model is not None)
        if self._linear is not None:
            yield self._linear, WITHIN_A_TRACE
        yield self._roofline, WITHIN_A_TRACE


class _FittedPair(ComputeModel):
    """A kind of model that is fitted on two GPUs, as one model for ratios between them."""

    def __init__(self, source: ComputeModel, target: ComputeModel) -> None:
        self._source = source
        self._target = target

    def estimate(self, operators: Sequence[Operator], gpu: str) -> Estimates:
        return self._target.estimate(operators, gpu)

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        old, new = self._source.estimate(before, gpu), self._target.estimate(after, target)
        return Estimates(ratio(old, new), np.hypot(old.relative_error, new.relative_error), new.model)


class _TargetModel(ComputeModel):
    """A model of the target GPU alone: its ratio replaces the operator's time by its own estimate."""

    def __init__(self, target: ComputeModel) -> None:
        self._target = target

    def estimate(self, operators: Sequence[Operator], gpu: str) -> Estimates:
        return self._target.estimate(operators, gpu)

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        new = self._target.estimate(after, target)
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = new.seconds / np.array([operator.seconds for operator in before])
        return Estimates(np.where(np.isfinite(factor), factor, np.nan), new.relative_error, new.model)


def best(found: Iterable[tuple[Estimates, float]]) -> Estimates:
    """Return, operator by operator, the estimate with the smallest relative error times its weight."""
    several = list(found)
    everything = [one for one, _ in several]
    said = np.array([one.relative_error for one in everything])
    errors = np.where(np.isnan(said), ASSUMED_ERROR, said) * np.array([[weight] for _, weight in several])
    seconds = np.array([one.seconds for one in everything])
    chosen = np.where(np.isfinite(seconds) & ~_superseded(everything), errors, np.inf).argmin(axis=0)
    rows = np.arange(seconds.shape[1])
    names = [everything[which].model[row] for row, which in enumerate(chosen)]
    return Estimates(seconds[chosen, rows], said[chosen, rows], names)


def _superseded(found: Sequence[Estimates]) -> npt.NDArray[np.bool_]:
    """Return which estimates (model, operator) lose to a regression of the user's own, whatever their error.

    The models that ship and the roofline were candidates when the regression was fitted; it is a multiple of them where they
    fit best.
    """
    superseded = np.zeros((len(found), len(found[0].seconds)), dtype=bool)
    own = [one for one in found if any(said.startswith(Calibrated.label) for said in one.model)]
    if own:
        known = np.any([np.isfinite(one.seconds) & (one.relative_error <= NOTHING_LEARNED) for one in own], axis=0)
        for row, one in enumerate(found):
            superseded[row] = known & [said.startswith(_COMPARED) for said in one.model]
    return superseded


def stored(gpu: str) -> tuple[ComputeModel | None, ...]:
    """Return the models that are fitted for a GPU, in the order of ``STORED``; None for each that does not."""
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
