"""Operator times on heterogeneous GPUs (other models, slower ones, stragglers), and links that are slower by chance.

``Heterogeneity.stream`` gives every operator of a rank's task stream the time that it takes on the rank's GPU. On another GPU
model that is its time, multiplied by the ratio of the predictions for the two models. A shard of an operator, or an operator at
another batch size, has the ratio of the operator in the trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from triosim import gpus
from triosim.compute.compute_model import ComputeModel
from triosim.compute.pricing.repricing import on_gpu
from triosim.conditions.conditions import Conditions, Stragglers
from triosim.networks.topology import Link, Topology
from triosim.tasks import Compute, Iteration, TaskStream
from triosim.trace import Operator, Trace


@dataclass(frozen=True, slots=True)
class OtherGpu:
    """The predicted times of a trace's operators on another GPU model.

    ``operators`` and ``ratios`` (predicted time over time in the trace) are by operator id; ``overall`` is the ratio of the
    whole step.
    """

    name: str
    operators: Mapping[int, Operator]
    ratios: Mapping[int, float]
    overall: float

    def ratio(self, operator: Operator) -> float:
        """Return the slow-down factor of an operator."""
        return self.ratios.get(operator.id, self.overall)


class Heterogeneity:
    """The operator times of each rank. Raises ``OptionError`` for a GPU that is not in the catalogue."""

    def __init__(self, conditions: Conditions, trace: Trace, model: ComputeModel) -> None:
        self._conditions = conditions
        others = {name: _predict(trace, name, model) for name in dict.fromkeys(conditions.gpu_kinds.values())}
        self._others = {rank: others[name] for rank, name in conditions.gpu_kinds.items()}
        self._rescaled: dict[tuple[int, str, float], tuple[Compute, Compute]] = {}

    def slowdown(self, rank: int, operator: Operator) -> float:
        """Return the slow-down factor of an operator on a rank, without factors that are drawn in each iteration."""
        other = self._others.get(rank)
        factor = self._conditions.slow_gpus.get(rank, 1.0) * (other.ratio(operator) if other else 1.0)
        stragglers = self._conditions.stragglers
        return factor * stragglers.draw(rank, 0) if stragglers and stragglers.every == "run" else factor

    def stream(self, rank: int, tasks: TaskStream) -> TaskStream:
        """Yield the tasks of a rank, with the times that computations take on its GPU."""
        stragglers = self._conditions.stragglers
        other, slow = self._others.get(rank), self._conditions.slow_gpus.get(rank, 1.0)
        constant = stragglers is None or stragglers.every == "run"
        iteration = 0
        factor = slow * (stragglers.draw(rank, 0) if stragglers else 1.0)
        answer: Any = None
        while True:
            try:
                task = tasks.send(answer)
            except StopIteration:
                return
            if type(task) is Compute and (other is not None or factor != 1.0):
                task = self._rescale(task, other, factor, constant=constant)
            elif type(task) is Iteration and stragglers is not None and stragglers.every == "iteration":
                iteration += 1
                factor = slow * stragglers.draw(rank, iteration)
            answer = yield task

    def _rescale(self, task: Compute, other: OtherGpu | None, factor: float, *, constant: bool) -> Compute:
        """Return a task with its times on another GPU; where these are ``constant``, equal ranks get the same object.

        Results group ranks by the identity of their tasks. The key is an ``id`` because hashing a thousand operators for each
        task is slow; the cache keeps the task, so that the ``id`` stays its own.
        """
        key = (id(task.operators), other.name if other else "", factor)
        found = self._rescaled.get(key) if constant and not task.after else None
        if found is not None and (found[0].stream, found[0].share) == (task.stream, task.share):
            return found[1]
        operators = found[1].operators if found else tuple(_rescaled(one, other, factor) for one in task.operators)
        rescaled = Compute(operators, task.stream, task.share, after=task.after)
        if constant and not task.after:
            self._rescaled[key] = task, rescaled
        return rescaled


def with_slow_links(topology: Topology, stragglers: Stragglers) -> Topology:
    """Return a topology whose links are slower by random factors, the same in both directions; links of hosts are not."""
    hosts = {name for name, node in topology.nodes.items() if node.kind in ("host", "memory")}

    def slowed(link: Link) -> Link:
        ends = sorted((link.source, link.destination)) if link.source else [link.name]
        return link if hosts.intersection(ends) else replace(link, bandwidth=link.bandwidth / stragglers.draw(*ends))

    return topology.with_links(slowed)


def _predict(trace: Trace, name: str, model: ComputeModel) -> OtherGpu:
    predicted = on_gpu(trace, gpus.find(name), model)
    pairs = list(zip(trace.operators, predicted.operators, strict=True))
    ratios = {old.id: new.seconds / old.seconds for old, new in pairs if old.seconds}
    before, after = (math.fsum(operator.seconds for operator in found.operators) for found in (trace, predicted))
    operators = {new.id: new for old, new in pairs if new is not old}
    return OtherGpu(name, operators, ratios, after / before if before else 1.0)


def _rescaled(operator: Operator, other: OtherGpu | None, factor: float) -> Operator:
    if other is None:
        return replace(operator, seconds=operator.seconds * factor, busy_seconds=None)
    predicted = other.operators.get(operator.id, operator)
    errors = [one.relative_error for one in (operator, predicted) if one.relative_error is not None]
    return replace(
        operator,
        seconds=operator.seconds * factor * other.ratio(operator),
        busy_seconds=None,
        predicted_by=predicted.predicted_by,
        relative_error=math.hypot(*errors) if errors else None,
    )
