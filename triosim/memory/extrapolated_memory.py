"""The memory of every rank of an extrapolated run, by category of tensors, and whether it fits.

>>> memory = triosim.simulate("trace.json", parallel="fsdp=8").memory
>>> memory.fullest.peak_bytes, memory.fullest.by_category
>>> memory.report()  # all of the fullest rank: what the caching allocator reserves, which layers, a picture

A rank's allocations are followed in the order in which its host launches operators. Ranks that run the same program at one
place of the pipeline have the same memory, so each such place is followed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from triosim import gpus
from triosim.config import Option
from triosim.errors import DoesNotFitError, OptionError
from triosim.extrapolators.captured.captured_plan import CapturedPlan
from triosim.extrapolators.core.lowering import Lowering
from triosim.extrapolators.core.memory_footprint import MemoryFootprint
from triosim.extrapolators.core.memory_tracker import MemoryTracker
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.core.program import Gradient, Stage
from triosim.extrapolators.core.training_loop import TrainingLoop
from triosim.garbage_collector import without_collecting
from triosim.gpus import Gpu
from triosim.memory.allocator.workspace import WORKSPACE, workspaces
from triosim.memory.captured_memory import CapturedMemory
from triosim.memory.liveness.lifetimes import MEMORY_CATEGORIES, Lifetimes
from triosim.memory.liveness.micro_batch_lifetimes import ProgramStorages
from triosim.memory.liveness.rank_lifetimes import LifetimeTracker, PeakMoment, PeakTracker, Resident, StageLifetimes
from triosim.memory.world_memory import RankMemory, WorldMemory
from triosim.tasks import TaskStream
from triosim.trace import Tensor, Trace


class ExtrapolatedMemory(WorldMemory):
    """The memory of all ranks of a plan: ``ranks`` has an entry for each place of the pipeline, first to last.

    Where ranks run different programs, such as experts with different loads, each program has entries of its own. Where a
    parallelism writes its own tasks, the entries are the different memory footprints.
    """

    def __init__(self, plan: ParallelPlan, trace: Trace, gpu: Gpu | None) -> None:
        super().__init__(gpu, plan.world, plan.parallel)
        self._plan = plan
        self._trace = trace
        self._programs = [[_ProgramMemory(lowering, trace) for lowering in lowerings] for lowerings in plan.lowerings]
        self._by_footprint = _by_footprint(plan)
        self._at = list(self._by_footprint.values()) or _places(plan)
        self._firsts = [ranks[0] for ranks in self._at]
        self.ranks = tuple(self._entry(place, rank) for place, rank in enumerate(self._firsts))

    def fits_in(self, capacity: float) -> bool:
        """Whether all live tensors of every rank fit so many bytes."""
        return self.fullest.peak_bytes <= capacity

    @property
    def declared(self) -> tuple[Option, ...] | None:
        """The options that its parallelisms declare; None where a plug-in that declares none may read any."""
        return self._plan.declared

    def ranks_at(self, place: int) -> list[int]:
        """Return the ranks at a place."""
        return list(self._at[place])

    def lifetimes_of(self, rank: int) -> tuple[Trace, Lifetimes]:
        """Return the operators that a rank runs, and the lifetimes of their tensors, in the iteration that needs most."""
        place = self.place(rank)
        first, footprint = self._firsts[place], self._footprint(place)
        followed = max(self._followed(first), key=lambda one: one.peak(first, footprint).total)
        tracker = followed.lifetimes(first, footprint)
        operators = tuple(tracker.operators)
        if not operators:
            raise OptionError(
                f"rank {rank} runs no operator, so it has no step to show", where="--rank", fix="give another"
            )
        trace = replace(self._trace, operators=operators, storages=(), marks=(), batch_size=self._plan.batch_size)
        return trace, tracker.lifetimes(estimated=not self._trace.storages)

    def _entry(self, place: int, rank: int) -> RankMemory:
        extra = self._workspaces(place, rank)
        footprint = self._footprint(place)
        peak = max((one.peak(rank, footprint) for one in self._followed(rank)), key=lambda peak: peak.total)
        found = {name: size for name, size in zip(MEMORY_CATEGORIES, peak.by_category, strict=True) if size}
        if extra:
            found[WORKSPACE] = found.get(WORKSPACE, 0) + extra
        action = "optimizer" if peak.action is None else str(peak.action)
        return RankMemory(rank, place, len(self._at[place]), peak.total + extra, found, action, peak.layer)

    def _followed(self, rank: int) -> list[_ProgramMemory]:
        """Return the programs that a rank runs, one for each iteration that differs."""
        variant = self._plan.variant(rank)
        return [programs[variant] for programs in self._programs]

    def _workspaces(self, place: int, rank: int) -> int:
        """Return the bytes of cuBLAS's workspaces, all of which exist at the peak of any step but the first."""
        if self.gpu is None:
            return 0
        lowering, footprint = self._followed(rank)[0].lowering, self._footprint(place)
        stage = lowering.held[lowering.pipeline_rank(rank)]
        blocks = stage.blocks if footprint is None or footprint.trains else stage.optimizer
        operators = [operator for block in blocks for operator in block.operators]
        return sum(size for size, _ in workspaces(operators, self.gpu))

    def _footprint(self, place: int) -> MemoryFootprint | None:
        """Return the footprint of the ranks at a place, where a parallelism writes their tasks."""
        return list(self._by_footprint)[place] if self._by_footprint else None


