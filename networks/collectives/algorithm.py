"""The base class of collective algorithms: an algorithm turns a collective into a graph of transfers.

The meaning of the kinds and of their sizes is NCCL's; see the table of words in the documentation of networks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias, get_args

from triosim.config import Option
from triosim.errors import OptionError, PluginError, SimulationError, nearest
from triosim.networks.topology import NodeRef, Topology
from triosim.plugins import label
from triosim.tasks import CollectiveKind, Communicator

if TYPE_CHECKING:
    from triosim.networks.collectives.phased.symmetric import SymmetricCollective

WITH_ROOT = frozenset({"broadcast", "reduce", "gather", "scatter"})
WITH_SHARES = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})

Chunks: TypeAlias = int | range | tuple[int, ...]  # one piece of the data, or several that are sent together
Ranks: TypeAlias = tuple[int, ...] | range
Group: TypeAlias = Sequence[int] | Communicator
Shares: TypeAlias = Sequence[float] | None


class Transfer(NamedTuple):
    """Bytes from one rank to another, as soon as the transfers numbered ``after`` (all earlier ones) are delivered.

    ``chunk`` says which piece of the data it is (or pieces), and so which transfers pass the same piece on. The
    receiver keeps it (``copy``) or adds it to its own (``reduce``). Pieces that belong to ``group[i]`` have numbers
    that are i modulo N; in an all-to-all, what ``group[i]`` has for ``group[j]`` is i N + j modulo N squared. Switches
    take part by name. (A tuple, because an all-reduce of 1,024 ranks has two million of them.)
    """

    source: NodeRef
    destination: NodeRef
    chunk: Chunks
    nbytes: float
    action: Literal["copy", "reduce"] = "copy"
    after: tuple[int, ...] = ()


class Edge(NamedTuple):
    """All the bytes that one rank (or switch) sends to another in a collective: an entry of its traffic matrix."""

    source: NodeRef
    destination: NodeRef
    nbytes: float


class SteadyState(NamedTuple):
    """The pipelined form of a collective: cut into so many chunks that all its edges are busy at once.

    The edges start ``latency`` seconds after the collective, when the pipeline is filled. With few chunks its slowest phase
    waits for the first one, and others finish the last one, for ``fill`` seconds, which grow with the size.
    """

    edges: tuple[Edge, ...]
    latency: float
    fill: float = 0.0


class Cost(NamedTuple):
    """The time of a collective on idle links: its latency, and the seconds of its bytes, which grow with the size."""

    latency: float
    seconds: float


class CollectiveOperation(NamedTuple):
    """A collective of two ranks or more; ``root`` and ``shares`` are as in ``CollectiveAlgorithm.transfers``."""

    kind: CollectiveKind
    ranks: Ranks
    nbytes: float
    root: int | None = None
    shares: tuple[float, ...] | None = None

    def divided(self, parts: int) -> CollectiveOperation:
        """Return one of so many equal parts of the collective."""
        shares = None if self.shares is None else tuple([share / parts for share in self.shares])
        return self._replace(nbytes=self.nbytes / parts, shares=shares)

    @property
    def first(self) -> int:
        """The root or, of a kind without one, the first rank."""
        return self.ranks[0] if self.root is None else self.root

    @property
    def chunk_sizes(self) -> Sequence[float]:
        """The bytes of each rank's chunk: its share, or an equal part."""
        n = len(self.ranks)
        return self.shares if self.shares is not None else [self.nbytes / n] * n


