"""Hop: decentralised training, in which a worker exchanges parameters with its neighbours and need not wait for slow ones.

Luo et al., "Hop: Heterogeneity-Aware Decentralized Training" (ASPLOS 2019); TrioSim, section 7.2. In each iteration a worker
sends its parameters to its neighbours in a communication graph, averages those that it has received, and applies its gradients.

- *Update queues* hold the updates that have arrived, by iteration. Receives are posted ahead, so that no sender waits.
- *Token queues* bound the gap between neighbours: a worker may enter an iteration when none of those that it sends to is
  more than ``max_gap`` behind. A token is a message of no bytes: it takes the route's latency.
- With ``backup`` workers it goes on when all but so many of its neighbours' updates are there; with ``staleness`` it takes
  updates that are so many iterations old; with ``skip`` a worker that fell behind leaves iterations out.

Its memory holds more than a training step: a copy of the parameters that is sent while they change, and the update queues. No
neighbour is more than ``max_gap`` iterations ahead, so that a queue has room for ``max_gap + 1`` updates:
``(1 + (max_gap + 1) * sources) * parameters`` bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

from triosim.config import Option
from triosim.errors import OptionError
from triosim.extrapolators.core.extrapolator import Extrapolator
from triosim.extrapolators.core.hooks import require_training
from triosim.extrapolators.core.memory import MemoryFootprint
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.core.training_loop import TrainingLoop
from triosim.extrapolators.data.hop_graph import WorkerGraph, load
from triosim.tasks import Handle, Iteration, Record, Recv, Send, TaskStream, WaitAny

_UPDATE, _TOKEN = 0, 1  # tags


class Hop(Extrapolator):
    """The parallelism ``hop``: decentralised training on a graph of workers."""

    axis = "hop"
    options = (
        Option("graph", "text", "ring-based", "hop: the graph of workers: ring-based, ..., or a file of edges."),
        Option("backup", "whole", 0, "hop: the number of neighbours that a worker need not wait for.", least=0),
        Option("staleness", "whole", 0, "hop: the largest age of an update, in iterations.", least=0),
        Option("max_gap", "whole", 4, "hop: the most iterations that a worker may be ahead of a neighbour."),
        Option("skip", "whole", 0, "hop: the most iterations that a slow worker may skip at once.", least=0),
        Option("order", "choice", "parallel", choices=("parallel", "serial"),
               help="hop: whether a worker computes while it exchanges (parallel), or before (serial)."),
    )  # fmt: skip

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Check the options; the program stays as it is."""
        require_training(program, "hop", "inference exchanges no parameters")
        self.settings.check(self.graph)
        if self.settings.skip:
            return program.noted("hop: iterations that a worker skips count in the step time and in the throughput")
        return program

    def tasks(self, rank: int) -> TaskStream:
        """Return the training loop of one worker."""
        return Worker(rank, self.graph, self.settings, self._step, self.loop(rank)).tasks()

    @cached_property
    def graph(self) -> WorkerGraph:
        """The communication graph."""
        return load(self.config.graph, self.size)

    @cached_property
    def settings(self) -> HopSettings:
        """The bounds that workers keep."""
        config = self.config
        return HopSettings(config.backup, config.staleness, config.max_gap, config.skip, config.order == "serial")

    @cached_property
    def _step(self) -> HopStep:
        return HopStep(self._nbytes, self.program.micro_batches, self.config.iterations)

    @property
    def _nbytes(self) -> float:
        return float(sum(tensor.nbytes for tensor in self.program.stages[0].parameters))

    def memory_footprint(self, rank: int) -> MemoryFootprint:
        """Return a training step with the copy that is sent, and the update queues with room for all that may come."""
        queued = (self.settings.max_gap + 1) * len(self.graph.sources[rank]) * self._nbytes
        sent = self._nbytes if self.graph.destinations[rank] else 0.0
        return MemoryFootprint(
            buffers=(("update queues", "communication", queued), ("parameters being sent", "communication", sent))
        )


@dataclass(frozen=True, slots=True)
class HopSettings:
    """Settings of Hop, as its options are called; ``serial`` workers send parameters after their update."""

    backup: int
    staleness: int
    max_gap: int
    skip: int
    serial: bool

    def check(self, graph: WorkerGraph) -> None:
        """Raise ``OptionError`` where a worker would wait for nobody, or could not fall behind."""
        for worker, sources in graph.sources.items():
            if sources and self.backup >= len(sources):
                what = f"worker {worker} has {len(sources)} neighbours and would wait for none of them"
                fix = f"give {len(sources) - 1} or less, or a graph of more edges"
                raise OptionError(what, where=f"--option backup={self.backup}", fix=fix)
        if self.skip and not (self.backup or self.staleness):
            what, fix = "no worker can fall behind while all wait for each other", "give backup or staleness too"
            raise OptionError(what, where="--option skip", fix=fix)


@dataclass(slots=True)
class HopStep:
    """The state that all workers share: in each iteration ``nbytes`` of parameters are sent to each neighbour.

    ``skipped`` are the iterations that each worker has left out so far, which its messages would tell the others.
    """

    nbytes: float
    micro_batches: int
    iterations: int
    skipped: dict[int, set[int]] = field(default_factory=dict)


