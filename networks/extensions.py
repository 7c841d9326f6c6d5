"""Optional extensions of a network: what link tables, timelines, faults and rank folding need beyond moving bytes.

A network has an extension if its class derives from it, next to ``Network``, and those who need one ask with ``isinstance``:

    class Mine(Network, LinkCounter):
        def transfer(self, source, destination, nbytes): ...
        def bytes_by_link(self): ...

They are classes to derive from and not protocols, so that a network which happens to have a method of the same name, with
another meaning, is not taken for one that has the extension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import simpy

from triosim.networks.calibration.doubt import ErrorEstimator as ErrorEstimator
from triosim.networks.topology import NodeRef, Topology
from triosim.networks.topology.link_symmetry import LinkClasses
from triosim.tasks import CollectiveKind, DeepEP, ExpertLibrary, Tier


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """A finished transfer: bytes, when it was asked for, when its last byte was delivered, and the links it crossed."""

    source: str
    destination: str
    nbytes: float
    started: float
    finished: float
    links: tuple[str, ...]


class LinkRate(NamedTuple):
    """From ``time`` on, a link carries ``rate`` bytes per second, which take a ``share`` (0 to 1) of its bandwidth."""

    time: float
    link: str
    rate: float
    share: float


class LinkCounter(ABC):
    """Counts the bytes that each link carries, for the table of links."""

    @abstractmethod
    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that each link has carried so far, by the link's name."""

    def flows_under_way(self) -> int | None:
        """Return how many flows are on their way now; None for a network that does not count them."""
        return None


class LinkRecorder(LinkCounter):
    """Records every flow and every change of a link's rate, for timelines and for the load of links over time.

    Its constructor takes ``record`` (a bool), which it keeps as an attribute; without it, both lists stay empty.
    """

    topology: Topology
    record: bool
    flows: list[FlowRecord]
    rates: list[LinkRate]


class ChangeableLinks(ABC):
    """Lets links change their bandwidth while the network runs, for faults."""

    @abstractmethod
    def set_bandwidth(self, source: NodeRef, destination: NodeRef, bandwidth: float) -> None:
        """Set the bandwidth of the links from one node to another, in bytes per second; 0 means that they carry nothing."""


class ContentionFree(ABC):  # noqa: B024 - it says something about a network and asks nothing of it
    """Promises that simultaneous transfers and collectives do not slow each other down, so that ranks may be folded."""


class TransportNetwork(ABC):
    """Knows the transports that a collective may name instead of NCCL, what they send and how long they take."""

    @abstractmethod
    def exchange(self, transport: DeepEP, ranks: tuple[int, ...]) -> simpy.Event:
        """Run an all-to-all of a group by its transport; the event fires when all ranks are through."""

    def exchange_edges(self, transport: DeepEP, ranks: tuple[int, ...]) -> Iterable[tuple[NodeRef, NodeRef]]:
        """Return source and destination of each transfer of an exchange; asked of a ``FoldableNetwork`` alone."""
        return ()

    def transport_notes(self, library: ExpertLibrary) -> Iterable[str]:
        """Return what a reader should know of the times of a library's kernels on this topology."""
        return ()


class GatheringNetwork(ABC):
    """Can load the shares of ranks from a memory pool through switches that gather them on the way."""

    @abstractmethod
    def gather_from(self, tier: Tier, ranks: tuple[int, ...], nbytes: float) -> simpy.Event:
        """Load a tensor of so many bytes to all ranks; the event fires when the last one has it."""


class RankCopies(ABC):
    """Runs the copies of a rank, and with them those of the ranks that it stands for: a folded network."""

    @abstractmethod
    def copy(self, rank: int, source: str, destination: str, nbytes: float) -> simpy.Event:
        """Copy bytes from one memory to another, which are named as in a ``Copy`` task; the event fires on delivery."""


class FoldableNetwork(ABC):
    """Tells which links a collective uses, and can simulate one link of each symmetry class, for rank folding.

    What shares no link with a collective must not change how long it takes.
    """

    @abstractmethod
    def collective_edges(
        self, kind: CollectiveKind, ranks: tuple[int, ...], nbytes: float, *, root: int | None = None
    ) -> Iterable[tuple[NodeRef, NodeRef]]:
        """Return source and destination of each transfer of a collective, in an order that depends on the group's order alone.

        After ``use_link_classes``, only of those transfers that are simulated.
        """

    @abstractmethod
    def use_link_classes(self, classes: LinkClasses | None) -> None:
        """Simulate one representative of each class of links from now on; None: every link. Called before anything is sent."""


class FigureReporter(ABC):
    """Counts other figures, which the result lists under ``network_figures``."""

    @abstractmethod
    def figures(self) -> Mapping[str, float]:
        """Return the figures by name; seconds under names that end in ``_s``."""
