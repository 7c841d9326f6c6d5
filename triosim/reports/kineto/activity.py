"""The activity of one rank: each operator and transfer with the call of the host that launched it and its time on the GPU.

Where launching costs the host time, calls are when they were simulated. Elsewhere the simulated host takes no time, and calls
are drawn as long as a fast host's, at most ``RUN_AHEAD`` launches ahead of the GPU; the GPU's clock then starts a little later
than the host's (``lead``), so that no kernel runs before its launch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from triosim.engine.engine import RUN_AHEAD
from triosim.reports.tracks import operator_spans, stream_of
from triosim.reports.transfer_names import Transfer
from triosim.tasks import Compute, Copy, Handle, Iteration
from triosim.trace import Operator, Phase
from triosim.units import whole_nanoseconds

#: Nanoseconds of a call that launches something, of one that does not, and the least, in which calls nest.
_LAUNCHING, _OTHER, _LEAST = 1000, 100, 64


@dataclass(frozen=True, slots=True)
class Activity:
    """An operator or a transfer of a rank: its call on the host's clock, its work on the GPU's, in nanoseconds.

    ``operator`` is None for a transfer, whose ``phase`` and ``layer`` are those of the operator before it. ``iteration`` counts
    from 0. Work without length is none.
    """

    handle: Handle
    operator: Operator | None
    iteration: int
    phase: Phase
    layer: str
    called: int
    returned: int
    begin: int
    end: int

    @property
    def runs(self) -> bool:
        """Whether the GPU has work of it."""
        return self.end > self.begin

    @property
    def stream(self) -> str:
        """The stream that it runs on."""
        return stream_of(self.handle.task)


def activities(handles: Iterable[Handle]) -> Iterator[Activity]:
    """Yield what a rank did, given its handles in order of issue."""
    host, iteration = 0, 0
    phase: Phase = "forward"
    layer = ""
    ahead: deque[int] = deque(maxlen=RUN_AHEAD)  # when the last launches began to run
    for handle in handles:
        task = handle.task
        if isinstance(task, Iteration):
            iteration += 1
        if handle.finished is None or not isinstance(task, Compute | Transfer):
            continue
        for operator, begin, end in _work(handle):
            if len(ahead) == RUN_AHEAD and handle.launch_start is None:
                host = max(host, ahead[0])
            if operator is not None:
                phase, layer = operator.phase, operator.layer
            called, returned = _call(handle, operator, host, end > begin)
            yield Activity(handle, operator, iteration, phase, layer, called, returned, begin, end)
            host = returned
            if end > begin:
                ahead.append(begin)


def lead(found: Iterable[Activity]) -> int:
    """Return by how many nanoseconds the GPU's clock must start later than the host's."""
    return max((one.returned - one.begin for one in found if one.runs), default=0)


def _work(handle: Handle) -> Iterable[tuple[Operator | None, int, int]]:
    if isinstance(handle.task, Compute):
        return operator_spans(handle)
    begin = (
        handle.started if isinstance(handle.task, Copy) else handle.arrived
    )  # a copy waits for its engine, and runs then
    assert begin is not None
    assert handle.finished is not None
    return [(None, whole_nanoseconds(begin), whole_nanoseconds(handle.finished))]


def _call(handle: Handle, operator: Operator | None, host: int, runs: bool) -> tuple[int, int]:
    """Return when the host called and returned; ``host`` is when it was through with the call before."""
    nominal = _LAUNCHING if runs else _OTHER
    if handle.launch_start is None:
        return host, host + nominal
    launch = whole_nanoseconds(handle.launch_start)
    if operator is None:  # a transfer's is the end of its launch
        called = max(host, launch - nominal)
        return called, max(called + _LEAST, launch)
    called = max(host, launch)
    return called, called + max(_LEAST, whole_nanoseconds(operator.host_seconds or 0.0))
