"""The hosts of running ranks: what they do beside launching, and the answers to their questions."""

from __future__ import annotations

from collections.abc import Callable

from triosim.live.items import (
    Awaited,
    Ended,
    EventDone,
    HostWork,
    Posted,
    ProfileBegins,
    ProfileEnds,
    ProfilerAction,
    Question,
    RangeBegins,
    ReadClock,
    Said,
    StepOver,
    TimedEvent,
)
from triosim.live.profiles import Profiles
from triosim.live.running_rank import Issued, RunningRank
from triosim.tasks import Handle, Host, Iteration, Poll, Synchronize, TaskStream
from triosim.trace.step_facts import StepFacts


class ScriptFailed(Exception):
    """Raised in the simulation when the script ended with an error: the rank, and its exit status."""

    @property
    def rank(self) -> int:
        """The rank whose script failed."""
        return int(self.args[0])

    @property
    def status(self) -> int:
        """The script's exit status."""
        return int(self.args[1])


def answer_name(source: RunningRank, issued: Issued) -> str:
    """Return the name of the message that a running rank has got the answer to its question."""
    return f"answer {-issued.number} to rank {source.rank}"


class Mail:
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


class RankHost:
    """The host of a running rank: its actions other than launches, and the answers to its questions.

    ``step_ended`` is called with the index of each step, when that ends; profiles say ``facts`` of theirs.
    """

    def __init__(
        self,
        source: RunningRank,
        mail: Mail,
        write: Callable[[int, Said], None],
        step_ended: Callable[[int], None],
        facts: StepFacts,
    ) -> None:
        self.source = source
        self.has_ended = False
        self._mail = mail
        self._write = write
        self._step_ended = step_ended
        self._steps = 0
        self.timed: dict[int, Handle] = {}  # by position
        self.profiles = Profiles(facts)

    def act(self, issued: Issued) -> TaskStream:
        """Do what the host does, when the host's time has come."""
        action = issued.what
        if isinstance(action, HostWork):
            yield Host(action.seconds)
        elif isinstance(action, StepOver):
            yield from self._end_step()
        elif isinstance(action, TimedEvent):
            yield Poll()  # its time is not before the host records it
        elif isinstance(action, Awaited):
            yield Synchronize((self.message(action),))
        else:
            now = (yield Poll()).now
            if isinstance(action, ProfilerAction):
                self._profile(action, now)
            elif isinstance(action, Question):
                self.source.answer(self._answer_to(action, now))
                self._mail.post(answer_name(self.source, issued))
            elif isinstance(action, Said):
                self._write(self.source.rank, action)
            elif isinstance(action, Posted):
                self._mail.post(action.message)
            elif isinstance(action, Ended):
                self.has_ended = True
                if action.status:
                    raise ScriptFailed(self.source.rank, action.status)

    def _profile(self, action: ProfilerAction, now: float) -> None:
        rank = self.source.rank
        if isinstance(action, ProfileBegins):
            self.profiles.begin(rank)
        elif isinstance(action, RangeBegins):
            self.profiles.range_begins(rank, action.name, now)
        else:
            self.profiles.range_ends(rank, now)

    def _end_step(self) -> TaskStream:
        index, handle = self._steps, (yield Iteration())
        self.profiles.add(handle)
        self._steps += 1
        if self._step_ended is None:
            return
        if handle.done:
            self._step_ended(index)
        else:
            ended = self._step_ended
            handle.callbacks.append(lambda _: ended(index))

    def _answer_to(self, asked: Question, now: float) -> float | bool | None:
        if isinstance(asked, ReadClock):
            return now
        if isinstance(asked, ProfileEnds):
            self.profiles.end(self.source.rank, asked, now)
            return True
        if isinstance(asked, EventDone):
            return self._time_of(asked.number) is not None
        first, second = self._time_of(asked.first), self._time_of(asked.second)
        return None if first is None or second is None else second - first

    def _time_of(self, event: int) -> float | None:
        """Return when a timed event was done; None where it is not yet."""
        return self.timed[self.source.timed[event]].finished

    def message(self, action: Awaited) -> Handle:
        """Return the message that the script waits for."""
        return self._mail.message(action.message)
