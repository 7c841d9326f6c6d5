"""The lifetimes of a step's memory, in order: from a capture's storages, or estimated from the uses of its tensors.

Without storages, a tensor lives from the operator that makes it to the last one that reads it, logits until the loss is
computed and inputs of modules until these return; parameters, buffers, optimizer states and inputs live for the whole step, and
a parameter's gradient from its first writing to the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from triosim.gpus import Gpu
from triosim.memory.allocator.settings import SMALLEST_BLOCK
from triosim.memory.allocator.workspace import WORKSPACE, workspaces
from triosim.memory.liveness.logits import kept_for_loss
from triosim.memory.liveness.module_inputs import kept_for_modules
from triosim.trace import CATEGORIES, Operator, Tensor, Trace

#: The categories of memory in the order in which a person is shown them: what stays, at the bottom.
MEMORY_CATEGORIES: tuple[str, ...] = (
    "parameter",
    "buffer",
    "optimizer_state",
    "gradient",
    "input",
    "activation",
    "output",
    "temporary",
    "communication",
    WORKSPACE,
)
COLUMN = {name: position for position, name in enumerate(MEMORY_CATEGORIES)}
#: The categories of what exists before and after a step.
PERSISTENT = ("parameter", "buffer", "optimizer_state", "input")
_TRANSIENT = ("input", "activation", "output", "temporary", "communication")
assert set(CATEGORIES) < set(MEMORY_CATEGORIES)


def whole_blocks(nbytes: float) -> int:
    """Return ``nbytes`` rounded up to whole blocks of the allocator."""
    return -int(-nbytes // SMALLEST_BLOCK) * SMALLEST_BLOCK


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Memory from its birth to its death, on a clock of whole numbers that no two events share.

    ``born`` is None for what existed before the step, ``died`` for what outlives it. ``operator`` and ``last_operator`` are
    the positions of the operators that ran then, -1 before the first. ``first_born`` is the clock at which memory that later
    steps find was allocated in the very first step of the run, None for before that step. ``freed_later`` says that it
    outlives the step, and that the next one frees it without a record.
    """

    nbytes: int
    category: str
    layer: str
    born: int | None
    died: int | None
    operator: int
    last_operator: int | None
    stream: str = "compute"
    shape: tuple[int, ...] = ()
    dtype: str = ""
    first_born: int | None = None
    freed_later: bool = False


@dataclass(frozen=True, slots=True)
class LifetimeEvent:
    """The birth or death of the lifetime with this number, while the operator at position ``operator`` runs."""

    clock: int
    birth: bool
    number: int
    operator: int


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The memory of a step; ``estimated`` says that it comes from the uses of tensors and not from a capture."""

    items: tuple[Lifetime, ...]
    operators: tuple[Operator, ...]
    estimated: bool

    @property
    def events(self) -> list[LifetimeEvent]:
        """The births and deaths in the step, in order."""
        found = []
        for number, item in enumerate(self.items):
            if item.born is not None:
                found.append(LifetimeEvent(item.born, True, number, item.operator))
            if item.died is not None:
                operator = item.operator if item.last_operator is None else item.last_operator
                found.append(LifetimeEvent(item.died, False, number, operator))
        return sorted(found, key=lambda event: event.clock)

    @property
    def initial(self) -> list[int]:
        """The numbers of the lifetimes that began before the step, in order of birth."""
        return [number for number, item in enumerate(self.items) if item.born is None]


def lifetimes(trace: Trace, gpu: Gpu | None = None) -> Lifetimes:
    """Return what memory a trace's step uses; with a GPU, also the workspaces that cuBLAS takes on it."""
    items = tuple(_captured(trace)) if trace.storages else tuple(_estimated(trace))
    step = Lifetimes(items, trace.operators, not trace.storages)
    return step if gpu is None else with_workspaces(step, gpu)


def with_workspaces(step: Lifetimes, gpu: Gpu) -> Lifetimes:
    """Return a step with the workspaces that cuBLAS takes on a GPU."""
    extra = []
    events = step.events
    for size, operator in workspaces(step.operators, gpu):
        clock = next((event.clock for event in events if event.operator >= operator), None)
        extra.append(Lifetime(size, WORKSPACE, "cuBLAS", None, None, operator, None, first_born=clock))
    return Lifetimes((*step.items, *extra), step.operators, step.estimated)


