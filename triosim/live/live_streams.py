"""The task streams of ranks whose scripts run: a stream waits where its script has not yet said what comes next.

While it waits the engine's clock stands still, so no rank ever launches something in the past of another. A rank that does not
run follows one that does: it runs the same commands, in groups of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from triosim.extrapolators.captured.command_tasks import TAGS_OF_A_FAMILY, collective_task, exchange_task, wait_task
from triosim.extrapolators.captured.commands import CommandWait, GroupCollective, PointToPoint
from triosim.live.items import (
    Awaited,
    Ended,
    EventDone,
    HostWork,
    Posted,
    Question,
    ReadClock,
    Said,
    StepOver,
    TimedEvent,
)
from triosim.live.running_rank import Issued, RunningRank
from triosim.tasks import Communicator, Handle, Host, Iteration, Poll, Record, Synchronize, Task, TaskStream

#: A stream keeps the handles of so many commands, and then forgets those that are done.
_KEPT_HANDLES = 4096


class ScriptFailed(Exception):
    """Raised in the simulation when the script ended with an error: the rank, and its exit status."""

    @property
    def status(self) -> int:
        """The script's exit status."""
        return int(self.args[1])


class LiveGroups:
    """The communicators of all ranks, as the running ones make process groups."""

    def __init__(self) -> None:
        self._by_rank: dict[int, dict[str, Communicator]] = {}
        self._known: set[tuple[str, tuple[int, ...]]] = set()
        self.tags: dict[str, int] = {}  # where the tags of each family begin
        self.groups: dict[str, list[tuple[int, ...]]] = {}

    def add(self, groups: Mapping[str, Iterable[tuple[int, ...]]]) -> None:
        """Add the groups that a rank has made so far, by axis."""
        for family, every in groups.items():
            self.tags.setdefault(family, len(self.tags) * TAGS_OF_A_FAMILY)
            for ranks in every:
                if (family, ranks) not in self._known:
                    self._known.add((family, ranks))
                    self.groups.setdefault(family, []).append(ranks)
                    communicator = Communicator(ranks, family)
                    for rank in ranks:
                        self._by_rank.setdefault(rank, {})[family] = communicator

    def of(self, rank: int) -> Mapping[str, Communicator]:
        """Return a rank's communicators by axis."""
        return self._by_rank.setdefault(rank, {})


class LiveStreams:
    """The task streams of all ranks. ``like`` is, for each rank, the running one that it follows.

    ``write`` gets what running ranks print, when the simulated time has come.
    """

    def __init__(
        self,
        running: Mapping[int, RunningRank],
        like: Sequence[int],
        groups: LiveGroups,
        write: Callable[[int, Said], None],
    ) -> None:
        self.running = running
        self.steps: dict[int, list[Handle]] = {rank: [] for rank in running}  # the end of each step
        self._like = like
        self._groups = groups
        self._write = write
        self._mail = _Mail()
        self._queues = {rank: running[source].queue() for rank, source in enumerate(like)}

    def tasks(self, rank: int) -> TaskStream:
        """Return the task stream of one rank. Raises ``ScriptFailed`` where its script does."""
        source, queue = self.running[self._like[rank]], self._queues[rank]
        host = _Host(source, self.steps[rank], self._mail, self._write) if rank == source.rank else None
        handles: dict[int, Handle] = {}
        for issued in _issued(source, queue):
            if issued.number < 0:
                yield from self._followed(source, issued) if host is None else host.act(issued)
                continue
            task = self._task(rank, issued.what, handles)
            if task is None:
                continue
            answer = yield task
            if isinstance(answer, Handle):
                handles[issued.number] = answer
                if host is not None and isinstance(task, Record):
                    host.timed[issued.number] = answer
            if len(handles) > _KEPT_HANDLES:
                handles = {number: one for number, one in handles.items() if not one.done}

    def _followed(self, source: RunningRank, issued: Issued) -> TaskStream:
        """Do on the host of a rank that follows another what concerns it too.

        Where the script waits for an answer or a message, nobody knows how it goes on before it has that.
        """
        action = issued.what
        if isinstance(action, HostWork):
            yield Host(action.seconds)
        elif isinstance(action, Awaited):
            yield Synchronize((self._mail.message(action.message),))
        elif isinstance(action, Question):
            yield Synchronize((self._mail.message(_answer(source, issued)),))

    def _task(self, rank: int, command: Any, handles: Mapping[int, Handle]) -> Task | None:
        """Return a command as a task; None for a wait for what is over."""
        if isinstance(command, CommandWait):
            open_ones = tuple([one for one in command.commands if one in handles])
            if command.commands and not open_ones:
                return None
            return wait_task(CommandWait(open_ones, command.stream), handles)
        if isinstance(command, GroupCollective):
            return collective_task(self._groups.of(rank)[command.communication.group], command)
        if isinstance(command, PointToPoint):
            return exchange_task(command, self._groups.of(rank), self._groups.tags)
        assert isinstance(command, Task)
        return command


