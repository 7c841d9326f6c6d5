"""The allocations of a rank's last step, as the caching allocator would serve them, at the calls that ask for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from triosim.memory.world_memory import WorldMemory
from triosim.reports.kineto.activity import Activity


class Allocation(NamedTuple):
    """An allocation, or a free with ``nbytes`` below 0, at a nanosecond of the host, and the totals after it."""

    moment: int
    nbytes: int
    address: int
    allocated: int
    reserved: int


def memory_events(memory: WorldMemory, rank: int, found: Sequence[Activity]) -> Iterator[Allocation]:
    """Yield the allocations of a rank's last step; none where memory was not followed call by call.

    ``found`` is what the rank did.
    """
    last = found[-1].iteration if found else 0
    calls = [one for one in found if one.operator is not None and one.iteration == last]
    report = memory.report(rank)
    if len(calls) != len(report.trace.operators):
        return
    replay = report.replay
    served = {call.number: call for call in replay.calls if call.birth}
    for place, event in enumerate(report.usage.events, 1):
        call = served.get(event.number)
        if call is not None:
            change = replay.allocated[place] - replay.allocated[place - 1]  # a block's bytes, not the tensor's
            moment = calls[max(0, event.operator)].called
            yield Allocation(moment, change, call.address, replay.allocated[place], replay.reserved[place])
