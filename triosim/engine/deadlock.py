"""The error for task streams that can never go on: it names each stuck rank, its task, and the ranks that it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from triosim.errors import DeadlockError
from triosim.tasks import Batch, Collective, Communicator, Compute, Copy, Handle, Recv, Send, Task
from triosim.units import format_bytes, format_ranks

if TYPE_CHECKING:
    from triosim.engine.rank_state import Channel, RankState, TransferEnd

_SHOWN = 16


def deadlock_error(
    stuck: Sequence[RankState],
    arriving: Mapping[tuple[Communicator, int], Sequence[Handle]],
    posted: Mapping[tuple[Channel, int], TransferEnd],
    failures: Sequence[str] = (),
) -> DeadlockError:
    """Return the error for ranks that can never go on; ranks that wait for the same task are named together.

    ``arriving`` are the collectives that miss members, ``posted`` the sends and receives without a partner, ``failures`` what
    has failed, where that is why.
    """
    ranks_by_reason: dict[str, list[int]] = {}
    for rank in stuck:
        ranks_by_reason.setdefault(_reason(rank, arriving, posted), []).append(rank.index)
    reasons = [f"{_ranks(ranks)} in {reason}" for reason, ranks in ranks_by_reason.items()]
    count = "1 rank" if len(stuck) == 1 else f"{len(stuck)} ranks"
    more = f" and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    if failures:
        return DeadlockError(
            f"{', '.join(failures)}: {count} can never go on: {'; '.join(reasons[:_SHOWN])}{more}",
            fix="let it recover at a later time, or slow it down instead",
        )
    return DeadlockError(
        f"deadlock: {count} can never go on: {'; '.join(reasons[:_SHOWN])}{more}",
        fix="check the order in which these ranks issue their tasks",
    )


def _reason(
    rank: RankState,
    arriving: Mapping[tuple[Communicator, int], Sequence[Handle]],
    posted: Mapping[tuple[Channel, int], TransferEnd],
) -> str:
    """Return what the rank waits in: the first task that arrived and is not finished, else the first that was issued."""
    handle = next((handle for handle in rank.unfinished if handle.arrived is not None), None)
    if handle is None:
        first = next(iter(rank.unfinished), None)
        if first is None:
            return "its host, which waits for tasks of other ranks"
        return f"{_name(first.task)}, which waits for tasks of other ranks"
    task = handle.task
    if isinstance(task, Collective) and handle.started is None:
        number = handle.sequence_numbers[0]
        arrived = {member.rank for member in arriving.get((task.group, number), ())}
        missing = [other for other in task.group.ranks if other not in arrived]
        return f"{_name(task)}, number {number} of its communicator, which waits for {_ranks(missing)}"
    if isinstance(task, (Send, Recv, Batch)):
        partners = [
            f"{_name(end.task)} which waits for {_partner(end.task)}" for end in posted.values() if end.handle is handle
        ]
        if partners:
            return ", ".join(partners[:_SHOWN])
    if handle.started is None:
        return f"{_name(task)}, which waits for its turn"
    return f"{_name(task)}, which {'its GPU' if isinstance(task, Compute) else 'the network'} never finished"


def _partner(task: Send | Recv) -> str:
    if isinstance(task, Send):
        return f"a receive on rank {task.destination}"
    return f"a send on rank {task.source}"


def _name(task: Task) -> str:
    return f"{_kind(task)} at {task.line}" if task.line else _kind(task)


def _kind(task: Task) -> str:
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
    """Name ranks, consecutive ones as ranges: rank 3, ranks 0-6, 9."""
    text = format_ranks(ranks).replace(",", ", ")
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
