"""The doubt about a step time: what it comes from, the 90% interval, and the models that predicted the operators' times.

Errors of one model for one kind of operator (name and phase) are taken as fully correlated, so they add up; others as
independent, so they add in squares, and so do the sources of doubt. An operator's ``relative_error`` is its expected mean
absolute error; 90% of normal errors are within ``WIDTH`` times that. A rank's error changes the step in proportion to its time
without bytes on the network and waiting for launches; that of a network by the part of communication that no computation hides.

What a machine and a framework do beside a step's operators and transfers makes it longer, never shorter, and so do launches
that would hide behind computation no longer if they cost the host more: these doubts widen the interval at its upper end
alone. What frameworks fuse or avoid that a description has as kernels of their own makes it shorter, and widens the lower end.
``python -m validation.steps.spread`` fits the errors that stand here as constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triosim.networks.base import Network
from triosim.networks.extensions import ErrorEstimator
from triosim.operators.features import base_name
from triosim.operators.kinds import kind_of
from triosim.operators.products import form_of
from triosim.results.metrics import StepTimes
from triosim.results.operator_columns import ClassColumns, Floats, OperatorColumns, OperatorKind, added, in_order, sums
from triosim.results.values import CollectiveTimes, Doubt, ExposedShare, Prediction
from triosim.trace import Operator, Trace
from triosim.trace.step_facts import DOUBTS, doubts_of


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the mean GPU waits for launches in a step, and how much longer it computes beside communication, in seconds.

    ``host_s`` is how long the busiest host launches in a step, whether or not its GPU waits for it.
    """

    launches_s: float = 0.0
    slowed_s: float = 0.0
    host_s: float = 0.0


#: The sources of doubt beside the models of operators.
NETWORK = "exposed communication"
LAUNCHES = "launches by the host"
HIDDEN = "launches behind computation"
BESIDE = "computation beside communication"
STEP = "machine and framework"
EXPERTS = "mixture of experts"
FUSION = "kernels that may be fused"
#: Those that make a step longer, never shorter, and the reverse.
_ONLY_LONGER, _ONLY_SHORTER = frozenset({STEP, HIDDEN}), frozenset({FUSION})
_OPERATORS = "these operators in these shapes on this GPU (triosim calibrate missing)"
#: What would narrow the doubt.
_NARROWED: Mapping[str, str] = {
    NETWORK: "collectives of these sizes on this system (nccl-tests, then triosim calibrate network)",
    LAUNCHES: "a profile of this script, which holds the host's times (--host-overhead trace)",
    HIDDEN: "a profile of this script, which holds the host's times (--host-overhead trace)",
    BESIDE: "a profile of a step with and without overlap (--compute-slowdown)",
    STEP: "one step of this framework on one such GPU, profiled",
    EXPERTS: "one step of a mixture of experts of this framework on one such node, profiled",
    FUSION: "a capture of the script, which has its kernels (triosim capture, no GPU needed)",
}

#: What no measurement of an operator or a transfer tells, fitted to published steps: ``python -m validation.steps.spread``. The
#: expected error of what launches cost the host: the same framework on another processor.
LAUNCH_ERROR = 0.25
#: The expected error of how much longer computation takes beside communication.
SLOWDOWN_ERROR = 0.1
#: The part of a step by which machines and frameworks are expected to make it longer than its operators and transfers.
STEP_ERROR = 0.07
#: The expected error of a step with experts, as a part of it: kernels and exchanges differ between releases of a framework.
EXPERTS_ERROR = 0.05
#: The part of the time of a described step's element-wise operators, reductions and copies by which a framework that fuses or
#: avoids them (flat buffers need no copies) is expected to make it shorter.
FUSION_ERROR = 0.25
_FUSED_ELSEWHERE = ("elementwise", "reduction", "copy")
#: The error of an operator whose model cannot say it.
ASSUMED_ERROR = 0.3
#: The 95th percentile of a normal distribution over its mean absolute deviation: 1.645 / sqrt(2 / pi).
WIDTH = 2.06


