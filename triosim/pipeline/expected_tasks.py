"""About how many tasks a rank of a run has, for those who watch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triosim.errors import TriosimError
from triosim.tasks import Handle, Iteration, Synchronize, TaskStream

#: Tasks of a rank's iteration that are drawn to count them, at most: some ten milliseconds.
_MOST = 10_000


def expected_tasks(tasks: Callable[[int], TaskStream], world: int, iterations: int) -> int | None:
    """Return how many tasks a rank has, by those of the first iteration of the first rank, one in the middle and the last.

    Return None where ranks wait for answers, or have many.
    """
    counts = [_count(tasks(rank)) for rank in {0, world // 2, world - 1}]
    known = [count for count in counts if count is not None]
    return round(sum(known) / len(known) * iterations) if len(known) == len(counts) else None


def _count(stream: TaskStream) -> int | None:
    answer: Any = None
    try:
        for drawn in range(1, _MOST):
            task = stream.send(answer)
            if isinstance(task, Iteration):
                return drawn
            if isinstance(task, Synchronize):
                return None
            answer = Handle(0, task)
    except StopIteration:
        return drawn - 1
    except TriosimError:  # which the run itself meets
        return None
    finally:
        stream.close()
    return None
