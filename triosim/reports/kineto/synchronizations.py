"""The calls of the CUDA runtime in which a host waits for its GPU, as ``item()`` makes them."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence

from triosim.engine.recording import HostWait
from triosim.reports.kineto.activity import Activity
from triosim.reports.kineto.annotations import BEGIN
from triosim.trace.formats.pytorch.kineto_file import HostSpan
from triosim.units import whole_nanoseconds


def synchronizations(found: Sequence[Activity], waits: Iterable[HostWait]) -> Iterator[tuple[str, HostSpan]]:
    """Yield the name and the span of each wait, between the calls around it.

    There are none where launching costs the host no time: its calls are then not when they were simulated.
    """
    if any(one.handle.launch_start is None for one in found):
        return
    returns = [one.returned for one in found]
    for wait in waits:
        begin, end = whole_nanoseconds(wait.begin), whole_nanoseconds(wait.end)
        following = bisect.bisect_left(returns, end)
        begin = max(begin, returns[following - 1] if following else 0)
        end = min(end, found[following].called) if following < len(found) else end
        if end > begin:
            name = "cudaDeviceSynchronize" if wait.device else "cudaStreamSynchronize"
            yield name, HostSpan(begin + BEGIN, end + BEGIN)
