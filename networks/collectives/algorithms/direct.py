"""Direct collectives: every rank sends straight to the rank that the data is for; nothing is passed on.

Gather and scatter are what NCCL does in one group of sends and receives; all-to-all is the pairwise exchange of MPI
(Thakur, Rabenseifner and Gropp 2005, section 3.2): in step s, rank i sends to i + s and receives from i - s.
"""

from __future__ import annotations

from collections.abc import Iterator

from triosim.networks.collectives.algorithm import CollectiveOperation, Transfer, to_each
from triosim.networks.collectives.phased.exchanges import Exchange
from triosim.networks.collectives.phased.phases import SingleBlock


class Direct(SingleBlock):
    """Every collective in one round of messages between all pairs (an all-reduce in two), for fully connected GPUs."""

    exchange = Exchange()


def gather_or_scatter(operation: CollectiveOperation) -> Iterator[Transfer]:
    """Yield the transfers of a gather or a scatter, all at once; chunk i is what ``ranks[i]`` has, or what is for it."""
    root, sizes = operation.first, operation.chunk_sizes
    for chunk, rank in enumerate(operation.ranks):
        if rank != root:
            ends = (rank, root) if operation.kind == "gather" else (root, rank)
            yield Transfer(*ends, chunk, sizes[chunk])


def all_to_all(operation: CollectiveOperation) -> Iterator[Transfer]:
    """Yield the transfers of an all-to-all in N - 1 steps; a rank goes on when it has sent and received.

    Chunk i N + j is what ``ranks[i]`` has for ``ranks[j]``; the j-th share is what every rank sends to ``ranks[j]``, or, of
    N x N shares, the (i N + j)-th is that of this chunk.
    """
    ranks, sizes = operation.ranks, operation.chunk_sizes
    n = len(ranks)
    for step in range(1, n):
        for i in range(n):
            j = (i + step) % n
            sent, received = (step - 2) * n + i, (step - 2) * n + (i - step + 1) % n
            after = (sent, received) if step > 1 else ()
            yield Transfer(ranks[i], ranks[j], i * n + j, to_each(sizes, i, j, n), "copy", after)