class CollectiveAlgorithm(ABC):
    """An algorithm that runs collectives. A plug-in writes ``transfers``; the pipelined form follows from them.

    ``proportional`` promises that the bytes of every transfer are proportional to the size and nothing else depends on it (if
    there are no unequal shares): the transfers are then laid out once, and not for each size. ``steady`` promises it for the
    pipelined form alone.
    """

    #: The options that the constructor reads as keywords, which are checked before.
    options: ClassVar[tuple[Option, ...]] = ()
    proportional: bool = False
    steady: bool = False

    @abstractmethod
    def transfers(
        self,
        kind: CollectiveKind,
        group: Sequence[int],
        nbytes: float,
        topology: Topology,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> Iterator[Transfer]:
        """Yield the transfers of a collective, each after those that it waits for.

        ``group`` has two ranks or more, all different; ``root`` is one of them (None for kinds without a root);
        ``shares`` has one size a rank, or, in an all-to-all, one for each two ranks, by sender. Raises ``OptionError`` for a
        kind or a group that the algorithm cannot do.
        """

    def steady_state(self, operation: CollectiveOperation, topology: Topology) -> SteadyState:
        """Return the steady state: each edge with all its bytes, and the latency of the longest chain of one chunk."""
        return steady_state_of(checked_transfers(self, operation, topology), topology)

    def cost(self, operation: CollectiveOperation, topology: Topology) -> Cost:
        """Return the time of the pipelined form on idle links: its busiest link decides."""
        edges, latency, fill = self.steady_state(operation, topology)
        return Cost(latency, busiest(edges, topology) + fill)

    def choose(self, operation: CollectiveOperation, topology: Topology) -> CollectiveAlgorithm:
        """Return the algorithm that runs a collective: this one, unless it chooses among others."""
        return self

    def alternatives(self, operation: CollectiveOperation, topology: Topology) -> Sequence[CollectiveAlgorithm]:
        """Return the algorithms among which this one chooses by cost: itself, unless it chooses."""
        return (self,)

    def symmetric(self, operation: CollectiveOperation, topology: Topology) -> SymmetricCollective | None:
        """Return the pipelined form of the collective with one byte, as one rank sees it; None where ranks differ."""
        return None


class OperationAlgorithm(CollectiveAlgorithm):
    """The base of our own algorithms, which take a collective as one value."""

    @abstractmethod
    def transfers_of(self, operation: CollectiveOperation, topology: Topology) -> Iterator[Transfer]:
        """Yield the transfers of a collective; see ``CollectiveAlgorithm.transfers``."""

    def transfers(
        self,
        kind: CollectiveKind,
        group: Sequence[int],
        nbytes: float,
        topology: Topology,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> Iterator[Transfer]:
        """Yield the transfers of a collective."""
        given = None if shares is None else tuple(shares)
        return self.transfers_of(CollectiveOperation(kind, ranks_of(group), nbytes, root, given), topology)


def steady_state_of(transfers: Iterable[Transfer], topology: Topology) -> SteadyState:
    """Return the pipelined form of transfers: each edge with all its bytes, and the longest chain's latency."""
    edges: dict[tuple[NodeRef, NodeRef], float] = {}
    filled: list[float] = []  # when the first byte of each transfer arrives
    past: list[tuple[NodeRef, Chunks]] = []
    for source, destination, chunk, nbytes, _, after in transfers:
        edges[source, destination] = edges.get((source, destination), 0.0) + nbytes
        passed_on = (
            filled[earlier] for earlier in after if past[earlier][0] == source and overlap(past[earlier][1], chunk)
        )
        filled.append(max(passed_on, default=0.0) + latency_of(topology, source, destination))
        past.append((destination, chunk))
    return SteadyState(tuple(Edge(*ends, size) for ends, size in edges.items()), max(filled, default=0.0))


def merged(graphs: Iterable[Iterable[Transfer]], pieces: int) -> Iterator[Transfer]:
    """Yield the transfers of all graphs; the numbers of the k-th graph's pieces are raised by k times ``pieces``."""
    first = 0
    for number, graph in enumerate(graphs):
        count = 0
        for transfer in graph:
            count += 1
            after = tuple(earlier + first for earlier in transfer.after) if first else transfer.after
            yield transfer._replace(chunk=_shifted(transfer.chunk, number * pieces), after=after)
        first += count


def _shifted(chunk: Chunks, by: int) -> Chunks:
    if isinstance(chunk, int):
        return chunk + by
    if isinstance(chunk, range):
        return range(chunk.start + by, chunk.stop + by, chunk.step)
    return tuple(piece + by for piece in chunk)


def overlap(one: Chunks, other: Chunks) -> bool:
    """Return whether two transfers have a piece in common."""
    if isinstance(one, int):
        return one == other if isinstance(other, int) else one in other
    return other in one if isinstance(other, int) else not set(one).isdisjoint(other)


def busiest(edges: Iterable[Edge], topology: Topology) -> float:
    """Return the seconds that the busiest link needs for all that edges send over it."""
    loads: dict[str, float] = {}
    for source, destination, nbytes in edges:
        for link in topology.route(source, destination):
            loads[link.name] = loads.get(link.name, 0.0) + nbytes / link.bandwidth
    return max(loads.values(), default=0.0)


def checked_transfers(
    algorithm: CollectiveAlgorithm, operation: CollectiveOperation, topology: Topology
) -> Iterator[Transfer]:
    """Yield an algorithm's transfers, and raise ``PluginError`` for one that cannot be."""
    kind, group, nbytes, root, shares = operation
    transfers: object = algorithm.transfers(kind, group, nbytes, topology, root=root, shares=shares)
    where = label(algorithm)
    if not isinstance(transfers, Iterable):
        raise PluginError(f"transfers() returned a {type(transfers).__name__}", where=where, fix="yield Transfer")
    members: set[NodeRef] = set(group)  # and the switches that take part, as they come

    def unknown(place: NodeRef) -> bool:
        if place not in members and isinstance(place, str) and place in topology.nodes:
            members.update((place,) if topology.nodes[place].kind == "switch" else ())
        return place not in members

    for number, transfer in enumerate(transfers):
        if not isinstance(transfer, Transfer):
            raise PluginError(f"transfer {number} is a {type(transfer).__name__}", where=where, fix="yield Transfer")
        source, destination, _, size, _, after = transfer
        if unknown(source) or unknown(destination) or source == destination:
            fix = "send between two different ranks of the group"
            raise PluginError(f"transfer {number} goes from rank {source} to rank {destination}", where=where, fix=fix)
        if not 0 <= size < math.inf:
            raise PluginError(f"transfer {number} has {size} bytes", where=where, fix="give 0 or more")
        if after and not 0 <= min(after) <= max(after) < number:
            fix = "wait for earlier transfers only"
            raise PluginError(f"transfer {number} waits for {after}", where=where, fix=fix)
        yield transfer


def latency_of(topology: Topology, source: int | str, destination: int | str) -> float:
    """Return the latency of a route, in seconds; rounded once, so that the order of the links does not matter."""
    return math.fsum(link.latency for link in topology.route(source, destination))


def to_each(shares: Sequence[float], source: int, destination: int, ranks: int) -> float:
    """Return what one rank of an all-to-all has for another: of N shares the same from each, of N x N from each to each."""
    return shares[source * ranks + destination] if len(shares) > ranks else shares[destination]


def ranks_of(group: Group) -> Ranks:
    """Return the ranks of a group as a key that can be looked up."""
    return group.ranks if isinstance(group, Communicator) else group if isinstance(group, range) else tuple(group)


def checked_operation(
    kind: CollectiveKind,
    group: Group,
    nbytes: float,
    topology: Topology,
    *,
    root: int | None = None,
    shares: Shares = None,
) -> CollectiveOperation:
    """Return a collective as one value; its root is the first rank by default. Raises ``TriosimError`` for wrong ones."""
    kinds = get_args(CollectiveKind)
    if kind not in kinds:
        raise OptionError(f"unknown collective '{kind}'", fix=nearest(str(kind), kinds))
    ranks = ranks_of(group)
    if not ranks:
        raise SimulationError("the group has no ranks", where=kind)
    for rank in (min(ranks), max(ranks)) if isinstance(ranks, range) else ranks:
        if isinstance(rank, str):
            raise SimulationError(f"'{rank}' is not a rank", where=kind, fix="give numbers: rank 0 is gpu0")
        topology.node(rank)
    if not isinstance(ranks, range) and len(set(ranks)) < len(ranks):
        repeated = next(rank for place, rank in enumerate(ranks) if rank in ranks[:place])
        raise SimulationError(f"rank {repeated} is in the group twice", where=kind, fix="name each rank once")
    check_size(nbytes, kind)
    if shares is not None:
        _check_shares(kind, len(ranks), nbytes, shares)
    if kind not in WITH_ROOT:
        root = None
    elif root is None:
        root = ranks[0]
    elif root not in ranks:
        raise SimulationError(f"the root {root} is not in the group", where=kind, fix="name one of its ranks")
    return CollectiveOperation(kind, ranks, nbytes, root, None if shares is None else tuple(shares))


def _check_shares(kind: CollectiveKind, n: int, nbytes: float, shares: Sequence[float]) -> None:
    """Raise ``SimulationError`` for shares that a collective of n ranks cannot have."""
    if kind not in WITH_SHARES:
        fix = f"give shares to {', '.join(sorted(WITH_SHARES))} only"
        raise SimulationError("has no shares", where=kind, fix=fix)
    pairs = kind == "all_to_all" and len(shares) == n**2
    if len(shares) != n and not pairs:
        raise SimulationError(f"{len(shares)} shares for {n} ranks", where=kind, fix="give one a rank")
    if not (min(shares) >= 0 and max(shares) < math.inf):
        for share in shares:
            check_size(share, kind)
    total = math.fsum(shares) / (n if pairs else 1)
    if not math.isclose(total, nbytes, rel_tol=1e-6, abs_tol=1e-6):
        raise SimulationError(f"the shares come to {total:g} bytes, not {nbytes:g}", where=kind)


def check_size(nbytes: float, where: str) -> None:
    """Raise ``SimulationError`` for what is not a number of bytes."""
    if not 0 <= nbytes < math.inf:
        raise SimulationError(f"{nbytes} is not a number of bytes", where=where, fix="it must be zero or more")
