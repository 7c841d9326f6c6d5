"""The memory of every rank of an extrapolated run, by category of tensors, and whether it fits.

>>> memory = triosim.simulate("trace.json", parallel="fsdp=8").memory
>>> memory.fullest.peak_bytes, memory.fullest.by_category
>>> memory.report()  # all of the fullest rank: what the caching allocator reserves, which layers, a picture

A rank's allocations are followed in the order in which its host launches operators; ranks with equal memory are followed once.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from triosim import gpus
from triosim.config import Option
from triosim.errors import DoesNotFitError, OptionError
from triosim.extrapolators.captured.captured_plan import CapturedPlan
from triosim.extrapolators.core.lowering import Lowering
from triosim.extrapolators.core.memory import MemoryFootprint, MemoryTracker
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.core.program import Gradient
from triosim.extrapolators.core.training_loop import TrainingLoop
from triosim.garbage_collector import without_collecting
from triosim.gpus import Gpu
from triosim.memory.allocator.workspace import WORKSPACE, workspaces
from triosim.memory.captured_memory import CapturedMemory
from triosim.memory.liveness.lifetimes import MEMORY_CATEGORIES, PERSISTENT, Lifetimes
from triosim.memory.liveness.micro_batch_lifetimes import ProgramStorages
from triosim.memory.liveness.outside import OutsideMemory
from triosim.memory.liveness.rank_lifetimes import LifetimeTracker, PeakMoment, PeakTracker, StageLifetimes
from triosim.memory.liveness.residents import HeldTensors, Resident, residents_of_footprint
from triosim.memory.memory_report import INFERRED
from triosim.memory.world_memory import RankMemory, WorldMemory
from triosim.tasks import TaskStream
from triosim.trace import Tensor, Trace
from triosim.trace.task_streams import TaskStreams

Tracker = TypeVar("Tracker", PeakTracker, LifetimeTracker)


class ExtrapolatedMemory(WorldMemory):
    """The memory of all ranks of a plan: ``ranks`` has an entry for each pipeline rank, first to last.

    Where ranks run different programs, such as experts with different loads, each program has entries of its own. Where a
    parallelism writes its own tasks, the entries are the different memory footprints. ``gpu`` is what must hold them, by
    default the trace's.
    """

    def __init__(self, plan: ParallelPlan, trace: Trace, gpu: Gpu | None = None) -> None:
        super().__init__(gpus.get(trace.gpu) if gpu is None else gpu, plan.world, plan.parallel)
        self._plan = plan
        self._trace = trace
        if trace.infers_tensors:  # what was recorded is not that of these tensors
            self.capacity, self._trace = math.inf, replace(trace, storages=())
        self._storages = _storages(plan, self._trace)
        self._alike: dict[int, _RankStep] = {}  # by pipeline rank: a step of which others differ in shapes alone
        self._steps: dict[int, _RankStep] = {}  # by the first rank of an entry: the iteration that needs most
        self.ranks = tuple(map(self._rank_memory, _equal_ranks(plan)))

    @property
    def declared(self) -> tuple[Option, ...] | None:
        """The options that its parallelisms declare; None where a plug-in that declares none may read any."""
        return self._plan.declared

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know: that they are inferred, or which rank does not fit."""
        return (INFERRED,) if self._trace.infers_tensors else super().notes

    def lifetimes_of(self, rank: int) -> tuple[Trace, Lifetimes]:
        """Return the operators that a rank runs, and the lifetimes of their tensors, in the iteration that needs most."""
        tracker = self._steps[self.of_rank(rank).rank].follow(LifetimeTracker)
        operators = tuple(tracker.operators)
        if not operators:
            raise OptionError(
                f"rank {rank} runs no operator, so it has no step to show", where="--rank", fix="give another"
            )
        trace = replace(self._trace, operators=operators, storages=(), marks=(), batch_size=self._plan.batch_size)
        return trace, tracker.lifetimes(estimated=not self._trace.storages)

    def _rank_memory(self, ranks: tuple[int, ...]) -> RankMemory:
        rank, variant = ranks[0], self._plan.variant(ranks[0])
        footprint = self._plan.memory_footprint(rank)
        steps = []
        for lowerings, storages in zip(self._plan.lowerings, self._storages, strict=True):
            lowering = lowerings[variant]
            like = self._alike.get(lowering.pipeline_rank(rank))
            steps.append(_RankStep(lowering, storages[variant], rank, footprint, like))
            if storages[variant].part is not None and footprint is None:
                self._alike.setdefault(lowering.pipeline_rank(rank), steps[-1])
        trackers = [step.follow(PeakTracker) for step in steps]
        peaks: list[PeakMoment] = [tracker.peak for tracker in trackers]
        peak = max(peaks, key=lambda one: one.total)
        self._steps[rank] = steps[peaks.index(peak)]
        found = {name: size for name, size in zip(MEMORY_CATEGORIES, peak.by_category, strict=True) if size}
        extra = 0 if self.gpu is None else steps[0].workspace_bytes(self.gpu)
        if extra:
            found[WORKSPACE] = found.get(WORKSPACE, 0) + extra
        needed = peak.total + extra
        outside, fits = trackers[peaks.index(peak)].outside, needed <= self.capacity
        return RankMemory(
            *(ranks, needed, found, str(peak.action), peak.layer),
            fits=fits,
            outside=outside.peaks,
            outside_during=outside.during,
        )


