"""What a collective algorithm is: it turns a collective into a graph of transfers.

The meaning of the kinds and of their sizes is NCCL's; see the table of words in the documentation of networks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from triosim.errors import OptionError, PluginError, SimulationError, nearest
from triosim.networks.topology import Topology
from triosim.tasks import CollectiveKind

WITH_ROOT = frozenset({"broadcast", "reduce", "gather", "scatter"})
WITH_SHARES = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})


class Transfer(NamedTuple):
    """Bytes from one rank to another, as soon as the transfers numbered ``after`` (all earlier ones) are delivered.

    ``chunk`` says which piece of the data it is, and so which transfers pass the same piece on. The receiver keeps it
    (``copy``) or adds it to its own (``reduce``). (A tuple, because an all-reduce of 1,024 ranks has two million of
    them.)
    """

    source: int
    destination: int
    chunk: int
    nbytes: float
    action: Literal["copy", "reduce"] = "copy"
    after: tuple[int, ...] = ()


class Edge(NamedTuple):
    """What one rank sends to another in the whole of a collective."""

    source: int
    destination: int
    nbytes: float


class Pipeline(NamedTuple):
    """A collective cut into so many chunks that all its edges are busy at once, ``latency`` after it started."""

    edges: tuple[Edge, ...]
    latency: float


class CollectiveAlgorithm(ABC):
    """A way to run collectives. A plug-in writes ``transfers``; the pipelined form follows from them.

    ``proportional`` promises that the transfers depend on the size only in that their bytes grow with it (if there
    are no unequal shares): they are then laid out once, and not for each size.
    """

    proportional: bool = False

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
        ``shares`` has one size a rank. Raises ``OptionError`` for a kind or a group that the algorithm cannot do.
        """

    def pipeline(
        self,
        kind: CollectiveKind,
        group: Sequence[int],
        nbytes: float,
        topology: Topology,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> Pipeline:
        """Return the steady state: each edge with all its bytes, and the latency of filling the pipeline.

        That is the latency along the longest chain of transfers that pass one chunk on.
        """
        edges: dict[tuple[int, int], float] = {}
        filled: list[float] = []  # when the first byte of each transfer comes in
        transfers: list[Transfer] = []
        found = self.transfers(kind, group, nbytes, topology, root=root, shares=shares)
        for transfer in checked(self, found, group):
            source, destination = transfer.source, transfer.destination
            edges[source, destination] = edges.get((source, destination), 0.0) + transfer.nbytes
            passed_on = (
                filled[earlier]
                for earlier in transfer.after
                if transfers[earlier].destination == source and transfers[earlier].chunk == transfer.chunk
            )
            filled.append(max(passed_on, default=0.0) + latency_of(topology, source, destination))
            transfers.append(transfer)
        return Pipeline(tuple(Edge(*ends, size) for ends, size in edges.items()), max(filled, default=0.0))


def checked(algorithm: CollectiveAlgorithm, transfers: object, group: Sequence[int]) -> Iterator[Transfer]:
    """Yield an algorithm's transfers, and raise ``PluginError`` for one that cannot be."""
    where = type(algorithm).__name__
    if not isinstance(transfers, Iterable):
        raise PluginError(f"transfers() returned a {type(transfers).__name__}", where=where, fix="yield Transfer")
    ranks = set(group)
    for number, transfer in enumerate(transfers):
        if not isinstance(transfer, Transfer):
            raise PluginError(f"transfer {number} is a {type(transfer).__name__}", where=where, fix="yield Transfer")
        source, destination, _, nbytes, _, after = transfer
        if source not in ranks or destination not in ranks or source == destination:
            raise PluginError(
                f"transfer {number} goes from rank {source} to rank {destination}",
                where=where,
                fix="send between two different ranks of the group",
            )
        if not 0 <= nbytes < math.inf:
            raise PluginError(f"transfer {number} has {nbytes} bytes", where=where, fix="give 0 or more")
        if after and not 0 <= min(after) <= max(after) < number:
            raise PluginError(
                f"transfer {number} waits for {after}", where=where, fix="wait for earlier transfers only"
            )
        yield transfer


def latency_of(topology: Topology, source: int | str, destination: int | str) -> float:
    """Return the latency of a route, in seconds; rounded once, so that the order of the links does not matter."""
    return math.fsum(link.latency for link in topology.route(source, destination))


def chunk_sizes(group: Sequence[int], nbytes: float, shares: Sequence[float] | None) -> Sequence[float]:
    """Return the size of each rank's chunk: its share, or an equal part."""
    return shares if shares is not None else [nbytes / len(group)] * len(group)


def check(
    kind: CollectiveKind,
    group: Sequence[int],
    nbytes: float,
    topology: Topology,
    *,
    root: int | None = None,
    shares: Sequence[float] | None = None,
) -> int | None:
    """Raise ``TriosimError`` for a collective that cannot be; return its root, the first rank unless it is said."""
    kinds = get_args(CollectiveKind)
    if kind not in kinds:
        raise OptionError(f"unknown collective '{kind}'", fix=nearest(str(kind), kinds))
    if not group:
        raise SimulationError("the group has no ranks", where=kind)
    for rank in group:
        topology.node(rank)
    if len(set(group)) < len(group):
        repeated = next(rank for place, rank in enumerate(group) if rank in group[:place])
        raise SimulationError(f"rank {repeated} is in the group twice", where=kind, fix="name each rank once")
    check_size(nbytes, kind)
    if shares is not None:
        if kind not in WITH_SHARES:
            raise SimulationError(
                "has no shares", where=kind, fix=f"give shares to {', '.join(sorted(WITH_SHARES))} only"
            )
        if len(shares) != len(group):
            raise SimulationError(f"{len(shares)} shares for {len(group)} ranks", where=kind, fix="give one a rank")
        for share in shares:
            check_size(share, kind)
        if not math.isclose(math.fsum(shares), nbytes, rel_tol=1e-6, abs_tol=1e-6):
            raise SimulationError(f"the shares come to {math.fsum(shares):g} bytes, not {nbytes:g}", where=kind)
    if kind not in WITH_ROOT:
        return None
    if root is None:
        return group[0]
    if root not in group:
        raise SimulationError(f"the root {root} is not in the group", where=kind, fix="name one of its ranks")
    return root


def check_size(nbytes: float, where: str) -> None:
    """Raise ``SimulationError`` for what is not a number of bytes."""
    if not 0 <= nbytes < math.inf:
        raise SimulationError(f"{nbytes} is not a number of bytes", where=where, fix="it must be zero or more")
