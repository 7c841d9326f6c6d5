"""The memory of every rank of an extrapolated run, by category, and whether it fits.

>>> memory = triosim.simulate("trace.json", parallel="fsdp=8").memory
>>> memory.fullest.peak_bytes, memory.fullest.by_category
>>> memory.report()  # all of the fullest rank: what the caching allocator reserves, which layers, a picture

A rank's tasks are followed in the order in which its host launches them. Ranks that run the same program at one place of the
pipeline have the same memory, so that each such place is followed once.
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
from triosim.extrapolators.core.schedule import Action
from triosim.extrapolators.core.training_loop import TrainingLoop
from triosim.garbage_collector import without_collecting
from triosim.gpus import Gpu
from triosim.memory.allocator.settings import AllocatorSettings
from triosim.memory.allocator.workspace import WORKSPACE, workspaces
from triosim.memory.analysis import MemoryReport, report
from triosim.memory.captured import CapturedMemory
from triosim.memory.liveness.lifetimes import MEMORY_CATEGORIES
from triosim.memory.liveness.stage_lifetimes import Known
from triosim.memory.rank_tracker import Items, Passes, Resident, Totals
from triosim.memory.world import RankMemory, WorldMemory
from triosim.tasks import TaskStream
from triosim.trace import Tensor, Trace


class PlannedMemory(WorldMemory):
    """The memory of all ranks of a plan: ``ranks`` has an entry for each place of the pipeline, first to last.

    Where ranks run different programs (experts that get more and fewer tokens), each of them has places of its own.
    """

    def __init__(self, plan: ParallelPlan, trace: Trace, gpu: Gpu | None) -> None:
        super().__init__(gpu)
        self._plan = plan
        self._trace = trace
        self._programs = [[_Place(lowering, trace) for lowering in lowerings] for lowerings in plan.lowerings]
        self._kinds = _kinds(plan)
        self._at = list(self._kinds.values()) or _places(plan)
        self._firsts = [ranks[0] for ranks in self._at]
        self.ranks = tuple(self._entry(place, rank) for place, rank in enumerate(self._firsts))

    def fits_in(self, capacity: float) -> bool:
        """Whether all live tensors of every rank fit so many bytes."""
        return self.fullest.peak_bytes <= capacity

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self._plan.world

    @property
    def parallel(self) -> str:
        """How the step is parallelised, as a user writes it."""
        return self._plan.parallel

    @property
    def declared(self) -> tuple[Option, ...] | None:
        """The options that its parallelisms declare; None where a plug-in that declares none may read any."""
        return self._plan.declared

    def ranks_at(self, place: int) -> list[int]:
        """Return the ranks at a place, or those that hold the same where a parallelism writes its own tasks."""
        return list(self._at[place])

    def place(self, rank: int) -> int:
        """Return the place at which a rank is."""
        if self._kinds:
            return next(place for place, ranks in enumerate(self._kinds.values()) if rank in ranks)
        return _place(self._plan, rank)

    def report(
        self,
        rank: int | None = None,
        gpu: str | Gpu | None = None,
        *,
        capacity: float | None = None,
        context: float | None = None,
        settings: AllocatorSettings | None = None,
        workspace: bool = True,
    ) -> MemoryReport:
        """Return all of a rank's memory, by default of the fullest one's: see ``triosim.memory.analyse`` for the options."""
        rank = self.fullest.rank if rank is None else rank
        chosen = gpu if gpu is not None else self.gpu
        place = self.place(rank)
        first, holding = self._firsts[place], self._holding(place)
        followed = max(self._followed(first), key=lambda one: one.totals(first, holding).peak.total)
        items = followed.items(first, holding)
        operators = tuple(items.operators)
        if not operators:
            raise OptionError(
                f"rank {rank} runs no operator, so it has no step to show", where="--rank", fix="give another"
            )
        trace = replace(self._trace, operators=operators, storages=(), marks=(), batch_size=self._plan.batch_size)
        found = items.lifetimes(estimated=not self._trace.storages)
        return report(trace, found, chosen, capacity=capacity, context=context, settings=settings, workspace=workspace)

    def _entry(self, place: int, rank: int) -> RankMemory:
        extra = self._workspaces(place, rank)
        holding = self._holding(place)
        peak = max((one.totals(rank, holding).peak for one in self._followed(rank)), key=lambda peak: peak.total)
        found = {name: size for name, size in zip(MEMORY_CATEGORIES, peak.by_category, strict=True) if size}
        if extra:
            found[WORKSPACE] = found.get(WORKSPACE, 0) + extra
        return RankMemory(rank, place, len(self._at[place]), peak.total + extra, found, _name(peak.action), peak.layer)

    def _followed(self, rank: int) -> list[_Place]:
        """The programs that a rank runs, one for each iteration that differs."""
        variant = self._plan.variant(rank)
        return [programs[variant] for programs in self._programs]

    def _workspaces(self, place: int, rank: int) -> int:
        """The workspaces of cuBLAS, all of which are there when the peak of any step but the first comes."""
        if self.gpu is None:
            return 0
        lowering, holding = self._followed(rank)[0].lowering, self._holding(place)
        stage = lowering.held[lowering.place(rank)]
        blocks = stage.blocks if holding is None or holding.trains else stage.optimizer
        operators = [operator for block in blocks for operator in block.operators]
        return sum(size for size, _ in workspaces(operators, self.gpu))

    def _holding(self, place: int) -> MemoryFootprint | None:
        """What the ranks at a place hold, where a parallelism writes their tasks."""
        return list(self._kinds)[place] if self._kinds else None


def memory_of(plan: ParallelPlan, trace: Trace, gpu: Gpu | None = None) -> PlannedMemory:
    """Return the memory of every rank of a plan; ``gpu`` is what must hold it, by default the trace's."""
    return PlannedMemory(plan, trace, gpus.get(trace.gpu) if gpu is None else gpu)