@without_collecting()
def memory_of_run(plan: ParallelPlan | CapturedPlan, trace: Trace, *, fail_on_oom: bool) -> WorldMemory:
    """Return the memory of every rank of a simulation: of a plan, or of a captured script's streams.

    Raises ``DoesNotFitError`` where a rank does not fit and that is asked for.
    """
    memory: WorldMemory
    if isinstance(plan, CapturedPlan):
        memory = CapturedMemory(plan.streams)
    elif trace.infers_tensors and trace.storages and _is_as_traced(plan, trace):
        memory = CapturedMemory(TaskStreams({0: trace}, (0,), {}, complete=True))
    else:
        memory = ExtrapolatedMemory(plan, trace)
    if fail_on_oom and memory.warning is not None:
        raise DoesNotFitError(memory.warning)
    return memory


def _is_as_traced(plan: ParallelPlan, trace: Trace) -> bool:
    """Whether a plan runs a trace on one GPU as it is, so that its memory is what was recorded."""
    own = plan.program.operators
    same = len(own) == len(trace.operators) and all(
        one.inputs == other.inputs for one, other in zip(own, trace.operators, strict=True)
    )
    return plan.world == 1 and plan.batch_size == trace.batch_size and plan.training and same


def _storages(plan: ParallelPlan, trace: Trace) -> list[list[ProgramStorages]]:
    """Return the storages of each iteration's programs: one object for all where these differ in shapes alone."""
    programs = [[lowering.program for lowering in lowerings] for lowerings in plan.lowerings]
    if plan.differences is None:
        return [[ProgramStorages(program, trace) for program in some] for some in programs]
    common = ProgramStorages(programs[0][0], trace, plan.differences)
    return [[common] * len(some) for some in programs]


def _equal_ranks(plan: ParallelPlan) -> list[tuple[int, ...]]:
    """Return the ranks with equal memory: those at one pipeline rank that run the same program, or with equal footprints."""
    found: dict[Any, list[int]] = {}
    for rank in range(plan.world):
        program = (plan.lowerings[0][0].pipeline_rank(rank), plan.variant(rank))
        found.setdefault(plan.memory_footprint(rank) or program, []).append(rank)
    return [tuple(found[key]) for key in (sorted(found) if plan.task_writer is None else found)]


class _RankStep:
    """A rank's step in one iteration, whose allocations trackers follow.

    ``footprint`` is that of a rank whose tasks a parallelism writes itself. ``like`` is a step of which this one differs in
    shapes alone.
    """

    def __init__(
        self,
        lowering: Lowering,
        storages: ProgramStorages,
        rank: int,
        footprint: MemoryFootprint | None,
        like: _RankStep | None = None,
    ) -> None:
        self._lowering = lowering
        self._storages = storages
        self._rank = rank
        self._footprint = footprint
        self._pipeline_rank = lowering.pipeline_rank(rank)
        self._stage = lowering.held[self._pipeline_rank]
        hooks = TrainingLoop(lowering, rank, MemoryTracker()).hooks

        def accumulated_bytes(gradient: Gradient) -> float:
            return min((one.accumulated_bytes(gradient) for one in hooks), default=gradient.nbytes)

        def resident_bytes(parameter: Tensor) -> float:
            return min((one.resident_bytes(parameter) for one in hooks), default=float(parameter.nbytes))

        alike = None if like is None else like._lifetimes
        self._lifetimes: StageLifetimes = StageLifetimes(
            lowering, self._pipeline_rank, storages, accumulated_bytes, alike
        )
        same = like if storages.held_alike else None
        self._held: HeldTensors = HeldTensors.of(self._stage, storages) if same is None else same._held
        self._sizes: list[float] = [resident_bytes(parameter) for parameter, _ in self._held.parameters]
        self._places = {name: next(filter(None, (one.kept_in(name) for one in hooks)), None) for name in PERSISTENT}
        if same is not None and (same._sizes, same._footprint) == (self._sizes, footprint):
            self._residents: list[Resident] = same._residents
            return
        found = self._held.residents(lowering.program, storages.captured, self._sizes, first=not self._pipeline_rank)
        self._residents = list(found if footprint is None else residents_of_footprint(footprint, found))

    def follow(self, kind: type[Tracker]) -> Tracker:
        """Return a tracker that has followed the step."""
        places = [self._places.get(one.category) for one in self._residents]
        outside = OutsideMemory(
            (tier, one) for tier, one in zip(places, self._residents, strict=True) if tier is not None
        )
        here = [one for tier, one in zip(places, self._residents, strict=True) if tier is None]
        tracker = kind(self._lifetimes, here, outside)
        loop = TrainingLoop(self._lowering, self._rank, tracker)
        tasks = loop.step() if self._footprint is None else self._part_of_step(loop, self._footprint)
        answer: object = None
        with suppress(StopIteration):
            while True:
                tasks.send(answer)  # any answer will do: the loop does not read it
                answer = tracker
        return tracker

    def workspace_bytes(self, gpu: Gpu) -> int:
        """Return the bytes of cuBLAS's workspaces, all of which exist at the peak of any step but the first."""
        trains = self._footprint is None or self._footprint.trains
        blocks = self._stage.blocks if trains else self._stage.optimizer
        return sum(size for size, _ in workspaces([op for block in blocks for op in block.operators], gpu))

    def _part_of_step(self, loop: TrainingLoop, footprint: MemoryFootprint) -> TaskStream:
        """Yield the tasks of the parts of a training step that the rank runs."""
        micro_batches = self._lowering.program.micro_batches
        for micro_batch in range(micro_batches if footprint.trains else 0):
            yield from loop.forward()
            yield from loop.backward(first=not micro_batch, last=micro_batch == micro_batches - 1)
        if footprint.updates:
            yield from loop.optimizer()