def _captured(trace: Trace) -> Iterator[Lifetime]:
    """Yield the storages of a capture by birth; the optimizer's states were allocated when it first ran."""
    optimizer = next((position for position, one in enumerate(trace.operators) if one.phase == "optimizer"), None)
    storages = sorted(
        (one for one in trace.storages if one.nbytes and (one.died or 0) >= 0), key=lambda storage: storage.born
    )
    first_update = next((one.born for one in storages if optimizer is not None and one.operator >= optimizer), None)
    owners = _owners(trace)
    for one in storages:
        found = one.born < 0
        yield Lifetime(
            one.nbytes,
            one.category,
            owners.get(one.id, one.layer),
            None if found else one.born,
            one.died,
            one.operator,
            one.last_operator,
            one.stream,
            one.shape,
            one.dtype,
            first_update if found and one.category == "optimizer_state" else None,
            # A CPU profile has no frees of what an earlier step allocated, so nothing shows that this was there before too.
            freed_later=trace.gpu == "CPU" and not found and one.died is None and one.category in _TRANSIENT,
        )


def _owners(trace: Trace) -> dict[int, str]:
    """Return the module that parameters, buffers, and their gradients and states belong to, by storage.

    A parameter belongs to the layer whose operator first reads it, and its gradient and states to the same.
    """
    found: dict[int, str] = {}
    tensors = trace.tensors
    for operator in trace.operators:
        if operator.phase != "optimizer":
            for tensor in operator.inputs:
                if tensor.category in ("parameter", "buffer"):
                    found.setdefault(tensor.storage, operator.layer)
    for tensor in tensors.values():
        about = None if tensor.parameter is None else tensors.get(tensor.parameter)
        if about is not None and about.storage in found:
            found.setdefault(tensor.storage, found[about.storage])
    return found


@dataclass(slots=True)
class _StorageUse:
    """The uses of a storage's tensors, by operators ``first`` to ``last``; the first one writes or reads the storage."""

    tensor: Tensor
    first: int
    is_written: bool
    last: int
    nbytes: int = 0
    is_kept_gradient: bool = False  # of a parameter: it names its parameter, or the optimizer reads it

    @property
    def persists(self) -> bool:
        """Whether the storage exists before and after the step."""
        return not self.is_written or self.tensor.category in PERSISTENT


def _estimated(trace: Trace) -> Iterator[Lifetime]:
    """Yield the storages of a trace's tensors, alive between the operators that use them."""
    uses = _uses(trace)
    owners = _owners(trace)
    end = len(trace.operators)
    transient = {
        storage: (use.first, end if use.is_kept_gradient else use.last)
        for storage, use in uses.items()
        if not use.persists
    }
    births = [(first, False, storage) for storage, (first, _) in transient.items()]
    deaths = [(last, True, storage) for storage, (_, last) in transient.items()]
    # An operator's results are there before its inputs are gone.
    clocks = {(storage, dies): clock for clock, (_, dies, storage) in enumerate(sorted(births + deaths))}
    updates = (clocks[one, False] for one in transient if trace.operators[uses[one].first].phase == "optimizer")
    first_update = min(updates, default=None)
    for storage, use in uses.items():
        operator = trace.operators[use.first]
        yield Lifetime(
            use.nbytes,
            use.tensor.category,
            owners.get(storage, operator.layer),
            clocks.get((storage, False)),
            clocks.get((storage, True)),
            -1 if use.persists else use.first,
            None if use.persists else min(transient[storage][1], end - 1),
            operator.stream,
            use.tensor.shape,
            use.tensor.dtype,
            first_update if use.tensor.category == "optimizer_state" else None,
        )


def _uses(trace: Trace) -> dict[int, _StorageUse]:
    """Return how each storage is used, in order of first use; its size is that of its largest tensor."""
    found: dict[int, _StorageUse] = {}
    kept = kept_for_loss(operator for operator in reversed(trace.operators) if operator.phase == "forward")
    inputs = kept_for_modules(trace.operators)
    for position, operator in enumerate(trace.operators):
        for is_written, tensors in ((False, operator.inputs), (True, operator.outputs)):
            for tensor in tensors:
                use = found.get(tensor.storage)
                if use is None:
                    use = found[tensor.storage] = _StorageUse(tensor, position, is_written, position)
                use.last = position
                use.nbytes = max(use.nbytes, tensor.nbytes)
                if tensor.category == "gradient" and (tensor.parameter is not None or operator.phase == "optimizer"):
                    use.is_kept_gradient = True
        for storage in (*kept.get(operator.id, ()), *inputs.get(operator.id, ())):
            found[storage].last = position
    return {storage: use for storage, use in found.items() if use.nbytes}
