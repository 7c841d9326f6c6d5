"""How fast a GPU computes while it communicates, communicates while it computes, and once something has happened to it.

NCCL's kernels take multiprocessors and memory bandwidth from the computation beside them, and the other way round. Here a
computation takes ``factor`` times as long for as long as a transfer runs on its GPU, from the arrival of its last member to its
end; a transfer takes longer while any of its members computes. What is under way is timed anew at every such change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from triosim.networks.base import when

if TYPE_CHECKING:
    import simpy

    from triosim.conditions.conditions import Factors, Interference

Span = tuple[float, float]


class Progress:
    """Operators that run one after the other at a speed that changes; ``spans`` are the times of those that are through.

    ``earliest`` are times before which each cannot begin (its launch is over then).
    """

    __slots__ = ("_began", "_earliest", "_left", "_now", "_seconds", "spans")

    def __init__(self, now: float, seconds: Sequence[float], earliest: Sequence[float] | None = None) -> None:
        self.spans: list[Span] = []
        self._now = now
        self._seconds = seconds
        self._earliest = earliest
        self._began: float | None = None  # when the operator that runs has begun
        self._left = 0.0  # its seconds at full speed that are left

    def advance(self, until: float, factor: float) -> float:
        """Go on until a time, or the end if that comes first, and return it; an operator takes ``factor`` times longer."""
        now = self._now
        while len(self.spans) < len(self._seconds):
            if self._began is None:
                begin = now if self._earliest is None else max(now, self._earliest[len(self.spans)])
                if begin > until:
                    break
                now = self._began = begin
                self._left = self._seconds[len(self.spans)]
            end = now + self._left * factor if self._left else now
            if end > until or end == math.inf:
                self._left = max(self._left - (until - now) / factor, 0.0) if until < math.inf else self._left
                now = until
                break
            self.spans.append((self._began, end))
            self._began = None
            now = end
        else:
            until = now
        self._now = until
        return until

    def shorten(self) -> None:
        """End with the operator that runs, or with the last one that did where the next one waits for its launch."""
        under_way = len(self.spans) + (self._began is not None)
        self._seconds = self._seconds[: max(under_way, 1)]

    def end(self, factor: float) -> float:
        """Return when the last operator ends if the speed stays as it is."""
        ahead = Progress(
            self._now, self._seconds[len(self.spans) :], self._earliest and self._earliest[len(self.spans) :]
        )
        ahead._began, ahead._left = self._began, self._left
        return ahead.advance(math.inf, factor)


class Timer:
    """Calls back at a time that may be set anew; SimPy's own timeouts cannot be taken back."""

    __slots__ = ("_callback", "_env", "_event")

    def __init__(self, env: simpy.Environment, callback: Callable[[], None]) -> None:
        self._env = env
        self._callback = callback
        self._event: simpy.Event | None = None

    def set(self, at: float) -> None:
        """Call back at a time; one that is infinite never comes."""
        if at == math.inf:
            self._event = None
            return
        self._event = self._env.timeout(max(at - self._env.now, 0.0))
        self._event.callbacks.append(self._fire)

    def _fire(self, event: simpy.Event) -> None:
        if event is self._event:
            self._event = None
            self._callback()


class Running:
    """Operators of a task that are under way on a GPU."""

    __slots__ = ("_finish", "_pace", "_timer", "progress")

    def __init__(self, pace: Pace, progress: Progress, finish: Callable[[list[Span]], None]) -> None:
        self.progress = progress
        self._pace = pace
        self._finish = finish
        self._timer = Timer(pace.env, self._over)
        self._timer.set(progress.end(pace.factor))

    def retime(self, before: float) -> None:
        """Take a change of speed into account: until now it was ``before``."""
        self.progress.advance(self._pace.env.now, before)
        self._timer.set(self.progress.end(self._pace.factor))

    def make_room(self) -> None:
        """Run no further than to the end of the present operator."""
        self.progress.advance(self._pace.env.now, self._pace.factor)
        self.progress.shorten()
        self._timer.set(self.progress.end(self._pace.factor))

    def _over(self) -> None:
        self.progress.advance(math.inf, self._pace.factor)
        self._pace.stop(self)
        self._finish(self.progress.spans)


