"""Hop: decentralised training in which a worker exchanges parameters with its neighbours, and need not wait for the slow ones.

Luo et al., "Hop: Heterogeneity-Aware Decentralized Training" (ASPLOS 2019); TrioSim, section 7.2. In each iteration a worker
sends its parameters to its neighbours in a communication graph, averages what it has received, and applies its gradients.

- *Update queues* hold what has arrived, by iteration: receives that stand ready, so that nobody waits for who receives.
- *Token queues* bound the gap between neighbours: a worker may enter an iteration when none of those that it sends to is
  more than ``max_gap`` behind. A token is a message of no bytes: it takes the route's latency.
- With ``backup`` workers it goes on when all but so many of its neighbours' updates are there; with ``staleness`` it takes
  updates that are so many iterations old; with ``skip`` a worker that fell behind leaves iterations out.

In memory a worker has, beside a training step, a copy of its parameters that is on its way while they change, and its update
queues. No neighbour is more than ``max_gap`` iterations ahead of it, so that a queue holds what was sent in ``max_gap + 1``
iterations at most, and that many receives stand ready: ``(1 + (max_gap + 1) * sources) * parameters`` bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

from triosim.config import Option
from triosim.errors import OptionError
from triosim.extrapolators.core.extrapolator import Extrapolator
from triosim.extrapolators.core.hooks import require_gradients
from triosim.extrapolators.core.memory_footprint import MemoryFootprint
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
        Option("graph", "text", "ring-based", "hop: who sends to whom: ring-based, ..., or a file."),
        Option("backup", "whole", 0, "hop: for how many neighbours a worker does not wait.", least=0),
        Option("staleness", "whole", 0, "hop: how many iterations old an update may be.", least=0),
        Option("max_gap", "whole", 4, "hop: how many iterations a worker may be ahead of a neighbour."),
        Option("skip", "whole", 0, "hop: how many iterations a slow worker may skip at once.", least=0),
        Option(
            "order",
            "choice",
            "parallel",
            "hop: whether a worker computes while it exchanges (parallel), or before (serial).",
            choices=("parallel", "serial"),
        ),
    )

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Check the options; the program stays as it is."""
        if not program.training:
            raise OptionError("inference exchanges no parameters", where="hop", fix="leave out --inference")
        require_gradients(program)
        self.rules.check(self.graph)
        if self.rules.skip:
            return program.noted("hop: iterations that a worker skips count in the step time and in the throughput")
        return program

    def tasks(self, rank: int) -> TaskStream:
        """Return the training loop of one worker."""
        return Worker(rank, self.graph, self.rules, self._job, self.loop(rank)).tasks()

    @cached_property
    def graph(self) -> WorkerGraph:
        """Who sends to whom."""
        return load(self.config.graph, self.size)

    @cached_property
    def rules(self) -> HopSettings:
        """How far workers may be apart."""
        return HopSettings(
            backup=self.config.backup,
            staleness=self.config.staleness,
            max_gap=self.config.max_gap,
            skip=self.config.skip,
            serial=self.config.order == "serial",
        )

    @cached_property
    def _job(self) -> HopStep:
        return HopStep(self._nbytes, self.program.micro_batches, self.config.iterations)

    @property
    def _nbytes(self) -> float:
        return float(sum(tensor.nbytes for tensor in self.program.stages[0].parameters))

    def memory_footprint(self, rank: int) -> MemoryFootprint:
        """Return a training step with the copy that is sent, and the update queues with room for all that may come."""
        queued = (self.rules.max_gap + 1) * len(self.graph.sources[rank]) * self._nbytes
        sent = self._nbytes if self.graph.destinations[rank] else 0.0
        return MemoryFootprint(
            buffers=(("update queues", "communication", queued), ("what is sent", "communication", sent))
        )


@dataclass(frozen=True, slots=True)
class HopSettings:
    """How far workers may be apart, in neighbours and in iterations. ``serial``: parameters are sent after the update."""

    backup: int = 0
    staleness: int = 0
    max_gap: int = 4
    skip: int = 0
    serial: bool = False

    def check(self, graph: WorkerGraph) -> None:
        """Raise ``OptionError`` where a worker would wait for nobody, or could not fall behind."""
        for worker, sources in graph.sources.items():
            if sources and self.backup >= len(sources):
                raise OptionError(
                    f"worker {worker} has {len(sources)} neighbours and would wait for none of them",
                    where=f"--option backup={self.backup}",
                    fix=f"give {len(sources) - 1} or less, or a graph of more edges",
                )
        if self.skip and not (self.backup or self.staleness):
            raise OptionError(
                "no worker can fall behind while all wait for each other",
                where="--option skip",
                fix="give backup or staleness too",
            )


@dataclass(slots=True)
class HopStep:
    """What all workers share: so many iterations, each with ``nbytes`` of parameters to each neighbour.

    Workers note in ``skipped`` which iterations they leave out; their messages would tell the others.
    """

    nbytes: float
    micro_batches: int
    iterations: int
    skipped: dict[int, set[int]] = field(default_factory=dict)


