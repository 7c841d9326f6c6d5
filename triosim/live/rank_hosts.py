"""The hosts of running ranks: what they do beside launching, and the answers to their questions."""

from __future__ import annotations

from collections.abc import Callable

from triosim.errors import SimulationError
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

    ``step_ended`` is called with the index of each step, when that ends.
    """

    def __init__(
        self,
        source: RunningRank,
        mail: Mail,
        write: Callable[[int, Said], None],
        step_ended: Callable[[int], None] | None = None,
    ) -> None:
        self.source = source
        self.has_ended = False
        self._mail = mail
        self._write = write
        self._step_ended = step_ended
        self._steps = 0
        self.timed: dict[int, Handle] = {}  # by position
        self.profiles = Profiles()

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


class Guest:
    """A running rank that another rank is simulated for: it launches the same, and has output and questions of its own.

    ``model`` is the running rank whose commands are simulated.
    """

    def __init__(self, source: RunningRank, model: RunningRank, host: RankHost) -> None:
        self._source = source
        self._queue = source.queue()
        self._host = host
        self._model = model
        self._own, self._models = source.trail(), model.trail()
        self._awaited: Handle | None = None  # a message that the script waits for

    def come_to(self, position: float, timed: dict[int, Handle], profiles: Profiles) -> TaskStream:
        """Let the script come to a position, and answer what it asks up to there; ``timed`` are the timed events by position.

        ``profiles`` are those of the simulated rank.

        Raises ``SimulationError`` where it launched something else than its model.
        """
        self._host.timed, self._host.profiles = timed, profiles
        while self._queue or not self._is_past(position):
            if not self._queue:
                self._source.pull()
                continue
            issued = self._queue[0]
            if issued.position > position:
                break
            self._queue.popleft()
            if isinstance(issued.what, Awaited):
                self._awaited = self._host.message(issued.what)
            elif issued.number < 0 and not isinstance(issued.what, (HostWork, StepOver, TimedEvent)):
                yield from self._host.act(issued)
        self._compare()

    def _is_past(self, position: float) -> bool:
        """Whether the script is known to have nothing to say up to a position that could be waited for."""
        waits = self._awaited is not None and not self._awaited.done
        return waits or self._host.has_ended or self._source.position > position

    def _compare(self) -> None:
        while self._own and self._models:
            own, models = self._own.popleft(), self._models.popleft()
            if own != models:
                rank, other = self._source.rank, self._model.rank
                raise SimulationError(
                    f"ranks {other} and {rank} were assumed to run the same and differ: {_said(models)} on rank {other}, "
                    f"{_said(own)} on rank {rank}",
                    fix="simulate every rank for itself: --no-fold",
                )


def _said(key: object) -> str:
    return str(key[0]) if isinstance(key, tuple) else str(key)
