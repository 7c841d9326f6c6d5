"""What the profiles of all ranks of a run have in common: numbers of streams and process groups, and clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triosim.memory.world_memory import WorldMemory
from triosim.reports.kineto.activity import activities, lead
from triosim.reports.tracks import TrackNumbers, stream_of
from triosim.tasks import Collective, Communicator, Handle
from triosim.trace.formats.pytorch.kineto_file import ProcessGroup

#: PyTorch's number of the stream that a script computes on.
_FIRST_STREAM = 7


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the profiles of all ranks have in common; ``lead`` is by how much the GPUs' clock starts later than the hosts'."""

    model: str
    lead: int
    streams: TrackNumbers
    groups: Mapping[Communicator, int]
    memory: WorldMemory | None


def run_facts(model: str, by_rank: Mapping[int, Sequence[Handle]], memory: WorldMemory | None = None) -> RunFacts:
    """Return the facts of a run, given the handles of each rank."""
    groups: dict[Communicator, int] = {}
    streams: set[str] = set()
    for handles in by_rank.values():
        for handle in handles:
            streams.add(stream_of(handle.task))
            if isinstance(handle.task, Collective):
                groups.setdefault(handle.task.group, len(groups))
    return RunFacts(
        model, max(lead(activities(handles)) for handles in by_rank.values()), TrackNumbers(streams, _FIRST_STREAM),
        groups, memory,
    )  # fmt: skip


def groups_of(numbers: Mapping[Communicator, int], rank: int | None = None) -> tuple[ProcessGroup, ...]:
    """Return the process groups of a run, those that a rank is in where one is given."""
    return tuple(
        [
            ProcessGroup(number, group.name, group.ranks)
            for group, number in numbers.items()
            if rank is None or rank in group.ranks
        ]
    )
