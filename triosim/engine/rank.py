"""The state of one simulated GPU and its host while the engine runs, and where sends and receives find each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import simpy

from triosim.engine.recording import RankRecord
from triosim.tasks import Communicator, Handle, Recv, Send

if TYPE_CHECKING:
    from triosim.engine.compute_units import Turn


class Channel(NamedTuple):
    """Where a send and its receive find each other, in order of issue."""

    source: int
    destination: int
    tag: int


class Rank:
    """The state of one GPU and its host."""

    __slots__ = (
        "communicators",
        "copying",
        "ended",
        "free",
        "index",
        "issued",
        "launched",
        "open",
        "record",
        "running",
        "tails",
        "wakeup",
        "wanting",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.record = RankRecord(index)
        self.tails: dict[str, Handle] = {}  # the last task of each stream
        self.communicators: dict[Communicator, Handle] = {}  # the last collective of each communicator
        self.issued: dict[Communicator | Channel, int] = {}  # how many collectives or transfers, by whom they join
        self.open: dict[Handle, None] = {}  # issued and not done, in order of issue
        self.launched = 0  # operators and other tasks among them
        self.ended: deque[float] = deque()  # when the last operators end, where the host may only be so many ahead
        self.wakeup: simpy.Event | None = None  # the host waits for this
        self.free = 1.0  # the part of the compute units that is free
        self.wanting: deque[Turn] = deque()  # computations that are ready and wait for compute units
        self.running: list[Turn] = []  # those that have them
        self.copying: dict[str, deque[Handle]] = {}  # by copy engine: the running copy and the ones behind it


@dataclass(slots=True)
class Side:
    """One rank's part of a transfer between two: what it does, and what to do when the bytes are there."""

    rank: Rank
    handle: Handle
    part: Send | Recv
    finish: Callable[[Rank, Handle], None]


def follow(handle: Handle, other: Handle) -> None:
    """Let a task wait for another, unless that is done."""
    if other.dependents is not None and other is not handle:
        other.dependents.append(handle)
        handle.unmet += 1
