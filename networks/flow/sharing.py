"""Keeps max-min fair rates up to date while flows come and go, and looks only at flows that a change can affect.

An allocation is max-min fair if and only if every flow has a *bottleneck*: a link that is full and on which no other
flow gets more (Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2). So :func:`refill` guesses which
flows a change affects, shares among them what the others leave (progressive filling), and checks whether all flows on
the links that it touched still have a bottleneck. Flows that have none join the guess, and it fills again; all other flows
keep rates that are fair.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from importlib.util import find_spec
from types import FunctionType
from typing import TYPE_CHECKING, Any

from triosim.errors import OptionError

SLACK = 1e-12  # rates and loads that differ by less than this part are the same; rounding is far below it
FAILED = 1e-300  # bytes per second on a link that has failed: a rate is never 0
PATIENCE = 8  # guesses, after which all flows connected to the change are taken
#: Crossings looked at, about two seconds of plain Python, after which a network changes over to compiled code: loading numba
#: and the code takes about a second, several where it is compiled for the first time. So it is never much slower than the
#: better of the two.
COMPILING_REPAYS = 4_000_000

# The state, in columns, as refill takes them and as a compiled refill can: of links, of flows, and of crossings. A
# crossing is one flow on one link; the crossings of a flow are a list (first, hop), those of a link are another
# (head, following, previous).
_LINKS = {
    "capacity": 0.0, "count": 0, "head": -1, "seen": 0, "left": 0.0, "unsettled": 0, "highest": 0.0, "reached": 0,
}  # fmt: skip
_FLOWS = {
    "first": -1, "rate": 0.0, "wanted": 0.0, "remaining": 0.0, "updated": 0.0, "finish": 0.0, "bottleneck": -1,
    "marked": 0, "settled": 0, "members": 0,
}  # fmt: skip
_CROSSINGS = {"link_of": 0, "flow_of": 0, "hop": -1, "following": -1, "previous": -1}
_COLUMNS: dict[str, float] = {**_LINKS, **_FLOWS, **_CROSSINGS}

Refill = Callable[..., tuple[int, int, int]]
Columns = tuple[Any, ...]  # of links, of flows or of crossings, in the order of their tables


def refill(
    now: float, started: Sequence[int], freed: Sequence[int], stamp: int, patience: int, *columns: Any
) -> tuple[int, int, int]:
    """Set the rates, remaining bytes and finish times of the flows that a change affects.

    The arguments are the time; the flows that have ``started`` and have no rate yet; the links that flows have left
    (``freed``); a ``stamp``, which marks what this call has seen, so that nothing must be cleared; the number of guesses
    after which all connected flows are taken (``patience``); and the columns of ``_LINKS``, ``_FLOWS`` and ``_CROSSINGS``.

    Returns how many flows have another rate now, which are the first ones in ``members``; the next stamp; and the work done,
    in crossings looked at. It takes columns and not objects so that numba can compile it, and the six functions that it
    calls: plain Python on lists and compiled code on arrays run the same operations in the same order, to the last bit.
    """
    links, flows, crossings = columns[:8], columns[8:18], columns[18:]
    call = stamp
    n = _first_guess(started, freed, call, links, flows, crossings)
    rounds = 0
    work = 0
    before = 0
    while n > before:
        before = n
        rounds += 1
        stamp += 1
        r, looked_at = _free_bandwidth(n, call, stamp, links, flows, crossings)
        work += looked_at
        _fill(n, r, call, stamp, links, flows, crossings)
        n = _add_unfair(n, r, call, stamp, links, flows, crossings)
        if n > before and rounds == patience:
            n = _add_connected(n, call, links, flows, crossings)
    return _set_rates(n, now, flows), stamp + 1, work


def _first_guess(
    started: Sequence[int], freed: Sequence[int], call: int, links: Columns, flows: Columns, crossings: Columns
) -> int:
    """Put into ``members`` the flows that a change affects at first sight; return how many they are."""
    capacity, count, head, _, _, _, _, _ = links
    first, rate, _, _, _, _, bottleneck, marked, _, members = flows
    link_of, flow_of, hop, following, _ = crossings
    n = 0  # members: the flows among which is shared
    for f in started:
        if marked[f] != call:
            marked[f] = call
            members[n] = f
            n += 1
        c = first[f]
        while c >= 0:
            m = link_of[c]
            fair = capacity[m] / count[m]
            x = head[m]
            while x >= 0:
                g = flow_of[x]
                if rate[g] > fair and marked[g] != call:
                    marked[g] = call
                    members[n] = g
                    n += 1
                x = following[x]
            c = hop[c]
    for m in freed:
        x = head[m]
        while x >= 0:
            g = flow_of[x]
            if bottleneck[g] == m and marked[g] != call:
                marked[g] = call
                members[n] = g
                n += 1
            x = following[x]
    return n


def _free_bandwidth(
    n: int, call: int, stamp: int, links: Columns, flows: Columns, crossings: Columns
) -> tuple[int, int]:
    """Find the links that members cross (``reached``), what others leave of each, and the highest rate among the others.

    Returns how many links there are, and the crossings looked at.
    """
    capacity, count, head, seen, left, unsettled, highest, reached = links
    first, rate, _, _, _, _, _, marked, _, members = flows
    link_of, flow_of, hop, following, _ = crossings
    r = 0
    work = 0
    for i in range(n):
        c = first[members[i]]
        while c >= 0:
            m = link_of[c]
            if seen[m] != stamp:
                seen[m] = stamp
                reached[r] = m
                r += 1
                work += count[m]
                free = capacity[m]
                top = 0.0
                k = 0
                x = head[m]
                while x >= 0:
                    g = flow_of[x]
                    if marked[g] == call:
                        k += 1
                    else:
                        v = rate[g]
                        free -= v
                        if v > top:
                            top = v
                    x = following[x]
                left[m] = free if free > 0.0 else 0.0
                unsettled[m] = k
                highest[m] = top
            c = hop[c]
    return r, work


def _fill(n: int, r: int, call: int, stamp: int, links: Columns, flows: Columns, crossings: Columns) -> None:
    """Share among the members what is left: progressive filling. A link's fair share only grows; one that grew goes back."""
    _, _, head, _, left, unsettled, _, reached = links
    first, _, wanted, _, _, _, bottleneck, marked, settled, _ = flows
    link_of, flow_of, hop, following, _ = crossings
    heap = [(left[m] / unsettled[m], m) for m in reached[:r]]
    heapify(heap)
    to_settle = n
    while to_settle > 0:
        share, m = heappop(heap)
        k = unsettled[m]
        if k == 0:
            continue
        fair = left[m] / k
        if fair > share:
            heappush(heap, (fair, m))
            continue
        x = head[m]
        while x >= 0:
            g = flow_of[x]
            if marked[g] == call and settled[g] != stamp:
                settled[g] = stamp
                to_settle -= 1
                wanted[g] = share
                bottleneck[g] = m
                c = first[g]
                while c >= 0:
                    left[link_of[c]] -= share
                    unsettled[link_of[c]] -= 1
                    c = hop[c]
            x = following[x]
        left[m] = 0.0