def memory_of(plan: ParallelPlan, trace: Trace, gpu: Gpu | None = None) -> ExtrapolatedMemory:
    """Return the memory of every rank of a plan; ``gpu`` is what must hold it, by default the trace's."""
    return ExtrapolatedMemory(plan, trace, gpus.get(trace.gpu) if gpu is None else gpu)


@without_collecting()
def memory_of_run(plan: ParallelPlan | CapturedPlan, trace: Trace, *, fail_on_oom: bool) -> WorldMemory:
    """Return the memory of every rank of a simulation: of a plan, or of a captured script's streams.

    Raises ``DoesNotFitError`` where a rank does not fit and that is asked for.
    """
    memory = CapturedMemory(plan.streams) if isinstance(plan, CapturedPlan) else memory_of(plan, trace)
    if fail_on_oom and memory.warning is not None:
        raise DoesNotFitError(memory.warning)
    return memory


def _places(plan: ParallelPlan) -> list[list[int]]:
    """Return the ranks at each place: those at one place of the pipeline that run the same program."""
    found: dict[tuple[int, int], list[int]] = {}
    for rank in range(plan.world):
        found.setdefault((plan.lowerings[0][0].pipeline_rank(rank), plan.variant(rank)), []).append(rank)
    return [found[place] for place in sorted(found)]


def _by_footprint(plan: ParallelPlan) -> dict[MemoryFootprint, list[int]]:
    """Return the ranks by memory footprint where a parallelism writes its own tasks; otherwise nothing."""
    found: dict[MemoryFootprint, list[int]] = {}
    for rank in range(plan.world):
        footprint = plan.memory_footprint(rank)
        if footprint is None:
            return {}
        found.setdefault(footprint, []).append(rank)
    return found


