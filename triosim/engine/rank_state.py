"""The state of a simulated GPU and its host while the engine runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(slots=True, eq=False)
class RankState:
    """The state of a GPU and its host: the tasks that its streams, its compute units and its copy engines hold."""

    index: int
    record: RankRecord
    tails: dict[str, Handle] = field(default_factory=dict)  # the last task of each stream
    last_collectives: dict[Communicator, Handle] = field(default_factory=dict)
    issue_counts: dict[Communicator | Channel, int] = field(default_factory=dict)  # collectives and transfers so far
    unfinished: dict[Handle, None] = field(
        default_factory=dict
    )  # tasks that are issued and not finished, in order of issue
    host_time: float = 0.0  # when the host has launched what was issued
    open_launches: int = 0  # launches of the unfinished tasks
    operator_ends: deque[float] = field(default_factory=deque)  # of the last operators, where the host may be few ahead
    wakeup: simpy.Event | None = None  # fires when the host can go on
    free_share: float = 1.0  # of the compute units
    waiting: deque[ComputeProgress] = field(default_factory=deque)  # computations that wait for compute units
    running: list[ComputeProgress] = field(default_factory=list)  # computations that have compute units
    copy_queues: dict[str, deque[Handle]] = field(default_factory=dict)  # by copy engine: the running copy comes first


@dataclass(slots=True)
class TransferEnd:
    """The send or the receive of a transfer, which ``started`` when both were there; ``finish`` is called at its end."""

    rank: RankState
    handle: Handle
    task: Send | Recv
    finish: Callable[[TransferEnd], None]
    started: float = 0.0


def add_dependency(handle: Handle, other: Handle) -> None:
    """Make a task wait for another, unless that is finished."""
    if other.dependents is not None and other is not handle:
        other.dependents.append(handle)
        handle.open_dependencies += 1
