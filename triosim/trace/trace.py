"""The trace of one training step on one GPU: its operators in order, with their tensors and measured times.

Times are seconds, sizes bytes, shapes numbers of elements. A trace says nothing of how it was stored: the formats are in
``triosim.trace.formats``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from triosim.errors import TraceError, printable

Phase = Literal["forward", "backward", "optimizer"]
Category = Literal[
    "input", "parameter", "buffer", "activation", "gradient", "optimizer_state", "output", "temporary", "communication",
]  # fmt: skip
CommunicationKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send", "recv",
    "barrier",
]  # fmt: skip
MarkKind = Literal["record", "wait", "wait_work", "synchronize"]
PHASES: tuple[Phase, ...] = get_args(Phase)
CATEGORIES: tuple[Category, ...] = get_args(Category)

#: Where the times of a trace come from that is itself the output of a simulation.
SIMULATED = "simulated by triosim"

#: Bytes of one element, by dtype as PyTorch names it (without ``torch.``). It packs two numbers of fp4 into an element
#: (``_x2``); where a dimension counts the numbers themselves, their dtype is ``float4_e2m1fn``.
DTYPE_BYTES: Mapping[str, float] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float4_e2m1fn_x2": 1, "float4_e2m1fn": 0.5, "complex64": 8, "complex128": 16, "int64": 8, "int32": 4, "int16": 2,
    "int8": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1,
}  # fmt: skip
#: What people write for a dtype, besides PyTorch's name of it.
_SHORT = {
    "fp64": "float64", "double": "float64", "fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16",
    "bf16": "bfloat16", "fp8": "float8_e4m3fn", "fp4": "float4_e2m1fn_x2", "nvfp4": "float4_e2m1fn_x2",
}  # fmt: skip


def dtype_name(text: str) -> str:
    """Return PyTorch's name of a dtype that people write shorter (``fp16``, ``torch.half``); any other text as it is."""
    bare = text.strip().removeprefix("torch.")
    return _SHORT.get(bare.lower(), bare)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: two tensors with one ``storage`` are views of the same bytes; without one, a tensor has its own.

    ``parameter`` is, for a gradient or an optimizer state, the id of the parameter that it belongs to, where known.
    """

    id: int
    shape: tuple[int, ...]
    dtype: str = "float32"
    category: Category = "activation"
    storage: int = -1
    parameter: int | None = None
    _nbytes: int = field(default=-1, init=False, repr=False, compare=False)  # once they were asked for

    def __post_init__(self) -> None:
        if self.storage == -1:
            object.__setattr__(self, "storage", -1 - self.id)  # negative: no other tensor's

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        if self._nbytes < 0:
            object.__setattr__(self, "_nbytes", math.ceil(math.prod(self.shape) * DTYPE_BYTES[self.dtype]))
        return self._nbytes


@dataclass(frozen=True, slots=True)
class Communication:
    """The communication of an operator of a distributed step.

    ``group`` names a family of groups in ``triosim.trace.task_streams.TaskStreams``: the operator's group is the one of that
    family that its rank is in. ``nbytes`` is the size of a collective as ``triosim.tasks`` counts it. ``root`` and ``peer`` are
    indices into the group, not ranks of the world. ``work`` is the number that a ``Mark`` waits for, None where the issuing
    stream waits at once. Sends and receives with one ``batch`` go together. ``shares`` are unequal shares in bytes, in the
    group's order; of an all-to-all, what this rank sends to each member. ``line`` is the script's that asked for it, where
    that is known.
    """

    kind: CommunicationKind
    group: str
    nbytes: float
    root: int | None = None
    peer: int | None = None
    tag: int = 0
    work: int | None = None
    batch: int | None = None
    shares: tuple[float, ...] | None = None
    line: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A synchronisation of streams or the host between two operators, before the operator at ``position`` of the trace.

    ``record`` puts event ``number`` at the tail of ``stream``; ``wait`` lets ``stream`` wait for event ``number``, and
    ``wait_work`` for the communication with this ``work``; ``synchronize`` lets the host wait: for event ``number``, for
    ``stream``, or, with neither, for the whole device. ``source`` is the line of the script that made the host wait.
    """

    position: int
    kind: MarkKind
    stream: str | None = None
    number: int | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes of device memory from their birth to their death; views share one. ``layer`` is the module that asked for it.

    ``born`` and ``died`` are numbers on one clock that counts a step's allocations and frees (so that their order is exact);
    before the step, ``born`` is negative; what outlives the step has no ``died``. ``operator`` and ``last_operator`` are
    the positions of the operators that ran then, -1 before the first.
    """

    id: int
    nbytes: int
    category: Category
    layer: str
    born: int
    died: int | None
    operator: int
    last_operator: int | None
    stream: str = "compute"
    shape: tuple[int, ...] = ()
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Operator:
    """One ATen call of the trace.

    ``seconds`` runs from its first kernel's start to its last kernel's end; ``busy_seconds`` counts the kernels alone,
    without overlap, where that was measured; ``host_seconds`` is what the call cost the host. ``forward`` is, for an
    operator of the backward pass, the id of the forward operator that it differentiates. ``predicted_by`` names the model
    that ``seconds`` come from, None where they were measured; ``relative_error`` is how far off they are expected to be
    (0.05 is 5%), None where that is not known. ``attributes`` are those of its arguments that are not tensors and do not
    depend on the batch (``dim``, ``stride``, ``is_causal``), where they are known. ``stream`` is the CUDA stream that it was
    issued to, ``compute`` for the current one of the device; ``communication`` is what it asks of other ranks, if it does.
    ``recomputed`` is that of an operator of the backward pass that computes an activation again.
    """

    id: int
    name: str
    phase: Phase
    layer: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    seconds: float
    busy_seconds: float | None = None
    host_seconds: float | None = None
    forward: int | None = None
    flops: float | None = None
    kernels: tuple[str, ...] = ()
    predicted_by: str | None = None
    relative_error: float | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    stream: str = "compute"
    communication: Communication | None = None
    recomputed: bool = False

    def with_tensors(
        self, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], timed: Operator | None = None
    ) -> Operator:
        """Return the same call of other tensors, with the times on the GPU of the call ``timed``, if that is given."""
        timed = timed or self
        times = timed.seconds, timed.busy_seconds, self.host_seconds, timed.flops
        return self._with((inputs, outputs), times, (timed.predicted_by, timed.relative_error))

    def with_times(self, seconds: float, busy_seconds: float | None, flops: float | None) -> Operator:
        """Return the same call with other times and FLOPs."""
        prediction = self.predicted_by, self.relative_error
        times = seconds, busy_seconds, self.host_seconds, flops
        return self._with((self.inputs, self.outputs), times, prediction)

    def with_host_seconds(self, host_seconds: float | None) -> Operator:
        """Return the same call, which costs the host another time."""
        times = self.seconds, self.busy_seconds, host_seconds, self.flops
        return self._with((self.inputs, self.outputs), times, (self.predicted_by, self.relative_error))

    def predicted(self, by: str, relative_error: float | None) -> Operator:
        """Return the same call, whose time a model has predicted."""
        times = self.seconds, self.busy_seconds, self.host_seconds, self.flops
        return self._with((self.inputs, self.outputs), times, (by, relative_error))

    def _with(
        self,
        tensors: tuple[tuple[Tensor, ...], tuple[Tensor, ...]],
        times: tuple[float, float | None, float | None, float | None],
        prediction: tuple[str | None, float | None],
    ) -> Operator:
        """Return a copy; written out, because dataclasses.replace() takes several times as long, and there are many."""
        return Operator(
            self.id, self.name, self.phase, self.layer, *tensors, times[0], times[1], times[2], self.forward,
            times[3], self.kernels, *prediction, self.attributes, self.stream, self.communication, self.recomputed,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trace:
    """One step of one model on one GPU. ``operators`` are in the order in which the GPU ran them.

    ``times`` says where the times come from ("measured", or which model predicted them); ``step_seconds`` is the step's
    time as measured without the profiler, where that is known. ``marks`` order the streams, by position; ``storages`` are the
    device memory that the step found, took and gave back, by birth, empty where that was not captured. ``notes`` are what a
    user should know of how it was read.
    """

    operators: tuple[Operator, ...]
    batch_size: int
    model: str = "unknown"
    gpu: str = "unknown"
    times: str = "measured"
    step_seconds: float | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    marks: tuple[Mark, ...] = ()
    storages: tuple[Storage, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return printable(
            f"<Trace of {self.model}: {len(self.operators):,} operators on {self.gpu}, times {self.times}>"
        )

    def __hash__(self) -> int:
        """Return the hash of what is short: traces are keys of what is kept, and equal ones are mostly one object."""
        return hash((self.model, self.gpu, self.batch_size, self.times, self.source, len(self.operators)))

    def __post_init__(self) -> None:
        if not self.operators:
            raise TraceError("the trace has no operators", where=self.source or None, fix="capture at least one step")

    @property
    def infers_tensors(self) -> bool:
        """Whether its tensors are inferred from shapes: which of them are one, and how long they live, is not known."""
        return self.software.get("tensors", "").startswith("inferred")

    @property
    def names_tensors(self) -> bool:
        """Whether any operator says what it reads or writes: without, memory is not known."""
        return any(operator.inputs or operator.outputs for operator in self.operators)

    @property
    def tensors(self) -> dict[int, Tensor]:
        """Every tensor that an operator reads or writes, by id, in order of first use."""
        found: dict[int, Tensor] = {}
        for operator in self.operators:
            for tensor in operator.inputs:
                found.setdefault(tensor.id, tensor)
            for tensor in operator.outputs:
                found.setdefault(tensor.id, tensor)
        return found

    @property
    def parameters(self) -> dict[int, Tensor]:
        """The parameters by id, in order of first use; views of one storage count once."""
        found: dict[int, Tensor] = {}
        storages: set[int] = set()
        for tensor in self.tensors.values():
            if tensor.category == "parameter" and tensor.storage not in storages:
                storages.add(tensor.storage)
                found[tensor.id] = tensor
        return found

    @property
    def seconds(self) -> float:
        """The sum of all operators' times."""
        return math.fsum(operator.seconds for operator in self.operators)
