"""The summary of a trace: counts, times and bytes by operator, phase, layer and category."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from triosim.trace.trace import CATEGORIES, PHASES, Category, Operator, Phase, Trace


@dataclass(frozen=True, slots=True)
class OperatorGroup:
    """Operators that have something in common: how many, and their seconds together."""

    name: str
    count: int
    seconds: float


def by_name(trace: Trace) -> list[OperatorGroup]:
    """Return the operators by name, the most time first."""
    return sorted(_grouped(trace, lambda operator: operator.name), key=lambda group: (-group.seconds, group.name))


def by_phase(trace: Trace) -> dict[Phase, OperatorGroup]:
    """Return the operators by phase, every phase in its order."""
    found = {group.name: group for group in _grouped(trace, lambda operator: operator.phase)}
    return {phase: found.get(phase, OperatorGroup(phase, 0, 0.0)) for phase in PHASES}


def by_layer(trace: Trace) -> list[OperatorGroup]:
    """Return the operators by layer, in the order in which the layers first run."""
    return _grouped(trace, lambda operator: operator.layer)


def bytes_by_category(trace: Trace) -> dict[Category, int]:
    """Return the bytes of each category's storages, every category in its order.

    A storage counts once, with its largest tensor and the category of its first: views and in-place results are the same bytes.
    """
    sizes: dict[int, int] = {}
    categories: dict[int, Category] = {}
    for tensor in trace.tensors.values():
        sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), tensor.nbytes)
        categories.setdefault(tensor.storage, tensor.category)
    found = dict.fromkeys(CATEGORIES, 0)
    for storage, size in sizes.items():
        found[categories[storage]] += size
    return found


def parameter_elements(trace: Trace) -> int:
    """Return the number of the model's parameters, in elements."""
    return sum(tensor.numel for tensor in trace.parameters.values())


def busy_seconds(trace: Trace) -> float | None:
    """Return the time in which kernels ran, or None where an operator's was not measured."""
    measured = [operator.busy_seconds for operator in trace.operators if operator.busy_seconds is not None]
    return math.fsum(measured) if len(measured) == len(trace.operators) else None


def _grouped(trace: Trace, key: Callable[[Operator], str]) -> list[OperatorGroup]:
    found: dict[str, list[float]] = {}
    for operator in trace.operators:
        found.setdefault(key(operator), []).append(operator.seconds)
    return [OperatorGroup(name, len(times), math.fsum(times)) for name, times in found.items()]
