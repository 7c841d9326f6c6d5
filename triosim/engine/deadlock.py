"""What to say of streams that can never go on: each stuck rank, the task it waits in, and whom it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from triosim.errors import DeadlockError
from triosim.tasks import Batch, Collective, Communicator, Compute, Copy, Handle, Recv, Send, Task
from triosim.units import format_bytes

if TYPE_CHECKING:
    from triosim.engine.rank import Channel, Rank, Side

_SHOWN = 16


def report_deadlock(
    stuck: Sequence[Rank],
    gathering: Mapping[tuple[Communicator, int], Sequence[Handle]],
    posted: Mapping[tuple[Channel, int], Side],
    failures: Sequence[str] = (),
) -> DeadlockError:
    """Return the error for ranks of which the clock has run out; ranks that wait for the same are named together.

    ``failures`` are why, where that is known.
    """
    reasons: dict[str, list[int]] = {}
    for rank in stuck:
        reasons.setdefault(_reason(rank, gathering, posted), []).append(rank.index)
    said = [f"{_ranks(ranks)} in {reason}" for reason, ranks in reasons.items()]
    those = "1 rank" if len(stuck) == 1 else f"{len(stuck)} ranks"
    more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    if failures:
        return DeadlockError(
            f"{', '.join(failures)}: {those} can never go on: {'; '.join(said[:_SHOWN])}{more}",
            fix="let it come back at a later time, or be slow instead",
        )
    return DeadlockError(
        f"deadlock: {those} can never go on: {'; '.join(said[:_SHOWN])}{more}",
        fix="look at the order in which these ranks issue their tasks",
    )


def _reason(
    rank: Rank,
    gathering: Mapping[tuple[Communicator, int], Sequence[Handle]],
    posted: Mapping[tuple[Channel, int], Side],
) -> str:
    """Say what the rank waits in: the first task that arrived and is not through, else the first that was issued."""
    handle = next((handle for handle in rank.open if handle.arrived is not None), None)
    if handle is None:
        first = next(iter(rank.open), None)
        if first is None:
            return "its host, which waits for tasks of other ranks"
        return f"{_name(first.task)}, which waits for tasks of other ranks"
    task = handle.task
    if isinstance(task, Collective) and handle.started is None:
        came = {member.rank for member in gathering.get((task.group, handle.place[0]), ())}
        missing = [other for other in task.group.ranks if other not in came]
        return f"{_name(task)}, number {handle.place[0]} of its communicator, which waits for {_ranks(missing)}"
    if isinstance(task, (Send, Recv, Batch)):
        waits = [
            f"{_name(side.part)} which waits for {_partner(side.part)}"
            for side in posted.values()
            if side.handle is handle
        ]
        if waits:
            return ", ".join(waits[:_SHOWN])
    if handle.started is None:
        return f"{_name(task)}, which waits for its turn"
    return f"{_name(task)}, which {'its GPU' if isinstance(task, Compute) else 'the network'} never finished"


def _partner(part: Send | Recv) -> str:
    if isinstance(part, Send):
        return f"a receive on rank {part.destination}"
    return f"a send on rank {part.source}"


def _name(task: Task) -> str:
    if isinstance(task, Collective):
        return f"{task.kind} of {format_bytes(task.nbytes)} in '{task.group.name or list(task.group.ranks)}'"
    if isinstance(task, Send):
        return f"a send of {format_bytes(task.nbytes)} to rank {task.destination} (tag {task.tag})"
    if isinstance(task, Recv):
        return f"a receive from rank {task.source} (tag {task.tag})"
    if isinstance(task, Compute) and task.operators:
        return f"the computation '{task.operators[0].name}'"
    if isinstance(task, Copy):
        return f"a copy of {format_bytes(task.nbytes)} from {task.source} to {task.destination}"
    return f"a {type(task).__name__}"


def _ranks(ranks: Sequence[int]) -> str:
    """Name ranks, runs of them as ranges: rank 3, ranks 0-6, 9."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
