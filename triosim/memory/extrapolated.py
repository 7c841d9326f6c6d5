"""The memory of every rank of an extrapolated run, by category, and whether it fits.

>>> memory = triosim.simulate("trace.json", parallel="fsdp=8").memory
>>> memory.fullest.peak_bytes, memory.fullest.by_category
>>> memory.report()  # all of the fullest rank: what the caching allocator reserves, which layers, a picture

A rank's tasks are followed in the order in which its host launches them. Ranks at one place of the pipeline have the same
memory, so that each place is followed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from triosim import gpus
from triosim.errors import DoesNotFitError, OptionError
from triosim.extrapolators.captured import Captured
from triosim.extrapolators.ledger import Ledger
from triosim.extrapolators.loop import Loop
from triosim.extrapolators.lowering import Lowering
from triosim.extrapolators.plan import Plan
from triosim.extrapolators.program import Gradient, Stage
from triosim.extrapolators.schedule import Action
from triosim.gpus import Gpu
from triosim.memory.analysis import MemoryReport, report
from triosim.memory.gpu_memory import context, visible
from triosim.memory.lifetimes import MEMORY_CATEGORIES
from triosim.memory.rank_ledger import Items, Passes, Resident, Totals
from triosim.memory.settings import AllocatorSettings
from triosim.memory.stage_lifetimes import Known
from triosim.memory.workspace import WORKSPACE, workspaces
from triosim.trace import Tensor, Trace


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The most bytes of live tensors that a rank has, in blocks of 512 bytes, with cuBLAS's workspaces.

    ``ranks`` is how many ranks have as much, at ``place`` of the pipeline; ``rank`` is the first of them. ``by_category`` are
    the bytes at the peak. It is reached in ``action`` of the schedule ("0F3": stage 0, forward, micro-batch 3; "optimizer"), in
    ``layer``.
    """

    rank: int
    place: int
    ranks: int
    peak_bytes: int
    by_category: dict[str, int]
    action: str
    layer: str


class WorldMemory:
    """The memory of all ranks: ``ranks`` has an entry for each place of the pipeline, first to last.

    ``capacity`` is what a process can have of the GPU's memory beside the CUDA context, infinite where the GPU is not known.
    """

    def __init__(self, plan: Plan, trace: Trace, gpu: Gpu | None) -> None:
        self._plan = plan
        self._trace = trace
        self.gpu = gpu
        self.capacity = math.inf if gpu is None else float(visible(gpu) - context(gpu))
        self._places = [_Place(lowering, trace) for lowering in plan.lowerings]
        self._firsts = _first_ranks(plan)
        self.ranks = tuple(self._entry(place, rank) for place, rank in enumerate(self._firsts))

    def __repr__(self) -> str:
        has, room = (f"{nbytes / 2**30:.1f}" for nbytes in (self.fullest.peak_bytes, self.capacity))
        of = "" if self.gpu is None else f" of {room}"
        return f"WorldMemory({self.parallel} on {self.world} GPUs: {has}{of} GiB on rank {self.fullest.rank})"

    @property
    def fullest(self) -> RankMemory:
        """The rank that has most."""
        return max(self.ranks, key=lambda one: (one.peak_bytes, -one.rank))

    @property
    def fits(self) -> bool:
        """Whether all live tensors of every rank fit; what fragmentation takes is not in it."""
        return self.fits_in(self.capacity)

    @property
    def warning(self) -> str | None:
        """One line that says which rank does not fit; None where all do."""
        if self.fits or self.gpu is None:
            return None
        worst = self.fullest
        holds = sorted(worst.by_category.items(), key=lambda pair: -pair[1])[:2]
        most = ", and ".join(f"{name.replace('_', ' ')}, {nbytes / 2**30:.1f} GiB" for name, nbytes in holds)
        return (
            f"rank {worst.rank} does not fit its GPU: {worst.peak_bytes / 2**30:.1f} GiB of tensors, "
            f"{self.capacity / 2**30:.1f} GiB beside the CUDA context of the {self.gpu.name}; most of it is {most}"
        )

    def fits_in(self, capacity: float) -> bool:
        """Whether all live tensors of every rank fit so many bytes."""
        return self.fullest.peak_bytes <= capacity

    def checked(self, rank: int | None) -> int:
        """Return a rank, or the fullest where none is given. Raises ``OptionError`` for one that there is not."""
        if rank is None:
            return self.fullest.rank
        if not 0 <= rank < self._plan.world:
            raise OptionError(
                f"there is no rank {rank}", where="--rank", fix=f"give one from 0 to {self._plan.world - 1}"
            )
        return rank

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self._plan.world

    @property
    def parallel(self) -> str:
        """How the step is parallelised, as a user writes it."""
        return self._plan.parallel

    def ranks_at(self, place: int) -> list[int]:
        """Return the ranks at a place of the pipeline."""
        lowering = self._plan.lowerings[0]
        return [rank for rank in range(self._plan.world) if lowering.place(rank) == place]

    def place(self, rank: int) -> int:
        """Return the place of the pipeline at which a rank is."""
        return self._plan.lowerings[0].place(rank)

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
        followed = max(self._places, key=lambda one: one.totals(place, self._firsts[place]).peak.total)
        items = followed.items(place, self._firsts[place])
        operators = tuple(items.operators)
        trace = replace(
            self._trace, operators=operators, storages=(), marks=(), batch_size=followed.lowering.program.batch_size
        )
        found = items.lifetimes(estimated=not self._trace.storages)
        return report(trace, found, chosen, capacity=capacity, context=context, settings=settings, workspace=workspace)

    def _entry(self, place: int, rank: int) -> RankMemory:
        extra = self._workspaces(place)
        peak = max((one.totals(place, rank).peak for one in self._places), key=lambda peak: peak.total)
        found = {name: size for name, size in zip(MEMORY_CATEGORIES, peak.by_category, strict=True) if size}
        if extra:
            found[WORKSPACE] = found.get(WORKSPACE, 0) + extra
        ranks = self._plan.world // len(self._firsts)
        return RankMemory(rank, place, ranks, peak.total + extra, found, _name(peak.action), peak.layer)

    def _workspaces(self, place: int) -> int:
        """The workspaces of cuBLAS, all of which are there when the peak of any step but the first comes."""
        if self.gpu is None:
            return 0
        stage = self._plan.lowerings[0].held[place]
        operators = [operator for block in stage.blocks for operator in block.operators]
        return sum(size for size, _ in workspaces(operators, self.gpu))


