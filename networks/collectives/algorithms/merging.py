"""Merges graphs of transfers that run at the same time, each on its own part of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from triosim.networks.collectives.algorithm import Chunks, Transfer


def merged(graphs: Iterable[Iterable[Transfer]], pieces: int) -> Iterator[Transfer]:
    """Yield the transfers of all graphs; the numbers of the k-th graph's pieces are raised by k times ``pieces``."""
    first = 0
    for number, graph in enumerate(graphs):
        count = 0
        for transfer in graph:
            count += 1
            after = tuple(earlier + first for earlier in transfer.after) if first else transfer.after
            yield transfer._replace(chunk=shifted(transfer.chunk, number * pieces), after=after)
        first += count


def shifted(chunk: Chunks, by: int) -> Chunks:
    """Return pieces with their numbers raised."""
    if isinstance(chunk, int):
        return chunk + by
    if isinstance(chunk, range):
        return range(chunk.start + by, chunk.stop + by, chunk.step)
    return tuple(piece + by for piece in chunk)
