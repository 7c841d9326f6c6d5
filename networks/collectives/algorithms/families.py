"""In which rounds the members of one block (a ring, a switch, all pairs linked, a line) exchange their data.

A round is a list of moves (i, j, what): member i sends to member j what belongs to some positions, or in an all-to-all
to some pairs (from, for). Positions may be named beyond the last one: the first follows it. Only spreading is written
down; read backwards, an all-gather is a reduce-scatter, a broadcast a reduce, and a scatter a gather. Sources: the ring,
Patarasuk and Yuan 2009; halving and doubling, binomial trees, Thakur, Rabenseifner and Gropp 2005; any number of members,
and the all-to-all, Bruck et al. 1997.
"""

from __future__ import annotations

from typing import Any, Protocol

Move = tuple[int, int, tuple[Any, ...] | range]
Rounds = list[list[Move]]


class Family(Protocol):
    """The rounds of each collective among n members; ``root`` is a position."""

    def all_gather(self, n: int) -> Rounds:
        """What belongs to each gets to all."""

    def reduce_scatter(self, n: int) -> Rounds:
        """As an all-gather; to be read backwards."""

    def broadcast(self, n: int, root: int) -> Rounds:
        """What the root has gets to all."""

    def scatter(self, n: int, root: int) -> Rounds:
        """What the root has for each gets there."""

    def all_to_all(self, n: int) -> Rounds:
        """What each has for each gets there."""


class Straight:
    """All at once, nothing passed on: as many messages as there are pairs."""

    def all_gather(self, n: int) -> Rounds:
        """What belongs to each gets to all."""
        return [[(i, (i + step) % n, (i,)) for step in range(1, n) for i in range(n)]]

    def reduce_scatter(self, n: int) -> Rounds:
        """As an all-gather; to be read backwards."""
        return self.all_gather(n)

    def broadcast(self, n: int, root: int) -> Rounds:
        """What the root has gets to all."""
        return [[(root, j, ()) for j in range(n) if j != root]]

    def scatter(self, n: int, root: int) -> Rounds:
        """What the root has for each gets there."""
        return [[(root, j, (j,)) for j in range(n) if j != root]]

    def all_to_all(self, n: int) -> Rounds:
        """What each has for each gets there."""
        return [[(i, (i + step) % n, ((i, (i + step) % n),)) for step in range(1, n) for i in range(n)]]


class Around(Straight):
    """A ring: everything goes to the next, which passes it on; an all-to-all goes the shorter way round."""

    def all_gather(self, n: int) -> Rounds:
        """What belongs to each gets to all."""
        return [[(i, (i + 1) % n, ((i - step) % n,)) for i in range(n)] for step in range(n - 1)]

    def reduce_scatter(self, n: int) -> Rounds:
        """As an all-gather the other way round, so that backwards it goes the same way."""
        return [[(i, (i - 1) % n, ((i + step) % n,)) for i in range(n)] for step in range(n - 1)]

    def broadcast(self, n: int, root: int) -> Rounds:
        """What the root has gets to all."""
        return [[((root + step) % n, (root + step + 1) % n, ())] for step in range(n - 1)]

    def all_to_all(self, n: int) -> Rounds:
        """What each has for each gets there; of two ways that are as long, every other member takes the other."""
        rounds: Rounds = [[] for _ in range(n // 2)]
        for step, moves in enumerate(rounds):
            for i in range(n):
                for way in (1, -1):
                    origin = (i - way * step) % n
                    farthest = (n - 1) // 2 + (n % 2 == 0 and (origin % 2 == 0) == (way == 1))
                    what = tuple((origin, (origin + way * far) % n) for far in range(step + 1, farthest + 1))
                    if what:
                        moves.append((i, (i + way) % n, what))
        return rounds


class AlongLine(Straight):
    """A line: everything is passed on, both ways, to its ends."""

    def all_gather(self, n: int) -> Rounds:
        """What belongs to each gets to all."""
        right = [[(i, i + 1, (i - step,)) for i in range(step, n - 1)] for step in range(n - 1)]
        left = [[(i, i - 1, (i + step,)) for i in range(1, n - step)] for step in range(n - 1)]
        return [[*one, *other] for one, other in zip(right, left, strict=True)]

    def broadcast(self, n: int, root: int) -> Rounds:
        """What the root has gets to all."""
        ways = ((root + step, root + step + 1, root - step, root - step - 1) for step in range(max(root, n - 1 - root)))
        return [
            [move for move in ((a, b, ()), (c, d, ())) if 0 <= move[1] < n and 0 <= move[0] < n] for a, b, c, d in ways
        ]


class Doubling(Straight):
    """Each round doubles what a member holds; for powers of two with one partner, else with one before and one behind."""

    def all_gather(self, n: int) -> Rounds:
        """What belongs to each gets to all."""
        if n & (n - 1):
            return list(self._circulant(n))
        rounds: Rounds = []
        for bit in (1 << k for k in reversed(range(n.bit_length() - 1))):  # the most, at the end, goes the shortest way
            rounds.append([(i, i ^ bit, range(i % (2 * bit), n, 2 * bit)) for i in range(n)])
        return rounds

    def _circulant(self, n: int) -> Rounds:
        rounds: Rounds = []
        held = 1
        while held < n:
            count = min(held, n - held)
            rounds.append([(i, (i - held) % n, range(i, i + count)) for i in range(n)])
            held += count
        return rounds

    def broadcast(self, n: int, root: int) -> Rounds:
        """What the root has gets to all, by a binomial tree."""
        return [[(i, j, ()) for i, j, _ in moves] for moves in self.scatter(n, root)]

    def scatter(self, n: int, root: int) -> Rounds:
        """What the root has for each gets there: half of it to the one that is half of all away, and so on."""
        rounds: Rounds = []
        for bit in (1 << k for k in reversed(range((n - 1).bit_length()))):
            moves: list[Move] = []
            for first in range(0, n - bit, 2 * bit):
                what = range(root + first + bit, root + min(first + 2 * bit, n))
                moves.append(((root + first) % n, (root + first + bit) % n, what))
            rounds.append(moves)
        return rounds

    def all_to_all(self, n: int) -> Rounds:
        """What each has for each gets there: in round k all of which the distance has a bit k."""
        rounds: Rounds = []
        for bit in (1 << k for k in range((n - 1).bit_length())):
            far = [distance for distance in range(n) if distance & bit]
            moves: list[Move] = []
            for i in range(n):
                origins = [((i - (distance & (bit - 1))) % n, distance) for distance in far]
                moves.append((i, (i + bit) % n, tuple((o, (o + distance) % n) for o, distance in origins)))
            rounds.append(moves)
        return rounds


class DoublingStraight(Doubling):
    """Halving and doubling behind a switch, but an all-to-all sends everything once."""

    def all_to_all(self, n: int) -> Rounds:
        """What each has for each gets there."""
        return Straight().all_to_all(n)
