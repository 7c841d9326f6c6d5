"""Parameter servers: workers push gradients to servers, which keep and update the parameters, and pull these back.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014); bounded staleness from Ho et al., "More
Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NeurIPS 2013). The first ``servers`` ranks are
servers, each with an equal part of all parameters, the others workers.

The memory of a worker holds its parameters and gradients, which are sent and received in place, and what the passes make. That
of a server holds its part of the parameters, of the optimizer states and of each worker's gradients, since a receive from each
is posted at any time: ``(parameters + states + workers * gradients) / servers`` bytes, and what the optimizer makes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cached_property

from triosim.config import Option
from triosim.errors import OptionError
from triosim.extrapolators.core.extrapolator import Extrapolator
from triosim.extrapolators.core.flags import GRADIENT_DTYPE
from triosim.extrapolators.core.hooks import require_training
from triosim.extrapolators.core.memory import MemoryFootprint
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.core.training_loop import TrainingLoop
from triosim.extrapolators.data.sharded_state import optimizer_shares
from triosim.tasks import Compute, Handle, Iteration, Recv, Send, TaskStream, Wait, WaitAny
from triosim.trace import Operator

_LABEL = "parameter-server"


class ParameterServer(Extrapolator):
    """The parallelism ``parameter-server``: servers keep the parameters, workers compute gradients.

    ``updates=sync`` (the default): a server updates once it has all workers' gradients. ``updates=async``: at once with
    each worker's; a worker then gets parameters without waiting for others, unless it would be more than ``staleness``
    iterations ahead of the slowest.
    """

    axis = "parameter-server"
    options = (
        GRADIENT_DTYPE,
        Option("servers", "whole", 1, "parameter-server: the number of GPUs that are servers."),
        Option("updates", "choice", "sync", choices=("sync", "async"),
               help="parameter-server: updates take all workers' gradients (sync), or each worker's (async)."),
        Option("staleness", "whole", None, least=0, help=
               "parameter-server, async: the most iterations that a worker may be ahead of the slowest. By default unlimited."),
    )  # fmt: skip

    @property
    def servers(self) -> int:
        """How many of the ranks are servers."""
        return int(self.config.servers)

    @property
    def replicas(self) -> int:
        """How many are workers."""
        return max(self.size - self.servers, 1)

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Check the options; the program's optimizer is a server's."""
        require_training(program, _LABEL, "inference pushes no gradients")
        if self.servers >= self.size:
            what = f"{self.servers} of {self.size} GPUs are servers, which leaves no worker"
            raise OptionError(what, where=_LABEL, fix="give more GPUs, or fewer servers")
        if not self._asynchronous and self.config.staleness is not None:
            what, fix = "synchronous updates are never stale", "give updates=async too"
            raise OptionError(what, where="--option staleness", fix=fix)
        if self.servers > 1:  # only servers run the optimizer, each for its part of the time
            shares = optimizer_shares(program, lambda shape, _: (-(-shape[0] // self.servers), *shape[1:]))
            program = program.rewritten(
                lambda block: (shares.get(one.id, one) if isinstance(one, Operator) else one for one in block.items)
            )
        return program.noted(
            f"{self.servers} of the {self.size} GPUs are parameter servers: they run the optimizer alone, each "
            f"{'all of it' if self.servers == 1 else f'1/{self.servers} of its time'}"
        )

    @property
    def _asynchronous(self) -> bool:
        return bool(self.config.updates == "async")

    @cached_property
    def service(self) -> ServerSettings:
        """The settings of all servers and workers."""
        stage, part = self.program.stages[0], 1 / self.servers
        updating = [operator for block in stage.optimizer for operator in block.operators]
        return ServerSettings(
            workers=tuple(range(self.servers, self.size)),
            servers=tuple(range(self.servers)),
            iterations=self.config.iterations,
            micro_batches=self.program.micro_batches,
            gradient_bytes=part * sum(one.nbytes for one in stage.gradients(self.program.gradient_dtype)),
            parameter_bytes=part * sum(tensor.nbytes for tensor in stage.parameters),
            update=Compute(tuple(replace(one, seconds=one.seconds * part, busy_seconds=None) for one in updating)),
            asynchronous=self._asynchronous,
            staleness=self.config.iterations if self.config.staleness is None else self.config.staleness,
        )

    def tasks(self, rank: int) -> TaskStream:
        """Return the tasks of one server or worker."""
        service = self.service
        return serve(rank, service) if rank in service.servers else work(service, self.loop(rank))

    def memory_footprint(self, rank: int) -> MemoryFootprint:
        """Return a worker's passes without the optimizer, or a server's part of the parameters and the workers' gradients."""
        service = self.service
        if rank not in service.servers:
            return MemoryFootprint(updates=False)
        received = len(service.workers) * service.gradient_bytes
        return MemoryFootprint(
            trains=False, share=1 / self.servers, buffers=(("workers' gradients", "gradient", received),)
        )


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of all servers and workers. Bytes are those between one worker and one server in one direction."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]
    iterations: int
    micro_batches: int
    gradient_bytes: float
    parameter_bytes: float
    update: Compute
    asynchronous: bool
    staleness: int


def work(service: ServerSettings, loop: TrainingLoop) -> TaskStream:
    """Yield a worker's tasks: compute gradients, push them, and go on with the parameters that are pulled."""
    for _ in range(service.iterations):
        for micro_batch in range(service.micro_batches):
            yield from loop.forward()
            yield from loop.backward(first=not micro_batch, last=micro_batch == service.micro_batches - 1)
        pulled = []
        for server in service.servers:
            yield Send(server, service.gradient_bytes, stream=f"push to {server}", label=_LABEL)
            pulled.append((yield Recv(server, stream=f"pull from {server}", label=_LABEL)))
        yield Wait(tuple(pulled))
        yield Iteration()


def serve(rank: int, service: ServerSettings) -> TaskStream:
    """Yield a server's tasks: take gradients as they come, update, and answer those workers that may go on."""
    workers, last = service.workers, service.iterations
    arriving: dict[int, Handle] = {}
    pushed = dict.fromkeys(workers, 0)  # how many gradients have come
    answered = dict.fromkeys(workers, 0)
    rounds = 0  # how many iterations all workers have pushed
    for worker in workers:
        arriving[worker] = yield _push_of(worker)
    while rounds < last:
        came: deque[int] = deque()
        while not came:
            found = yield WaitAny(tuple(arriving.values()))
            came.extend(worker for worker in workers if arriving.get(worker) in found.done)
        for worker in came:
            pushed[worker] += 1
            del arriving[worker]
            if pushed[worker] < last:
                arriving[worker] = yield _push_of(worker)
            if service.asynchronous and service.update.operators:
                yield service.update
            slowest = min(pushed.values())
            ended = slowest > rounds
            rounds = slowest
            if ended and not service.asynchronous and service.update.operators:
                yield service.update
            ahead = service.staleness if service.asynchronous else 0
            sent = []
            for other in workers:
                if answered[other] < pushed[other] <= slowest + ahead:
                    answered[other] += 1
                    sent.append((yield Send(other, service.parameter_bytes, stream=f"answer to {other}", label=_LABEL)))
            if ended:
                yield Iteration(of=tuple(sent))


def _push_of(worker: int) -> Recv:
    """Return the receive of a worker's next gradients."""
    return Recv(worker, stream=None, issuer=None, label=_LABEL, preposted=True)