def predictions(operators: OperatorColumns, steps: int) -> Iterable[Prediction]:
    """Yield each model with what was predicted by it: the mean over the ranks, the longest first."""
    if not operators.classes:  # a graph that communicates alone
        return
    models, model_of = operators.groups(lambda kind: kind.model)
    names, name_of = operators.groups(lambda kind: (kind.model, base_name(kind.name)))
    kinds = _joined(one.kinds for one in operators.classes)
    weights = _joined(one.runs * len(one.ranks) / operators.world / steps for one in operators.classes)
    seconds = _joined(one.seconds for one in operators.classes) * weights
    spread = seconds * _joined(map(_errors, operators.classes))
    of_models = (sums(model_of[kinds], values, len(models)).tolist() for values in (weights, seconds, spread))
    found = {model: row for model, *row in zip(models, *of_models, strict=True) if model is not None}
    seconds_of = dict(zip(names, sums(name_of[kinds], seconds, len(names)).tolist(), strict=True))
    for model, (count, total, off) in sorted(found.items(), key=lambda item: -item[1][1]):
        order = sorted((name for name in names if name[0] == model), key=lambda name: -seconds_of[name])
        error = off / total if total else 0.0
        shown = int(count) if float(count).is_integer() else count
        yield Prediction(model, shown, tuple(name for _, name in order), total, error)


def interval(step: float, found: Sequence[Doubt]) -> tuple[float, float] | None:
    """Return the 90% interval of a step's time; None where nothing was predicted."""
    below, above = (
        WIDTH * math.hypot(*(one.error_s for one in found if one.source not in other_end)) / step
        for other_end in (_ONLY_LONGER, _ONLY_SHORTER)
    )
    return (step / (1.0 + below), step * (1.0 + above)) if above or below else None


def doubts(times: StepTimes, trace: Trace, communication_error: float, waits: Waits) -> tuple[Doubt, ...]:
    """Return what the doubt about a step time comes from, the largest first; nothing where nothing was predicted.

    ``communication_error`` is how many seconds of exposed communication are expected to be off. What a step of measured
    operators waits for launches, and what its machine and its framework do beside them, is in its trace.
    """
    unmeasured = _unmeasured(trace)
    errors = {
        **_of_operators(times, waits.launches_s),
        NETWORK: communication_error,
        LAUNCHES: unmeasured * LAUNCH_ERROR * waits.launches_s,
        HIDDEN: unmeasured * hidden_launches(waits, times.seconds, LAUNCH_ERROR),
        BESIDE: SLOWDOWN_ERROR * waits.slowed_s,
        STEP: unmeasured * STEP_ERROR * times.seconds,
        EXPERTS: EXPERTS_ERROR * times.seconds * _has_experts(times.operators),
        FUSION: FUSION_ERROR * _fused_elsewhere(times, waits.launches_s) if "described" in trace.software else 0.0,
    }
    for what, part in doubts_of(trace.software.get(DOUBTS)).items():  # of the simulation that the trace was written of
        errors[what] = math.hypot(errors.get(what, 0.0), (1.0 - unmeasured) * part * times.seconds)
    found = sorted(((what, error) for what, error in errors.items() if error), key=lambda one: -one[1])
    whole = math.fsum(error * error for _, error in found)
    return tuple(Doubt(what, error, error * error / whole, _NARROWED.get(what, _OPERATORS)) for what, error in found)


def lasting_doubts(found: Iterable[Doubt], step: float) -> Mapping[str, float]:
    """Return the doubts that stay with a step's times wherever they are read, as parts of the step.

    That about a network is of the one that the step is run on again.
    """
    return {one.source: one.error_s / step for one in found if one.source != NETWORK}


def hidden_launches(waits: Waits, step: float, launch_error: float) -> float:
    """Return by how many seconds launches that cost more would make a step longer, beyond what is waited for already.

    A step takes no less than its host needs for the launches. At the end of their 90% interval, ``WIDTH`` times the error that
    is expected of them, that may be longer than the step.
    """
    longer = max(0.0, (1.0 + WIDTH * launch_error) * waits.host_s - step) / WIDTH
    return math.sqrt(max(0.0, longer**2 - (launch_error * waits.launches_s) ** 2))