class Pace:
    """The speed of one GPU: ``factor`` is by how many times its operators take longer now."""

    def __init__(self, env: simpy.Environment, hampering: Factors) -> None:
        self.env = env
        self.factor = 1.0
        self.beside: dict[Slowed, None] = {}  # transfers that want to know whether it computes
        self.slowdown = 1.0  # what has happened to the GPU; infinite: it has failed
        self._hampering = hampering
        self._kinds: dict[str, int] = {}  # transfers that run, by kind
        self._running: dict[Running, None] = {}

    @property
    def computes(self) -> bool:
        """Whether operators are under way."""
        return bool(self._running)

    def start(
        self, seconds: Sequence[float], earliest: Sequence[float] | None, finish: Callable[[list[Span]], None]
    ) -> Running:
        """Run operators, and call back with when each of them ran."""
        running = Running(self, Progress(self.env.now, seconds, earliest), finish)
        self._running[running] = None
        if len(self._running) == 1:
            for slowed in self.beside:
                slowed.retime(+1)
        return running

    def stop(self, running: Running) -> None:
        """Forget operators that are through."""
        del self._running[running]
        if not self._running:
            for slowed in self.beside:
                slowed.retime(-1)

    def enter(self, kind: str) -> None:
        """A transfer begins to run on this GPU."""
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        self._changed()

    def leave(self, kind: str) -> None:
        """A transfer is through."""
        self._kinds[kind] -= 1
        if not self._kinds[kind]:
            del self._kinds[kind]
        self._changed()

    def slow_down(self, factor: float) -> None:
        """Let the GPU be slower by a factor from now on, than it was at first."""
        self.slowdown = factor
        self._changed()

    def _changed(self) -> None:
        before = self.factor
        self.factor = self.slowdown * max([1.0, *(self._hampering.get(kind, 1.0) for kind in self._kinds)])
        if self.factor != before:
            for running in self._running:
                running.retime(before)


class Slowed:
    """A transfer that takes ``factor`` times as long while a member computes.

    The network says when it would be through if nobody did; what it has not done by then it does after that.
    """

    def __init__(self, factor: float, members: Sequence[Pace], done: Callable[[simpy.Event], None]) -> None:
        self._env = members[0].env
        self._factor = factor
        self._members = members
        self._done = done
        self._began = self._since = self._env.now
        self._progress = 0.0  # seconds of the network's time that it has done
        self._busy = sum(member.computes for member in members)
        self._event: simpy.Event | None = None
        self._work = math.inf
        self._timer = Timer(self._env, self._over)
        for member in members:
            member.beside[self] = None

    def arrived(self, event: simpy.Event) -> None:
        """The network is through."""
        self._event = event
        self._work = self._env.now - self._began
        self.retime(0)

    def retime(self, more: int) -> None:
        """Take into account that so many more of the members compute."""
        now = self._env.now
        self._progress += (now - self._since) / self._pace
        self._since = now
        self._busy += more
        if self._event is not None:
            left = max(self._work - self._progress, 0.0)
            self._timer.set(now + left * self._pace)

    @property
    def _pace(self) -> float:
        return self._factor if self._busy else 1.0

    def _over(self) -> None:
        for member in self._members:
            del member.beside[self]
        assert self._event is not None
        self._done(self._event)


class Paces:
    """The GPUs' speeds, and what their computations and transfers do to each other."""

    def __init__(self, env: simpy.Environment, ranks: Iterable[int], interference: Interference) -> None:
        self.of = {rank: Pace(env, interference.computation) for rank in ranks}
        self._communication = interference.communication

    def transfer(
        self, kind: str, ranks: Iterable[int], event: simpy.Event, done: Callable[[simpy.Event], None]
    ) -> None:
        """A transfer begins to run on some ranks; ``event`` is when the network is through with it."""
        members = [self.of[rank] for rank in dict.fromkeys(ranks) if rank in self.of]
        for member in members:
            member.enter(kind)

        def through(event: simpy.Event) -> None:
            for member in members:
                member.leave(kind)
            done(event)

        factor = self._communication.get(kind, 1.0)
        if factor == 1.0 or not members:
            when(event, through)
        else:
            when(event, Slowed(factor, members, through).arrived)
