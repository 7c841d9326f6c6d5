"""The tasks that a rank's task stream yields, and the engine's answers.

A task stream is a generator: it yields a task and is answered with the task's ``Handle``, or with an ``Answer`` where the host
itself runs the task (``Synchronize``, ``WaitAny``, ``Poll``, ``Host``). The semantics are those of CUDA and NCCL: tasks of one
stream run in order; a transfer or collective also waits for the task at the tail of the stream that issued it, as PyTorch's
process group records an event there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from triosim.errors import SimulationError
from triosim.trace import Operator

CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"
]

#: What a memory is to a GPU: its host's main memory, its node's solid-state drives, memory that a node has besides, or a pool
#: behind switches that all nodes share.
Tier = Literal["host", "nvme", "expansion", "pool"]

COMPUTE_STREAM = "compute"
COMMUNICATION_STREAM = "communication"
#: Streams whose names begin so are those of what is no GPU's work: a CPU, a memory. They take no compute units.
HOST_STREAM = "host"
#: And those of a memory that ranks share: of the tasks on streams of one such name, of all ranks, one runs at a time.
SHARED_MEMORY_STREAM = f"{HOST_STREAM} shared memory"


class Handle:
    """An issued task: it waits for other tasks, has arrived, has started, or is done.

    ``arrived`` is when everything that the task waits for was done, ``started`` when it began to run (a collective: when its
    last member arrived), ``finished`` when it ended, in seconds on the simulation's clock; None before that.
    """

    __slots__ = (
        "arrived",
        "callbacks",
        "dependents",
        "finished",
        "launch_end",
        "launch_start",
        "launches",
        "layers",
        "open_dependencies",
        "operator_ends",
        "operator_starts",
        "rank",
        "received",
        "sequence_numbers",
        "started",
        "task",
    )

    def __init__(self, rank: int, task: Task) -> None:
        self.rank = rank
        self.task = task
        self.arrived: float | None = None
        self.started: float | None = None
        self.finished: float | None = None
        self.launches = 0  # how many launches it is
        self.launch_start: float | None = None  # where launching costs the host time; a transfer's when it is over
        self.launch_end: float | None = None  # of its last operator, where the host may be few operators ahead
        self.operator_starts: tuple[float, ...] | None = None  # where operators do not follow on from each other
        self.operator_ends: tuple[float, ...] | None = None  # where the speed of the GPU changes
        self.layers: Layers | None = None  # of a send and its receive: the sender's
        self.received = 0.0  # bytes that sends of other ranks bring
        self.sequence_numbers: tuple[int, ...] = ()  # by which collectives, sends and receives are matched
        self.open_dependencies = 1  # unfinished tasks that this one waits for; one is for the issuing itself
        self.dependents: list[Handle] | None = []  # the tasks that wait for this one; None once it is done
        self.callbacks: list[Callable[[Handle], None]] = []  # called when it is done

    @property
    def done(self) -> bool:
        """Whether the task has ended."""
        return self.dependents is None

    def __repr__(self) -> str:
        state = "done" if self.done else "running" if self.started is not None else "waiting"
        return f"<{type(self.task).__name__} of rank {self.rank}: {state}>"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a task that the host runs: the time, and those of the task's handles that are done.

    ``began`` is when the host began to run it, where it waited for its GPU.
    """

    now: float
    done: tuple[Handle, ...]
    began: float | None = None


