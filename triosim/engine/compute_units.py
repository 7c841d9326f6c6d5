"""The compute units of the simulated GPUs, which the streams of a GPU take in turns, operator by operator.

Operators that follow each other on a stream run as one event as long as nobody else wants the units. Where another stream
does, the running task makes room at the end of its operator and stands at the back of the queue, as kernels of several
streams do on a GPU (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution"). So it makes no difference for the
times whether operators are joined into one task.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import simpy

from triosim.tasks import Compute, Handle

if TYPE_CHECKING:
    from triosim.conditions.interference import GpuSpeeds, Interval, RunningOperators
    from triosim.engine.rank import Rank
    from triosim.engine.recording import Recording
    from triosim.trace import Operator

#: Seconds that launching an operator costs the host; "trace" takes each operator's own, None nothing.
HostOverhead = float | Literal["trace"] | None

_SLACK = 1e-12  # shares that sum to 1 but for rounding fill the GPU
_ROUNDING = 1e-9  # of a time; what is less comes from adding up differently


@dataclass(slots=True)
class Turn:
    """A computation from when it is ready until it is through, and how far it has come.

    ``done`` operators are through, the next ones run since ``began`` and leave the units after operator ``last``.
    ``starts`` are the operators' starts, kept where they do not simply follow on from the task's.
    """

    rank: Rank
    handle: Handle
    task: Compute
    launched: float | None  # when the launch of the next operator began, where launching costs the host time
    done: int = 0
    began: float = 0.0
    last: int = 0
    number: int = 0  # of the timeout that counts; an earlier one has been overtaken
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)  # those too, where speeds change
    on_changing_gpu: RunningOperators | None = None  # runs it on a GPU whose speed changes

    @property
    def through(self) -> bool:
        """Whether nothing is left to run once the units are given back."""
        return self.last == len(self.task.operators) - 1


class ComputeUnits:
    """Runs the Compute tasks of all ranks; ``finish`` is called for each that is through.

    ``run_ahead`` is how many operators a host is ahead of its GPU at most, None for any number. ``speeds`` are the GPUs'
    speeds, where these change while they run; the host is then not held back.
    """

    def __init__(
        self,
        env: simpy.Environment,
        recording: Recording,
        host_overhead: HostOverhead,
        run_ahead: int | None,
        finish: Callable[[Rank, Handle], None],
    ) -> None:
        self._env = env
        self._recording = recording
        self._host_overhead = host_overhead
        self._run_ahead = run_ahead
        self._finish = finish
        self.speeds: GpuSpeeds | None = None

    def begin(self, rank: Rank, handle: Handle, task: Compute) -> None:
        """A computation is ready; it runs when the units are free, first come, first served. What takes no time needs none."""
        handle.arrived = self._env.now
        if not task.seconds and handle.launched is None:
            handle.started = self._env.now
            self._recording.ran(rank.index, task)
            self._finish(rank, handle)
            return
        rank.wanting.append(Turn(rank, handle, task, handle.launched))
        self._share_out(rank)

    def _share_out(self, rank: Rank) -> None:
        """Give free compute units to those who wait for them; ask those who run to make room for the others."""
        while rank.wanting:
            turn = rank.wanting[0]
            if turn.task.share > rank.free + _SLACK:
                for running in rank.running:
                    self._make_room(running)
                return
            rank.wanting.popleft()
            rank.running.append(turn)
            rank.free -= turn.task.share
            self._run(turn)

    def _run(self, turn: Turn) -> None:
        """Let what is left of a computation run to its end."""
        now = turn.began = self._env.now
        handle, task = turn.handle, turn.task
        if handle.started is None:
            handle.started = now
            if handle.launched is not None:
                turn.rank.record.begins(handle.launched, now)
        turn.last = len(task.operators) - 1
        if self.speeds is not None:
            self._run_at_changing_speed(turn, self.speeds)
            return
        if turn.launched is not None:
            seconds = self._launch(turn) - now
        elif turn.done:
            seconds = math.fsum(operator.seconds for operator in task.operators[turn.done :])
        else:
            seconds = task.seconds
        self._stop_after(turn, seconds)

    def _run_at_changing_speed(self, turn: Turn, speeds: GpuSpeeds) -> None:
        """Let what is left of a computation run on a GPU whose speed may change meanwhile."""
        operators = turn.task.operators[turn.done :]
        launches = None
        if turn.launched is not None:
            costs = (self._launch_seconds(operator) for operator in operators)
            launches = list(accumulate(costs, initial=turn.launched))[1:]
            if self._run_ahead is not None:
                self._launched(turn, launches[-1])

        def finish(spans: list[Interval]) -> None:
            turn.last = turn.done + len(spans) - 1
            self._record_at_changing_speed(turn, spans)
            self._leave(turn)

        seconds = [operator.seconds for operator in operators]
        turn.on_changing_gpu = speeds.by_rank[turn.rank.index].start(seconds, launches, finish)

    def _stop_after(self, turn: Turn, seconds: float) -> None:
        turn.number += 1
        timeout = self._env.timeout(seconds, (turn, turn.number))
        timeout.callbacks.append(self._stopped)

    def _launch(self, turn: Turn) -> float:
        """Set when each operator that is left starts, no earlier than its launch is over; return when the last ends."""
        now, launched = turn.began, turn.launched
        assert launched is not None
        del turn.starts[turn.done :]
        most, ended = self._run_ahead, turn.rank.ended
        for operator in turn.task.operators[turn.done :]:
            if most is not None and operator.seconds and len(ended) >= most:
                launched = max(launched, ended.popleft())
            launched += self._launch_seconds(operator)
            now = max(now, launched)
            turn.starts.append(now)
            now += operator.seconds
            if most is not None and operator.seconds:
                ended.append(now)
        if most is not None:
            self._launched(turn, launched)
        return now

    def _launched(self, turn: Turn, when: float) -> None:
        """Tell the host when it is through with a task's launches."""
        turn.handle.launched_by = when
        if turn.rank.wakeup is not None:
            turn.rank.wakeup.succeed()
            turn.rank.wakeup = None

    def _launch_seconds(self, operator: Operator) -> float:
        cost = operator.host_seconds if self._host_overhead == "trace" else self._host_overhead
        assert not isinstance(cost, str)
        return cost or 0.0

    def _make_room(self, turn: Turn) -> None:
        """Let a running computation stop where its present operator ends, if another one follows."""
        operators, now = turn.task.operators, self._env.now
        if turn.last < len(operators) - 1:
            return  # it does already
        if turn.on_changing_gpu is not None:
            turn.on_changing_gpu.stop_after_current()
            return
        end = turn.began
        for index in range(turn.done, len(operators) - 1):
            if turn.launched is not None:
                start = turn.starts[index]
                if start > now and index > turn.done:  # it waits for the host, so that the units are free
                    turn.last, end = index - 1, now
                    break
                end = start
            end += operators[index].seconds
            if end > now:
                turn.last = index
                break
        while turn.last < len(operators) - 1 and not operators[turn.last + 1].seconds:
            turn.last += 1  # a view waits for nobody
        if turn.last < len(operators) - 1:
            self._stop_after(turn, end - now)

    def _stopped(self, event: simpy.Event) -> None:
        """A computation is through, or makes room for another."""
        stopped: tuple[Turn, int] = event.value  # type: ignore[assignment]  # the value of our timeout
        turn, number = stopped
        if number != turn.number:
            return
        self._record(turn)
        self._leave(turn)

    def _leave(self, turn: Turn) -> None:
        """Give the units back, for good or for a while."""
        rank = turn.rank
        rank.running.remove(turn)
        rank.free += turn.task.share
        if turn.through:
            self._finish(rank, turn.handle)
        else:
            self._resume_later(turn)
        if rank.wanting:
            self._share_out(rank)

    def _resume_later(self, turn: Turn) -> None:
        """Put a computation at the back of the queue."""
        following = turn.last + 1
        if turn.launched is not None:
            for operator in turn.task.operators[turn.done : following]:
                turn.launched += self._launch_seconds(operator)
        turn.done = following
        turn.rank.wanting.append(turn)

    def _record(self, turn: Turn) -> None:
        """Record what ran since the computation got the units."""
        record, task, now = turn.rank.record, turn.task, self._env.now
        operators = task.operators[turn.done : turn.last + 1]
        if turn.launched is not None:
            before = turn.began
            for operator, start in zip(operators, turn.starts[turn.done :], strict=False):
                if start > before:
                    record.launching.add(before, start)
                before = start + operator.seconds
                record.compute.add(start, before)
        else:
            record.compute.add(turn.began, now)
            if turn.done or not turn.through:
                start = turn.began
                for operator in operators:
                    turn.starts.append(start)
                    start += operator.seconds
        if turn.through:
            if turn.starts:
                turn.handle.operator_starts = tuple(turn.starts)
            record.compute_seconds += task.seconds
            self._recording.ran(turn.rank.index, task)

    def _record_at_changing_speed(self, turn: Turn, spans: list[Interval]) -> None:
        """Record what ran since the computation got the units, and how much longer than it was to take."""
        record, before = turn.rank.record, turn.began
        for start, end in spans:
            record.launching.add(before, start)
            record.compute.add(start, end)
            turn.starts.append(start)
            turn.ends.append(end)
            before = end
        took = math.fsum(end - start for start, end in spans)
        asked = math.fsum(operator.seconds for operator in turn.task.operators[turn.done : turn.last + 1])
        record.compute_seconds += took
        if took - asked > _ROUNDING * asked:
            record.slowed_seconds += took - asked
        if turn.through:
            turn.handle.operator_starts, turn.handle.operator_ends = tuple(turn.starts), tuple(turn.ends)
            self._recording.ran(turn.rank.index, turn.task)
