"""The options of an engine, and the cost of a launch to the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from triosim.conditions import Conditions
from triosim.tasks import Compute, Iteration, Record, Recv, Task, Wait
from triosim.trace import Operator

#: Seconds that launching an operator costs the host; "trace" takes each operator's own, None nothing.
HostOverhead = float | Literal["trace"] | None


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of an engine.

    host_overhead: what launching a task costs the host.
    call_overhead: with "trace", what launching a transfer, a collective or a copy costs, in seconds.
    run_ahead: how many operators the host may be ahead of the device, where launches cost time; None: as many as CUDA's launch
        queue holds.
    timeline: keep the handle of every task in the recording.
    conditions: interference and events. The times of unequal GPUs are in their task streams.
    """

    host_overhead: HostOverhead = None
    call_overhead: float = 0.0
    run_ahead: int | None = None
    timeline: bool = False
    conditions: Conditions = field(default_factory=Conditions)

    def launch_seconds(self, task: Task) -> float:
        """Return what launching a task costs the host."""
        if self.host_overhead is None or isinstance(task, (Record, Wait, Iteration)):
            return 0.0
        if self.host_overhead == "trace":
            if isinstance(task, Compute):
                return sum(operator.host_seconds or 0.0 for operator in task.operators)
            return self.call_overhead * launch_count(task)
        return self.host_overhead * launch_count(task)

    def operator_launch_seconds(self, operator: Operator) -> float:
        """Return what launching an operator costs the host."""
        if self.host_overhead == "trace":
            return operator.host_seconds or 0.0
        return self.host_overhead or 0.0


def launch_count(task: Task) -> int:
    """Return how many launches a task is: one for each operator; a buffer that is posted in advance is none."""
    if type(task) is Recv and task.preposted:
        return 0
    return len(task.operators) if isinstance(task, Compute) else 1
