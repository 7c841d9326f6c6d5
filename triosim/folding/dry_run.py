"""What ranks will send: the kinds of their transfers and collectives, read from their task streams before they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from triosim.errors import AsymmetryError
from triosim.garbage_collector import without_collecting
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
    Synchronize,
    Task,
    TaskStream,
    Wait,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What is sent: a collective of some ranks, or from one rank to another where ``collective`` is None.

    All collectives of ``unequal`` shares are of one kind: of these, some shares may be nothing.
    """

    collective: CollectiveKind | None
    ranks: tuple[int, ...]
    root: int | None = None
    unequal: bool = False


@dataclass(slots=True)
class Foreseen:
    """Of one kind, the bytes of the first, and who sends: communicators, each of which does one thing after the other."""

    nbytes: float
    by: set[Communicator] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Foresight:
    """What ranks send in their first iteration, by kind, and their tasks if that is all that they do.

    ``received`` are pairs of ranks of which the second waits for what the first one sends.
    """

    kinds: Mapping[Kind, Foreseen]
    received: Set[tuple[int, int]]
    tapes: Mapping[int, Tape]


class Tape:
    """The tasks of a stream that looks at nothing, which can be run again."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self._positions: dict[Handle, int] = {}
        self._named: dict[int, dict[str, tuple[int, ...]]] = {}  # by place, the places of the tasks that one names
        self._uses: set[int] = set()  # the places of tasks that others name

    def add(self, rank: int, task: Task) -> Any:
        """Note one more task, and return what is answered to it: a handle that knows its place, or nothing to see."""
        place = len(self._tasks)
        if task.after:
            self._note(place, "after", task.after)
        if isinstance(task, (Wait, Synchronize)):
            self._note(place, "handles", task.handles)
        elif isinstance(task, Iteration) and task.of:
            self._note(place, "of", task.of)
        self._tasks.append(task)
        if isinstance(task, Synchronize):
            return _Unseen()
        handle = Handle(rank, task)
        self._positions[handle] = place
        return handle

    def _note(self, place: int, name: str, handles: Sequence[Handle]) -> None:
        places = tuple([self._positions[handle] for handle in handles])
        self._named.setdefault(place, {})[name] = places
        self._uses.update(places)

    def stream(self) -> TaskStream:
        """Yield the tasks again."""
        handles: dict[int, Any] = {}
        for place, task in enumerate(self._tasks):
            named = self._named.get(place)
            if named is not None:
                again = {name: tuple([handles[other] for other in places]) for name, places in named.items()}
                task = replace(task, **again)
            answer = yield task
            if place in self._uses:
                handles[place] = answer


class _Unseen:
    """What a host finds when it has waited, which nobody can foresee."""

    def __getattr__(self, name: str) -> Any:
        raise AsymmetryError(f"what a rank does depends on '{name}' of what it finds")


@without_collecting()
def foresee(streams: Mapping[int, TaskStream]) -> Foresight:
    """Return what some ranks send in their first iteration; their streams are used up.

    Raises ``AsymmetryError`` for streams that look at the clock or at others, whose tasks nobody can foresee.
    """
    found: dict[Kind, Foreseen] = {}
    received: set[tuple[int, int]] = set()
    tapes: dict[int, Tape] = {}
    for rank, stream in streams.items():
        tape = Tape()
        answer: Any = None
        with suppress(StopIteration):
            while True:
                task = stream.send(answer)
                answer = tape.add(rank, task)
                if isinstance(task, Iteration):
                    break
                if type(task) is Compute or type(task) is Wait:
                    continue
                for part in task.parts if isinstance(task, Batch) else (task,):
                    _note(found, received, part, rank)
            stream.send(answer)
            stream.close()
            continue
        tapes[rank] = tape
    return Foresight(found, received, tapes)


def _note(found: dict[Kind, Foreseen], received: set[tuple[int, int]], task: Any, rank: int) -> None:
    if isinstance(task, Collective):
        if len(task.group.ranks) > 1:
            kind = Kind(task.kind, task.group.ranks, task.root, task.shares is not None)
            found.setdefault(kind, Foreseen(task.nbytes)).by.add(task.group)
    elif isinstance(task, Send):
        found.setdefault(Kind(None, (rank, task.destination)), Foreseen(task.nbytes))
    elif isinstance(task, Recv):
        received.add((task.source, rank))
    elif not isinstance(task, (Compute, Record, Synchronize, Wait)):
        raise AsymmetryError(f"a {type(task).__name__} may be another on each rank")
