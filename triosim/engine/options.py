"""The options of an engine, and the number of launches of a task."""

from __future__ import annotations

from dataclasses import dataclass, field

from triosim.conditions import Conditions
from triosim.conditions.contention import Contention
from triosim.tasks import Compute, Recv, Task


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of an engine.

    launch_costs: whether launching costs the host time: operators their ``host_seconds``.
    call_overhead: then, what launching a transfer, a collective or a copy costs, in seconds.
    run_ahead: how many operators the host may be ahead of the device, where launches cost time; then it waits for communication
        that the device waits for. None: as many as CUDA's launch queue holds.
    timeline: keep the handle of every task in the recording, of the ``timeline_ranks`` alone where these are given.
    conditions: the events. The times of unequal GPUs are in their task streams.
    contention: the slow-downs of computations and transfers beside each other.
    """

    launch_costs: bool = False
    call_overhead: float = 0.0
    run_ahead: int | None = None
    timeline: bool = False
    timeline_ranks: frozenset[int] | None = None
    conditions: Conditions = field(default_factory=Conditions)
    contention: Contention | None = None


def launch_count(task: Task) -> int:
    """Return how many launches a task is: one for each operator; a buffer that is posted in advance is none."""
    if type(task) is Recv and task.preposted:
        return 0
    return len(task.operators) if isinstance(task, Compute) else 1
