"""For each operator the model that is expected to err least, among those that are calibrated for the GPU.

Asked are the models that are fitted to measured tables (one's own, and those that ship with triosim: ``forest``,
``elementwise``, ``reduction``) or to published rates (``attention kernels``), where their data cover the operator;
``linear`` within the trace, for the trace's own GPU; and ``roofline``, which knows every operator. Each says its error
from cross-validation or from the residuals of its fit; one that cannot say is taken to err by ``ASSUMED_ERROR``. What
was fitted within a trace saw few operators of one size, and may state a small error by chance: it goes before a table's
model where it states less than half of that one's error. Laws of rows of one's own (``calibrated``) go before what they
were compared with on these rows: what ships, and the roofline; but one that is off by more than the time itself has
learned nothing, and stands back behind what states less. A ratio takes both its estimates from one model; for another
GPU, a law of that GPU may also take the place of the time so far. Of equal errors, the one named first above is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module

import numpy as np
import numpy.typing as npt

from triosim import gpus
from triosim.compute.base import ComputeModel, Estimates, ratio
from triosim.compute.distinct_operators import Operators, each_once
from triosim.compute.learned import stored as files
from triosim.compute.models.calibrated import Calibrated
from triosim.compute.models.linear import Linear
from triosim.compute.models.roofline import Roofline
from triosim.trace import Operator, Trace

#: The expected error of an estimate whose model cannot say it.
ASSUMED_ERROR = 0.3
#: By how much the errors of what was fitted within a trace count more.
WITHIN_A_TRACE = 2.0
#: The models that are fitted to tables, the most specific first: ``load(gpu name)`` returns one or None.
STORED = (
    "triosim.compute.models.calibrated:Calibrated",
    "triosim.compute.models.forest:Forest",
    "triosim.compute.learned.attention_kernels:AttentionKernels",
    "triosim.compute.models.elementwise:Elementwise",
    "triosim.compute.models.reduction:Reduction",
)

#: A law that states more has not learned what its rows take: it keeps nobody from answering.
NOTHING_LEARNED = 1.0
#: What laws of one's own rows were compared with.
_TRIED = ("forest", "attention kernels", "elementwise", "reduction", "roofline")


class Auto(ComputeModel):
    """Chooses by expected error, operator by operator; each estimate names the model that it comes from."""

    def __init__(self) -> None:
        files.check_named()
        self._linear: Linear | None = None
        self._roofline = Roofline()

    def fit(self, trace: Trace) -> None:
        """Fit what learns within the trace."""
        self._linear = Linear()
        operators = Operators(trace.operators)
        self._linear.learn(operators, trace.gpu)
        self._roofline.learn(operators, trace.gpu)

    @each_once
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU by the model that is expected to err least."""
        return best((model.estimate(operators, gpu), weight) for model, weight in self._candidates(gpu))

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        """Return the ratio of each operator's times, by the model that is expected to err least in both."""
        before, after = Operators.of(before), Operators.of(after)
        if gpu == target:
            return best((model.ratios(before, after, gpu, gpu), weight) for model, weight in self._candidates(gpu))
        pairs = zip(stored(gpu), stored(target), strict=True)
        crossed = [_Crossing(one, other) for one, other in pairs if one is not None and other is not None]
        alone = _Alone(Calibrated(target))
        return best((model.ratios(before, after, gpu, target), 1.0) for model in (alone, *crossed, self._roofline))

    def _candidates(self, gpu: str) -> Iterator[tuple[ComputeModel, float]]:
        """Yield the models to ask about one GPU, and by how much their errors count."""
        yield from ((model, 1.0) for model in stored(gpu) if model is not None)
        if self._linear is not None:
            yield self._linear, WITHIN_A_TRACE
        yield self._roofline, WITHIN_A_TRACE


class _Crossing(ComputeModel):
    """A kind of model that is fitted on two GPUs, as one model of both."""

    def __init__(self, source: ComputeModel, target: ComputeModel) -> None:
        self._source = source
        self._target = target

    def estimate(self, operators: Sequence[Operator], gpu: str) -> Estimates:
        return self._target.estimate(operators, gpu)

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        old, new = self._source.estimate(before, gpu), self._target.estimate(after, target)
        return Estimates(ratio(old, new), np.hypot(old.relative_error, new.relative_error), new.model)


class _Alone(ComputeModel):
    """A model of the target GPU alone, whose time takes the place of the operator's so far."""

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
    """Return, operator by operator, what is known with the smallest error, each times its estimates' weight."""
    several = list(found)
    everything = [one for one, _ in several]
    said = np.array([one.relative_error for one in everything])
    errors = np.where(np.isnan(said), ASSUMED_ERROR, said) * np.array([[weight] for _, weight in several])
    seconds = np.array([one.seconds for one in everything])
    chosen = np.where(np.isfinite(seconds) & ~_outdone(everything), errors, np.inf).argmin(axis=0)
    rows = np.arange(seconds.shape[1])
    names = [everything[which].model[row] for row, which in enumerate(chosen)]
    return Estimates(seconds[chosen, rows], said[chosen, rows], names)


def _outdone(found: Sequence[Estimates]) -> npt.NDArray[np.bool_]:
    """Where there are rows of one's own: what ships and the roofline were tried on them, and are in their laws if they hold."""
    outdone = np.zeros((len(found), len(found[0].seconds)), dtype=bool)
    own = [one for one in found if any(said.startswith(Calibrated.label) for said in one.model)]
    if own:
        known = np.any([np.isfinite(one.seconds) & (one.relative_error <= NOTHING_LEARNED) for one in own], axis=0)
        for row, one in enumerate(found):
            outdone[row] = known & [said.startswith(_TRIED) for said in one.model]
    return outdone


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
