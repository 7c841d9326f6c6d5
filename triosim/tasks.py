"""What a rank's task stream holds, and what the engine answers.

A task stream is a generator: it yields tasks and is answered with a handle (``Synchronize``, ``WaitAny`` and ``Poll``
are answered with ``Found``). The semantics are CUDA's and NCCL's: tasks of one stream run in order; a transfer or a
collective also waits for what stood at the tail of the stream that issued it, as PyTorch's process group records an event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from triosim.errors import SimulationError
from triosim.trace import Operator

CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"
]

COMPUTE_STREAM = "compute"
COMMUNICATION_STREAM = "communication"


class Handle:
    """A task on its way: not yet ready, running, or done. Times are seconds on the simulation's clock.

    ``arrived`` is when the rank came to the task (all that it waits for was done), ``started`` when it began to run
    (a collective: when its last member arrived), ``finished`` when it was through.
    """

    __slots__ = (
        "arrived",
        "dependents",
        "finished",
        "launched",
        "launched_by",
        "layers",
        "operator_ends",
        "operator_starts",
        "place",
        "rank",
        "started",
        "task",
        "unmet",
        "watchers",
    )

    def __init__(self, rank: int, task: Task) -> None:
        self.rank = rank
        self.task = task
        self.arrived: float | None = None
        self.started: float | None = None
        self.finished: float | None = None
        self.launched: float | None = None  # when its launch began, where launching costs the host time
        self.launched_by: float | None = None  # when its launches are over, where the host may only be so far ahead
        self.operator_starts: tuple[float, ...] | None = None  # of a Compute with such launches, or of changing speed
        self.operator_ends: tuple[float, ...] | None = None  # if they are not the starts and the operators' seconds
        self.layers: Layers | None = None  # of a transfer between two: what the sender says
        self.place: tuple[int, ...] = ()  # in the order by which collectives, sends and receives find their partners
        self.unmet = 1  # what must still be done before the task is ready; one for the issuing itself
        self.dependents: list[Handle] | None = []  # the tasks that wait for this one; None once it is done
        self.watchers: list[Callable[[Handle], None]] = []

    @property
    def done(self) -> bool:
        """Whether the task is through."""
        return self.dependents is None

    def __repr__(self) -> str:
        state = "done" if self.done else "running" if self.started is not None else "waiting"
        return f"<{type(self.task).__name__} of rank {self.rank}: {state}>"


@dataclass(frozen=True, slots=True)
class Found:
    """What the host found when it waited or looked: the time, and which of the handles that it asked about are done."""

    now: float
    done: tuple[Handle, ...]


@dataclass(frozen=True, slots=True)
class Communicator:
    """A group with an identity: two groups of the same ranks are two communicators, each with its own order.

    ``ranks`` are in the order that shares and roots refer to; ``name`` tells groups of the same ranks apart, and reports
    sum by it ("dp", "tp").
    """

    ranks: tuple[int, ...]
    name: str = ""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.ranks, self.name)))

    def __hash__(self) -> int:
        return self._hash  # kept, because a group of a thousand ranks is looked up with every collective


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """The layers whose tensors are on their way, with the bytes of each; the time is divided among them by these.

    Tasks share one object, which is equal to itself alone, so that reports can sum by it quickly.
    """

    nbytes: Mapping[str, float]

    @property
    def total(self) -> float:
        """The bytes of all of them."""
        return sum(self.nbytes.values())

    @classmethod
    def of(cls, layer: str) -> Layers:
        """Return one layer."""
        return cls({layer: 1.0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all tasks have: ``after`` names handles that must be done first, beside the order of the stream."""

    after: tuple[Handle, ...] = ()


@dataclass(frozen=True, slots=True)
class Compute(Task):
    """Operators that run one after the other on the compute units. ``share`` is the part of the GPU that they fill.

    ``stream`` None stands on no queue: the task waits for ``after`` alone (a dependency graph).
    """

    operators: tuple[Operator, ...]
    stream: str | None = COMPUTE_STREAM
    share: float = 1.0
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        seconds = math.fsum(operator.seconds for operator in self.operators)
        if not 0 <= seconds < math.inf:
            raise SimulationError(f"a computation of {seconds} seconds", fix="times are 0 or more")
        if not 0 <= self.share <= 1:
            raise SimulationError(f"a computation that fills {self.share} of the GPU", fix="give a share from 0 to 1")
        object.__setattr__(self, "seconds", seconds)

    @classmethod
    def of(cls, name: str, seconds: float, *, layer: str = "", stream: str | None = COMPUTE_STREAM) -> Compute:
        """Return a task of one operator that is known by its name and time alone."""
        operator = Operator(0, name, "forward", layer or name, (), (), seconds)
        return cls((operator,), stream)