class Worker:
    """One worker. While it waits (``_until``), it sends the updates in its outgoing queues and takes in what arrives."""

    def __init__(self, rank: int, graph: WorkerGraph, settings: HopSettings, step: HopStep, loop: TrainingLoop) -> None:
        self._settings, self._step, self._loop = settings, step, loop
        self._sources, self._destinations = graph.sources[rank], graph.destinations[rank]
        self._iteration = 0
        self._newest = dict.fromkeys(self._sources, -1)  # the iteration of the newest update
        self._reached = dict.fromkeys(self._destinations, 0)  # the iteration that a neighbour is in, by its tokens
        self._updates: dict[int, deque[Handle]] = {source: deque() for source in self._sources}
        self._tokens: dict[int, deque[Handle]] = {other: deque() for other in self._destinations}
        self._taken = dict.fromkeys(self._sources, 0)  # how many messages were taken out of each update queue
        self._outgoing: dict[int, deque[int]] = {other: deque() for other in self._destinations}  # iterations
        self._sending: dict[int, Handle] = {}
        self._posted_updates = self._posted_tokens = 0
        self._skipped = step.skipped[rank] = set()

    def tasks(self) -> TaskStream:
        """Yield the tasks of every iteration, and then of the updates that are still to be sent."""
        step, serial = self._step, self._settings.serial
        yield from self._post()
        while self._iteration < step.iterations:
            now = self._iteration
            if not serial:
                self._enqueue(now)
            yield from self._progress()
            for micro_batch in range(step.micro_batches):
                yield from self._loop.forward()
                yield from self._loop.backward(first=not micro_batch, last=micro_batch == step.micro_batches - 1)
            if serial:
                yield from self._loop.optimizer()
            yield from self._computed()
            if serial:
                self._enqueue(now)
            yield from self._until(partial(self._has_updates, now))
            if not serial:
                yield from self._loop.optimizer()
                yield from self._computed()
            yield Iteration(of=())
            yield from self._advance()
        yield from self._until(lambda: not any(self._outgoing.values()))

    def _has_updates(self, iteration: int) -> bool:
        """Whether enough updates are there that are new enough."""
        oldest = iteration - self._settings.staleness
        return sum(1 for newest in self._newest.values() if newest < oldest) <= self._settings.backup

    def _advance(self) -> TaskStream:
        """Enter the next iteration, or a later one if all that this worker sends to are further."""
        settings, now, last = self._settings, self._iteration, self._step.iterations - 1
        yield from self._progress()
        slowest = min(self._reached.values(), default=now)
        following = max(now + 1, min(slowest, now + 1 + settings.skip, last))
        if following <= last:
            yield from self._until(lambda: min(self._reached.values(), default=now) >= following - settings.max_gap)
        for skipped in range(now + 1, following):
            self._skipped.add(skipped)
            self._enqueue(skipped)
            yield Iteration(of=())
        self._iteration = following
        for _ in range(now, following):
            for source in self._sources:
                yield Send(source, 0.0, tag=_TOKEN, stream=None, issuer=None, label="token")
        yield from self._post()
        if following > now + 1:  # with parameters of long ago it would drag the others back: it takes theirs first
            yield from self._until(partial(self._has_updates, following - 1))

    # ---- the queues ---------------------------------------------------------------------------------------------

    def _post(self) -> TaskStream:
        """Post the receives of all that may arrive before the next iteration."""
        settings, iterations = self._settings, self._step.iterations
        while self._posted_updates <= min(self._iteration + settings.max_gap, iterations - 1):
            self._posted_updates += 1
            for source in self._sources:
                handle = yield Recv(source, tag=_UPDATE, stream=None, issuer=None, label="hop", preposted=True)
                self._updates[source].append(handle)
        while self._posted_tokens < min(self._iteration + max(settings.max_gap, settings.skip) + 1, iterations):
            self._posted_tokens += 1
            for other in self._destinations:
                handle = yield Recv(other, tag=_TOKEN, stream=None, issuer=None, label="token", preposted=True)
                self._tokens[other].append(handle)

    def _enqueue(self, iteration: int) -> None:
        """Put the parameters into the queue of each neighbour that they are sent to."""
        for waiting in self._outgoing.values():
            waiting.append(iteration)

    def _is_useful(self, iteration: int, destination: int) -> bool:
        """Whether an update can still be of use, by the receiver's tokens. If not, a message of no bytes is sent."""
        is_new = iteration + self._settings.staleness >= self._reached[destination]
        return is_new and iteration not in self._skipped

    def _progress(self) -> TaskStream:
        """Take in what has arrived, and send each neighbour the next update of its queue, one at a time."""
        for source, updates in self._updates.items():
            while updates and updates[0].done:
                updates.popleft()
                iteration = self._taken[source]
                self._taken[source] += 1
                if iteration not in self._step.skipped[source]:
                    self._newest[source] = iteration
        for other, tokens in self._tokens.items():
            while tokens and tokens[0].done:
                tokens.popleft()
                self._reached[other] += 1
        for destination, waiting in self._outgoing.items():
            before = self._sending.get(destination)
            if waiting and (before is None or before.done):
                nbytes = self._step.nbytes if self._is_useful(waiting.popleft(), destination) else 0.0
                self._sending[destination] = yield Send(
                    destination, nbytes, tag=_UPDATE, stream=None, issuer=None, label="hop" if nbytes else "token"
                )

    def _computed(self) -> TaskStream:
        """Wait until the GPU has run all tasks."""
        record = yield Record()
        yield from self._until(lambda: record.done, record)

    def _until(self, condition: Callable[[], bool], *also: Handle) -> TaskStream:
        """Wait until a condition holds, and keep the queues moving."""
        while True:
            yield from self._progress()
            if condition():
                return
            queues = (*self._updates.values(), *self._tokens.values())
            first = (handles[0] for handles in queues if handles)
            yield WaitAny(tuple(one for one in (*also, *first, *self._sending.values()) if not one.done))