@without_collecting()
def memory_of_run(plan: ParallelPlan | CapturedPlan, trace: Trace, *, fail_on_oom: bool) -> WorldMemory:
    """Return the memory of every rank of a simulation: of a plan, or of a captured script's streams.

    Raises ``DoesNotFitError`` where a rank does not fit and that is asked for.
    """
    memory = CapturedMemory(plan.streams) if isinstance(plan, CapturedPlan) else memory_of(plan, trace)
    if fail_on_oom and memory.warning is not None:
        raise DoesNotFitError(memory.warning)
    return memory


def _name(action: Action | None) -> str:
    return "optimizer" if action is None else str(action)


def _places(plan: ParallelPlan) -> list[list[int]]:
    """The ranks at each place."""
    found: dict[int, list[int]] = {}
    for rank in range(plan.world):
        found.setdefault(_place(plan, rank), []).append(rank)
    return [found[place] for place in sorted(found)]


def _place(plan: ParallelPlan, rank: int) -> int:
    """The place at which a rank is: of the pipeline, and there of the ranks that run one program."""
    return plan.lowerings[0][0].place(rank) * plan.variants + plan.variant(rank)


def _kinds(plan: ParallelPlan) -> dict[MemoryFootprint, list[int]]:
    """The ranks that hold the same, where a parallelism writes its own tasks; empty where none does."""
    found: dict[MemoryFootprint, list[int]] = {}
    for rank in range(plan.world):
        holding = plan.memory_footprint(rank)
        if holding is None:
            return {}
        found.setdefault(holding, []).append(rank)
    return found


