"""The engine: it draws each rank's task stream and runs its tasks on streams, compute units, copy engines and the network.

One SimPy environment is the clock. Each rank has a host process that draws tasks and issues them; what the GPU does
after that is callbacks: a task is ready when all that it waits for is done, and then takes what it occupies. The
semantics are those of CUDA streams and events and of NCCL's communicators (CUDA C++ Programming Guide, "Asynchronous
Concurrent Execution"; PyTorch, ProcessGroupNCCL).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import simpy

from triosim.conditions import Conditions
from triosim.conditions.faults import permanent_failures, schedule_events
from triosim.conditions.interference import GpuSpeeds
from triosim.engine.compute_units import ComputeUnits, HostOverhead
from triosim.engine.deadlock import report_deadlock
from triosim.engine.rank import Rank, follow
from triosim.engine.recording import Recording
from triosim.engine.rendezvous import Rendezvous, enlist
from triosim.errors import SimulationError
from triosim.networks.events import when
from triosim.tasks import (
    COLLECTIVES,
    Batch,
    Collective,
    Compute,
    Copy,
    Found,
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

#: How many launched tasks the host may be ahead of the device (CUDA's launch queue).
RUN_AHEAD = 1024

#: Told the simulated time and the number of finished tasks, every so many tasks.
Progress = Callable[[float, int], None]

_PROGRESS_EVERY = 2048


class Engine:
    """Runs task streams on a network. One engine runs once.

    ``host_overhead`` is the host's cost of a launch, ``call_overhead`` (seconds) that of a transfer, a collective or a copy,
    where each operator has its own. ``run_ahead`` is how many operators the host is ahead of the device at most, where that is
    less than the launch queue holds. ``timeline`` keeps every task's handle in the recording, ``conditions`` say how much
    computation and communication on one GPU hamper each other, and what happens when; that GPUs are unequal from the start
    is in their streams. ``alike`` says what ranks stand for others, where not all are simulated.
    """

    def __init__(
        self,
        env: simpy.Environment,
        network: Network,
        *,
        host_overhead: HostOverhead = None,
        call_overhead: float = 0.0,
        run_ahead: int | None = None,
        timeline: bool = False,
        progress: Progress | None = None,
        conditions: Conditions | None = None,
        alike: Symmetry | None = None,
    ) -> None:
        self.env = env
        self.network = network
        self.host_overhead = host_overhead
        self.call_overhead = call_overhead
        self.run_ahead = None if host_overhead is None else run_ahead
        self.progress = progress
        self.ranks: dict[int, Rank] = {}
        self.recording = Recording(ranks=[], handles=[] if timeline else None)
        self.rendezvous = Rendezvous(network, self.ranks, self.recording, self._communicated, self._watch, alike)
        self.conditions = conditions or Conditions()
        self.speeds: GpuSpeeds | None = None  # where GPUs do not always compute at the same speed
        self._finished_tasks = 0
        self._unfinished = 0  # hosts that still draw tasks, and tasks that are issued and not done
        self._ready: deque[Handle] = deque()
        self._draining = False
        self.units = ComputeUnits(env, self.recording, host_overhead, run_ahead, self._finish)
        self._begin: dict[type[Task], Callable[[Rank, Handle, Any], None]] = {
            Compute: self.units.begin,
            Copy: self._begin_copy,
            Send: self.rendezvous.transfer,
            Recv: self.rendezvous.transfer,
            Batch: self.rendezvous.batch,
            Record: self._begin_nothing,
            Wait: self._begin_nothing,
            Iteration: self._begin_iteration,
            **dict.fromkeys(COLLECTIVES.values(), self.rendezvous.collective),
        }

    def run(self, streams: Mapping[int, TaskStream]) -> Recording:
        """Run every rank's stream to its end and return what was recorded.

        Raises ``DeadlockError`` when a stream can never go on, ``SimulationError`` when ranks contradict each other.
        """
        for index, stream in streams.items():
            if not isinstance(stream, Generator):
                raise SimulationError(
                    f"the tasks are a {type(stream).__name__}", where=f"rank {index}", fix="yield them from a generator"
                )
        self.ranks.update((index, Rank(index)) for index in sorted(streams))
        self.recording.ranks = [rank.record for rank in self.ranks.values()]
        if self.conditions.changing_speed:
            self.speeds = self.units.speeds = GpuSpeeds(self.env, self.ranks, self.conditions.interference)
        schedule_events(self.conditions, self.network, self.speeds.by_rank if self.speeds else {})
        hosts = {rank: self.env.process(self._host(rank, streams[rank.index])) for rank in self.ranks.values()}
        self._unfinished += len(hosts)
        self._run_until_finished()
        stuck = [rank for rank, host in hosts.items() if rank.open or host.is_alive]
        if stuck:
            raise report_deadlock(
                stuck, self.rendezvous.gathering, self.rendezvous.posted, permanent_failures(self.conditions)
            )
        self.recording.end = max((rank.finished for rank in self.recording.ranks), default=0.0)
        return self.recording

    def _run_until_finished(self) -> None:
        """Let the clock run until every host and every task is through, or nothing more can happen.

        A network may have events of its own that never end, so an empty queue is no sign of the end, only of a deadlock.
        """
        step = self.env.step
        try:
            while self._unfinished:
                step()
            while self.env.peek() <= self.env.now:  # what else belongs to this instant, such as the last rates
                step()
        except simpy.core.EmptySchedule:
            pass

    # ---- the host -----------------------------------------------------------------------------------------------

    def _host(self, rank: Rank, stream: TaskStream) -> Generator[simpy.Event, Any, None]:
        """Draw tasks and issue them; wait where the program waits, and where the device is too far behind."""
        answer: Handle | Found | None = None
        while True:
            try:
                task = stream.send(answer)
            except StopIteration:
                break
            kind = type(task)
            if self.run_ahead is not None and isinstance(task, Compute):
                answer = yield from self._behind(rank, task)
            elif kind in self._begin:
                overhead = self._launch_seconds(task) if self.host_overhead is not None else 0.0
                if overhead and kind is not Compute:  # whose operators start one by one, as each is launched
                    yield self.env.timeout(overhead)
                answer = self._issue(rank, task)
                if overhead and kind is Compute:
                    yield self.env.timeout(overhead)
                while rank.launched >= RUN_AHEAD:
                    rank.wakeup = self.env.event()
                    yield rank.wakeup
            elif isinstance(task, Synchronize):
                handles = task.handles or tuple(rank.open)
                yield from self._host_waits(handles, len(handles))
                answer = Found(self.env.now, handles)
            elif isinstance(task, WaitAny):
                if not 0 <= task.count <= len(task.handles):
                    raise SimulationError(
                        f"WaitAny asks for {task.count} of {len(task.handles)} handles", where=f"rank {rank.index}"
                    )
                yield from self._host_waits(task.handles, task.count)
                answer = Found(self.env.now, tuple(handle for handle in task.handles if handle.done))
            elif isinstance(task, Poll):
                answer = Found(self.env.now, tuple(handle for handle in task.handles if handle.done))
            elif isinstance(task, Host):
                _check_seconds(task.seconds, "Host", rank.index)
                yield self.env.timeout(task.seconds)
                answer = Found(self.env.now, ())
            else:
                raise SimulationError(
                    f"the stream yielded {task!r:.80}", where=f"rank {rank.index}", fix="yield tasks of triosim.tasks"
                )
        rank.record.finished = max(rank.record.finished, self.env.now)
        self._unfinished -= 1

    def _behind(self, rank: Rank, task: Compute) -> Generator[simpy.Event, Any, Handle]:
        """Launch the operators of a task, each when the device is no further behind than the host may be ahead."""
        handle = self._issue(rank, task)
        while handle.launched_by is None and not handle.done:  # it waits for others, and the host for its operators
            rank.wakeup = self.env.event()
            yield rank.wakeup
        if handle.launched_by is not None and handle.launched_by > self.env.now:
            yield self.env.timeout(handle.launched_by - self.env.now)
        return handle

    def _host_waits(self, handles: Iterable[Handle], count: int) -> Generator[simpy.Event, Any, None]:
        """Wait until ``count`` of the handles are done."""
        missing = count
        waiting = []
        for handle in handles:
            if handle.done:
                missing -= 1
            else:
                waiting.append(handle)
        if missing <= 0:
            return
        wakeup = self.env.event()

        def one_done(_: Handle) -> None:
            nonlocal missing
            missing -= 1
            if missing == 0:
                wakeup.succeed()

        for handle in waiting:
            handle.watchers.append(one_done)
        yield wakeup

    def _launch_seconds(self, task: Task) -> float:
        """Return what launching a task costs the host."""
        if isinstance(task, (Record, Wait, Iteration)):
            return 0.0
        if self.host_overhead == "trace":
            if isinstance(task, Compute):
                return sum(operator.host_seconds or 0.0 for operator in task.operators)
            return self.call_overhead * _launches(task)
        assert not isinstance(self.host_overhead, str)
        assert self.host_overhead is not None
        return self.host_overhead * _launches(task)

    # ---- issuing ------------------------------------------------------------------------------------------------

    def _issue(self, rank: Rank, task: Any) -> Handle:
        """Put a task behind all that it waits for; begin it if that is done."""
        handle = Handle(rank.index, task)
        tails = rank.tails
        kind = type(task)
        if kind is Iteration:
            for other in rank.open if task.of is None else task.of:
                follow(handle, other)
        else:
            stream = task.stream
            if stream is not None:
                tail = tails.get(stream)
                if tail is not None:
                    follow(handle, tail)
                tails[stream] = handle
            if kind is Compute:
                if self.host_overhead is not None:
                    handle.launched = self.env.now
            elif kind is Wait:
                for other in task.handles:
                    follow(handle, other)
            elif kind is not Record:
                issuer = task.issuer
                if issuer is not None and issuer != stream and issuer in tails:
                    follow(handle, tails[issuer])
                enlist(rank, handle, task)
        for other in task.after:
            follow(handle, other)
        rank.open[handle] = None
        self._unfinished += 1
        rank.launched += _launches(task)
        if self.recording.handles is not None:
            self.recording.handles.append(handle)
        self._release(handle)
        return handle

    def _release(self, handle: Handle) -> None:
        """One of the things that the task waited for is done; when it was the last, the task begins."""
        handle.unmet -= 1
        if handle.unmet:
            return
        self._ready.append(handle)
        if self._draining:
            return  # the loop below, further up the stack, comes to it: chains of empty tasks need no recursion
        self._draining = True
        try:
            while self._ready:
                ready = self._ready.popleft()
                self._begin[type(ready.task)](self.ranks[ready.rank], ready, ready.task)
        finally:
            self._draining = False

    def _finish(self, rank: Rank, handle: Handle) -> None:
        """The task is through: record it, and release what waited for it."""
        now = self.env.now
        handle.finished = now
        rank.record.finished = now
        del rank.open[handle]
        self._unfinished -= 1
        rank.launched -= _launches(handle.task)
        if rank.wakeup is not None and rank.launched < RUN_AHEAD:
            rank.wakeup.succeed()
            rank.wakeup = None
        dependents, handle.dependents = handle.dependents, None
        for dependent in dependents or ():
            self._release(dependent)
        for watcher in handle.watchers:
            watcher(handle)
        self._finished_tasks += 1
        if self.progress is not None and self._finished_tasks % _PROGRESS_EVERY == 0:
            self.progress(now, self._finished_tasks)

    # ---- on the GPU ---------------------------------------------------------------------------------------------

    def _begin_nothing(self, rank: Rank, handle: Handle, task: Task) -> None:
        handle.arrived = handle.started = self.env.now
        self._finish(rank, handle)

    def _begin_iteration(self, rank: Rank, handle: Handle, task: Iteration) -> None:
        rank.record.iterations.append(self.env.now)
        self._begin_nothing(rank, handle, task)

    def _begin_copy(self, rank: Rank, handle: Handle, task: Copy) -> None:
        handle.arrived = self.env.now
        queue = rank.copying.setdefault(task.destination, deque())  # one engine for each direction
        queue.append(handle)
        if len(queue) == 1:
            self._start_copy(rank, handle, task)

    def _start_copy(self, rank: Rank, handle: Handle, task: Copy) -> None:
        source, destination = self._node(rank, task.source), self._node(rank, task.destination)

        started = handle.started = self.env.now

        def done(_: simpy.Event) -> None:
            queue = rank.copying[task.destination]
            queue.popleft()
            self.recording.count(("copy", task.label, 1, task.nbytes), self.env.now - started)
            self._communicated(rank, handle)
            if queue:
                following = queue[0].task
                assert isinstance(following, Copy)
                self._start_copy(rank, queue[0], following)

        self._watch("copy", (rank.index,), self.network.transfer(source, destination, task.nbytes), done)

    def _node(self, rank: Rank, name: str) -> str:
        topology = self.network.topology
        gpu = topology.node(rank.index)
        if name == "device":
            return gpu
        if name != "host":
            return topology.node(name)
        host = topology.host_of(gpu)
        if host is None:
            raise SimulationError(
                f"the topology has no host memory that {gpu} could copy from",
                where=topology.name,
                fix="give the topology a host (key 'host') or do not copy the input",
            )
        return host

    def _watch(self, kind: str, ranks: Iterable[int], event: simpy.Event, done: Callable[[simpy.Event], None]) -> None:
        """A transfer begins to run on some ranks; call back when it is through."""
        if self.speeds is None:
            when(event, done)
        else:
            self.speeds.start_transfer(kind, ranks, event, done)

    def _communicated(self, rank: Rank, handle: Handle) -> None:
        """A transfer or collective is through on one rank."""
        assert handle.arrived is not None
        assert handle.started is not None
        task = handle.task
        assert isinstance(task, (Collective, Send, Recv, Batch, Copy))
        axis = task.group.name if isinstance(task, Collective) else task.label
        layers = handle.layers or task.layers
        rank.record.communication.add(handle.arrived, handle.started, self.env.now, axis, layers)
        rank.record.waiting_seconds += handle.started - handle.arrived
        self._finish(rank, handle)


def _launches(task: Task) -> int:
    if type(task) is Recv and task.ahead:
        return 0
    return len(task.operators) if isinstance(task, Compute) else 1


def _check_seconds(seconds: float, what: str, rank: int) -> None:
    if not 0 <= seconds < math.inf:
        raise SimulationError(f"{what} of {seconds} seconds", where=f"rank {rank}", fix="times are 0 or more")
