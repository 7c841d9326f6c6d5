"""The compute units of the simulated GPUs, which computations on several streams share in turns, operator by operator.

Operators that follow each other on a stream run as one event as long as no other stream wants the units. When another stream
does, the running computation gives the units back at the end of its operator and goes to the end of the queue, as kernels of
several streams do on a GPU (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution"). So times do not depend on how
many operators one task has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import simpy

from triosim.conditions.contention import Contention
from triosim.conditions.interference import GpuSpeeds, OperatorProgress, Progress, SpanProgress
from triosim.engine.shared_memories import SharedMemories
from triosim.tasks import SHARED_MEMORY_STREAM, Compute, Handle

if TYPE_CHECKING:
    from triosim.engine.options import EngineOptions
    from triosim.engine.rank_state import RankState
    from triosim.engine.recording import Recording
    from triosim.extrapolators.core.symmetry import Symmetry

_SLACK = 1e-12  # shares that sum to 1 but for rounding fill the GPU
_ROUNDING = 1e-9  # of a time; smaller differences come from another order of adding


@dataclass(slots=True, eq=False)
class ComputeProgress:
    """The progress of a computation, which waits for compute units, runs on them, or is finished.

    The first ``done`` operators are finished; the next ones run since ``resumed``, up to operator ``last``, after which the
    computation gives the units back. ``starts`` are the starts of operators, where these do not simply follow on from the
    task's; ``ends`` are kept where the speed of the GPU changes, and ``progress`` is kept from the moment when it has changed.
    """

    rank: RankState
    handle: Handle
    task: Compute
    launch_start: float | None  # of the next operator, where launching costs the host time
    done: int = 0
    resumed: float = 0.0
    last: int = 0
    timeout_number: int = 0  # of the timeout that counts; earlier ones are obsolete
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    progress: Progress | None = None

    @property
    def finishes(self) -> bool:
        """Whether nothing is left to run once the units are given back."""
        return self.last == len(self.task.operators) - 1


class ComputeUnits:
    """Runs the Compute tasks of all ranks; ``finish`` is called for each that is finished.

    ``speeds`` are those of the GPUs, where they may change during the run. A computation is one event until its GPU's speed
    changes, and launches of its operators are then no earlier than at full speed. With a ``symmetry`` the ``ranks`` are the
    representatives.
    """

    def __init__(
        self,
        env: simpy.Environment,
        ranks: Mapping[int, RankState],
        recording: Recording,
        options: EngineOptions,
        finish: Callable[[RankState, Handle], None],
        symmetry: Symmetry | None = None,
    ) -> None:
        self._env = env
        self._ranks = ranks
        self._recording = recording
        self._timeline = options.timeline
        self._run_ahead = options.run_ahead
        self._finish = finish
        self._memories = SharedMemories(env, finish)
        self.speeds: GpuSpeeds | None = None
        contention = options.contention or Contention(options.conditions.interference)
        if contention or options.conditions.gpu_events:
            representative = (lambda rank: rank) if symmetry is None else symmetry.representative
            self.speeds = GpuSpeeds(env, contention, representative, self)

    def begin(self, rank: RankState, handle: Handle, task: Compute) -> None:
        """Take a computation that is ready; computations get free units in order. One that takes no time needs none."""
        handle.arrived = self._env.now
        if not task.seconds and (handle.launch_start is None or not task.host_seconds):
            handle.started = self._env.now
            self._recording.count_compute(rank.index, task)
            self._finish(rank, handle)
            return
        if not task.share and (task.stream or "").startswith(SHARED_MEMORY_STREAM):
            self._memories.begin(rank, handle, task)
            return
        if not task.share:  # it is no work of the GPU's
            handle.started = self._env.now
            over = self._env.timeout(task.seconds, (rank, handle))
            over.callbacks.append(self._over)
            return
        rank.waiting.append(ComputeProgress(rank, handle, task, handle.launch_start))
        self._assign_units(rank)

    def _over(self, event: simpy.Event) -> None:
        ended: tuple[RankState, Handle] = event.value  # type: ignore[assignment]  # the value of our timeout
        rank, handle = ended
        self._finish(rank, handle)

    def _assign_units(self, rank: RankState) -> None:
        """Give free compute units to waiting computations; if there are too few, running ones stop after an operator."""
        while rank.waiting:
            computation = rank.waiting[0]
            if computation.task.share > rank.free_share + _SLACK:
                for running in rank.running:
                    self._stop_after_current_operator(running)
                return
            rank.waiting.popleft()
            rank.running.append(computation)
            rank.free_share -= computation.task.share
            self._run(computation)

    def _run(self, computation: ComputeProgress) -> None:
        """Run the rest of a computation to its end, unless it is stopped."""
        now = computation.resumed = self._env.now
        handle, task = computation.handle, computation.task
        if handle.started is None:
            handle.started = now
            if handle.launch_start is not None:
                computation.rank.record.add_launch_wait(handle.launch_start, now)
                if self._run_ahead is None and now - handle.launch_start >= task.launch_lead:
                    computation.launch_start = None  # no operator waits for its launch
        computation.last = len(task.operators) - 1
        if computation.launch_start is not None:
            seconds = self._launch(computation) - now
        else:
            seconds = _full_speed_seconds(computation)
        if self.speeds is None or self.speeds.of(computation.rank.index).factor == 1.0:
            self._stop_after(computation, seconds)
        else:
            self._follow_speed(computation, 1.0)

    def speed_changed(self, rank: int, factor_before: float) -> None:
        """Move the end of what runs on a GPU after its speed has changed."""
        for computation in self._ranks[rank].running:
            self._follow_speed(computation, factor_before)

    def busy_seconds(self, ranks: Sequence[int]) -> list[float]:
        """Return for how many seconds each GPU has computed so far."""
        now, seconds = self._env.now, []
        for rank in ranks:
            state = self._ranks[rank]
            busy = state.record.compute_seconds
            for computation in state.running:
                busy += now - computation.resumed
            seconds.append(busy)
        return seconds

    def running(self, rank: int) -> Sequence[ComputeProgress]:
        """Return the list of the computations that run on a GPU, which always holds those of the moment."""
        return self._ranks[rank].running if rank in self._ranks else ()

    def _follow_speed(self, computation: ComputeProgress, factor_before: float) -> None:
        """Set the end of a computation anew, whose operators took ``factor_before`` times as long until now."""
        assert self.speeds is not None
        progress = computation.progress
        if progress is None:
            by_operator = self._timeline or computation.launch_start is not None
            progress = _operator_progress(computation) if by_operator else _span_progress(computation)
            computation.progress = progress
        now = self._env.now
        progress.advance(now, factor_before)
        end = progress.end(self.speeds.of(computation.rank.index).factor)
        self._stop_after(computation, max(end - now, 0.0))

    def _stop_after(self, computation: ComputeProgress, seconds: float) -> None:
        """Let a computation stop after some seconds, and not at the time set before; never, if they are infinite."""
        computation.timeout_number += 1
        if seconds == math.inf:
            return
        timeout = self._env.timeout(seconds, (computation, computation.timeout_number))
        timeout.callbacks.append(self._stopped)

    def _launch(self, computation: ComputeProgress) -> float:
        """Set when each remaining operator starts, no earlier than its launch is over; return when the last ends."""
        now, launched = computation.resumed, computation.launch_start
        assert launched is not None
        del computation.starts[computation.done :]
        run_ahead, operator_ends = self._run_ahead, computation.rank.operator_ends
        for operator in computation.task.operators[computation.done :]:
            if run_ahead is not None and operator.seconds and len(operator_ends) >= run_ahead:
                launched = max(launched, operator_ends.popleft())
            launched += operator.host_seconds or 0.0
            now = max(now, launched)
            computation.starts.append(now)
            now += operator.seconds
            if run_ahead is not None and operator.seconds:
                operator_ends.append(now)
        if run_ahead is not None:
            self._end_launches(computation, launched)
        return now

    def _end_launches(self, computation: ComputeProgress, end: float) -> None:
        """Tell the host when it will have launched all operators of a task."""
        computation.handle.launch_end = end
        if computation.rank.wakeup is not None:
            computation.rank.wakeup.succeed()
            computation.rank.wakeup = None

    def _stop_after_current_operator(self, computation: ComputeProgress) -> None:
        """Let a running computation stop at the end of its current operator, if another one follows."""
        operators, now = computation.task.operators, self._env.now
        if computation.last < len(operators) - 1:
            return  # it stops already
        if computation.progress is not None:
            assert self.speeds is not None
            factor = self.speeds.of(computation.rank.index).factor
            computation.progress.advance(now, factor)
            computation.progress.stop_after_current()
            self._follow_speed(computation, factor)
            return
        end = computation.resumed
        for index in range(computation.done, len(operators) - 1):
            if computation.launch_start is not None:
                start = computation.starts[index]
                if start > now and index > computation.done:  # it waits for the host, so that the units are free
                    computation.last, end = index - 1, now
                    break
                end = start
            end += operators[index].seconds
            if end > now:
                computation.last = index
                break
        while computation.last < len(operators) - 1 and not operators[computation.last + 1].seconds:
            computation.last += 1  # a view needs no units
        if computation.last < len(operators) - 1:
            self._stop_after(computation, end - now)

    def _stopped(self, event: simpy.Event) -> None:
        """Take the end of a computation, or of its turn."""
        stopped: tuple[ComputeProgress, int] = event.value  # type: ignore[assignment]  # the value of our timeout
        computation, number = stopped
        if number != computation.timeout_number:
            return
        if computation.progress is None:
            self._record(computation)
        else:
            self._record_at_changing_speed(computation, computation.progress)
        self._release_units(computation)

    def _release_units(self, computation: ComputeProgress) -> None:
        """Give the units of a computation back, for good or until its next turn."""
        rank = computation.rank
        rank.running.remove(computation)
        rank.free_share += computation.task.share
        if computation.finishes:
            self._recording.count_compute(rank.index, computation.task)
            self._finish(rank, computation.handle)
        else:
            self._requeue(computation)
        if rank.waiting:
            self._assign_units(rank)

    def _requeue(self, computation: ComputeProgress) -> None:
        """Put a computation at the end of the queue."""
        if computation.launch_start is not None:
            for operator in computation.task.operators[computation.done : computation.last + 1]:
                computation.launch_start += operator.host_seconds or 0.0
        computation.done = computation.last + 1
        computation.rank.waiting.append(computation)

    def _record(self, computation: ComputeProgress) -> None:
        """Record what ran since the computation got the units."""
        record, task, now = computation.rank.record, computation.task, self._env.now
        operators = task.operators[computation.done : computation.last + 1]
        if computation.launch_start is not None:
            before = computation.resumed
            for operator, start in zip(operators, computation.starts[computation.done :], strict=False):
                if start > before:
                    record.launch_waits.add(before, start)
                before = start + operator.seconds
                record.compute.add(start, before)
        else:
            record.compute.add(computation.resumed, now)
            if computation.done or not computation.finishes:
                start = computation.resumed
                for operator in operators:
                    computation.starts.append(start)
                    start += operator.seconds
        if computation.finishes:
            if computation.starts:
                computation.handle.operator_starts = tuple(computation.starts)
            if computation.ends:
                _complete_ends(computation, len(task.operators))
                computation.handle.operator_ends = tuple(computation.ends)
            record.compute_seconds += task.seconds

    def _record_at_changing_speed(self, computation: ComputeProgress, progress: Progress) -> None:
        """Record what ran at a changing speed since the computation got the units, and how much longer it took than at full."""
        assert self.speeds is not None
        progress.advance(math.inf, self.speeds.of(computation.rank.index).factor)
        computation.last, computation.progress = computation.done + progress.count - 1, None
        record, before = computation.rank.record, computation.resumed
        for start, end in progress.intervals:
            record.launch_waits.add(before, start)
            record.compute.add(start, end)
            before = end
        if self._timeline or computation.launch_start is not None:
            computation.starts.extend(start for start, _ in progress.intervals)
            computation.ends.extend(end for _, end in progress.intervals)
        took = math.fsum(end - start for start, end in progress.intervals)
        full_speed = _full_speed_seconds(computation)
        if abs(took - full_speed) > _ROUNDING * full_speed:
            record.compute_seconds += took - full_speed
            record.slowed_seconds += took - full_speed
        if computation.finishes:
            record.compute_seconds += computation.task.seconds
            if self._timeline:
                handle = computation.handle
                handle.operator_starts, handle.operator_ends = tuple(computation.starts), tuple(computation.ends)


def _complete_ends(computation: ComputeProgress, count: int) -> None:
    """Set the ends of the first operators that ran at full speed."""
    known = len(computation.ends)
    pairs = zip(computation.starts[known:count], computation.task.operators[known:], strict=False)
    computation.ends.extend(start + operator.seconds for start, operator in pairs)


def _full_speed_seconds(computation: ComputeProgress) -> float:
    """Return the seconds at full speed of the operators from the first that is not finished to the last of this turn."""
    task, done, last = computation.task, computation.done, computation.last
    if not done and last == len(task.operators) - 1:
        return task.seconds
    return math.fsum(operator.seconds for operator in task.operators[done : last + 1])


def _span_progress(computation: ComputeProgress) -> SpanProgress:
    """Return the progress of all operators of a computation since it got the units."""
    operators = computation.task.operators[computation.done : computation.last + 1]
    return SpanProgress(computation.resumed, _full_speed_seconds(computation), operators)


def _operator_progress(computation: ComputeProgress) -> OperatorProgress:
    """Return the progress of each operator of a computation since it got the units."""
    _complete_ends(computation, computation.done)
    launch_ends = None
    if computation.launch_start is not None:
        launch_ends = computation.starts[computation.done : computation.last + 1]
        del computation.starts[computation.done :]
    operators = computation.task.operators[computation.done : computation.last + 1]
    return OperatorProgress(computation.resumed, [operator.seconds for operator in operators], launch_ends)
