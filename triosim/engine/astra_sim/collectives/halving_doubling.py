"""Halving and doubling: partners at distance 1, 2, 4 exchange halves, and then the other way round.

The reduction is charged with the size of the message that is sent next, so the last one costs nothing. Among ranks that are no
power of two partners do not agree, and it never ends.
"""

from __future__ import annotations

from math import log2

from triosim.chakra.nodes import CollectiveType
from triosim.engine.astra_sim.collectives.lines import Line
from triosim.engine.astra_sim.collectives.ring import RingRun
from triosim.engine.astra_sim.faults import Stopped


class HalvingDoublingRun(RingRun):
    """One rank's part; messages shrink while the distance grows."""

    def __init__(self, kind: CollectiveType, line: Line, size: int) -> None:
        if kind is CollectiveType.ALL_TO_ALL:
            raise Stopped("halvingDoubling does no all-to-all")
        super().__init__(kind, line, size, clockwise=True)
        rounds = log2(len(line))
        self._to_send = int(2 * rounds) if kind is CollectiveType.ALL_REDUCE else int(rounds)
        self._reducing_messages = int(rounds - 1)
        self._shrinks = kind is not CollectiveType.ALL_GATHER
        self._distance = 1 if self._shrinks else len(line) // 2
        self._size = size // 2 if self._shrinks else size
        self._choose_partner()

    def _to_the_next(self) -> None:
        self._step_distance()
        if self._distance == len(self._line) and self._kind is CollectiveType.ALL_REDUCE:
            self._shrinks = False
            self._step_distance()
        self._choose_partner()

    def _step_distance(self) -> None:
        if self._shrinks:
            self._distance, self._size = self._distance * 2, self._size // 2
        else:
            self._distance, self._size = self._distance // 2, self._size * 2

    def _choose_partner(self) -> None:
        backwards = self._distance and self._line.position // self._distance % 2
        partner = self._line.beside(self._line.rank, -self._distance if backwards else self._distance)
        self._destination = self._source = partner
