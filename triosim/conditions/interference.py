"""Interference of computation and communication on a GPU, and slow-downs of GPUs by faults.

NCCL's kernels and the kernels that run at the same time take multiprocessors and memory bandwidth from each other. Here a
computation takes ``factor`` times as long while a transfer runs on its GPU, from the arrival of the transfer's last member to
its end; a transfer takes longer while any of its members computes. Running operators and transfers are timed again at every
such change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import sub
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import simpy

    from triosim.conditions.contention import Contention, Slowdown
    from triosim.trace import Operator

#: Of a time; smaller differences are rounding.
_SAME_TIME = 1e-12
#: From so many ranks on, a group is known by its identity, whose hash takes no time.
_LARGE = 16

#: The start and the end of an operator, in seconds.
Interval = tuple[float, float]


class OperatorProgress:
    """The progress of a sequence of operators on a GPU whose speed changes.

    ``intervals`` are those of the operators that have ended; ``earliest`` are the times at which their launches are over.
    """

    __slots__ = ("_earliest", "_left", "_now", "_seconds", "_started", "intervals")

    def __init__(self, started: float, seconds: Sequence[float], earliest: Sequence[float] | None = None) -> None:
        self.intervals: list[Interval] = []
        self._now = started
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

    @property
    def count(self) -> int:
        """How many operators have ended."""
        return len(self.intervals)

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


class SpanProgress:
    """The progress of operators without gaps on a GPU whose speed changes, of which only the start and the end are of interest.

    ``seconds`` are those of all the operators together, which are looked at one by one where they are stopped.
    """

    __slots__ = ("_left", "_now", "_operators", "_seconds", "_started", "count")

    def __init__(self, started: float, seconds: float, operators: Sequence[Operator]) -> None:
        self.count = len(operators)
        self._operators = operators
        self._seconds = self._left = seconds
        self._started = self._now = started

    @property
    def intervals(self) -> list[Interval]:
        """The interval of all operators, once they have ended."""
        return [(self._started, self._now)]

    def advance(self, until: float, factor: float) -> float:
        """Advance to a time, or to the end if that comes first, and return it; operators take ``factor`` times as long."""
        end = self.end(factor)
        if end > until:
            self._left = max(self._left - (until - self._now) / factor, 0.0)
            self._now = until
        elif end < math.inf:
            self._left, self._now = 0.0, end
        return self._now

    def stop_after_current(self) -> None:
        """Drop the operators after the running one."""
        done, before = self._seconds - self._left, 0.0
        for number, operator in enumerate(self._operators, 1):
            before += operator.seconds
            if before > done * (1.0 + _SAME_TIME) and number < self.count:
                self._left -= self._seconds - before
                self._seconds, self.count = before, number
                return

    def end(self, factor: float) -> float:
        """Return when the last operator ends if the speed stays as it is."""
        return self._now + self._left * factor if self._left else self._now


Progress = OperatorProgress | SpanProgress


class GpuSpeed:
    """The speed of one GPU, whose operators take ``factor`` times as long now; ``watch`` is told when that has changed.

    ``running`` are the computations that run on the GPU at any time.
    """

    __slots__ = ("_fault", "_transfers", "_watch", "factor", "rank", "running")

    def __init__(self, rank: int, watch: SpeedWatch) -> None:
        self.running = watch.running(rank)
        self.rank = rank
        self.factor = 1.0
        self._fault = 1.0  # the slow-down by faults; infinite: the GPU has failed
        self._transfers: dict[float, int] = {}  # how many run, by their factors
        self._watch = watch

    def transfer_started(self, factor: float) -> None:
        """Count a transfer that runs on this GPU from now on, beside which operators take ``factor`` times as long."""
        transfers = self._transfers
        transfers[factor] = transfers.get(factor, 0) + 1
        if factor > self.factor:
            self._update()

    def transfer_ended(self, factor: float) -> None:
        """Forget a transfer that has ended."""
        left = self._transfers[factor] - 1
        if left:
            self._transfers[factor] = left
        else:
            del self._transfers[factor]
            self._update()

    def set_slowdown(self, factor: float) -> None:
        """Set the slow-down by a fault, relative to the speed at the start."""
        self._fault = factor
        self._update()

    def _update(self) -> None:
        before = self.factor
        self.factor = self._fault * max(self._transfers, default=1.0)
        if self.factor != before and self.running:
            self._watch.speed_changed(self.rank, before)


class SpeedWatch(Protocol):
    """What runs on the GPUs, by rank."""

    def speed_changed(self, rank: int, factor_before: float) -> None:
        """Move the end of what runs on a GPU after its speed has changed."""

    def busy_seconds(self, ranks: Sequence[int]) -> list[float]:
        """Return for how many seconds each GPU has computed so far."""

    def running(self, rank: int) -> Sequence[object]:
        """Return the list of the computations that run on a GPU, which always holds those of the moment."""


class GpuSpeeds:
    """The speeds of all GPUs, by rank, and the transfers that interfere with them.

    ``representative`` returns the rank that is simulated for another: what happens on a GPU happens on that rank's at once.
    """

    def __init__(
        self, env: simpy.Environment, contention: Contention, representative: Callable[[int], int], watch: SpeedWatch
    ) -> None:
        self._env = env
        self._contention = contention
        self._representative = representative
        self._watch = watch
        self._speeds: dict[int, GpuSpeed] = {}
        self._members: dict[tuple[str, Sequence[int] | int], _Members] = {}

    def of(self, rank: int) -> GpuSpeed:
        """Return the speed of a rank's GPU."""
        if rank not in self._speeds:
            self._speeds[rank] = GpuSpeed(rank, self._watch)
        return self._speeds[rank]

    def started_transfer(
        self, kind: str, ranks: Sequence[int], done: Callable[[simpy.Event], None]
    ) -> Callable[[simpy.Event], None]:
        """Start a transfer on some ranks; return the callback for its delivery, which calls ``done`` when the transfer ends."""
        key = (kind, ranks if len(ranks) < _LARGE else id(ranks))
        found = self._members.get(key)
        if found is None:
            found = self._members[key] = self._members_of(kind, ranks)
        if found.slowdown.computation > 1.0:
            done = self._slowing(found, done)
        return self._slowed(found, done) if found.slowdown.communication > 1.0 else done

    def _slowing(self, members: _Members, done: Callable[[simpy.Event], None]) -> Callable[[simpy.Event], None]:
        """Slow what the members of a transfer compute until it has ended."""
        factor, speeds = members.slowdown.computation, members.speeds
        for speed in speeds:
            speed.transfer_started(factor)

        def ended(event: simpy.Event) -> None:
            for speed in speeds:
                speed.transfer_ended(factor)
            done(event)

        return ended

    def _slowed(self, members: _Members, done: Callable[[simpy.Event], None]) -> Callable[[simpy.Event], None]:
        """Make a transfer take longer by what its busiest member computes meanwhile.

        When the network has delivered it, the work that is left goes on at the speed of that moment.
        """
        factor, ranks = members.slowdown.communication, members.simulated
        watch, env = self._watch, self._env
        started, busy = env.now, watch.busy_seconds(ranks)

        def delivered(event: simpy.Event) -> None:
            beside = min(max(map(sub, watch.busy_seconds(ranks), busy)), env.now - started)
            if beside <= 0.0:
                done(event)
                return
            left = beside * (1.0 - 1.0 / factor)
            computing = any(speed.running for speed in members.speeds)
            env.timeout(left * factor if computing else left).callbacks.append(lambda _: done(event))

        return delivered

    def _members_of(self, kind: str, ranks: Sequence[int]) -> _Members:
        slowdown = self._contention.slowdown(kind, ranks)
        simulated = [*dict.fromkeys(map(self._representative, ranks))]
        return _Members(ranks, slowdown, simulated, [self.of(rank) for rank in simulated])


@dataclass(frozen=True, slots=True)
class _Members:
    """The GPUs of a transfer, of which some are simulated; ``ranks`` are kept so that their identity is not another's."""

    ranks: Sequence[int]
    slowdown: Slowdown
    simulated: Sequence[int]
    speeds: Sequence[GpuSpeed]