@dataclass(frozen=True, slots=True)
class Communicator:
    """A group of ranks with an order of collectives of its own, as in NCCL.

    Groups of the same ranks with different names are different communicators; reports sum by ``name`` ("dp", "tp"). Unequal
    shares are in the order of ``ranks``.
    """

    ranks: tuple[int, ...]
    name: str = ""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.ranks, self.name)))

    def __hash__(self) -> int:
        return self._hash  # precomputed: a group of a thousand ranks is looked up with every collective


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """The layers whose tensors a task transfers, with the bytes of each, by which reports divide the task's time.

    Objects are compared by identity, and tasks share them, so that reports can sum by them quickly.
    """

    nbytes: Mapping[str, float]

    @property
    def total(self) -> float:
        """The bytes of all layers together."""
        return sum(self.nbytes.values())

    @classmethod
    def of(cls, layer: str) -> Layers:
        """Return a value that names one layer."""
        return cls({layer: 1.0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The base class of tasks. A task waits for the handles in ``after``, beside the task before it on its stream.

    ``line`` is the line of a script that asked for it, where that is known; errors name it.
    """

    after: tuple[Handle, ...] = ()
    line: str = ""


@dataclass(frozen=True, slots=True)
class Compute(Task):
    """Operators that run one after the other on a ``share`` of the GPU's compute units.

    With ``stream`` None the task is on no stream: it waits for ``after`` alone, as in a dependency graph. ``host_seconds`` is
    what launching the operators costs the host; if it begins to by ``launch_lead`` before the first one runs, none of them
    waits for its launch.
    """

    operators: tuple[Operator, ...]
    stream: str | None = COMPUTE_STREAM
    share: float = 1.0
    seconds: float = field(init=False)
    host_seconds: float = field(init=False)
    launch_lead: float = field(init=False)

    def __post_init__(self) -> None:
        seconds = math.fsum(operator.seconds for operator in self.operators)
        if not 0 <= seconds < math.inf:
            raise SimulationError(f"a computation of {seconds} seconds", fix="times are 0 or more")
        if not 0 <= self.share <= 1:
            raise SimulationError(f"a computation that fills {self.share} of the GPU", fix="give a share from 0 to 1")
        object.__setattr__(self, "seconds", seconds)
        launched = lead = ran = 0.0
        for operator in self.operators:
            if operator.host_seconds:
                launched += operator.host_seconds
                lead = max(lead, launched - ran)
            ran += operator.seconds
        object.__setattr__(self, "host_seconds", launched)
        object.__setattr__(self, "launch_lead", lead)

    @classmethod
    def of(cls, name: str, seconds: float, *, layer: str = "", stream: str | None = COMPUTE_STREAM) -> Compute:
        """Return a task of one operator, given its name and time (seconds)."""
        operator = Operator(0, name, "forward", layer or name, (), (), seconds)
        return cls((operator,), stream)


@dataclass(frozen=True, slots=True)
class Copy(Task):
    """A copy from one node to another by a copy engine of the rank; "device" is the rank's GPU, "host" its host memory.

    A copy that was measured takes its ``seconds`` on the engine, whatever the network is; elsewhere they are None.
    """

    source: str
    destination: str
    nbytes: float
    stream: str | None = "copy"
    issuer: str | None = COMPUTE_STREAM
    label: str = ""
    layers: Layers | None = None
    seconds: float | None = None

    @property
    def is_host_computation(self) -> bool:
        """Whether the CPU computes on what its memory holds, so that nothing travels: both ends are the host."""
        return self.source == self.destination == "host"


#: Whose kernels carry tokens to experts: DeepEP's, or those of its branch HybridEP.
ExpertLibrary = Literal["deepep", "hybridep"]
#: The libraries' names for people.
EXPERT_LIBRARIES: Mapping[ExpertLibrary, str] = {"deepep": "DeepEP", "hybridep": "HybridEP"}


@dataclass(frozen=True, slots=True)
class DeepEP:
    """The transport of an all-to-all that DeepEP's or HybridEP's kernels carry between tokens and experts, instead of NCCL.

    step: "dispatch" sends tokens to their experts, "combine" sends them back and sums them up.
    tokens: those of each rank, each of which goes to ``top_k`` of ``experts``; a token has ``token_bytes``.
    groups, kept_groups: where routing is limited to some groups of experts, how many there are, and how many a token keeps.
    rows: how often tokens of each rank choose an expert of each rank, N x N values by the rank of the tokens; None where all
        are equal.
    sms: the multiprocessors that a kernel takes.
    low_latency: whether it is a kernel for decoding, which sends each token straight to each of its experts.
    library: whose kernels they are.
    """

    step: Literal["dispatch", "combine"]
    tokens: float
    token_bytes: float
    top_k: int
    experts: int
    groups: int = 1
    kept_groups: int = 1
    rows: tuple[float, ...] | None = None
    sms: int = 20
    low_latency: bool = False
    library: ExpertLibrary = "deepep"

    def scaled(self, factor: float) -> DeepEP:
        """Return the transport of so many times the tokens."""
        rows = None if self.rows is None else tuple([one * factor for one in self.rows])
        return replace(self, tokens=self.tokens * factor, rows=rows)

    def with_rows(self, rows: Iterable[float] | None) -> DeepEP:
        """Return the same transport with other rows, or none."""
        return replace(self, rows=None if rows is None else tuple(rows))


@dataclass(frozen=True, slots=True)
class Collective(Task):
    """A collective of a group; it starts when the last rank has arrived.

    nbytes: the larger side, as in nccl-tests: the tensor for all-reduce, reduce and broadcast; the shares of all ranks together
        for the others.
    shares: unequal shares in bytes, in the group's order; for an all-to-all, N x N values may say what each rank sends to each
        rank, by sender.
    root: the rank that sends or receives the whole tensor.
    layers: the layers that the tensors belong to, for reports.
    transport: what carries it where that is not NCCL. A network that does not know it runs the collective as any other.
    memory: the tier of the memory whose switches gather the shares, which lie there, while they are loaded (of an all-gather).
    blocks: whether the next task of the stream that issued it waits for it, as with a ``Wait`` behind it.
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
    transport: DeepEP | None = None
    memory: Tier | None = None
    blocks: bool = False


class AllReduce(Collective):
    """Every rank ends with the sum of all ranks' tensors."""

    __slots__ = ()
    kind = "all_reduce"


class AllGather(Collective):
    """Every rank ends with all ranks' shares."""

    __slots__ = ()
    kind = "all_gather"


class ReduceScatter(Collective):
    """Every rank ends with its share of the sum of all ranks' tensors."""

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
    """The root ends with the sum of all ranks' tensors."""

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
    """A send to another rank, matched with its ``Recv`` by pair, tag and order; it ends when the data is delivered."""

    destination: int
    nbytes: float
    tag: int = 0
    stream: str | None = COMMUNICATION_STREAM
    issuer: str | None = COMPUTE_STREAM
    label: str = ""
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class Recv(Task):
    """A receive from another rank, of as many bytes as its ``Send`` says.

    A ``preposted`` receive is a buffer for data that may come much later: it costs no launch, and its communication time runs
    from the arrival of the send, not from its own.
    """

    source: int
    tag: int = 0
    stream: str | None = COMMUNICATION_STREAM
    issuer: str | None = COMPUTE_STREAM
    label: str = ""
    preposted: bool = False
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class Batch(Task):
    """Sends and receives that do not block each other, as in ``batch_isend_irecv``; it ends when all of them have."""

    parts: tuple[Send | Recv, ...]
    stream: str | None = COMMUNICATION_STREAM
    issuer: str | None = COMPUTE_STREAM
    label: str = ""
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class Record(Task):
    """A CUDA event: done when the task at the tail of the stream is."""

    stream: str = COMPUTE_STREAM


@dataclass(frozen=True, slots=True)
class Wait(Task):
    """The stream waits for the handles; the host does not."""

    handles: tuple[Handle, ...]
    stream: str = COMPUTE_STREAM


@dataclass(frozen=True, slots=True)
class Synchronize(Task):
    """The host waits for the handles, or, without any, for all tasks that the rank has issued."""

    handles: tuple[Handle, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitAny(Task):
    """The host waits until ``count`` of the handles are done."""

    handles: tuple[Handle, ...]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Poll(Task):
    """The host asks which of the handles are done, and for the time; no time passes."""

    handles: tuple[Handle, ...] = ()


@dataclass(frozen=True, slots=True)
class Host(Task):
    """The host is busy for some seconds."""

    seconds: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Iteration(Task):
    """The end of an iteration: when the handles ``of`` are done, by default all tasks issued so far."""

    of: tuple[Handle, ...] | None = None


#: The generator of a rank's tasks. The type of an answer depends on the task, so it is left open.
TaskStream = Generator[Task, Any, None]
