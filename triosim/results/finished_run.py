"""A finished run, from which results are computed, and its ranks grouped by the operators that they ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from triosim.engine import Recording
from triosim.trace import Operator

if TYPE_CHECKING:
    from triosim.extrapolators.captured.captured_plan import CapturedPlan
    from triosim.extrapolators.core.plan import ParallelPlan
    from triosim.memory.world_memory import WorldMemory
    from triosim.networks.base import Network
    from triosim.trace import Trace


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The engine's recording and its subject. ``trace`` is the one that the ranks' operators come from.

    ``stated_slowdowns``: whether a user said what slows computations; by default it is predicted. ``launches_cost``: whether
    operators cost the host their ``host_seconds``.
    """

    recording: Recording
    trace: Trace
    step: ParallelPlan | CapturedPlan
    network: Network
    memory: WorldMemory | None = None
    stated_slowdowns: bool = False
    launches_cost: bool = False


@dataclass(frozen=True, slots=True)
class MetricOptions:
    """Inputs of the metrics that no run records. ``gpu_kinds``: the GPU of each rank that has another than the trace's."""

    tokens_per_sample: float | None = None
    price_per_gpu_hour: float | None = None
    gpu_kinds: Mapping[int, str] = field(default_factory=dict)


#: Ranks that ran the same operators, and (operators, number of runs) for each task that they ran.
RankClass = tuple[list[int], list[tuple[tuple[Operator, ...], int]]]


def rank_classes(recording: Recording) -> list[RankClass]:
    """Return the ranks grouped by the operators that they ran, so that a thousand equal ranks are summed once."""
    # By id(): to hash a task's thousands of operators would cost more than the sums; the recording keeps them alive.
    tasks: dict[int, tuple[tuple[Operator, ...], Counter[int]]] = {}
    for task, runs in recording.compute_counts.values():
        tasks.setdefault(id(task.operators), (task.operators, Counter()))[1].update(runs)
    runs_by_rank: dict[int, list[tuple[int, int]]] = {}
    for key, (_, counter) in tasks.items():
        for rank, count in counter.items():
            runs_by_rank.setdefault(rank, []).append((key, count))
    classes: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for rank in sorted(runs_by_rank):
        represented = (rank,) if recording.represented is None else recording.represented[rank]
        classes.setdefault(tuple(runs_by_rank[rank]), []).extend(represented)
    return [(sorted(ranks), [(tasks[key][0], count) for key, count in runs]) for runs, ranks in classes.items()]
