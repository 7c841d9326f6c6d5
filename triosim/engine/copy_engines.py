"""The copy engines of the simulated GPUs: one for each direction, each with a queue of copies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import simpy

from triosim.engine.recording import Recording
from triosim.errors import SimulationError
from triosim.tasks import Copy, Handle

if TYPE_CHECKING:
    from triosim.engine.rank_state import RankState
    from triosim.networks.base import Network

#: Called with a transfer that starts: its kind, its ranks, the event of its delivery, and what to call then.
StartTransfer = Callable[[str, Sequence[int], simpy.Event, Callable[[simpy.Event], None]], None]


class CopyEngines:
    """Runs the Copy tasks of all ranks; ``finish`` is called for each that is delivered."""

    def __init__(
        self,
        network: Network,
        recording: Recording,
        finish: Callable[[RankState, Handle], None],
        start_transfer: StartTransfer,
    ) -> None:
        self._env = network.env
        self._network = network
        self._recording = recording
        self._finish = finish
        self._start_transfer = start_transfer

    def begin(self, rank: RankState, handle: Handle, task: Copy) -> None:
        """Take a copy that is ready; it starts when the copies before it on the same engine are delivered."""
        handle.arrived = self._env.now
        queue = rank.copy_queues.setdefault(task.destination, deque())
        queue.append(handle)
        if len(queue) == 1:
            self._start(rank, handle, task)

    def _start(self, rank: RankState, handle: Handle, task: Copy) -> None:
        source, destination = self._node(rank, task.source), self._node(rank, task.destination)
        started = handle.started = self._env.now

        def delivered(_: simpy.Event) -> None:
            queue = rank.copy_queues[task.destination]
            queue.popleft()
            self._recording.count_transfer(("copy", task.label, 1, task.nbytes), self._env.now - started)
            self._finish(rank, handle)
            if queue:
                following = queue[0].task
                assert isinstance(following, Copy)
                self._start(rank, queue[0], following)

        self._start_transfer("copy", (rank.index,), self._network.transfer(source, destination, task.nbytes), delivered)

    def _node(self, rank: RankState, name: str) -> str:
        topology = self._network.topology
        gpu = topology.node(rank.index)
        if name == "device":
            return gpu
        if name != "host":
            return topology.node(name)
        host = topology.host_of(gpu)
        if host is None:
            raise SimulationError(
                f"the topology has no host memory that {gpu} could copy from",
                where=topology.name,
                fix="give the topology a host (key 'host') or do not copy the input",
            )
        return host
