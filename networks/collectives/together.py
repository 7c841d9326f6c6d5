"""Several graphs of transfers as one: at the same time, each with a part of the data of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from triosim.networks.collectives.algorithm import Chunks, Transfer


def together(graphs: Iterable[Iterable[Transfer]], pieces: int) -> Iterator[Transfer]:
    """Yield the transfers of all graphs; the pieces of the k-th get numbers that are k times ``pieces`` higher."""
    first = 0
    for number, graph in enumerate(graphs):
        count = 0
        for transfer in graph:
            count += 1
            after = tuple(earlier + first for earlier in transfer.after) if first else transfer.after
            yield transfer._replace(chunk=shifted(transfer.chunk, number * pieces), after=after)
        first += count


def shifted(chunk: Chunks, by: int) -> Chunks:
    """Return pieces with other numbers."""
    if isinstance(chunk, int):
        return chunk + by
    if isinstance(chunk, range):
        return range(chunk.start + by, chunk.stop + by, chunk.step)
    return tuple(piece + by for piece in chunk)