def memory_of(plan: Plan, trace: Trace, gpu: Gpu | None = None) -> WorldMemory:
    """Return the memory of every rank of a plan; ``gpu`` is what must hold it, by default the trace's."""
    return WorldMemory(plan, trace, gpus.get(trace.gpu) if gpu is None else gpu)


def memory_of_run(plan: Plan | Captured, trace: Trace, *, fail_on_oom: bool) -> WorldMemory | None:
    """Return the memory of every rank of a simulation; None for a captured distributed script, which has its own.

    Raises ``DoesNotFitError`` where a rank does not fit and that is asked for.
    """
    if isinstance(plan, Captured):
        if fail_on_oom:
            raise OptionError(
                "the task streams of a distributed script have the memory that was captured",
                where="--fail-on-oom",
                fix="use 'triosim memory --fail-on-oom'",
            )
        return None
    memory = memory_of(plan, trace)
    if fail_on_oom and memory.warning is not None:
        raise DoesNotFitError(memory.warning)
    return memory


def _name(action: Action | None) -> str:
    return "optimizer" if action is None else str(action)


def _first_ranks(plan: Plan) -> list[int]:
    """The first rank at each place of the pipeline."""
    lowering = plan.lowerings[0]
    axis = lowering.program.stage_axis
    places = len(lowering.program.schedule.rows)
    return [plan.mesh.neighbour(axis, 0, place) for place in range(places)] if axis is not None else [0]


class _Place:
    """The places of one lowered program, each followed when it is first asked for."""

    def __init__(self, lowering: Lowering, trace: Trace) -> None:
        self.lowering = lowering
        self._known = Known(lowering.program, trace)
        self._passes: dict[int, Passes] = {}
        self._totals: dict[int, Totals] = {}

    def totals(self, place: int, rank: int) -> Totals:
        """Return what a rank has at most."""
        if place not in self._totals:
            self._totals[place] = Totals(*self._begun(place, rank))
            self._follow(rank, self._totals[place])
        return self._totals[place]

    def items(self, place: int, rank: int) -> Items:
        """Return all that a rank has."""
        found = Items(*self._begun(place, rank))
        self._follow(rank, found)
        return found

    def _begun(self, place: int, rank: int) -> tuple[Passes, list[Resident]]:
        reactions = Loop(self.lowering, rank, Ledger()).reactions

        def accumulates(gradient: Gradient) -> float:
            return min((one.accumulates(gradient) for one in reactions), default=gradient.nbytes)

        def keeps(parameter: Tensor) -> float:
            return min((one.keeps(parameter) for one in reactions), default=float(parameter.nbytes))

        if place not in self._passes:
            self._passes[place] = Passes(self.lowering, place, self._known, accumulates)
        return self._passes[place], list(self._residents(place, keeps))

    def _follow(self, rank: int, ledger: Totals | Items) -> None:
        tasks = Loop(self.lowering, rank, ledger).step()
        answer: object = None
        try:
            while True:
                tasks.send(answer)  # any answer will do: nobody looks at it
                answer = ledger
        except StopIteration:
            return

    def _residents(self, place: int, keeps: Callable[[Tensor], float]) -> Iterator[Resident]:
        """Yield what is at a place all the time: parameters, buffers, the optimizer's states, what the network is fed."""
        stage = self.lowering.held[place]
        layers, owners, found = _staying(stage, self._known)
        for tensor in stage.parameters:
            yield Resident.of(tensor, layers.get(tensor.storage, ""), keeps(tensor))
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
