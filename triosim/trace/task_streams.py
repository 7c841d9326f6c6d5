"""The task streams of a captured distributed step: a trace for each rank that differs, and the communication groups.

A GPU-free capture of a distributed script makes them, and the engine runs them as they are: no parallelism is put on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triosim.errors import TraceError
from triosim.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class TaskStreams:
    """The streams of ``len(like)`` ranks.

    ``traces`` are those of the captured ranks; ``like[rank]`` is the captured rank that runs the same operators as ``rank``,
    which communicates in groups of its own. ``groups`` are families of groups by name ("tp", "fsdp", "world"): each rank is in
    at most one group of a family, and all ranks of a family's groups are in the order that roots, peers and shares count by.
    ``global_batch_size`` is how many samples all ranks together work on in a step, None where that is not known;
    a rank has one of ``sample_parts`` parts of each of its samples. Of
    ``complete`` streams every rank was read, so that equal ranks are known to be. ``memory_bound`` is the part of
    the time of computations in which they wait for memory, where their operators do not say it. Operators that were
    ``measured_together`` with the communication have the times that they take beside it. ``topology`` is the file of
    the network that they come with, and ``notes`` are what a user should know of how they were read.
    """

    traces: Mapping[int, Trace]
    like: tuple[int, ...]
    groups: Mapping[str, tuple[tuple[int, ...], ...]]
    source: str = ""
    global_batch_size: int | None = None
    complete: bool = False
    memory_bound: float | None = None
    topology: str | None = None
    notes: tuple[str, ...] = ()
    measured_together: bool = False
    sample_parts: int = 1

    def __post_init__(self) -> None:
        where = self.source or None
        for rank, model in enumerate(self.like):
            if model not in self.traces:
                raise TraceError(f"rank {rank} is represented by rank {model}, which was not captured", where=where)
        for name, groups in self.groups.items():
            members = [rank for group in groups for rank in group]
            if len(set(members)) != len(members):
                raise TraceError(
                    f"a rank is in two groups of '{name}'", where=where, fix="give the groups different names"
                )
            if any(not 0 <= rank < self.world for rank in members):
                raise TraceError(f"'{name}' has ranks beyond the {self.world} of the world", where=where)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.like)

    def group(self, family: str, rank: int) -> tuple[int, ...]:
        """Return the group of a family that a rank is in. Raises ``TraceError`` where it is in none."""
        for group in self.groups.get(family, ()):
            if rank in group:
                return group
        raise TraceError(f"rank {rank} belongs to no group of '{family}'", where=self.source or None)
