"""Groups the ranks that ran the same operators equally often, so that a thousand equal ranks are summed once."""

from __future__ import annotations

from collections import Counter

from triosim.engine import Recording
from triosim.trace import Operator

#: Ranks that ran the same, and (operators, number of runs) for each task that they ran.
RankClass = tuple[list[int], list[tuple[tuple[Operator, ...], int]]]


def rank_classes(recording: Recording) -> list[RankClass]:
    """Return the classes in order of their first rank."""
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
