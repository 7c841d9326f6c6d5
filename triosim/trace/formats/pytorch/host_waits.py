"""The times in which a host waits for its GPU, which are no cost of what it launches.

It waits in calls that synchronize; in a launch that does not return before its own work is over, as a copy to pageable memory;
and in a launch for which the queue of the GPU has no room, of which the time beyond that of a usual launch is a wait.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from statistics import median

from triosim.trace.formats.pytorch.kineto import Profile, Work

#: Launches that a GPU's queue holds, less those of calls that are left out of profiles.
_QUEUE = 1000

_COPY = "Memcpy"

Interval = tuple[float, float]


class HostWaits:
    """The waits of a profile's host, by thread, in microseconds."""

    def __init__(self, profile: Profile) -> None:
        self._found: dict[str, list[Interval]] = {}
        launched = sorted((one for one in profile.work if one.thread is not None), key=lambda one: one.launched)
        usual = median(one.returned - one.launched for one in launched) if launched else 0.0
        begins = sorted(one.start for one in launched)
        self._of_launch: dict[int, Interval] = {}
        for number, work in enumerate(launched):
            queued = number - bisect.bisect_right(begins, work.launched)
            since = work.launched if blocks(work) else work.launched + usual
            if work.returned > since and (blocks(work) or queued >= _QUEUE):
                self._of_launch[id(work)] = (since, work.returned)
        for thread, wait in _all_waits(profile, launched, self._of_launch):
            self._found.setdefault(thread, []).append(wait)
        for found in self._found.values():
            found.sort()

    def of_launch(self, work: Work) -> float:
        """Return for how long the host waited in the launch of some work."""
        begin, end = self._of_launch.get(id(work), (0.0, 0.0))
        return end - begin

    def within(self, thread: str, begin: float, end: float) -> float:
        """Return for how long a thread waited from one moment to another."""
        found = self._found.get(thread, [])
        waited, until = 0.0, begin
        for since, over in found[max(0, bisect.bisect_left(found, (begin, begin)) - 1) :]:
            if since >= end:
                break
            waited += max(0.0, min(over, end) - max(since, until))
            until = max(until, over)
        return waited


def blocks(work: Work) -> bool:
    """Return whether some work is a copy whose launch returned only when it was over; short kernels may end before that."""
    return work.thread is not None and work.name.startswith(_COPY) and work.returned >= work.end


def _all_waits(
    profile: Profile, launched: list[Work], of_launch: dict[int, Interval]
) -> Iterator[tuple[str, Interval]]:
    for call in profile.waits:
        if "WaitEvent" not in call.name:
            yield call.thread, (call.start, call.end)
    for work in launched:
        if id(work) in of_launch:
            yield str(work.thread), of_launch[id(work)]