class _Place:
    """The places of one lowered program, each followed when it is first asked for.

    ``holding`` is of a rank whose tasks a parallelism writes itself.
    """

    def __init__(self, lowering: Lowering, trace: Trace) -> None:
        self.lowering = lowering
        self._known = Known(lowering.program, trace)
        self._passes: dict[int, Passes] = {}
        self._totals: dict[tuple[int, MemoryFootprint | None], Totals] = {}

    def totals(self, rank: int, holding: MemoryFootprint | None) -> Totals:
        """Return what a rank has at most."""
        key = self.lowering.place(rank), holding
        if key not in self._totals:
            self._totals[key] = Totals(*self._begun(rank, holding))
            self._follow(rank, self._totals[key], holding)
        return self._totals[key]

    def items(self, rank: int, holding: MemoryFootprint | None) -> Items:
        """Return all that a rank has."""
        found = Items(*self._begun(rank, holding))
        self._follow(rank, found, holding)
        return found

    def _begun(self, rank: int, holding: MemoryFootprint | None) -> tuple[Passes, list[Resident]]:
        place = self.lowering.place(rank)
        hooks = TrainingLoop(self.lowering, rank, MemoryTracker()).hooks

        def accumulated_bytes(gradient: Gradient) -> float:
            return min((one.accumulated_bytes(gradient) for one in hooks), default=gradient.nbytes)

        def resident_bytes(parameter: Tensor) -> float:
            return min((one.resident_bytes(parameter) for one in hooks), default=float(parameter.nbytes))

        if place not in self._passes:
            self._passes[place] = Passes(self.lowering, place, self._known, accumulated_bytes)
        residents = list(self._residents(place, resident_bytes))
        return self._passes[place], residents if holding is None else _held(holding, residents)

    def _follow(self, rank: int, tracker: Totals | Items, holding: MemoryFootprint | None) -> None:
        loop = TrainingLoop(self.lowering, rank, tracker)
        tasks = loop.step() if holding is None else _parts(loop, holding, self.lowering.program.micro_batches)
        answer: object = None
        try:
            while True:
                tasks.send(answer)  # any answer will do: nobody looks at it
                answer = tracker
        except StopIteration:
            return

    def _residents(self, place: int, resident_bytes: Callable[[Tensor], float]) -> Iterator[Resident]:
        """Yield what is at a place all the time: parameters, buffers, the optimizer's states, what the network is fed."""
        stage = self.lowering.held[place]
        layers, owners, found = _staying(stage, self._known)
        for tensor in stage.parameters:
            yield Resident.of(tensor, layers.get(tensor.storage, ""), resident_bytes(tensor))
        parameters = {tensor.storage for tensor in stage.parameters}
        micro_batches = self.lowering.program.micro_batches
        for storage, tensor in found.items():
            if storage in parameters or tensor.category == "gradient":
                continue
            nbytes = self._known.captured.scale(storage, tensor.nbytes)
            times = micro_batches if tensor.category == "input" else 1
            yield Resident.of(tensor, layers.get(owners.get(storage, storage), ""), nbytes * times)
        for one in self._known.captured.staying if place == 0 else ():
            yield Resident.of(one, one.layer, one.nbytes)


def _held(holding: MemoryFootprint, residents: Iterable[Resident]) -> list[Resident]:
    """What of a training step's memory stays with a rank that does a part of it, and what it has beside."""
    found = []
    for one in residents:
        if one.category == "parameter":
            found.append(replace(one, nbytes=round(one.nbytes * holding.share)))
        elif holding.updates if one.category == "optimizer_state" else holding.trains:
            found.append(one)
    return found + [Resident(round(nbytes), category, what) for what, category, nbytes in holding.beside]


def _parts(loop: TrainingLoop, holding: MemoryFootprint, micro_batches: int) -> TaskStream:
    """The parts of a training step that a rank runs."""
    for micro_batch in range(micro_batches if holding.trains else 0):
        yield from loop.forward()
        yield from loop.backward(last=micro_batch == micro_batches - 1)
    if holding.updates:
        yield from loop.optimizer()


def _staying(stage: Stage, known: Known) -> tuple[dict[int, str], dict[int, int], dict[int, Tensor]]:
    """What a stage uses that was there before: the layers that use it first, whose state it is, and the largest tensors."""
    layers: dict[int, str] = {}
    owners: dict[int, int] = {}
    found: dict[int, Tensor] = {}
    for block in stage.blocks:
        for operator in block.operators:
            for tensor in (*operator.inputs, *operator.outputs):
                if not known.stays(tensor) or (block.phase == "optimizer" and tensor.category == "parameter"):
                    continue
                layers.setdefault(tensor.storage, operator.layer)
                if tensor.parameter is not None and tensor.parameter in known.parameters:
                    owners[tensor.storage] = known.parameters[tensor.parameter]
                before = found.get(tensor.storage)
                if before is None or tensor.numel > before.numel:
                    found[tensor.storage] = tensor
    return layers, owners, found
