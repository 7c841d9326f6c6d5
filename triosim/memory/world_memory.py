"""The memory of all ranks of a run, and whether it fits: what extrapolated and captured runs have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triosim.errors import OptionError
from triosim.gpus import Gpu
from triosim.memory.allocator.gpu_memory import GIB, context, visible
from triosim.memory.liveness.lifetimes import Lifetimes
from triosim.memory.liveness.outside import TierBytes
from triosim.memory.memory_report import MemoryReport, analyse
from triosim.trace import Trace
from triosim.units import format_ranks

#: The most parts of a list of ranks that do not fit.
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The peak of live tensors of ``ranks`` with equal memory, in blocks of 512 bytes, with cuBLAS's workspaces.

    ``by_category`` are the bytes at the peak, which is in ``layer`` during ``action``: of the schedule ("0F3": stage 0,
    forward, micro-batch 3), the "start" of the step, the "optimizer", or, of a captured rank, its phase ("backward").
    ``reserved_bytes`` are those of the caching allocator, where it was simulated. ``outside`` are the bytes by category in each
    tier of memory outside of the GPU, when the rank holds most of that tier, which is in the actions ``outside_during``.
    """

    ranks: tuple[int, ...] = field(repr=False)
    peak_bytes: int
    by_category: dict[str, int]
    action: str
    layer: str
    fits: bool
    reserved_bytes: int | None = None
    outside: TierBytes = field(default_factory=dict)
    outside_during: Mapping[str, str] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The first of the ranks."""
        return self.ranks[0]


class WorldMemory(ABC):
    """The memory of all ranks: ``ranks`` has one entry for each set of ranks with equal memory.

    ``world`` is how many ranks there are, ``parallel`` how the step is parallelised, as a user writes it.
    ``capacity`` is what the CUDA context leaves of the GPU's memory; infinite where the GPU is not known.
    """

    ranks: tuple[RankMemory, ...]

    def __init__(self, gpu: Gpu | None, world: int, parallel: str) -> None:
        self.gpu = gpu
        self.world = world
        self.parallel = parallel
        self.capacity = math.inf if gpu is None else float(visible(gpu) - context(gpu))

    @property
    def is_known(self) -> bool:
        """Whether the operators name tensors: without, there is no saying what fits."""
        return True

    def __repr__(self) -> str:
        has, room = (f"{nbytes / GIB:.1f}" for nbytes in (self.fullest.peak_bytes, self.capacity))
        of = "" if self.gpu is None else f" of {room}"
        kind = type(self).__name__
        return f"{kind}({self.parallel} on {self.world} GPUs: {has}{of} GiB on rank {self.fullest.rank})"

    @abstractmethod
    def lifetimes_of(self, rank: int) -> tuple[Trace, Lifetimes]:
        """Return the operators that a rank runs, as a trace, and the lifetimes of their tensors."""

    def of_rank(self, rank: int) -> RankMemory:
        """Return the entry of a rank. Raises ``OptionError`` for one that does not exist."""
        for one in self.ranks:
            if rank in one.ranks:
                return one
        raise OptionError(f"there is no rank {rank}", where="--rank", fix=f"give one from 0 to {self.world - 1}")

    def report(self, rank: int | None = None, gpu: str | Gpu | None = None, **options: Any) -> MemoryReport:
        """Return the memory of a rank, by default the fullest, in full; ``options`` are those of ``triosim.memory.analyse``."""
        trace, found = self.lifetimes_of(self.fullest.rank if rank is None else rank)
        return analyse(trace, gpu or self.gpu, found=found, **options)

    @property
    def fullest(self) -> RankMemory:
        """The entry with the highest peak."""
        return max(self.ranks, key=lambda one: (one.peak_bytes, -one.rank))

    @property
    def fits(self) -> bool:
        """Whether every rank fits its GPU."""
        return all(one.fits for one in self.ranks)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know: which ranks do not fit."""
        return () if self.warning is None else (self.warning,)

    @property
    def warning(self) -> str | None:
        """One line that says which ranks do not fit; None where all do."""
        failing = [one for one in self.ranks if not one.fits]
        if not failing or self.gpu is None:
            return None
        worst = max(failing, key=lambda one: (one.reserved_bytes or one.peak_bytes, -one.rank))
        needed = f"{worst.peak_bytes / GIB:.1f} GiB of tensors"
        if worst.reserved_bytes is not None:
            needed += f", for which {worst.reserved_bytes / GIB:.1f} are reserved"
        of_worst = f" on rank {worst.rank}" if len(failing) > 1 else ""
        largest = sorted(worst.by_category.items(), key=lambda pair: -pair[1])[:2]
        most = ", and ".join(f"{name.replace('_', ' ')}, {nbytes / GIB:.1f} GiB" for name, nbytes in largest)
        return (
            f"{_not_fitting(sorted(rank for one in failing for rank in one.ranks))}: {needed}{of_worst}, "
            f"and the CUDA context leaves {self.capacity / GIB:.1f} GiB on the GPU ({self.gpu.name}); most of it is {most}"
        )


def _not_fitting(ranks: Sequence[int]) -> str:
    """Return that ranks do not fit."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} does not fit its GPU"
    return f"ranks {format_ranks(ranks, _MOST_NAMED)} do not fit their GPUs"
