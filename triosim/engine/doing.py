"""What a rank does at a moment, or what it waits for and for whom: for errors of deadlocks, and for who watches a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from triosim.tasks import Batch, Collective, Communicator, Compute, Copy, Handle, Recv, Send, Task
from triosim.units import format_bytes, format_ranks

if TYPE_CHECKING:
    from triosim.engine.rank_state import Channel, RankState, TransferEnd

_SHOWN = 16


class Doing(NamedTuple):
    """What a rank does: the first task that arrived and is not finished, else the first that was issued.

    ``since`` is when the task arrived, in seconds; ``partners`` are the ranks that it waits for.
    """

    state: Literal["computing", "transferring", "waiting", "host"]
    text: str
    since: float | None = None
    partners: tuple[int, ...] = ()


def doing(
    rank: RankState,
    arriving: Mapping[tuple[Communicator, int], Sequence[Handle]],
    posted: Mapping[tuple[Channel, int], TransferEnd],
    representative: Callable[[int], int] = int,
) -> Doing:
    """Return what a rank does now.

    ``arriving`` are the collectives that miss members, ``posted`` the sends and receives without a partner,
    ``representative`` says of a rank which simulated one stands for it.
    """
    handle = next((handle for handle in rank.unfinished if handle.arrived is not None), None)
    if handle is None:
        first = next(iter(rank.unfinished), None)
        if first is None:
            return Doing("host", "its host, which waits for tasks of other ranks")
        return Doing("waiting", f"{_name(first.task)}, which waits for tasks of other ranks")
    task, since = handle.task, handle.arrived
    if isinstance(task, Collective) and handle.started is None:
        number = handle.sequence_numbers[0]
        arrived = {member.rank for member in arriving.get((task.group, number), ())}
        missing = tuple(other for other in task.group.ranks if representative(other) not in arrived)
        said = f"{_name(task)}, number {number} of its communicator, which waits for {named_ranks(missing)}"
        return Doing("waiting", said, since, missing)
    if isinstance(task, (Send, Recv, Batch)):
        waits = [end.task for end in posted.values() if end.handle is handle]
        if waits:
            said = ", ".join(f"{_name(one)} which waits for {_partner(one)}" for one in waits[:_SHOWN])
            partners = (one.destination if isinstance(one, Send) else one.source for one in waits)
            return Doing("waiting", said, since, tuple(dict.fromkeys(partners)))
    if handle.started is None:
        return Doing("waiting", f"{_name(task)}, which waits for its turn", since)
    if isinstance(task, Compute):
        return Doing("computing", f"{_name(task)}, which its GPU has not finished", since)
    return Doing("transferring", f"{_name(task)}, which the network has not finished", since)


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
        first, last = task.operators[0], task.operators[-1]
        if first is last:
            return f"the computation '{first.name}'"
        return f"the computations '{first.name}' to '{last.name}'"
    if isinstance(task, Copy):
        return f"a copy of {format_bytes(task.nbytes)} from {task.source} to {task.destination}"
    return f"a {type(task).__name__}"


def named_ranks(ranks: Sequence[int]) -> str:
    """Name ranks, consecutive ones as ranges: rank 3, ranks 0-6, 9."""
    text = format_ranks(ranks).replace(",", ", ")
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
