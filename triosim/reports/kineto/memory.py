"""The allocations of a rank's last step, as the caching allocator would serve them, at the calls that ask for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from triosim.memory.world_memory import WorldMemory
from triosim.reports.kineto.activity import Activity
from triosim.trace import Operator


class Allocation(NamedTuple):
    """An allocation, or a free with ``nbytes`` below 0, at a nanosecond of the host, and the totals after it."""

    moment: int
    nbytes: int
    address: int
    allocated: int
    reserved: int


def _calls_of(operators: Sequence[Operator], found: Sequence[Activity]) -> list[Activity]:
    """Return the activities of operators, in their order; what was added to them, as copies of gradients, is left out."""
    left = iter(one for one in found if one.operator is not None)
    calls = []
    for operator in operators:
        call = next((one for one in left if one.operator is not None and one.operator.id == operator.id), None)
        if call is None:
            break
        calls.append(call)
    return calls


def memory_events(memory: WorldMemory, rank: int, found: Sequence[Activity]) -> Iterator[Allocation]:
    """Yield the allocations of a rank's last step; none where memory was not followed call by call.

    ``found`` is what the rank did.
    """
    last = found[-1].iteration if found else 0
    report = memory.report(rank)
    calls = _calls_of(report.trace.operators, [one for one in found if one.iteration == last])
    if len(calls) < len(report.trace.operators):
        return
    replay = report.replay
    served = {call.number: call for call in replay.calls if call.birth}
    for place, event in enumerate(report.usage.events, 1):
        call = served.get(event.number)
        if call is not None:
            change = replay.allocated[place] - replay.allocated[place - 1]  # a block's bytes, not the tensor's
            moment = calls[max(0, event.operator)].called
            yield Allocation(moment, change, call.address, replay.allocated[place], replay.reserved[place])
