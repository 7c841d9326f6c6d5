"""The engine: it runs the task streams of all ranks on streams, compute units, copy engines and a network.

One SimPy environment is the clock. Each rank has a host process that draws tasks and issues them; what the GPU does after
that is callbacks: a task is ready when everything that it waits for is finished, and then occupies its resource. The
semantics are those of CUDA streams and events and of NCCL's communicators (CUDA C++ Programming Guide, "Asynchronous
Concurrent Execution"; PyTorch, ProcessGroupNCCL).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import simpy

from triosim.conditions.faults import permanent_failures, schedule_events
from triosim.engine.compute_units import ComputeUnits
from triosim.engine.copy_engines import CopyEngines
from triosim.engine.deadlock import deadlock_error
from triosim.engine.doing import Doing, doing
from triosim.engine.options import EngineOptions, launch_count
from triosim.engine.rank_state import RankState, add_dependency
from triosim.engine.recording import HostWait, RankRecord, Recording
from triosim.engine.rendezvous import Rendezvous, assign_sequence_numbers
from triosim.errors import SimulationError
from triosim.garbage_collector import without_collecting
from triosim.networks.events import when
from triosim.tasks import (
    COLLECTIVES,
    Answer,
    Batch,
    Collective,
    Compute,
    Copy,
    Handle,
    Host,
    Iteration,
    Poll,
    Record,
    Recv,
    Send,
    Synchronize,
    Task,
    TaskStream,
    Wait,
    WaitAny,
)

if TYPE_CHECKING:
    from triosim.extrapolators.core.symmetry import Symmetry
    from triosim.networks.base import Network

#: How many launches the host may be ahead of the device (CUDA's launch queue).
RUN_AHEAD = 1024

#: Called with the simulated time and the number of finished tasks, every ``_PROGRESS_EVERY`` tasks.
Progress = Callable[[float, int], None]


class Observer(ABC):
    """A ``Progress`` that is also told which engine begins to run, which it may look at and stop."""

    @abstractmethod
    def __call__(self, seconds: float, tasks: int) -> None:
        """Take notice of the simulated time and of the number of finished tasks."""

    @abstractmethod
    def began(self, engine: Engine) -> None:
        """Take notice of an engine that begins to run."""

    def expects(self, tasks: int | None) -> None:  # noqa: B027 - who shows no progress need not know
        """Take notice of about how many tasks each rank of the engine that begins next has; None: it is not known."""


_PROGRESS_EVERY = 2048


class Engine:
    """Runs task streams on a network. One engine runs once.

    With a ``symmetry`` the streams are those of the representatives alone, and each transfer counts as often as the symmetry
    says.
    """

    def __init__(
        self,
        env: simpy.Environment,
        network: Network,
        options: EngineOptions | None = None,
        *,
        progress: Progress | None = None,
        symmetry: Symmetry | None = None,
    ) -> None:
        self.env = env
        self.network = network
        self.options = options or EngineOptions()
        self.progress = progress
        self.ranks: dict[int, RankState] = {}
        self._handles: list[Handle] = []
        self._recorded = self.options.timeline_ranks if self.options.timeline else frozenset[int]()
        self.recording = Recording(ranks=[], handles=self._handles if self.options.timeline else None)
        self._finished_tasks = 0
        self._pending = 0  # hosts that still draw tasks, and tasks that are issued and not finished
        self._ready: deque[Handle] = deque()
        self._beginning = False  # whether ready tasks are being begun
        self._stopped = False
        self._symmetry = symmetry
        units = ComputeUnits(env, self.ranks, self.recording, self.options, self._finish, symmetry)
        self._speeds = units.speeds
        copies = CopyEngines(network, self.recording, self._communicated, self._start_transfer, symmetry)
        self._rendezvous = Rendezvous(
            network, self.ranks, self.recording, self._communicated, self._start_transfer, symmetry
        )
        self._begin: dict[type[Task], Callable[[RankState, Handle, Any], None]] = {
            Compute: units.begin,
            Copy: copies.begin,
            Send: self._rendezvous.transfer,
            Recv: self._rendezvous.transfer,
            Batch: self._rendezvous.batch,
            Record: self._begin_event,
            Wait: self._begin_event,
            Iteration: self._begin_iteration,
            **dict.fromkeys(COLLECTIVES.values(), self._rendezvous.collective),
        }

    @property
    def finished_tasks(self) -> int:
        """How many tasks have ended."""
        return self._finished_tasks

    def stop(self) -> None:
        """End the run at the next event; what has run until then is recorded."""
        self._stopped = True

    def doing(self) -> dict[int, Doing]:
        """Return what each rank does or waits for now."""
        arriving, posted = self._rendezvous.arriving, self._rendezvous.posted
        representative = int if self._symmetry is None else self._symmetry.representative
        return {index: doing(rank, arriving, posted, representative) for index, rank in self.ranks.items()}

    def represented(self) -> dict[int, list[int]]:
        """Return the ranks that each rank that is simulated stands for."""
        if self._symmetry is None:
            return {index: [index] for index in self.ranks}
        found: dict[int, list[int]] = {}
        for rank in range(self._symmetry.world):
            found.setdefault(self._symmetry.representative(rank), []).append(rank)
        return found

    @without_collecting()
    def run(self, streams: Mapping[int, TaskStream]) -> Recording:
        """Run every rank's stream to its end and return what was recorded.

        Raises ``DeadlockError`` when a stream can never go on, ``SimulationError`` when ranks contradict each other.
        """
        for index, stream in streams.items():
            if not isinstance(stream, Generator):
                raise SimulationError(
                    f"the tasks are a {type(stream).__name__}", where=f"rank {index}", fix="yield them from a generator"
                )
        self.ranks.update((index, RankState(index, RankRecord(index))) for index in sorted(streams))
        self.recording.ranks = [rank.record for rank in self.ranks.values()]
        conditions = self.options.conditions
        schedule_events(conditions, self.network, self._speeds)
        hosts = {rank: self.env.process(self._host(rank, streams[rank.index])) for rank in self.ranks.values()}
        self._pending += len(hosts)
        if isinstance(self.progress, Observer):
            self.progress.began(self)
        self._run_until_finished()
        if self._stopped:
            self.recording.end, self.recording.is_stopped = self.env.now, True
            return self.recording
        stuck = [rank for rank, host in hosts.items() if rank.unfinished or host.is_alive]
        if stuck:
            arriving, posted = self._rendezvous.arriving, self._rendezvous.posted
            raise deadlock_error(stuck, arriving, posted, permanent_failures(conditions), self._symmetry)
        self.recording.end = max((rank.finished for rank in self.recording.ranks), default=0.0)
        return self.recording

    def _run_until_finished(self) -> None:
        """Step the clock until every host and every task is finished, or nothing more can happen.

        A network may have events of its own that never end, so the end of the run is not the end of all events.
        """
        step = self.env.step
        try:
            while self._pending and not self._stopped:
                step()
            # then the other events of this instant, such as the last rates
            while self.env.peek() <= self.env.now and not self._stopped:
                step()
        except simpy.core.EmptySchedule:
            pass

    # ---- the host -----------------------------------------------------------------------------------------------

    def _host(self, rank: RankState, stream: TaskStream) -> Generator[simpy.Event, Any, None]:
        """Draw tasks and issue them; wait where the program waits, and where the host is too far ahead.

        What launches cost the host moves ``rank.host_time`` ahead of the clock, and a task begins no sooner than that: it
        takes no event unless the GPU waits for it. A host of limited run-ahead also waits where its GPU waits for others.
        """
        limits_operators = self.options.launch_costs and self.options.run_ahead is not None
        answer: Handle | Answer | None = None
        while True:
            try:
                task = stream.send(answer)
            except StopIteration:
                break
            kind = type(task)
            if limits_operators and kind is Compute:
                answer = yield from self._issue_limited(rank, task)
            elif kind in self._begin:
                answer = self._issue(rank, task)
                if limits_operators and _waits_for_communication(task):
                    yield from self._wait_on_host((answer,), 1)
                    rank.host_time = max(rank.host_time, self.env.now)
                while rank.open_launches >= RUN_AHEAD:
                    rank.wakeup = self.env.event()
                    yield rank.wakeup
            else:
                if rank.host_time > self.env.now:
                    yield self.env.timeout(rank.host_time - self.env.now)
                answer = yield from self._run_on_host(rank, task)
        rank.record.finished = max(rank.record.finished, rank.host_time, self.env.now)
        self._pending -= 1

    def _run_on_host(self, rank: RankState, task: Task) -> Generator[simpy.Event, Any, Answer]:
        """Run a task that the host itself executes."""
        where = f"rank {rank.index}"
        if isinstance(task, Synchronize):
            began, handles = self.env.now, task.handles or tuple(rank.unfinished)
            yield from self._wait_on_host(handles, len(handles))
            if not any(one.rank == rank.index for one in handles):
                return Answer(self.env.now, handles)
            if self.env.now > began and self._records(rank):
                rank.record.host_waits.append(HostWait(began, self.env.now, not task.handles))
            return Answer(self.env.now, handles, began)
        if isinstance(task, (Poll, WaitAny)):
            count = 0 if isinstance(task, Poll) else task.count
            if not 0 <= count <= len(task.handles):
                raise SimulationError(f"WaitAny asks for {count} of {len(task.handles)} handles", where=where)
            yield from self._wait_on_host(task.handles, count)
            return Answer(self.env.now, tuple(handle for handle in task.handles if handle.done))
        if isinstance(task, Host):
            if not 0 <= task.seconds < math.inf:
                raise SimulationError(f"Host of {task.seconds} seconds", where=where, fix="times are 0 or more")
            yield self.env.timeout(task.seconds)
            return Answer(self.env.now, ())
        raise SimulationError(f"the stream yielded {task!r:.80}", where=where, fix="yield tasks of triosim.tasks")

    def _issue_limited(self, rank: RankState, task: Task) -> Generator[simpy.Event, Any, Handle]:
        """Issue a Compute task, and wait until its operators are launched, ``run_ahead`` of them ahead of the device."""
        handle = self._issue(rank, task)
        while handle.launch_end is None and not handle.done:  # it waits for other tasks, and the host for its launches
            rank.wakeup = self.env.event()
            yield rank.wakeup
        if handle.launch_end is not None:
            rank.host_time = handle.launch_end
        return handle

    def _wait_on_host(self, handles: Sequence[Handle], count: int) -> Generator[simpy.Event, Any, None]:
        """Wait until ``count`` of the handles are done."""
        unfinished = [handle for handle in handles if not handle.done]
        missing = count - (len(handles) - len(unfinished))
        if missing <= 0:
            return
        wakeup = self.env.event()

        def one_done(_: Handle) -> None:
            nonlocal missing
            missing -= 1
            if missing == 0:
                wakeup.succeed()

        for handle in unfinished:
            handle.callbacks.append(one_done)
        yield wakeup

    def _records(self, rank: RankState) -> bool:
        """Return whether a timeline shows the rank."""
        return self._recorded is None or rank.index in self._recorded

    # ---- issuing ------------------------------------------------------------------------------------------------

    def _issue(self, rank: RankState, task: Any) -> Handle:
        """Issue a task: note everything that it waits for; begin it if that is finished."""
        handle = Handle(rank.index, task)
        handle.launches = launch_count(task)
        tails = rank.tails
        kind = type(task)
        if kind is Iteration:
            for other in rank.unfinished if task.of is None else task.of:
                add_dependency(handle, other)
        else:
            stream = task.stream
            if stream is not None:
                tail = tails.get(stream)
                if tail is not None:
                    add_dependency(handle, tail)
                tails[stream] = handle
            if self.options.launch_costs and kind is not Wait and kind is not Record:
                self._launch(rank, handle)
            if kind is Wait:
                for other in task.handles:
                    add_dependency(handle, other)
            elif kind is not Record and kind is not Compute:
                issuer = task.issuer
                if issuer is not None and issuer != stream and issuer in tails:
                    add_dependency(handle, tails[issuer])
                if issuer is not None and isinstance(task, Collective) and task.blocks:
                    tails[issuer] = handle
                assign_sequence_numbers(rank, handle, task)
        for other in task.after:
            add_dependency(handle, other)
        rank.unfinished[handle] = None
        self._pending += 1
        rank.open_launches += handle.launches
        if self._records(rank):
            self._handles.append(handle)
        self._release(handle)
        return handle

    def _launch(self, rank: RankState, handle: Handle) -> None:
        """Let the host launch a task as soon as it is through with the tasks before: a Compute one operator after the other."""
        begin, task = max(rank.host_time, self.env.now), handle.task
        if isinstance(task, Compute):
            rank.host_time = begin + task.host_seconds
            handle.launch_start = begin
        else:
            rank.host_time = handle.launch_start = begin + self.options.call_overhead * handle.launches

    def _release(self, handle: Handle) -> None:
        """Take into account that a dependency of a task is finished; when it was the last, the task begins once launched."""
        handle.open_dependencies -= 1
        if handle.open_dependencies:
            return
        if handle.launch_start is not None and handle.launch_start > self.env.now:
            launch = self.env.timeout(handle.launch_start - self.env.now, handle)
            launch.callbacks.append(self._launched)
        else:
            self._begin_ready(handle)

    def _launched(self, event: simpy.Event) -> None:
        handle: Handle = event.value  # type: ignore[assignment]  # the value of our timeout
        handle.launch_start = self.env.now  # exactly: adding the delay was rounded
        self._begin_ready(handle)

    def _begin_ready(self, handle: Handle) -> None:
        """Begin a task, and then those that became ready because it took no time: a long row of them needs no recursion."""
        if self._beginning:
            self._ready.append(handle)
            return
        self._beginning = True
        self._begin[type(handle.task)](self.ranks[handle.rank], handle, handle.task)
        while self._ready:
            ready = self._ready.popleft()
            self._begin[type(ready.task)](self.ranks[ready.rank], ready, ready.task)
        self._beginning = False

    def _finish(self, rank: RankState, handle: Handle) -> None:
        """Record the end of a task, and release the tasks that wait for it."""
        now = self.env.now
        handle.finished = now
        rank.record.finished = now
        del rank.unfinished[handle]
        self._pending -= 1
        rank.open_launches -= handle.launches
        if rank.wakeup is not None and rank.open_launches < RUN_AHEAD:
            rank.wakeup.succeed()
            rank.wakeup = None
        dependents, handle.dependents = handle.dependents, None
        for dependent in dependents or ():
            self._release(dependent)
        for callback in handle.callbacks:
            callback(handle)
        self._finished_tasks += 1
        if self.progress is not None and self._finished_tasks % _PROGRESS_EVERY == 0:
            self.progress(now, self._finished_tasks)

    # ---- on the GPU ---------------------------------------------------------------------------------------------

    def _begin_event(self, rank: RankState, handle: Handle, task: Task) -> None:
        """Begin and finish a task that takes no time, such as a CUDA event."""
        handle.arrived = handle.started = self.env.now
        self._finish(rank, handle)

    def _begin_iteration(self, rank: RankState, handle: Handle, task: Iteration) -> None:
        rank.record.iterations.append(self.env.now)
        self._begin_event(rank, handle, task)

    def _start_transfer(
        self, kind: str, ranks: Sequence[int], event: simpy.Event, done: Callable[[simpy.Event], None]
    ) -> None:
        """Start a transfer between some ranks, which the network delivers at ``event``; call ``done`` when it ends."""
        if self._speeds is not None:
            done = self._speeds.started_transfer(kind, ranks, done)
        when(event, done, self.network)

    def _communicated(self, rank: RankState, handle: Handle) -> None:
        """Record the end of a transfer or collective on one rank."""
        assert handle.arrived is not None
        assert handle.started is not None
        task = handle.task
        if not isinstance(task, Batch):  # whose parts were recorded as they ended
            assert isinstance(task, (Collective, Send, Recv, Copy))
            axis = task.group.name if isinstance(task, Collective) else task.label
            on_host = isinstance(task, Copy) and task.is_host_computation
            layers = handle.layers or task.layers
            rank.record.communication.add(handle.arrived, handle.started, self.env.now, axis, layers, on_host)
            rank.record.waiting_seconds += handle.started - handle.arrived
        self._finish(rank, handle)


def _waits_for_communication(task: Task) -> bool:
    """Whether a stream goes on only when communication is over."""
    return isinstance(task, Wait) or (isinstance(task, Collective) and task.blocks)