def _add_unfair(n: int, r: int, call: int, stamp: int, links: Columns, flows: Columns, crossings: Columns) -> int:
    """Add the flows on the links reached that have no bottleneck any more to the members; return how many these are now."""
    capacity, _, head, _, left, _, highest, reached = links
    _, rate, wanted, _, _, _, bottleneck, marked, settled, members = flows
    _, flow_of, _, following, _ = crossings
    for i in range(r):
        m = reached[i]
        if highest[m] == 0.0:  # there are members alone
            continue
        top = highest[m]
        least = top  # among the members whose bottleneck this is
        x = head[m]
        resting = False  # is it the bottleneck of others too?
        while x >= 0:
            g = flow_of[x]
            if marked[g] != call:
                if bottleneck[g] == m:
                    resting = True
            elif settled[g] == stamp:  # not one that joined just now
                v = wanted[g]
                if v > top:
                    top = v
                if bottleneck[g] == m and v < least:
                    least = v
            x = following[x]
        least *= 1 + SLACK
        if resting or least < highest[m]:
            free_again = left[m] > SLACK * capacity[m]
            top *= 1 - SLACK
            x = head[m]
            while x >= 0:
                g = flow_of[x]
                if marked[g] != call:
                    v = rate[g]
                    if v > least or (bottleneck[g] == m and (free_again or v < top)):
                        marked[g] = call
                        members[n] = g
                        n += 1
                x = following[x]
    return n


