"""The memory of every rank of a captured distributed script, from ``triosim.memory.analyse`` of each captured rank.

A rank that was not captured has the memory of the captured one that it is assumed to equal. Unlike the ranks of a plan, these
are replayed through the caching allocator, which decides whether they fit.
"""

from __future__ import annotations

from triosim import gpus
from triosim.extrapolators.captured.captured_plan import CapturedPlan
from triosim.memory.liveness.lifetimes import Lifetimes, lifetimes
from triosim.memory.memory_report import ESTIMATE, MemoryReport, analyse, is_inferred
from triosim.memory.world_memory import RankMemory, WorldMemory
from triosim.trace import Trace
from triosim.trace.task_streams import TaskStreams


class CapturedMemory(WorldMemory):
    """The memory of the ranks of task streams; each captured rank has one of the ``reports``.

    The GPU that must hold them is that of the traces.
    """

    def __init__(self, streams: TaskStreams) -> None:
        super().__init__(gpus.get(streams.traces[streams.like[0]].gpu), streams.world, CapturedPlan.parallel)
        self.reports = {rank: analyse(trace, self.gpu) for rank, trace in sorted(streams.traces.items())}
        self._streams = streams
        self.ranks = tuple(self._rank_memory(captured, report) for captured, report in self.reports.items())

    @property
    def is_known(self) -> bool:
        """Whether the ranks' operators name tensors."""
        return any(trace.names_tensors and not is_inferred(trace) for trace in self._streams.traces.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know: that they are an estimate, and which rank does not fit."""
        if not self.is_known:
            named = any(trace.names_tensors for trace in self._streams.traces.values())
            why = "the profiles have no allocations (profile_memory=True)" if named else "the operators name no tensors"
            return (f"{why}: memory is not known",)
        estimated = any(report.estimated for report in self.reports.values())
        return (*([f"memory is {ESTIMATE}"] if estimated else []), *super().notes)

    def lifetimes_of(self, rank: int) -> tuple[Trace, Lifetimes]:
        """Return the trace of the captured rank that a rank is assumed to equal, and the lifetimes of its tensors."""
        trace = self._streams.traces[self._streams.like[self.of_rank(rank).rank]]
        return trace, lifetimes(trace)

    def _rank_memory(self, captured: int, report: MemoryReport) -> RankMemory:
        peak = report.usage.peak
        ran = report.trace.operators[peak.operator] if peak.operator >= 0 else None
        return RankMemory(
            ranks=tuple(rank for rank, like in enumerate(self._streams.like) if like == captured),
            peak_bytes=peak.live,
            by_category=report.usage.at_peak(),
            action="start" if ran is None else ran.phase,
            layer="" if ran is None else ran.layer,
            fits=report.fits,
            reserved_bytes=report.peak_reserved,
        )