@dataclass(frozen=True, slots=True)
class Copy(Task):
    """Bytes from one node to another by a copy engine of the rank; "device" is the rank's own GPU, "host" its host."""

    source: str
    destination: str
    nbytes: float
    stream: str | None = "copy"
    issuer: str | None = COMPUTE_STREAM
    label: str = ""
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class Collective(Task):
    """What the ranks of a group do together; it starts when the last of them has arrived.

    ``nbytes`` is nccl-tests' larger side: the tensor for all-reduce, reduce and broadcast; all ranks' shares together
    for the others. ``shares`` are unequal shares in bytes, in the group's order; those of an all-to-all may be N x N, what
    each rank sends to each, by sender. ``root`` is a rank. ``layers`` are those
    that the tensors belong to, for the reports.
    """

    kind: ClassVar[CollectiveKind]

    nbytes: float
    group: Communicator
    stream: str | None = COMMUNICATION_STREAM
    issuer: str | None = COMPUTE_STREAM
    root: int | None = None
    shares: tuple[float, ...] | None = None
    label: str = ""
    layers: Layers | None = None


class AllReduce(Collective):
    """Every rank ends with the sum of all ranks' tensors."""

    __slots__ = ()
    kind = "all_reduce"


class AllGather(Collective):
    """Every rank ends with all ranks' shares."""

    __slots__ = ()
    kind = "all_gather"


class ReduceScatter(Collective):
    """Every rank ends with its share of the sum."""

    __slots__ = ()
    kind = "reduce_scatter"


class AllToAll(Collective):
    """Every rank sends a share of its own to every other."""

    __slots__ = ()
    kind = "all_to_all"


class Broadcast(Collective):
    """Every rank ends with the root's tensor."""

    __slots__ = ()
    kind = "broadcast"


class Reduce(Collective):
    """The root ends with the sum."""

    __slots__ = ()
    kind = "reduce"


class Gather(Collective):
    """The root ends with all ranks' shares."""

    __slots__ = ()
    kind = "gather"


class Scatter(Collective):
    """Every rank ends with its share of the root's tensor."""

    __slots__ = ()
    kind = "scatter"


COLLECTIVES: dict[CollectiveKind, type[Collective]] = {
    task.kind: task for task in (AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Reduce, Gather, Scatter)
}


@dataclass(frozen=True, slots=True)
class Send(Task):
    """Bytes to another rank, matched with its ``Recv`` by pair, tag and order; over when they are delivered."""

    destination: int
    nbytes: float
    tag: int = 0
    stream: str | None = COMMUNICATION_STREAM
    issuer: str | None = COMPUTE_STREAM
    label: str = ""
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class Recv(Task):
    """Bytes from another rank, as many as its ``Send`` says.

    ``ahead`` is a buffer that stands ready for what may come much later: it is no launch, and as communication it counts
    from when its send comes, not from when it was issued.
    """

    source: int
    tag: int = 0
    stream: str | None = COMMUNICATION_STREAM
    issuer: str | None = COMPUTE_STREAM
    label: str = ""
    ahead: bool = False
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class Batch(Task):
    """Sends and receives that go together and do not block each other; over when all are."""

    parts: tuple[Send | Recv, ...]
    stream: str | None = COMMUNICATION_STREAM
    issuer: str | None = COMPUTE_STREAM
    label: str = ""
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class Record(Task):
    """A CUDA event: done when what stood at the tail of the stream is."""

    stream: str = COMPUTE_STREAM


@dataclass(frozen=True, slots=True)
class Wait(Task):
    """The stream goes on only when the handles are done. The host does not wait."""

    handles: tuple[Handle, ...]
    stream: str = COMPUTE_STREAM


@dataclass(frozen=True, slots=True)
class Synchronize(Task):
    """The host waits for the handles, or, without any, for all that this rank has issued."""

    handles: tuple[Handle, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitAny(Task):
    """The host waits until ``count`` of the handles are done."""

    handles: tuple[Handle, ...]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Poll(Task):
    """The host looks which of the handles are done, and at the clock; no time passes."""

    handles: tuple[Handle, ...] = ()


@dataclass(frozen=True, slots=True)
class Host(Task):
    """The host is busy for some seconds."""

    seconds: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Iteration(Task):
    """The end of an iteration: the time at which ``of`` is done is put into the result; by default all issued so far."""

    of: tuple[Handle, ...] | None = None


#: What an extrapolator gives for one rank. What ``yield`` answers depends on the task, so its type is left open.
TaskStream = Generator[Task, Any, None]
