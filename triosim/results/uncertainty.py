"""The uncertainty of a step time from predicted operator and communication times, and the models that predicted them.

Errors of one model for one kind of operator (name and phase) are taken as fully correlated, so they add up; others as
independent, so they add in squares. An operator's ``relative_error`` is its expected mean absolute error; 90% of normal errors
are within ``WIDTH`` times that. A rank's error changes the step in proportion to its time without bytes on the network and
waiting for launches; that of a network by the part of communication that no computation hides. The two are independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from triosim.networks.base import Network
from triosim.networks.extensions import ErrorEstimator
from triosim.operators.features import base_name
from triosim.results.finished_run import RankClass
from triosim.results.values import CollectiveTimes, ExposedShare, Prediction, RankTimes
from triosim.trace import Operator

#: The error of an operator whose model cannot say it.
ASSUMED_ERROR = 0.3
#: The 95th percentile of a normal distribution over its mean absolute deviation: 1.645 / sqrt(2 / pi).
WIDTH = 2.06


def predictions(classes: Sequence[RankClass], steps: int) -> Iterable[Prediction]:
    """Yield each model with what was predicted by it: the mean over the ranks, the longest first."""
    found: dict[str, list[float]] = {}  # operators, seconds, seconds times error
    names: dict[str, dict[str, float]] = {}
    world = sum(len(ranks) for ranks, _ in classes)
    for ranks, tasks in classes:
        for operators, runs in tasks:
            weight = runs * len(ranks) / world / steps
            for operator in operators:
                if operator.predicted_by is None:
                    continue
                row = found.setdefault(operator.predicted_by, [0.0, 0.0, 0.0])
                seconds = operator.seconds * weight
                row[0] += weight
                row[1] += seconds
                row[2] += seconds * _error(operator)
                kinds = names.setdefault(operator.predicted_by, {})
                name = base_name(operator.name)
                kinds[name] = kinds.get(name, 0.0) + seconds
    for model, (count, seconds, spread) in sorted(found.items(), key=lambda item: -item[1][1]):
        kinds = names[model]
        error = spread / seconds if seconds else 0.0
        order = tuple(sorted(kinds, key=lambda name: -kinds[name]))
        yield Prediction(model, int(count) if float(count).is_integer() else count, order, seconds, error)


def interval(
    step: float,
    classes: Sequence[RankClass],
    ranks: Mapping[int, RankTimes],
    launch_wait: float,
    communication_error: float = 0.0,
) -> tuple[float, float] | None:
    """Return the 90% interval of a step's time; None where nothing was predicted.

    ``communication_error`` is how many seconds of exposed communication are expected to be off.
    """
    widest = None
    for members, tasks in classes:
        deviations: dict[tuple[str, str, str], float] = {}
        compute = 0.0
        for operators, runs in tasks:
            for operator in operators:
                compute += runs * operator.seconds
                if operator.predicted_by is not None:
                    kind = (operator.predicted_by, operator.name, operator.phase)
                    deviations[kind] = deviations.get(kind, 0.0) + runs * operator.seconds * _error(operator)
        if compute <= 0.0 or not (deviations or communication_error):
            continue
        relative = math.sqrt(math.fsum(value * value for value in deviations.values())) / compute
        rank = ranks[members[0]]
        on_wire = max(0.0, rank.exposed_communication_s - rank.waiting_s)
        share = max(0.0, step - on_wire - launch_wait) / step
        widest = max(widest or 0.0, WIDTH * math.hypot(relative * share, communication_error / step))
    return None if widest is None else (step / (1.0 + widest), step * (1.0 + widest))


def communication_error(
    collectives: Sequence[CollectiveTimes], exposed: Sequence[ExposedShare], network: Network
) -> float:
    """Return how many seconds of a step's exposed communication are expected to be off, the mean over the ranks.

    An axis has the error of its transfers, by their times; all collectives of a network err together. Transfers whose error the
    network does not state count as right: sends, and links that are taken as they are.
    """
    if not isinstance(network, ErrorEstimator):
        return 0.0
    sums: dict[str, list[float]] = {}  # by axis: seconds, seconds times error
    for row in collectives:
        seconds = sums.setdefault(row.axis, [0.0, 0.0])
        seconds[0] += row.total_s
        seconds[1] += row.total_s * network.relative_error(row.kind, row.group_size, row.bytes)
    errors = {axis: off / total for axis, (total, off) in sums.items() if total}
    return math.fsum((share.exposed_s - share.waiting_s) * errors.get(share.axis, 0.0) for share in exposed)


def _error(operator: Operator) -> float:
    return ASSUMED_ERROR if operator.relative_error is None else operator.relative_error
