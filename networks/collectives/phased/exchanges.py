"""The rounds in which the members of one block (a ring, a switch, a line, or all pairs linked) exchange their data.

A round is a list of messages (i, j, what): member i sends to member j the data of some positions or, in an all-to-all, of
some pairs (from, for). Positions wrap around: n is position 0. Only all-gather, broadcast, scatter and all-to-all are written
down; read backwards, an all-gather is a reduce-scatter, a broadcast a reduce, and a scatter a gather. Sources: the ring,
Patarasuk and Yuan 2009; halving and doubling, and binomial trees, Thakur, Rabenseifner and Gropp 2005; for any number of
members, and all-to-all in rounds, Bruck et al. 1997.
"""

from __future__ import annotations

from typing import Any

Message = tuple[int, int, tuple[Any, ...] | range]
Rounds = list[list[Message]]


class Exchange:
    """The exchange of data among n members, in rounds: here in one, straight from each to each; ``root`` is a position."""

    def all_gather(self, n: int) -> Rounds:
        """Every member ends with the data of all."""
        return [[(i, (i + step) % n, (i,)) for step in range(1, n) for i in range(n)]]

    def reduce_scatter(self, n: int) -> Rounds:
        """An all-gather that is read backwards."""
        return self.all_gather(n)

    def broadcast(self, n: int, root: int) -> Rounds:
        """Every member ends with the data of the root."""
        return [[(root, j, ()) for j in range(n) if j != root]]

    def scatter(self, n: int, root: int) -> Rounds:
        """Every member ends with its share of the data of the root."""
        return [[(root, j, (j,)) for j in range(n) if j != root]]

    def all_to_all(self, n: int) -> Rounds:
        """Every member ends with its share of the data of each member."""
        return [[(i, (i + step) % n, ((i, (i + step) % n),)) for step in range(1, n) for i in range(n)]]


class RingExchange(Exchange):
    """A ring: every member passes data on to the next; an all-to-all takes the shorter way round."""

    def all_gather(self, n: int) -> Rounds:
        """Every member ends with the data of all."""
        return [[(i, (i + 1) % n, ((i - step) % n,)) for i in range(n)] for step in range(n - 1)]

    def reduce_scatter(self, n: int) -> Rounds:
        """An all-gather the other way round; read backwards, it goes the same way."""
        return [[(i, (i - 1) % n, ((i + step) % n,)) for i in range(n)] for step in range(n - 1)]

    def broadcast(self, n: int, root: int) -> Rounds:
        """Every member ends with the data of the root."""
        return [[((root + step) % n, (root + step + 1) % n, ())] for step in range(n - 1)]

    def all_to_all(self, n: int) -> Rounds:
        """As in ``Exchange``, the shorter way round; of two equal ways, every other member takes the other."""
        rounds: Rounds = [[] for _ in range(n // 2)]
        for step, messages in enumerate(rounds):
            for i in range(n):
                for way in (1, -1):
                    origin = (i - way * step) % n
                    farthest = (n - 1) // 2 + (n % 2 == 0 and (origin % 2 == 0) == (way == 1))
                    what = tuple((origin, (origin + way * far) % n) for far in range(step + 1, farthest + 1))
                    if what:
                        messages.append((i, (i + way) % n, what))
        return rounds


class LineExchange(Exchange):
    """A line: data are passed on in both directions, to the ends."""

    def all_gather(self, n: int) -> Rounds:
        """Every member ends with the data of all."""
        right = [[(i, i + 1, (i - step,)) for i in range(step, n - 1)] for step in range(n - 1)]
        left = [[(i, i - 1, (i + step,)) for i in range(1, n - step)] for step in range(n - 1)]
        return [[*one, *other] for one, other in zip(right, left, strict=True)]

    def broadcast(self, n: int, root: int) -> Rounds:
        """Every member ends with the data of the root."""
        ways = ((root + step, root + step + 1, root - step, root - step - 1) for step in range(max(root, n - 1 - root)))
        return [
            [move for move in ((a, b, ()), (c, d, ())) if 0 <= move[1] < n and 0 <= move[0] < n] for a, b, c, d in ways
        ]


class DoublingExchange(Exchange):
    """Recursive doubling with one partner per round; if the size is no power of two, a source and another destination."""

    def all_gather(self, n: int) -> Rounds:
        """Every member ends with the data of all."""
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
        """Every member ends with the data of the root, along a binomial tree."""
        return [[(i, j, ()) for i, j, _ in messages] for messages in self.scatter(n, root)]

    def scatter(self, n: int, root: int) -> Rounds:
        """The root sends the half of the data to the member half the group away; both go on in the same way."""
        rounds: Rounds = []
        for bit in (1 << k for k in reversed(range((n - 1).bit_length()))):
            messages: list[Message] = []
            for first in range(0, n - bit, 2 * bit):
                what = range(root + first + bit, root + min(first + 2 * bit, n))
                messages.append(((root + first) % n, (root + first + bit) % n, what))
            rounds.append(messages)
        return rounds

    def all_to_all(self, n: int) -> Rounds:
        """Round k moves all data whose distance has bit k."""
        rounds: Rounds = []
        for bit in (1 << k for k in range((n - 1).bit_length())):
            far = [distance for distance in range(n) if distance & bit]
            messages: list[Message] = []
            for i in range(n):
                origins = [((i - (distance & (bit - 1))) % n, distance) for distance in far]
                messages.append((i, (i + bit) % n, tuple((o, (o + distance) % n) for o, distance in origins)))
            rounds.append(messages)
        return rounds


class SwitchExchange(DoublingExchange):
    """Halving and doubling behind a switch; an all-to-all is direct, so that everything is sent once."""

    def all_to_all(self, n: int) -> Rounds:
        """Every member ends with its share of the data of each member."""
        return Exchange().all_to_all(n)
