"""The memory of every rank of a captured distributed script, from ``triosim.memory.analyse`` of each captured rank.

A rank that was not captured has the memory of the captured one that it is assumed to equal. Unlike the ranks of a plan, these
are replayed through the caching allocator, which decides whether they fit.
"""

from __future__ import annotations

from triosim import gpus
from triosim.extrapolators.captured.captured_plan import CapturedPlan
from triosim.memory.liveness.lifetimes import Lifetimes, lifetimes
from triosim.memory.memory_report import analyse
from triosim.memory.world_memory import GIB, RankMemory, WorldMemory
from triosim.trace import Trace
from triosim.trace.task_streams import TaskStreams


class CapturedMemory(WorldMemory):
    """The memory of the ranks of task streams; each captured rank is a place, and has one of the ``reports``.

    The GPU that must hold them is that of the traces.
    """

    def __init__(self, streams: TaskStreams) -> None:
        super().__init__(gpus.get(streams.traces[streams.like[0]].gpu), streams.world, CapturedPlan.parallel)
        self.reports = {rank: analyse(trace, self.gpu) for rank, trace in sorted(streams.traces.items())}
        self._streams = streams
        self._captured = tuple(self.reports)
        self.ranks = tuple(self._entry(place, rank) for place, rank in enumerate(self._captured))

    def fits_at(self, place: int) -> bool:
        """Whether the caching allocator can serve the step of the ranks at a place."""
        return self.reports[self._captured[place]].fits

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know: that they are an estimate, and which rank does not fit."""
        if not any(report.estimated for report in self.reports.values()):
            return super().notes
        said = "the streams have no storages, so a tensor is assumed to live from its first to its last use"
        return (f"memory is an estimate: {said}", *super().notes)

    def ranks_at(self, place: int) -> list[int]:
        """Return a captured rank and those that are assumed to equal it."""
        return [rank for rank, like in enumerate(self._streams.like) if like == self._captured[place]]

    def lifetimes_of(self, rank: int) -> tuple[Trace, Lifetimes]:
        """Return the trace of the captured rank that a rank is assumed to equal, and the lifetimes of its tensors."""
        trace = self._streams.traces[self._streams.like[rank]]
        return trace, lifetimes(trace)

    def _worst(self) -> tuple[RankMemory, str]:
        failing = [one for one in self.ranks if not self.reports[one.rank].fits]
        worst = max(failing, key=lambda one: (self.reports[one.rank].peak_reserved, -one.rank))
        report = self.reports[worst.rank]
        return (
            worst,
            f"{report.peak_live / GIB:.1f} GiB of tensors, for which {report.peak_reserved / GIB:.1f} are reserved",
        )

    def _entry(self, place: int, rank: int) -> RankMemory:
        report = self.reports[rank]
        peak = report.usage.peak
        ran = report.trace.operators[peak.operator] if peak.operator >= 0 else None
        return RankMemory(
            rank=rank,
            place=place,
            ranks=self._streams.like.count(rank),
            peak_bytes=peak.live,
            by_category=report.usage.at_peak(),
            action="start" if ran is None else ran.phase,
            layer="" if ran is None else ran.layer,
        )