class Worker:
    """One worker. Its program waits in ``_until``, which meanwhile sends what has its turn and takes in what arrives."""

    def __init__(self, rank: int, graph: WorkerGraph, rules: HopSettings, job: HopStep, loop: TrainingLoop) -> None:
        self._rank, self._rules, self._job, self._loop = rank, rules, job, loop
        self._sources, self._destinations = graph.sources[rank], graph.destinations[rank]
        self._iteration = 0
        self._newest = dict.fromkeys(self._sources, -1)  # of which iteration is the newest update
        self._reached = dict.fromkeys(self._destinations, 0)  # in which iteration a neighbour is, by its tokens
        self._updates: dict[int, deque[Handle]] = {source: deque() for source in self._sources}
        self._tokens: dict[int, deque[Handle]] = {other: deque() for other in self._destinations}
        self._taken = dict.fromkeys(self._sources, 0)  # how many messages were taken out of each update queue
        self._outgoing: dict[int, deque[int]] = {other: deque() for other in self._destinations}
        self._sending: dict[int, Handle] = {}
        self._posted_updates = self._posted_tokens = 0
        self._skipped = job.skipped[rank] = set()

    def tasks(self) -> TaskStream:
        """Every iteration; then what is still to be sent."""
        job, serial = self._job, self._rules.serial
        yield from self._post()
        while self._iteration < job.iterations:
            now = self._iteration
            if not serial:
                self._offer(now)
            yield from self._look()
            for micro_batch in range(job.micro_batches):
                yield from self._loop.forward()
                yield from self._loop.backward(last=micro_batch == job.micro_batches - 1)
            if serial:
                yield from self._loop.optimizer()
                yield from self._computed()
                self._offer(now)
            else:
                yield from self._computed()
            yield from self._until(partial(self._heard, now))
            if not serial:
                yield from self._loop.optimizer()
                yield from self._computed()
            yield Iteration(of=())
            yield from self._advance()
        yield from self._until(lambda: not any(self._outgoing.values()))

    # ---- the rules ----------------------------------------------------------------------------------------------

    def _heard(self, iteration: int) -> bool:
        """Whether enough updates are there that are new enough."""
        oldest = iteration - self._rules.staleness
        missing = sum(1 for newest in self._newest.values() if newest < oldest)
        return missing <= self._rules.backup

    def _advance(self) -> TaskStream:
        """Enter the next iteration, or a later one if all that this worker sends to are further."""
        rules, now, last = self._rules, self._iteration, self._job.iterations - 1
        yield from self._look()
        slowest = min(self._reached.values(), default=now)
        following = max(now + 1, min(slowest, now + 1 + rules.skip, last))
        if following <= last:
            yield from self._until(lambda: min(self._reached.values(), default=now) >= following - rules.max_gap)
        for skipped in range(now + 1, following):
            self._skipped.add(skipped)
            self._offer(skipped)
            yield Iteration(of=())
        self._iteration = following
        for _ in range(now, following):
            for source in self._sources:
                yield Send(source, 0.0, tag=_TOKEN, stream=None, issuer=None, label="token")
        yield from self._post()
        if following > now + 1:  # with parameters of long ago it would drag the others back: it takes theirs first
            yield from self._until(partial(self._heard, following - 1))

    def _is_wanted(self, iteration: int, destination: int) -> bool:
        """Whether an update can still be of use; its receiver's tokens tell that. If not, a message of no bytes goes."""
        useful = iteration + self._rules.staleness >= self._reached[destination]
        return useful and iteration not in self._skipped

    # ---- the queues ---------------------------------------------------------------------------------------------

    def _post(self) -> TaskStream:
        """Let receives stand ready for all that may come before the next iteration."""
        rules, job = self._rules, self._job
        while self._posted_updates <= min(self._iteration + rules.max_gap, job.iterations - 1):
            self._posted_updates += 1
            for source in self._sources:
                handle = yield Recv(source, tag=_UPDATE, stream=None, issuer=None, label="hop", preposted=True)
                self._updates[source].append(handle)
        while self._posted_tokens < min(self._iteration + max(rules.max_gap, rules.skip) + 1, job.iterations):
            self._posted_tokens += 1
            for other in self._destinations:
                handle = yield Recv(other, tag=_TOKEN, stream=None, issuer=None, label="token", preposted=True)
                self._tokens[other].append(handle)

    def _offer(self, iteration: int) -> None:
        """Put the parameters into the queue of each neighbour that they are sent to."""
        for waiting in self._outgoing.values():
            waiting.append(iteration)

    def _look(self) -> TaskStream:
        """Take in what has arrived, and send to each neighbour what has its turn: one update at a time."""
        for source, updates in self._updates.items():
            while updates and updates[0].done:
                updates.popleft()
                iteration = self._taken[source]
                self._taken[source] += 1
                if iteration not in self._job.skipped[source]:
                    self._newest[source] = iteration
        for other, tokens in self._tokens.items():
            while tokens and tokens[0].done:
                tokens.popleft()
                self._reached[other] += 1
        for destination, waiting in self._outgoing.items():
            before = self._sending.get(destination)
            if waiting and (before is None or before.done):
                nbytes = self._job.nbytes if self._is_wanted(waiting.popleft(), destination) else 0.0
                self._sending[destination] = yield Send(
                    destination, nbytes, tag=_UPDATE, stream=None, issuer=None, label="hop" if nbytes else "token"
                )

    def _computed(self) -> TaskStream:
        """Wait until the GPU is through."""
        record = yield Record()
        yield from self._until(lambda: record.done, record)

    def _until(self, condition: Callable[[], bool], *also: Handle) -> TaskStream:
        """Wait for what makes a condition true, and keep the queues moving."""
        while True:
            yield from self._look()
            if condition():
                return
            queues = (*self._updates.values(), *self._tokens.values())
            first = (handles[0] for handles in queues if handles)
            yield WaitAny(tuple(one for one in (*also, *first, *self._sending.values()) if not one.done))
