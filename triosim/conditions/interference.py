"""Interference of computation and communication on a GPU, and slow-downs of GPUs by faults.

NCCL's kernels and the kernels that run at the same time take multiprocessors and memory bandwidth from each other. Here a
computation takes ``factor`` times as long while a transfer runs on its GPU, from the arrival of the transfer's last member to
its end; a transfer takes longer while any of its members computes. Running operators and transfers are timed again at every
such change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import simpy

    from triosim.conditions.conditions import Interference, SlowdownFactors

#: The start and the end of an operator, in seconds.
Interval = tuple[float, float]


class OperatorProgress:
    """The progress of a sequence of operators on a GPU whose speed changes.

    ``intervals`` are those of the operators that have ended; ``earliest`` are the times at which their launches are over.
    """

    __slots__ = ("_earliest", "_left", "_now", "_seconds", "_started", "intervals")

    def __init__(self, now: float, seconds: Sequence[float], earliest: Sequence[float] | None = None) -> None:
        self.intervals: list[Interval] = []
        self._now = now
        self._seconds = seconds
        self._earliest = earliest
        self._started: float | None = None  # when the running operator started
        self._left = 0.0  # its remaining seconds at full speed

    def advance(self, until: float, factor: float) -> float:
        """Advance to a time, or to the end if that comes first, and return it; operators take ``factor`` times as long."""
        now = self._now
        while len(self.intervals) < len(self._seconds):
            if self._started is None:
                start = now if self._earliest is None else max(now, self._earliest[len(self.intervals)])
                if start > until:
                    break
                now = self._started = start
                self._left = self._seconds[len(self.intervals)]
            end = now + self._left * factor if self._left else now
            if end > until or end == math.inf:
                self._left = max(self._left - (until - now) / factor, 0.0) if until < math.inf else self._left
                now = until
                break
            self.intervals.append((self._started, end))
            self._started = None
            now = end
        else:
            until = now
        self._now = until
        return until

    def stop_after_current(self) -> None:
        """Drop the operators after the running one; where none runs, after the last that did, but one runs at least."""
        started = len(self.intervals) + (self._started is not None)
        self._seconds = self._seconds[: max(started, 1)]

    def end(self, factor: float) -> float:
        """Return when the last operator ends if the speed stays as it is."""
        rest = OperatorProgress(
            self._now, self._seconds[len(self.intervals) :], self._earliest and self._earliest[len(self.intervals) :]
        )
        rest._started, rest._left = self._started, self._left
        return rest.advance(math.inf, factor)


class ResettableTimer:
    """A callback at a time that can be changed, which that of a SimPy timeout cannot."""

    __slots__ = ("_callback", "_env", "_event")

    def __init__(self, env: simpy.Environment, callback: Callable[[], None]) -> None:
        self._env = env
        self._callback = callback
        self._event: simpy.Event | None = None

    def set(self, at: float) -> None:
        """Call back at this time instead of the one set before; never if it is infinite."""
        if at == math.inf:
            self._event = None
            return
        self._event = self._env.timeout(max(at - self._env.now, 0.0))
        self._event.callbacks.append(self._fire)

    def _fire(self, event: simpy.Event) -> None:
        if event is self._event:
            self._event = None
            self._callback()


class RunningOperators:
    """A sequence of operators that runs on a GPU; ``finish`` is called with their intervals."""

    __slots__ = ("_finish", "_progress", "_speed", "_timer")

    def __init__(self, speed: GpuSpeed, progress: OperatorProgress, finish: Callable[[list[Interval]], None]) -> None:
        self._progress = progress
        self._speed = speed
        self._finish = finish
        self._timer = ResettableTimer(speed.env, self._ended)
        self._timer.set(progress.end(speed.factor))

    def retime(self, factor_before: float) -> None:
        """Move the end after the speed has changed."""
        self._progress.advance(self._speed.env.now, factor_before)
        self._timer.set(self._progress.end(self._speed.factor))

    def stop_after_current(self) -> None:
        """Stop at the end of the running operator."""
        self._progress.advance(self._speed.env.now, self._speed.factor)
        self._progress.stop_after_current()
        self._timer.set(self._progress.end(self._speed.factor))

    def _ended(self) -> None:
        self._progress.advance(math.inf, self._speed.factor)
        self._speed.remove(self)
        self._finish(self._progress.intervals)


class GpuSpeed:
    """The speed of one GPU, with its running operators, which take ``factor`` times as long now.

    ``slowdowns`` are the factors by kind of the transfers that run at the same time.
    """

    def __init__(self, env: simpy.Environment, slowdowns: SlowdownFactors) -> None:
        self.env = env
        self.factor = 1.0
        self.slowed_transfers: dict[SlowedTransfer, None] = {}
        self._fault = 1.0  # the slow-down by faults; infinite: the GPU has failed
        self._slowdowns = slowdowns
        self._transfers: Counter[str] = Counter()  # how many run, by kind
        self._running: dict[RunningOperators, None] = {}

    @property
    def computes(self) -> bool:
        """Whether operators run."""
        return bool(self._running)

    def start(
        self, seconds: Sequence[float], earliest: Sequence[float] | None, finish: Callable[[list[Interval]], None]
    ) -> RunningOperators:
        """Start operators one after the other; see ``OperatorProgress``."""
        running = RunningOperators(self, OperatorProgress(self.env.now, seconds, earliest), finish)
        self._running[running] = None
        if len(self._running) == 1:
            for transfer in self.slowed_transfers:
                transfer.retime(+1)
        return running

    def remove(self, running: RunningOperators) -> None:
        """Forget operators that have ended."""
        del self._running[running]
        if not self._running:
            for transfer in self.slowed_transfers:
                transfer.retime(-1)

    def transfer_started(self, kind: str) -> None:
        """Count a transfer that runs on this GPU from now on."""
        self._transfers[kind] += 1
        self._update()

    def transfer_ended(self, kind: str) -> None:
        """Forget a transfer that has ended."""
        self._transfers[kind] -= 1
        self._update()

    def set_slowdown(self, factor: float) -> None:
        """Set the slow-down by a fault, relative to the speed at the start."""
        self._fault = factor
        self._update()

    def _update(self) -> None:
        before = self.factor
        kinds = (kind for kind, count in self._transfers.items() if count)
        self.factor = self._fault * max([1.0, *(self._slowdowns.get(kind, 1.0) for kind in kinds)])
        if self.factor != before:
            for running in self._running:
                running.retime(before)


class SlowedTransfer:
    """A transfer that takes ``factor`` times as long while any of its members computes.

    The network's delivery is the end if no member computes; the work that is left by then is done afterwards.
    """

    def __init__(self, factor: float, members: Sequence[GpuSpeed], done: Callable[[simpy.Event], None]) -> None:
        self._env = members[0].env
        self._factor = factor
        self._members = members
        self._done = done
        self._started = self._updated = self._env.now
        self._progress = 0.0  # seconds of the network's time that are done
        self._computing = sum(member.computes for member in members)
        self._event: simpy.Event | None = None
        self._work = math.inf
        self._timer = ResettableTimer(self._env, self._ended)
        for member in members:
            member.slowed_transfers[self] = None

    def network_done(self, event: simpy.Event) -> None:
        """Note that the network has delivered the transfer."""
        self._event = event
        self._work = self._env.now - self._started
        self.retime(0)

    def retime(self, more: int) -> None:
        """Move the end after so many more of the members compute."""
        now = self._env.now
        self._progress += (now - self._updated) / self._current_factor
        self._updated = now
        self._computing += more
        if self._event is not None:
            left = max(self._work - self._progress, 0.0)
            self._timer.set(now + left * self._current_factor)

    @property
    def _current_factor(self) -> float:
        return self._factor if self._computing else 1.0

    def _ended(self) -> None:
        for member in self._members:
            del member.slowed_transfers[self]
        assert self._event is not None
        self._done(self._event)


class GpuSpeeds:
    """The speeds of all GPUs, by rank, and the transfers that interfere with them; ``ranks`` are those that take part."""

    def __init__(self, env: simpy.Environment, ranks: Container[int], interference: Interference) -> None:
        self._env = env
        self._ranks = ranks
        self._interference = interference
        self._speeds: dict[int, GpuSpeed] = {}

    def __contains__(self, rank: int) -> bool:
        return rank in self._ranks

    def of(self, rank: int) -> GpuSpeed:
        """Return the speed of a rank's GPU."""
        if rank not in self._speeds:
            self._speeds[rank] = GpuSpeed(self._env, self._interference.computation)
        return self._speeds[rank]

    def started_transfer(
        self, kind: str, ranks: Iterable[int], done: Callable[[simpy.Event], None]
    ) -> Callable[[simpy.Event], None]:
        """Start a transfer on some ranks; return the callback for its delivery, which calls ``done`` when the transfer ends."""
        members = [self.of(rank) for rank in dict.fromkeys(ranks) if rank in self]
        for member in members:
            member.transfer_started(kind)

        def ended(event: simpy.Event) -> None:
            for member in members:
                member.transfer_ended(kind)
            done(event)

        factor = self._interference.communication.get(kind, 1.0)
        return ended if factor == 1.0 or not members else SlowedTransfer(factor, members, ended).network_done
