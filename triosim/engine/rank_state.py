"""The state of a simulated GPU and its host while the engine runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import simpy

from triosim.engine.recording import RankRecord
from triosim.tasks import Communicator, Handle, Recv, Send

if TYPE_CHECKING:
    from triosim.engine.compute_units import ComputeProgress


class Channel(NamedTuple):
    """Source, destination and tag, by which sends and receives are matched in order of issue."""

    source: int
    destination: int
    tag: int


class RankState:
    """The state of a GPU and its host: the tasks that its streams, its compute units and its copy engines hold."""

    __slots__ = (
        "copy_queues",
        "free_share",
        "index",
        "issue_counts",
        "last_collectives",
        "open_launches",
        "operator_ends",
        "record",
        "running",
        "tails",
        "unfinished",
        "waiting",
        "wakeup",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.record = RankRecord(index)
        self.tails: dict[str, Handle] = {}  # the last task of each stream
        self.last_collectives: dict[Communicator, Handle] = {}
        self.issue_counts: dict[Communicator | Channel, int] = {}  # collectives and transfers issued so far
        self.unfinished: dict[Handle, None] = {}  # tasks that are issued and not finished, in order of issue
        self.open_launches = 0  # launches of the unfinished tasks
        self.operator_ends: deque[float] = deque()  # of the last operators, where the host may be few operators ahead
        self.wakeup: simpy.Event | None = None  # fires when the host can go on
        self.free_share = 1.0  # of the compute units
        self.waiting: deque[ComputeProgress] = deque()  # computations that wait for compute units
        self.running: list[ComputeProgress] = []  # computations that have compute units
        self.copy_queues: dict[str, deque[Handle]] = {}  # by copy engine: the running copy, then those behind it


@dataclass(slots=True)
class TransferEnd:
    """The send or the receive of a transfer; ``finish`` is called when the data has arrived."""

    rank: RankState
    handle: Handle
    task: Send | Recv
    finish: Callable[[RankState, Handle], None]


def add_dependency(handle: Handle, other: Handle) -> None:
    """Make a task wait for another, unless that is finished."""
    if other.dependents is not None and other is not handle:
        other.dependents.append(handle)
        handle.open_dependencies += 1