def _add_connected(n: int, call: int, links: Columns, flows: Columns, crossings: Columns) -> int:
    """Add all flows that are connected to members through links; return how many these are now."""
    _, _, head, _, _, _, _, _ = links
    first, _, _, _, _, _, _, marked, _, members = flows
    link_of, flow_of, hop, following, _ = crossings
    i = 0
    while i < n:
        c = first[members[i]]
        while c >= 0:
            x = head[link_of[c]]
            while x >= 0:
                g = flow_of[x]
                if marked[g] != call:
                    marked[g] = call
                    members[n] = g
                    n += 1
                x = following[x]
            c = hop[c]
        i += 1
    return n


def _set_rates(n: int, now: float, flows: Columns) -> int:
    """Give the members their new rates and finish times, those whose rate changes first in ``members``; return how many."""
    _, rate, wanted, remaining, updated, finish, _, _, _, members = flows
    changed = 0
    for i in range(n):
        f = members[i]
        v = wanted[f]
        if v != rate[f]:  # one whose rate stays keeps its finish time to the last bit
            remaining[f] -= rate[f] * (now - updated[f])
            if remaining[f] < 0.0:
                remaining[f] = 0.0
            updated[f] = now
            rate[f] = v
            finish[f] = now + remaining[f] / v
            members[changed] = f
            changed += 1
    return changed


def can_compile() -> bool:
    """Return whether numba is installed, without importing it."""
    return find_spec("numba") is not None


@lru_cache(maxsize=1)
def compiled_refill() -> Refill:
    """Return ``refill`` compiled without fast-math, the same operations in the same order; ``OptionError`` without numba."""
    if not can_compile():
        fix = "pip install triosim[fast], or leave it to 'auto'"
        raise OptionError("numba is not installed", where="kernel", fix=fix)
    import numba

    steps = (_first_guess, _free_bandwidth, _fill, _add_unfair, _add_connected, _set_rates)

    def compiled(*, cache: bool) -> Refill:
        names = {step.__name__: numba.njit(cache=cache)(step) for step in steps}
        found: Refill = numba.njit(cache=cache)(FunctionType(refill.__code__, {**globals(), **names}, refill.__name__))
        return found

    try:
        return compiled(cache=True)
    except RuntimeError:  # nowhere to write a cache
        return compiled(cache=False)


