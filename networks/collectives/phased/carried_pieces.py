"""Which pieces of a group's data go over which edge: the same for all sizes of these pieces."""

from __future__ import annotations

import math
from collections.abc import Iterable

from triosim.networks.collectives.algorithm import CollectiveOperation, Edge, Transfer

#: Pieces that are kept for later collectives of the same groups, about 100 MB.
MOST_KEPT = 4_000_000


class CarriedPieces:
    """The pieces that each transfer of a collective carries, for collectives with other shares."""

    def __init__(self, transfers: Iterable[Transfer]) -> None:
        self._carried = [
            ((one.source, one.destination), [one.chunk] if isinstance(one.chunk, int) else list(one.chunk))
            for one in transfers
        ]
        self.count = sum(len(pieces) for _, pieces in self._carried)

    def edges(self, operation: CollectiveOperation) -> tuple[Edge, ...]:
        """Return the edges of a collective with unequal shares, each with the bytes of all its transfers."""
        shares = operation.shares or ()
        if operation.kind == "all_to_all" and len(shares) == len(operation.ranks):
            shares = shares * len(shares)  # the same from each
        found: dict[tuple[int | str, int | str], float] = {}
        for ends, pieces in self._carried:
            found[ends] = found.get(ends, 0.0) + math.fsum([shares[piece] for piece in pieces])
        return tuple(Edge(*ends, nbytes) for ends, nbytes in found.items())
