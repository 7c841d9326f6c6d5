"""What the algorithms of collectives have in common, and what they ask of the rank that runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from triosim.engine.astra_sim.bus import Way


class Stage(Protocol):
    """The rank's side of a phase: its bus, and messages to and from others."""

    def move(self, size: int, way: Way, *, reduced: bool, fast: bool) -> None:
        """Move a message over the rank's own bus, and reduce it if it is to be; then the algorithm's ``moved`` is called."""

    def send(self, destination: int, size: int) -> None:
        """Send a message of the collective."""

    def receive(self, source: int, size: int) -> None:
        """Await a message of the collective; when it is there the algorithm's ``received`` is called."""

    def finish(self) -> None:
        """End the phase."""


class AlgorithmRun(ABC):
    """One phase of one chunk on one rank; ``final_size`` is what the rank holds when it is over."""

    final_size: int
    stage: Stage

    @abstractmethod
    def start(self) -> None:
        """Begin."""

    @abstractmethod
    def moved(self) -> None:
        """Go on after a message has moved over the bus."""

    @abstractmethod
    def received(self) -> None:
        """Go on after a message has come in."""
