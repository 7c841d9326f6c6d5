"""The task streams of ranks whose scripts run: a stream waits where its script has not yet said what comes next.

While it waits the engine's clock stands still, so no rank ever launches something in the past of another. A rank that does not
run follows one that does: it runs the same commands, in groups of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from triosim.engine.recording import HostWait
from triosim.extrapolators.captured.command_tasks import TAGS_OF_A_FAMILY, collective_task, exchange_task, wait_task
from triosim.extrapolators.captured.commands import CommandWait, GroupCollective, PointToPoint
from triosim.live.items import Awaited, Ended, HostWork, Question, Said
from triosim.live.profiles import Profiles
from triosim.live.rank_hosts import Mail, RankHost, answer_name
from triosim.live.running_rank import Issued, RunningRank
from triosim.tasks import Answer, Communicator, Handle, Host, Record, Synchronize, Task, TaskStream
from triosim.trace.step_facts import StepFacts

#: A stream keeps the handles of so many commands, and then forgets those that are done.
_KEPT_HANDLES = 4096


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
    """The task streams of the simulated ranks. ``like`` is, for each, the running one that it follows.

    The questions of a running rank are answered in the stream of the simulated one that is its home.
    ``write`` gets what running ranks print, when the simulated time has come; ``step_ended`` is called with the index of a
    step when that ends on one of the ranks that run and are simulated by themselves. Profiles say ``facts`` of their step.
    """

    def __init__(
        self,
        running: Mapping[int, RunningRank],
        like: Mapping[int, int],
        homes: Mapping[int, int],
        groups: LiveGroups,
        write: Callable[[int, Said], None],
        step_ended: Callable[[int], None],
        facts: StepFacts,
    ) -> None:
        self._running = running
        self._like = like
        self._groups, self._facts = groups, facts
        self._mail = Mail()
        self._queues = {rank: running[source].queue() for rank, source in like.items()}
        self._hosts = {
            rank: RankHost(running[source], self._mail, write, step_ended, facts)
            for rank, source in like.items()
            if homes[source] == rank
        }

    def tasks(self, rank: int) -> TaskStream:
        """Return the task stream of one rank. Raises ``ScriptFailed`` where its script does."""
        source, queue = self._running[self._like[rank]], self._queues[rank]
        host = self._hosts.get(rank)
        handles: dict[int, Handle] = {}
        timed: dict[int, Handle] = {} if host is None else host.timed
        profiles = Profiles(self._facts) if host is None else host.profiles
        for issued in _issued(source, queue):
            if issued.number < 0:
                yield from self._followed(source, issued) if host is None else host.act(issued)
                continue
            task = self._task(rank, issued.what, handles)
            if task is None:
                continue
            answer = yield task
            if isinstance(answer, Answer) and answer.began is not None:
                profiles.waited(HostWait(answer.began, answer.now, isinstance(task, Synchronize) and not task.handles))
            if isinstance(answer, Handle):
                handles[issued.number] = answer
                profiles.add(answer)
                if isinstance(task, Record):
                    timed[issued.position] = answer
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
            yield Synchronize((self._mail.message(answer_name(source, issued)),))

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
