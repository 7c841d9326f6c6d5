"""The memory of all ranks of a run, and whether it fits: what an extrapolated and a captured run have in common.

``triosim.memory.extrapolated_memory`` is for the ranks of a plan, ``triosim.memory.captured_memory`` for those of a script.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from triosim.errors import OptionError
from triosim.gpus import Gpu
from triosim.memory.allocator.gpu_memory import context, visible
from triosim.memory.allocator.settings import AllocatorSettings
from triosim.memory.liveness.lifetimes import Lifetimes
from triosim.memory.memory_report import MemoryReport, analyse
from triosim.trace import Trace

GIB = 2**30


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The peak of live tensors of ranks with equal memory, in blocks of 512 bytes, with cuBLAS's workspaces.

    ``place`` numbers the sets of ranks with equal memory; ``ranks`` says how many are in this one, ``rank`` is the first.
    ``by_category`` are the bytes at the peak, which is in ``layer`` during ``action``: of the schedule ("0F3": stage 0,
    forward, micro-batch 3), the "optimizer", or, of a captured rank, its phase ("backward").
    """

    rank: int
    place: int
    ranks: int
    peak_bytes: int
    by_category: dict[str, int]
    action: str
    layer: str


class WorldMemory(ABC):
    """The memory of all ranks: ``ranks`` has one entry for each set of ranks with equal memory, numbered by ``place``.

    ``world`` is how many ranks there are, ``parallel`` how the step is parallelised, as a user writes it.
    ``capacity`` is what the CUDA context leaves of the GPU's memory; infinite where the GPU is not known.
    """

    ranks: tuple[RankMemory, ...]

    def __init__(self, gpu: Gpu | None, world: int, parallel: str) -> None:
        self.gpu = gpu
        self.world = world
        self.parallel = parallel
        self.capacity = math.inf if gpu is None else float(visible(gpu) - context(gpu))

    def __repr__(self) -> str:
        has, room = (f"{nbytes / GIB:.1f}" for nbytes in (self.fullest.peak_bytes, self.capacity))
        of = "" if self.gpu is None else f" of {room}"
        kind = type(self).__name__
        return f"{kind}({self.parallel} on {self.world} GPUs: {has}{of} GiB on rank {self.fullest.rank})"

    @abstractmethod
    def ranks_at(self, place: int) -> list[int]:
        """Return the ranks at a place."""

    def place(self, rank: int) -> int:
        """Return the place at which a rank is."""
        return next(one.place for one in self.ranks if rank in self.ranks_at(one.place))

    @abstractmethod
    def lifetimes_of(self, rank: int) -> tuple[Trace, Lifetimes]:
        """Return the operators that a rank runs, as a trace, and the lifetimes of their tensors."""

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
        trace, found = self.lifetimes_of(self.checked(rank))
        return analyse(
            trace,
            gpu or self.gpu,
            found=found,
            capacity=capacity,
            context=context,
            settings=settings,
            workspace=workspace,
        )

    @property
    def fullest(self) -> RankMemory:
        """The rank with the highest peak."""
        return max(self.ranks, key=lambda one: (one.peak_bytes, -one.rank))

    @property
    def fits(self) -> bool:
        """Whether every rank fits its GPU."""
        return all(map(self.fits_at, range(len(self.ranks))))

    def fits_at(self, place: int) -> bool:
        """Whether all live tensors of the ranks at a place fit, fragmentation not counted."""
        return self.ranks[place].peak_bytes <= self.capacity

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know: which rank does not fit."""
        return () if self.warning is None else (self.warning,)

    @property
    def warning(self) -> str | None:
        """One line that says which rank does not fit; None where all do."""
        if self.fits or self.gpu is None:
            return None
        worst, needed = self._worst()
        holds = sorted(worst.by_category.items(), key=lambda pair: -pair[1])[:2]
        most = ", and ".join(f"{name.replace('_', ' ')}, {nbytes / GIB:.1f} GiB" for name, nbytes in holds)
        return (
            f"rank {worst.rank} does not fit its GPU: {needed}, "
            f"and the CUDA context leaves {self.capacity / GIB:.1f} GiB on the GPU ({self.gpu.name}); most of it is {most}"
        )

    def _worst(self) -> tuple[RankMemory, str]:
        """Return the rank that exceeds its GPU most, and what it needs."""
        return self.fullest, f"{self.fullest.peak_bytes / GIB:.1f} GiB of tensors"

    def checked(self, rank: int | None) -> int:
        """Return a rank, by default the fullest. Raises ``OptionError`` for one that does not exist."""
        if rank is None:
            return self.fullest.rank
        if not 0 <= rank < self.world:
            raise OptionError(f"there is no rank {rank}", where="--rank", fix=f"give one from 0 to {self.world - 1}")
        return rank
