"""Transfers that a live run does not know in advance: each size is simulated once, on a network where nothing else is sent."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from triosim.folding.dry_run import TransferPattern
from triosim.networks.base import Network


class IdleNetwork:
    """A network on a clock of its own, whose transfers take on the clock of a run, ``env``, as long as they take there.

    It is made when it is first needed.
    """

    def __init__(self, env: simpy.Environment, new_network: Callable[[], Network]) -> None:
        self._env = env
        self._new_network = new_network
        self._network: Network | None = None
        self._seconds: dict[tuple[TransferPattern, float], float] = {}

    def run(self, pattern: TransferPattern, nbytes: float, start: Callable[[Network], simpy.Event]) -> simpy.Event:
        """Return an event that fires when what ``start`` starts on the network is over."""
        key = (pattern, nbytes)
        if key not in self._seconds:
            if self._network is None:
                self._network = self._new_network()
            began = self._network.env.now
            self._network.env.run(until=start(self._network))
            self._seconds[key] = self._network.env.now - began
        return self._env.timeout(self._seconds[key])