class _ProgramMemory:
    """The memory of the ranks that run one lowered program, followed for each place of the pipeline when it is asked for.

    ``footprint`` is that of a rank whose tasks a parallelism writes itself.
    """

    def __init__(self, lowering: Lowering, trace: Trace) -> None:
        self.lowering = lowering
        self._storages = ProgramStorages(lowering.program, trace)
        self._stages: dict[int, StageLifetimes] = {}
        self._peaks: dict[tuple[int, MemoryFootprint | None], PeakMoment] = {}

    def peak(self, rank: int, footprint: MemoryFootprint | None) -> PeakMoment:
        """Return the peak of a rank's memory."""
        key = self.lowering.pipeline_rank(rank), footprint
        if key not in self._peaks:
            tracker = PeakTracker(*self._start(rank, footprint))
            self._follow(rank, tracker, footprint)
            self._peaks[key] = tracker.peak
        return self._peaks[key]

    def lifetimes(self, rank: int, footprint: MemoryFootprint | None) -> LifetimeTracker:
        """Return the tracker that has recorded all lifetimes of a rank."""
        found = LifetimeTracker(*self._start(rank, footprint))
        self._follow(rank, found, footprint)
        return found

    def _start(self, rank: int, footprint: MemoryFootprint | None) -> tuple[StageLifetimes, list[Resident]]:
        place = self.lowering.pipeline_rank(rank)
        hooks = TrainingLoop(self.lowering, rank, MemoryTracker()).hooks

        def accumulated_bytes(gradient: Gradient) -> float:
            return min((one.accumulated_bytes(gradient) for one in hooks), default=gradient.nbytes)

        def resident_bytes(parameter: Tensor) -> float:
            return min((one.resident_bytes(parameter) for one in hooks), default=float(parameter.nbytes))

        if place not in self._stages:
            self._stages[place] = StageLifetimes(self.lowering, place, self._storages, accumulated_bytes)
        residents = list(self._residents(place, resident_bytes))
        return self._stages[place], residents if footprint is None else _residents_of(footprint, residents)

    def _follow(self, rank: int, tracker: PeakTracker | LifetimeTracker, footprint: MemoryFootprint | None) -> None:
        loop = TrainingLoop(self.lowering, rank, tracker)
        tasks = loop.step() if footprint is None else _parts(loop, footprint, self.lowering.program.micro_batches)
        answer: object = None
        try:
            while True:
                tasks.send(answer)  # any answer will do: the loop does not read it
                answer = tracker
        except StopIteration:
            return

    def _residents(self, place: int, resident_bytes: Callable[[Tensor], float]) -> Iterator[Resident]:
        """Yield what a place holds for the whole step: parameters, buffers, optimizer states and inputs."""
        stage = self.lowering.held[place]
        layers, owners, found = _persistent(stage, self._storages)
        for tensor in stage.parameters:
            yield Resident.of(tensor, layers.get(tensor.storage, ""), resident_bytes(tensor))
        parameters = {tensor.storage for tensor in stage.parameters}
        micro_batches = self.lowering.program.micro_batches
        for storage, tensor in found.items():
            if storage in parameters or tensor.category == "gradient":
                continue
            nbytes = self._storages.captured.scale(storage, tensor.nbytes)
            times = micro_batches if tensor.category == "input" else 1
            yield Resident.of(tensor, layers.get(owners.get(storage, storage), ""), nbytes * times)
        for one in self._storages.captured.persistent if place == 0 else ():
            yield Resident.of(one, one.layer, one.nbytes)


def _residents_of(footprint: MemoryFootprint, residents: Iterable[Resident]) -> list[Resident]:
    """Return what a rank that runs a part of a training step holds for the whole step, with its extra buffers."""
    found = []
    for one in residents:
        if one.category == "parameter":
            found.append(replace(one, nbytes=round(one.nbytes * footprint.share)))
        elif footprint.updates if one.category == "optimizer_state" else footprint.trains:
            found.append(one)
    return found + [Resident(round(nbytes), category, what) for what, category, nbytes in footprint.buffers]


def _parts(loop: TrainingLoop, footprint: MemoryFootprint, micro_batches: int) -> TaskStream:
    """Yield the tasks of the parts of a training step that a rank runs."""
    for micro_batch in range(micro_batches if footprint.trains else 0):
        yield from loop.forward()
        yield from loop.backward(last=micro_batch == micro_batches - 1)
    if footprint.updates:
        yield from loop.optimizer()


def _persistent(stage: Stage, storages: ProgramStorages) -> tuple[dict[int, str], dict[int, int], dict[int, Tensor]]:
    """Return by storage, of those that persist: the layer that uses it first, its parameter, and its largest tensor."""
    layers: dict[int, str] = {}
    owners: dict[int, int] = {}
    found: dict[int, Tensor] = {}
    for block in stage.blocks:
        for operator in block.operators:
            for tensor in (*operator.inputs, *operator.outputs):
                if not storages.is_persistent(tensor) or (
                    block.phase == "optimizer" and tensor.category == "parameter"
                ):
                    continue
                layers.setdefault(tensor.storage, operator.layer)
                if tensor.parameter is not None and tensor.parameter in storages.parameters:
                    owners[tensor.storage] = storages.parameters[tensor.parameter]
                before = found.get(tensor.storage)
                if before is None or tensor.numel > before.numel:
                    found[tensor.storage] = tensor
    return layers, owners, found
