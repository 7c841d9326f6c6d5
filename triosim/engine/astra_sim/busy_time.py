"""For how long a rank does something: the time in which at least one node of a kind is issued and not over."""

from __future__ import annotations

from collections.abc import Mapping

from triosim.chakra.nodes import NodeType
from triosim.engine.astra_sim.clock import Clock

KINDS = ("computing", "communicating", "memory", "cpu")
_KIND_OF: Mapping[int, str] = {NodeType.COMP: "computing", NodeType.MEM_LOAD: "memory", NodeType.MEM_STORE: "memory"}


class BusyTime:
    """The ns of each kind of node of one rank."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running = dict.fromkeys(KINDS, 0)
        self._since = dict.fromkeys(KINDS, 0)
        self._total = dict.fromkeys(KINDS, 0)

    def begin(self, kind: str) -> None:
        """Note that a node begins."""
        if not self._running[kind]:
            self._since[kind] = self._clock.now
        self._running[kind] += 1

    def end(self, kind: str) -> None:
        """Note that a node is over."""
        self._running[kind] -= 1
        if not self._running[kind]:
            self._total[kind] += self._clock.now - self._since[kind]

    @property
    def totals(self) -> Mapping[str, int]:
        """The ns of each kind, of nodes that are over."""
        return self._total


def kind_of(node_type: int, *, on_cpu: bool) -> str:
    """Return the kind under which a node's time is counted."""
    return "cpu" if on_cpu else _KIND_OF.get(node_type, "communicating")