class FlowRates:
    """The flows on a set of links, their rates (bytes per second) and finish times (seconds).

    A flow is known by its slot, a number that is used again. ``settle`` applies what ``add`` and ``remove`` have gathered.
    """

    if TYPE_CHECKING:  # the columns are attributes of the names in _COLUMNS

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, capacities: Iterable[float], *, patience: int = PATIENCE) -> None:
        self.work = 0  # done in plain Python, in crossings looked at
        self._patience = patience
        self._stamp = 1
        self._started: list[int] = []
        self._disturbed: dict[int, None] = {}  # flows on links whose capacity has changed
        self._freed: dict[int, None] = {}
        self._free_slots: list[int] = []
        self._free_crossings: list[int] = []
        self._compiled: Refill | None = None
        for name in _COLUMNS:
            setattr(self, name, [])
        self.capacity.extend(capacities)
        links = len(self.capacity)
        for name, empty in _LINKS.items():
            if name != "capacity":
                getattr(self, name).extend([empty] * links)
        self._columns = self._views()

    def add(self, links: Sequence[int], nbytes: float, now: float) -> int:
        """Put a flow on links, which must all be different and at least one, and return its slot."""
        if not self._free_slots:
            self._grow(_FLOWS, self._free_slots, 1)
        if len(self._free_crossings) < len(links):
            self._grow(_CROSSINGS, self._free_crossings, len(links))
        slot = self._free_slots.pop()
        head, following, previous, count = self.head, self.following, self.previous, self.count
        hop = -1
        for link in links:
            crossing = self._free_crossings.pop()
            self.link_of[crossing] = link
            self.flow_of[crossing] = slot
            self.hop[crossing] = hop
            hop = crossing
            neighbour = head[link]
            following[crossing] = neighbour
            previous[crossing] = -1
            if neighbour >= 0:
                previous[neighbour] = crossing
            head[link] = crossing
            count[link] += 1
        self.first[slot] = hop
        self.rate[slot] = 0.0
        self.remaining[slot] = nbytes
        self.updated[slot] = now
        self._started.append(slot)
        return slot

    def remove(self, slot: int) -> None:
        """Take a flow, which has been settled, off its links."""
        self._disturbed.pop(slot, None)
        head, following, previous, count = self.head, self.following, self.previous, self.count
        crossing = self.first[slot]
        while crossing >= 0:
            link = self.link_of[crossing]
            before, after = previous[crossing], following[crossing]
            if before >= 0:
                following[before] = after
            else:
                head[link] = after
            if after >= 0:
                previous[after] = before
            count[link] -= 1
            if count[link]:
                self._freed[link] = None
            self._free_crossings.append(crossing)
            crossing = self.hop[crossing]
        self._free_slots.append(slot)

    def set_capacity(self, link: int, capacity: float) -> None:
        """Let a link carry so many bytes per second from now on; next to nothing with 0."""
        self.capacity[link] = max(capacity, FAILED)
        crossing = self.head[link]
        while crossing >= 0:
            self._disturbed[self.flow_of[crossing]] = None
            crossing = self.following[crossing]

    @property
    def changed(self) -> bool:
        """Whether flows have come, or have left others behind, or links have changed, since the rates were last set."""
        return bool(self._started or self._freed or self._disturbed)

    def settle(self, now: float) -> Sequence[int]:
        """Share again among the flows that the changes reach; return the slots of those that got another rate."""
        alone: list[int] = []
        started: list[int] = []
        for slot in self._started:
            (alone if self._alone(slot, now) else started).append(slot)
        started += list(self._disturbed)  # one that is there twice counts once
        freed = list(self._freed)
        self._started.clear()
        self._freed.clear()
        self._disturbed.clear()
        if not started and not freed:
            return alone
        changed = self._refill(now, started, freed)
        return [*alone, *changed] if alone else changed

    def on(self, link: int) -> Iterator[tuple[int, float]]:
        """Yield the slots of the flows on a link, and their rates."""
        crossing = self.head[link]
        while crossing >= 0:
            slot = self.flow_of[crossing]
            yield slot, self.rate[slot]
            crossing = self.following[crossing]

    def compile(self) -> None:
        """Go on with the compiled ``refill``: the same figures, in arrays."""
        compiled = compiled_refill()
        for name, empty in _COLUMNS.items():
            setattr(self, name, array("d" if isinstance(empty, float) else "q", getattr(self, name)))
        self._compiled = compiled
        self._columns = self._views()

    def _views(self) -> tuple[Any, ...]:
        """Return the columns as ``refill`` takes them: the lists themselves, or numpy arrays over the same memory."""
        columns = [getattr(self, name) for name in _COLUMNS]
        if self._compiled is None:
            return tuple(columns)
        import numpy as np

        return tuple(np.frombuffer(column, dtype=column.typecode) for column in columns)

    def _refill(self, now: float, started: list[int], freed: list[int]) -> Sequence[int]:
        if self._compiled is None:
            changed, self._stamp, work = refill(now, started, freed, self._stamp, self._patience, *self._columns)
            self.work += work
        else:
            import numpy as np

            begun, left = np.array(started, dtype="q"), np.array(freed, dtype="q")
            changed, self._stamp, _ = self._compiled(now, begun, left, self._stamp, self._patience, *self._columns)
        found: Sequence[int] = self.members[:changed]
        return found

    def _grow(self, columns: Mapping[str, float], free: list[int], least: int) -> None:
        """Double the room for flows or for crossings."""
        self._columns = ()  # an array does not grow while numpy looks at it
        room = len(getattr(self, next(iter(columns))))
        more = max(room, least, 64)
        for name, empty in columns.items():
            getattr(self, name).extend(empty for _ in range(more))
        free.extend(range(room + more - 1, room - 1, -1))
        self._columns = self._views()

    def _alone(self, slot: int, now: float) -> bool:
        """Give a flow that is alone on all its links the rate of the narrowest; return whether it is."""
        count, capacity = self.count, self.capacity
        crossing = self.first[slot]
        narrowest = self.link_of[crossing]
        while crossing >= 0:
            link = self.link_of[crossing]
            if count[link] != 1:
                return False
            if capacity[link] < capacity[narrowest]:
                narrowest = link
            crossing = self.hop[crossing]
        rate = self.rate[slot] = capacity[narrowest]
        self.finish[slot] = now + self.remaining[slot] / rate
        self.bottleneck[slot] = narrowest
        return True
