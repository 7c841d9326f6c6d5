"""The copy engines of the simulated GPUs: one for each direction, each with a queue of copies; and copies between memories.

A copy between two memories outside of the GPU takes no engine: the host's threads carry it, and copies between the same two
follow one another. A memory that only some may access at once lets the others wait in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import simpy

from triosim.engine.recording import Recording
from triosim.errors import SimulationError
from triosim.networks.extensions import RankCopies
from triosim.networks.topology.memories import TIERS, end_of_copy
from triosim.tasks import Copy, Handle

if TYPE_CHECKING:
    from triosim.engine.rank_state import RankState
    from triosim.extrapolators.core.symmetry import Symmetry
    from triosim.networks.base import Network

#: Called with a transfer that starts: its kind, its ranks, the event of its delivery, and what to call then.
StartTransfer = Callable[[str, Sequence[int], simpy.Event, Callable[[simpy.Event], None]], None]


class _Access(NamedTuple):
    """A copy that has its engine, the nodes at its ends, and those of them that only some may access at once."""

    rank: RankState
    handle: Handle
    source: str
    destination: str
    limited: tuple[str, ...]


class CopyEngines:
    """Runs the Copy tasks of all ranks; ``finish`` is called for each that is delivered.

    With a ``symmetry`` the ranks are the representatives, and each copy counts for all ranks of a class.
    """

    def __init__(
        self,
        network: Network,
        recording: Recording,
        finish: Callable[[RankState, Handle], None],
        start_transfer: StartTransfer,
        symmetry: Symmetry | None = None,
    ) -> None:
        self._env = network.env
        self._network = network
        self._recording = recording
        self._finish = finish
        self._start_transfer = start_transfer
        self._multiplicity = 1 if symmetry is None else symmetry.class_size
        self._accesses: dict[str, int] = {}  # that a memory has now, where it has few at once
        self._waiting: deque[_Access] = deque()

    def begin(self, rank: RankState, handle: Handle, task: Copy) -> None:
        """Take a copy that is ready; it starts when the copies before it on the same engine are delivered."""
        handle.arrived = self._env.now
        queue = rank.copy_queues.setdefault(_engine(task), deque())
        queue.append(handle)
        if len(queue) == 1:
            self._ask(rank, handle, task)

    def _ask(self, rank: RankState, handle: Handle, task: Copy) -> None:
        """Start a copy, or let it wait for memories that others access."""
        if task.seconds is not None:
            self._start(_Access(rank, handle, task.source, task.destination, ()))
            return
        source, destination = self._node(rank, task.source), self._node(rank, task.destination)
        memories = self._network.topology.memories
        ends = dict.fromkeys((source, destination))
        limited = tuple([end for end in ends if end in memories and memories[end].simultaneous is not None])
        access = _Access(rank, handle, source, destination, limited)
        if self._is_free(access):
            self._start(access)
        else:
            self._waiting.append(access)

    def _is_free(self, access: _Access) -> bool:
        memories = self._network.topology.memories
        return all(self._accesses.get(end, 0) < (memories[end].simultaneous or 0) for end in access.limited)

    def _start(self, access: _Access) -> None:
        rank, handle = access.rank, access.handle
        task = handle.task
        assert isinstance(task, Copy)
        started = handle.started = self._env.now
        for end in access.limited:
            self._accesses[end] = self._accesses.get(end, 0) + 1

        def delivered(_: simpy.Event) -> None:
            for end in access.limited:
                self._accesses[end] -= 1
            queue = rank.copy_queues[_engine(task)]
            queue.popleft()
            spent = self._env.now - started
            self._recording.count_transfer(("copy", task.label, 1, task.nbytes), spent, self._multiplicity)
            if queue:  # before what waits for this copy may ask for the engine
                following = queue[0].task
                assert isinstance(following, Copy)
                self._ask(rank, queue[0], following)
            self._finish(rank, handle)
            if access.limited:
                self._start_waiting()

        self._start_transfer("copy", (rank.index,), self._transfer(access, task), delivered)

    def _transfer(self, access: _Access, task: Copy) -> simpy.Event:
        network = self._network
        if task.seconds is not None:
            return self._env.timeout(task.seconds)
        if isinstance(network, RankCopies):
            return network.copy(access.rank.index, task.source, task.destination, task.nbytes)
        return network.transfer(access.source, access.destination, task.nbytes)

    def _start_waiting(self) -> None:
        """Start those that wait for memories and now may, in the order in which they came."""
        waiting, self._waiting = self._waiting, deque()
        for access in waiting:
            if self._is_free(access):
                self._start(access)
            else:
                self._waiting.append(access)

    def _node(self, rank: RankState, name: str) -> str:
        topology = self._network.topology
        found = end_of_copy(topology, rank.index, name)
        if found is None:
            what, key = next(said for tier, said in TIERS.items() if tier == name)
            raise SimulationError(
                f"the topology has no {what} that {topology.node(rank.index)} could copy from or to",
                where=topology.name,
                fix=f"say what it has (key '{key}'), or copy nothing",
            )
        return found


def _engine(task: Copy) -> str:
    """Return the name of the queue that a copy takes: of a GPU's engine in its direction, or of two memories."""
    if "device" in (task.source, task.destination):
        return task.destination if task.destination == "device" else "from device"
    return f"{task.source} to {task.destination}"
