"""Operator times by the compute model that expects the smallest error, chosen operator by operator.

Candidates are the models that are fitted to measured tables (the user's own, and those that ship with triosim: ``forest``,
``convolutions``, ``elementwise``, ``reduction``) or to published rates (``attention kernels``), where their data cover the
operator;
``linear`` within the trace, for the trace's own GPU; and ``roofline``, which knows every operator. Each states its error
from cross-validation or from the residuals of its fit; where it cannot, ``ASSUMED_ERROR`` counts. A model that was fitted
within a trace saw few operators of one size, and may state a small error by chance: it is preferred to a table's model where it
states less than half of that one's error. The user's own regressions (``calibrated``) are preferred to the models that they
were compared with on the user's rows (the shipped ones and the roofline), unless they state an error of more than 100%. A ratio
takes both its estimates from one model; for another GPU, a regression of that GPU may also replace the operator's time. Of
equal errors, the model named first above is taken.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np

from triosim import gpus
from triosim.compute.compute_model import ComputeModel, Estimates, Mask
from triosim.compute.learned import model_files
from triosim.compute.models import alignment, exponentials
from triosim.compute.models.attention_kernels import AttentionKernels
from triosim.compute.models.calibrated import Calibrated
from triosim.compute.models.convolutions import Convolutions
from triosim.compute.models.elementwise import Elementwise
from triosim.compute.models.forest import Forest, Reduction
from triosim.compute.models.linear import Linear
from triosim.compute.models.roofline import Roofline
from triosim.compute.operator_sequence import OperatorSequence, deduplicated
from triosim.compute.remembered_ratios import RememberedRatios
from triosim.trace import Operator, Trace

#: The expected error of an estimate whose model cannot say it.
ASSUMED_ERROR = 0.3
#: The factor by which the errors of models that were fitted within a trace are multiplied.
WITHIN_A_TRACE = 2.0
#: A regression that states a larger error than this has learned nothing, and is not preferred to other models.
NOTHING_LEARNED = 1.0
#: The models that are fitted to tables, the most specific first; and as they are in the tables' short loops.
_STORED: tuple[ComputeModel, ...] = (
    *(Calibrated(), Forest(), AttentionKernels(), Convolutions(), Elementwise(), Reduction()),
)
_OF_LOOPS: Mapping[type[ComputeModel], ComputeModel] = {
    Forest: Forest(sustained=False),
    Convolutions: Convolutions(sustained=False),
}
_IN_LOOPS = tuple(_OF_LOOPS.get(type(one), one) for one in _STORED)
#: The names of models that the user fitted to measurements of the GPU itself.
_OF_ONES_OWN = (Calibrated.name, "own")
#: The models that the user's own regressions were compared with when they were fitted.
_COMPARED = (Forest.name, AttentionKernels.name, Convolutions.name, Elementwise.name, Reduction.name, Roofline.name)


class AutoComputeModel(ComputeModel):
    """Chooses by expected error, operator by operator; each estimate names the model that it comes from.

    ``sustained``: operators are those of a step, and not of a benchmark's short loop (``triosim.gpus.energy``).
    """

    def __init__(self, *, sustained: bool = True) -> None:
        model_files.own_files()
        self._sustained = sustained
        self._linear: Linear | None = None
        self._roofline = Roofline()
        self._ratios: dict[str, RememberedRatios] = {}  # by GPU

    @property
    def identity(self) -> Hashable:
        """The user's own models, whether operators are those of a step, and what was learnt of a trace."""
        return type(self), self._sustained, model_files.own_files(), self._linear

    def __copy__(self) -> AutoComputeModel:
        """Return a model that is fitted to the same, and remembers apart from this one what it is asked."""
        other = AutoComputeModel(sustained=self._sustained)
        other._linear, other._roofline = self._linear, self._roofline
        other._ratios = {gpu: copy(known) for gpu, known in self._ratios.items()}
        return other

    def fit(self, trace: Trace) -> None:
        """Fit the models that learn within the trace."""
        self._ratios = {}
        self._linear, self._roofline = Linear(), Roofline()
        operators = OperatorSequence(trace.operators)
        self._linear.learn(operators, trace.gpu)
        self._roofline.learn(operators, trace.gpu)

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU by the model with the smallest expected error."""
        found = best((model.estimate(operators, gpu), weight) for model, weight in self._candidates(gpu))
        target = gpus.get(gpu)
        if target is None:
            return found
        seen = OperatorSequence.of(operators)
        slowed = [alignment.slowdown(*one, target).relative_error for one in zip(seen, seen.forwards, strict=True)]
        found.relative_error[:] += np.where(
            np.array(found.model) == Forest.name, slowed, 0.0
        )  # no other model knows better
        if target.exponentials:
            calls = zip(seen, seen.forwards, found.seconds.tolist(), strict=True)
            shares = [exponentials.share_left(*call, target) for call in calls]
            found.seconds[:] *= np.where(np.isin(found.model, _OF_ONES_OWN), 1.0, shares)
        return found

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        """Return the ratio of each operator's times, both by the one model with the smallest expected error."""
        before, after = OperatorSequence.of(before), OperatorSequence.of(after)
        if gpu == target:
            if not after.deduplicate:
                return self._ratios_on(gpu, before, after)
            known = self._ratios.setdefault(gpu, RememberedRatios())
            return known.of(before, after, partial(self._ratios_on, gpu))
        models = (*(self._stored(target) if self._stored(gpu) else ()), self._roofline)
        found = [model.ratios(before, after, gpu, target) for model in models]
        return best((one, 1.0) for one in (_regressions_alone(before, after, target), *found))

    def _ratios_on(self, gpu: str, before: OperatorSequence, after: OperatorSequence) -> Estimates:
        return best((model.ratios(before, after, gpu, gpu), weight) for model, weight in self._candidates(gpu))

    def _candidates(self, gpu: str) -> Iterator[tuple[ComputeModel, float]]:
        """Yield the models to ask about one GPU, and the factors of their errors."""
        yield from ((model, 1.0) for model in self._stored(gpu))
        if self._linear is not None:
            yield self._linear, WITHIN_A_TRACE
        yield self._roofline, WITHIN_A_TRACE

    def _stored(self, gpu: str) -> tuple[ComputeModel, ...]:
        """Return the models that are fitted to tables, for a GPU of the catalogue; none for any other."""
        known = _STORED if self._sustained else _IN_LOOPS
        return known if gpus.get(gpu) is not None else ()


