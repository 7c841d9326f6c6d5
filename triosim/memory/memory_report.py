"""The memory report of one rank's step on a GPU: live bytes, what the caching allocator reserves, and whether it fits.

>>> report = analyse(triosim.load_trace("trace.json"), gpu="H100")
>>> report.peak_reserved, report.fits
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from triosim import gpus
from triosim.errors import OptionError
from triosim.gpus import Gpu
from triosim.memory.allocator.gpu_memory import context as gpu_context
from triosim.memory.allocator.gpu_memory import visible
from triosim.memory.allocator.settings import AllocatorSettings
from triosim.memory.liveness.lifetimes import Lifetimes, lifetimes, with_workspaces
from triosim.memory.liveness.usage import Usage, usage
from triosim.memory.replay import MOST_STEPS, OutOfMemory, Replay, replay
from triosim.trace import Trace

#: The note on figures that do not come from recorded allocations.
ESTIMATE = "an estimate: no allocations were recorded, so a tensor is assumed to live from its first to its last use"
#: The note on figures of a profile that has neither allocations nor the identity of tensors.
INFERRED = (
    "memory is inferred from the shapes of a profile, rather too high than too low, so whether it fits is not said"
)


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory of one rank's step.

    ``capacity`` is the GPU's, ``context`` the part of it that the CUDA context takes. ``out_of_memory`` is the allocation that
    fails on it, None where the step fits or the capacity is not known. ``attempt`` was replayed on this GPU; ``replay`` is the
    same, or, where that failed, was replayed with unlimited memory, so that its peaks are what the step needs.
    """

    trace: Trace
    gpu: str
    capacity: float
    context: float
    settings: AllocatorSettings
    usage: Usage
    replay: Replay
    attempt: Replay

    @property
    def out_of_memory(self) -> OutOfMemory | None:
        """The allocation that fails on this GPU."""
        return self.attempt.out_of_memory

    @property
    def fits(self) -> bool:
        """Whether the step runs in the memory of the GPU."""
        return self.out_of_memory is None

    @property
    def estimated(self) -> bool:
        """Whether the lifetimes are an estimate, because no allocations were recorded."""
        return self.usage.lifetimes.estimated

    @property
    def peak_live(self) -> int:
        """The most bytes of live tensors, in blocks of 512 bytes."""
        return self.usage.peak.live

    @property
    def peak_allocated(self) -> int:
        """What ``torch.cuda.max_memory_allocated`` would return."""
        return self.replay.peak_allocated

    @property
    def peak_reserved(self) -> int:
        """What ``torch.cuda.max_memory_reserved`` would return, on a GPU that is large enough."""
        return self.replay.peak_reserved

    @property
    def notes(self) -> list[str]:
        """What a reader must know of these figures."""
        found = []
        if self.estimated:
            found.append(ESTIMATE)
        if self.replay.left:
            found.append(
                f"memory grows: a later step begins with {self.replay.left:,} bytes more than this one did; capture a later one"
            )
        if self.fits and self.replay.allocator.retries:
            found.append(
                f"it fits only because the allocator frees cached memory and tries again, {self.replay.allocator.retries} "
                "times in the replayed steps; each time waits for the GPU"
            )
        if math.isinf(self.capacity) and is_inferred(self.trace):
            found.append(f"{INFERRED}; profile with profile_memory=True")
        elif math.isinf(self.capacity):
            found.append("the GPU is unknown, so it is not known whether the step fits; give --gpu or --capacity")
        return found


def is_inferred(trace: Trace) -> bool:
    """Whether the memory of a trace is known from shapes alone."""
    return trace.infers_tensors and not trace.storages


def analyse(
    trace: Trace,
    gpu: str | Gpu | None = None,
    *,
    found: Lifetimes | None = None,
    capacity: float | None = None,
    context: float | None = None,
    settings: AllocatorSettings | None = None,
    workspace: bool = True,
    steps: int = MOST_STEPS,
) -> MemoryReport:
    """Return the memory that a trace's step needs, and whether a GPU has it.

    ``gpu`` is a name of the catalogue or a file, by default the trace's where it is known; ``capacity`` is in bytes, by
    default what PyTorch sees of that GPU's, and ``context`` what the CUDA context takes of it. ``workspace`` counts cuBLAS's
    workspaces. ``found`` are the lifetimes of the step's tensors, by default those in the trace. Raises ``OptionError``.
    """
    target = gpus.get(trace.gpu) if gpu is None else gpu if isinstance(gpu, Gpu) else gpus.find(gpu)
    whole = capacity
    if whole is None:
        whole = math.inf if target is None or is_inferred(trace) else visible(target)
    if context is None:
        context = gpu_context(target)
    if whole <= context:
        raise OptionError(
            f"a capacity of {whole:,.0f} bytes is no larger than the CUDA context's {context:,.0f}",
            where="--capacity",
            fix="give more, or --context 0",
        )
    step = lifetimes(trace) if found is None else found
    if workspace and target is not None:
        step = with_workspaces(step, target)
    chosen = AllocatorSettings() if settings is None else settings
    attempt = replay(step, whole - context, chosen, steps)
    needed = attempt if attempt.out_of_memory is None else replay(step, math.inf, chosen, steps)
    name = trace.gpu if target is None else target.name
    return MemoryReport(trace, name, whole, context, chosen, usage(step), needed, attempt)
