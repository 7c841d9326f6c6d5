"""Direct collectives: every rank sends straight to the rank that the data is for; nothing is passed on.

Gather and scatter are what NCCL does in one group of sends and receives; all-to-all is the pairwise exchange of MPI
(Thakur, Rabenseifner and Gropp 2005, section 3.2): in step s, rank i sends to i + s and receives from i - s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triosim.networks.collectives.algorithm import Transfer, chunk_sizes, to_each
from triosim.networks.collectives.phased.exchanges import Exchange
from triosim.networks.collectives.phased.grid import Grid
from triosim.networks.collectives.phased.phases import PhasedAlgorithm
from triosim.networks.topology import Topology
from triosim.tasks import CollectiveKind


class Direct(PhasedAlgorithm):
    """Every collective in one round of messages between all pairs (an all-reduce in two): where all are linked to all."""

    def __init__(self) -> None:
        super().__init__()

    def grid(self, group: Sequence[int], topology: Topology) -> Grid:
        """Return the group as one block."""
        return Grid(tuple(group), (len(group),), (Exchange(),))


def straight(
    kind: CollectiveKind, group: Sequence[int], nbytes: float, root: int | None, shares: Sequence[float] | None
) -> Iterator[Transfer]:
    """A gather or a scatter, all at once to the root or from it. Chunk i is what ``group[i]`` has, or what is for it."""
    sizes = chunk_sizes(group, nbytes, shares)
    centre = group[0] if root is None else root
    for chunk, rank in enumerate(group):
        if rank != centre:
            ends = (rank, centre) if kind == "gather" else (centre, rank)
            yield Transfer(*ends, chunk, sizes[chunk])


def all_to_all(group: Sequence[int], nbytes: float, shares: Sequence[float] | None) -> Iterator[Transfer]:
    """In N - 1 steps; a rank goes on when it has sent and received.

    Chunk i N + j is what ``group[i]`` has for ``group[j]``; the j-th size is what every rank sends to ``group[j]``, or, of
    N x N sizes, the (i N + j)-th is that of this chunk.
    """
    n = len(group)
    sizes = chunk_sizes(group, nbytes, shares)
    for step in range(1, n):
        for i in range(n):
            j = (i + step) % n
            sent, received = (step - 2) * n + i, (step - 2) * n + (i - step + 1) % n
            after = (sent, received) if step > 1 else ()
            yield Transfer(group[i], group[j], i * n + j, to_each(sizes, i, j, n), "copy", after)