def _regressions_alone(before: Sequence[Operator], after: Sequence[Operator], target: str) -> Estimates:
    """Return ratios that replace each operator's known time by the estimate of a regression of the target GPU."""
    new = Calibrated().estimate(after, target)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = new.seconds / np.array([operator.seconds for operator in before])
    return replace(new, seconds=np.where(np.isfinite(factor), factor, np.nan))


def best(found: Iterable[tuple[Estimates, float]]) -> Estimates:
    """Return, operator by operator, the estimate with the smallest relative error times its weight."""
    candidates, weights = zip(*found, strict=True)
    said = np.array([one.relative_error for one in candidates])
    errors = np.where(np.isnan(said), ASSUMED_ERROR, said) * np.array(weights)[:, None]
    seconds = np.array([one.seconds for one in candidates])
    chosen = np.where(np.isfinite(seconds) & ~_superseded(candidates), errors, np.inf).argmin(axis=0)
    rows = np.arange(seconds.shape[1])
    names = [candidates[which].model[row] for row, which in enumerate(chosen)]
    return Estimates(seconds[chosen, rows], said[chosen, rows], names)


def _superseded(found: Sequence[Estimates]) -> Mask:
    """Return which estimates (model, operator) a regression of the user's own replaces, whatever their error.

    The shipped models and the roofline were candidates when the regression was fitted; where they fit best, it is a multiple of
    them.
    """
    superseded = np.zeros((len(found), len(found[0].seconds)), dtype=bool)
    own = [one for one in found if Calibrated.name in one.model]
    if own:
        known = np.any([np.isfinite(one.seconds) & (one.relative_error <= NOTHING_LEARNED) for one in own], axis=0)
        for row, one in enumerate(found):
            superseded[row] = known & np.isin(one.model, _COMPARED)
    return superseded
