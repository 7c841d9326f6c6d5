"""What ranks will send: the kinds of their transfers and collectives, read from their task streams before they run."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from triosim.networks.quotient import NotAlike
from triosim.tasks import (
    Batch,
    Collective,
    CollectiveKind,
    Communicator,
    Compute,
    Handle,
    Iteration,
    Record,
    Recv,
    Send,
    TaskStream,
    Wait,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What is sent: a collective of some ranks, or from one rank to another where ``collective`` is None."""

    collective: CollectiveKind | None
    ranks: tuple[int, ...]
    root: int | None = None


@dataclass(slots=True)
class Foreseen:
    """Of one kind, the bytes of the first, and who sends: communicators, each of which does one thing after the other."""

    nbytes: float
    by: set[Communicator] = field(default_factory=set)


def communications(streams: Mapping[int, TaskStream]) -> dict[Kind, Foreseen]:
    """Return what some ranks send in their first iteration; their streams are used up.

    Raises ``NotAlike`` for streams that look at the clock or at others, whose tasks nobody can foresee.
    """
    found: dict[Kind, Foreseen] = {}
    for rank, stream in streams.items():
        answer: Handle | None = None
        while True:
            try:
                task = stream.send(answer)
            except StopIteration:
                break
            if isinstance(task, Iteration):
                break
            answer = Handle(rank, task)
            for part in task.parts if isinstance(task, Batch) else (task,):
                _note(found, part, rank, streams)
        stream.close()
    return found


def _note(found: dict[Kind, Foreseen], task: Any, rank: int, simulated: Container[int]) -> None:
    if isinstance(task, Collective):
        if task.shares is not None:
            raise NotAlike("shares are unequal")
        if len(task.group.ranks) > 1:
            kind = Kind(task.kind, task.group.ranks, task.root)
            found.setdefault(kind, Foreseen(task.nbytes)).by.add(task.group)
    elif isinstance(task, Send):
        if task.destination not in simulated:
            raise NotAlike(f"rank {rank} sends to one of those that it stands for")
        found.setdefault(Kind(None, (rank, task.destination)), Foreseen(task.nbytes))
    elif not isinstance(task, (Compute, Recv, Record, Wait)):
        raise NotAlike(f"a {type(task).__name__} may be another on each rank")
