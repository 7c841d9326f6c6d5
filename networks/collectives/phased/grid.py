"""The pieces of a collective's data that belong to each rank, for ranks that are arranged in a grid.

Piece i belongs to the i-th rank of the group, and i N + j of an all-to-all is what the i-th has for the j-th.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from triosim.networks.collectives.algorithm import Chunks, CollectiveOperation, to_each
from triosim.networks.collectives.phased.exchanges import Exchange
from triosim.networks.topology import Topology

Spreading = Literal["all_gather", "broadcast", "scatter", "all_to_all"]


@dataclass(frozen=True, slots=True)
class Grid:
    """The ranks of a group by their coordinates in a grid, the first one fastest, and an exchange for each dimension.

    Where all lines of a dimension are equal, ``line_topologies`` has one of them, and which of its ranks are members.
    """

    places: Sequence[int]
    shape: tuple[int, ...]
    exchanges: tuple[Exchange, ...]
    line_topologies: tuple[tuple[Topology, tuple[int, ...]], ...] = ()

    def before(self, dimension: int) -> int:
        """Return by how much the place changes with one step along a dimension."""
        return math.prod(self.shape[:dimension])


class Pieces:
    """The pieces of the data that belong to the positions of a line, and their bytes."""

    def __init__(self, operation: CollectiveOperation, grid: Grid) -> None:
        self.grid = grid
        self.n = len(grid.places)
        self.nbytes, self.shares = operation.nbytes, operation.shares
        index = {rank: number for number, rank in enumerate(operation.ranks)}
        self.number_at = [index[rank] for rank in grid.places]
        self.in_order = self.number_at == list(range(self.n))
        self.whole = operation.kind in ("broadcast", "reduce")
        self.kept: dict[tuple[Any, ...], tuple[Chunks, float]] = {}

    def of(
        self, spreading: Spreading, dimension: int, line: Sequence[int], what: Any, chunk: int
    ) -> tuple[Chunks, float]:
        """Return the pieces, of one chunk, that belong to positions (or pairs of positions) of a line, and their bytes."""
        if self.whole:
            return chunk, self.nbytes
        before = self.grid.before(dimension)
        inner, outer = line[0] % before, line[0] // (before * self.grid.shape[dimension])
        if spreading == "all_gather":
            outer = 0  # lines that differ in an outer dimension only have the same pieces
        elif spreading == "scatter":
            inner = 0
        key = (spreading, dimension, inner, outer, what, chunk)
        found = self.kept.get(key)
        if found is None:
            size = self.grid.shape[dimension]
            if spreading == "all_to_all":
                found = self._pairs(dimension, inner, outer, what, chunk)
            elif spreading == "scatter":
                starts = [before * (at % size + size * outer) for at in what]
                found = self._pieces([range(start, start + before) for start in starts], chunk)
            else:
                starts = [inner + before * (at % size) for at in what]
                found = self._pieces([range(start, self.n, before * size) for start in starts], chunk)
            self.kept[key] = found
        return found

    def _pieces(self, spans: Sequence[range], chunk: int) -> tuple[Chunks, float]:
        first = chunk * self.n
        if len(spans) == 1 and self.in_order:
            span = spans[0]
            numbers: range | tuple[int, ...] = range(span.start + first, span.stop + first, span.step)
        else:
            numbers = tuple(self.number_at[place] + first for span in spans for place in span)
        count = len(numbers)
        if self.shares is None:
            nbytes = self.nbytes / self.n * count
        else:
            nbytes = math.fsum(self.shares[number - first] for number in numbers)
        return (numbers if count > 1 else numbers[0]), nbytes

    def _pairs(
        self, dimension: int, inner: int, outer: int, what: Sequence[tuple[int, int]], chunk: int
    ) -> tuple[Chunks, float]:
        before, size = self.grid.before(dimension), self.grid.shape[dimension]
        numbers: list[int] = []
        shares: list[float] = []
        for origin, end in what:
            start = before * (origin + size * outer)
            for source in range(start, start + before):
                for target in range(inner + before * end, self.n, before * size):
                    i, j = self.number_at[source], self.number_at[target]
                    numbers.append(i * self.n + j + chunk * self.n * self.n)
                    if self.shares is not None:
                        shares.append(to_each(self.shares, i, j, self.n))
        nbytes = math.fsum(shares) if self.shares is not None else self.nbytes / self.n * len(numbers)
        return (tuple(numbers) if len(numbers) > 1 else numbers[0]), nbytes