def _of_operators(times: StepTimes, launch_wait: float) -> dict[str, float]:
    """Return by how many seconds each model's operators are expected to change the step, on the rank that is least certain."""
    step, widest, found = times.seconds, 0.0, dict[str, float]()
    ranks = {rank.rank: rank for rank in times.ranks}
    keys, key_of = times.operators.groups(lambda kind: (kind.model, kind.name, kind.phase))
    for one in times.operators.classes:
        compute, groups = added(one.spent), key_of[one.kinds]
        by_key = sums(groups, one.spent * _errors(one), len(keys)).tolist()
        deviations = {keys[number]: by_key[number] for number in in_order(groups) if keys[number][0] is not None}
        rank = ranks[one.ranks[0]]
        on_wire = max(0.0, rank.exposed_communication_s - rank.waiting_s)
        part = max(0.0, step - on_wire - launch_wait) / compute if compute else 0.0
        if part * math.hypot(*deviations.values()) > widest:
            widest = part * math.hypot(*deviations.values())
            by_model: dict[str, list[float]] = {}
            for (model, *_), deviation in deviations.items():  # a model that others scale is named first
                by_model.setdefault(str(model).partition(",")[0], []).append(deviation)
            found = {f"operators predicted by {model}": part * math.hypot(*some) for model, some in by_model.items()}
    return found


def _fused_elsewhere(times: StepTimes, launch_wait: float) -> float:
    """Return how long a step computes what compilers and training libraries fuse, the mean over the ranks."""
    parts = []
    for one in times.operators.classes:
        unfused = np.array([_is_unfused(kind) for kind in times.operators.kinds])[one.kinds]
        parts.append((len(one.ranks), added(one.spent[unfused]), added(one.spent)))
    fused, compute = (math.fsum(ranks * seconds[which] for ranks, *seconds in parts) for which in (0, 1))
    on_wire = [max(0.0, rank.exposed_communication_s - rank.waiting_s) for rank in times.ranks]
    computing = times.seconds - math.fsum(on_wire) / len(on_wire) - launch_wait
    return max(0.0, computing) * fused / compute if compute else 0.0


def _is_unfused(kind: OperatorKind) -> bool:
    name = base_name(kind.name)
    predicted = kind.model is not None and kind.phase != "optimizer"
    return predicted and not kind.name.startswith("fused::") and kind_of(name) in _FUSED_ELSEWHERE


def _has_experts(operators: OperatorColumns) -> bool:
    """Whether grouped products were predicted: the experts of a mixture."""
    return any(kind.model is not None and form_of(base_name(kind.name)) == "grouped" for kind in operators.kinds)


def _unmeasured(trace: Trace) -> float:
    """Return the part of a trace's time that nobody measured."""
    seconds = math.fsum(operator.seconds for operator in trace.operators)
    predicted = math.fsum(operator.seconds for operator in trace.operators if operator.predicted_by is not None)
    return predicted / seconds if seconds else 0.0


def communication_error(
    collectives: Sequence[CollectiveTimes], exposed: Sequence[ExposedShare], network: Network
) -> float:
    """Return how many seconds of a step's exposed communication are expected to be off, the mean over the ranks.

    An axis has the error of its transfers, by their times; all collectives of a network err together. Transfers whose error the
    network does not state count as right: sends, and links that are taken as they are.
    """
    if not isinstance(network, ErrorEstimator):
        return 0.0
    totals: dict[str, list[float]] = {}  # by axis: seconds, seconds times error
    for row in collectives:
        seconds = totals.setdefault(row.axis, [0.0, 0.0])
        seconds[0] += row.total_s
        seconds[1] += row.total_s * network.relative_error(row.kind, row.group_size, row.bytes)
    errors = {axis: off / total for axis, (total, off) in totals.items() if total}
    return math.fsum((share.exposed_s - share.waiting_s) * errors.get(share.axis, 0.0) for share in exposed)


def expected_error(operator: Operator) -> float:
    """Return by what part of its time an operator is expected to be off."""
    return ASSUMED_ERROR if operator.relative_error is None else operator.relative_error


def _errors(one: ClassColumns) -> Floats:
    return np.where(np.isnan(one.errors), ASSUMED_ERROR, one.errors)


def _joined(columns: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(list(columns))
