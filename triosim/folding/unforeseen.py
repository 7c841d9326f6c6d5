"""Transfers that the compared step of a run did not have: what they contend with may not be simulated on a folded network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import simpy

from triosim.errors import AsymmetryError

#: Bytes up to which a transfer takes about its latency, whatever runs beside it.
_SMALL = 65536


class _Running(NamedTuple):
    ranks: frozenset[int]
    foreseen: bool
    apart: bool


class UnforeseenTransfers:
    """Sees to it that no transfer that contends with another one of its ranks is simulated apart from it.

    A transfer is ``foreseen`` where the compared step has it, and ``apart`` where it takes the time of an idle network.
    """

    def __init__(self) -> None:
        self._running: dict[simpy.Event, _Running] = {}

    def begins(
        self, event: simpy.Event, ranks: Iterable[int], nbytes: float, *, foreseen: bool, apart: bool
    ) -> simpy.Event:
        """Take notice of a transfer that runs until ``event``, and return that. Raises ``AsymmetryError``."""
        if nbytes <= _SMALL or event.callbacks is None:
            return event
        mine = _Running(frozenset(ranks), foreseen, apart)
        for other in self._running.values():
            if not (foreseen and other.foreseen) and (apart or other.apart) and mine.ranks & other.ranks:
                raise AsymmetryError("transfers run at the same time which the compared step does not have")
        self._running[event] = mine
        event.callbacks.append(self._ended)
        return event

    def _ended(self, event: simpy.Event) -> None:
        del self._running[event]