def _issued(source: RunningRank, queue: deque[Issued]) -> Generator[Issued, None, None]:
    """Yield what a script issues, until it ends; wait for it where nothing is there yet."""
    while True:
        while not queue:
            source.pull()
        issued = queue.popleft()
        yield issued
        if isinstance(issued.what, Ended):
            return


def _answer(source: RunningRank, issued: Issued) -> str:
    """Return the name of the message that a running rank has got the answer to its question."""
    return f"answer {-issued.number} to rank {source.rank}"


class _Mail:
    """The messages between running ranks, by name, as handles that are done once the message is sent."""

    def __init__(self) -> None:
        self._handles: dict[str, Handle] = {}

    def message(self, name: str) -> Handle:
        """Return the handle of a message."""
        return self._handles.setdefault(name, Handle(-1, Poll()))

    def post(self, name: str) -> None:
        """Send a message: hosts that wait for it go on."""
        handle = self.message(name)
        handle.dependents = None
        for callback in handle.callbacks:
            callback(handle)


class _Host:
    """The host of a running rank: its actions other than launches, and the answers to its questions."""

    def __init__(
        self, source: RunningRank, steps: list[Handle], mail: _Mail, write: Callable[[int, Said], None]
    ) -> None:
        self._source = source
        self._steps = steps
        self._mail = mail
        self._write = write
        self.timed: dict[int, Handle] = {}  # by command

    def act(self, issued: Issued) -> TaskStream:
        """Do what the host does, when the host's time has come."""
        action = issued.what
        if isinstance(action, HostWork):
            yield Host(action.seconds)
        elif isinstance(action, StepOver):
            self._steps.append((yield Iteration()))
        elif isinstance(action, TimedEvent):
            yield Poll()  # its time is not before the host records it
        elif isinstance(action, Awaited):
            yield Synchronize((self._mail.message(action.message),))
        else:
            now = (yield Poll()).now
            if isinstance(action, Question):
                self._source.answer(self._answer_to(action, now))
                self._mail.post(_answer(self._source, issued))
            elif isinstance(action, Said):
                self._write(self._source.rank, action)
            elif isinstance(action, Posted):
                self._mail.post(action.message)
            elif isinstance(action, Ended) and action.status:
                raise ScriptFailed(self._source.rank, action.status)

    def _answer_to(self, asked: Question, now: float) -> float | bool | None:
        if isinstance(asked, ReadClock):
            return now
        if isinstance(asked, EventDone):
            return self._time_of(asked.number) is not None
        first, second = self._time_of(asked.first), self._time_of(asked.second)
        return None if first is None or second is None else second - first

    def _time_of(self, event: int) -> float | None:
        """Return when a timed event was done; None where it is not yet."""
        return self.timed[self._source.timed[event]].finished
