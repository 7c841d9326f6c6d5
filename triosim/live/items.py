"""What a running rank tells the simulation, in order: operators, marks, what its host does, and what it asks.

An operator is sent once (``NewOperator``); after that its number, a plain ``int``, stands for each equal call. A ``Mark`` of
the trace says how streams and host wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from triosim.trace import Communication, Mark, Operator, Trace
from triosim.trace.formats.pytorch.kineto_file import ProfiledRank
from triosim.trace.sample_axes import SampleAxes


@dataclass(frozen=True, slots=True)
class NewOperator:
    """An operator that was not issued before, without times. Its ``id`` is its number: they count from 0."""

    operator: Operator


@dataclass(frozen=True, slots=True)
class Communicated:
    """A communication, by the number of its operator, and the layer that it is for."""

    number: int
    communication: Communication
    layer: str = ""


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """A CUDA event that was recorded on a stream, and whose time may be asked for."""

    stream: str
    number: int


@dataclass(frozen=True, slots=True)
class HostWork:
    """The host is busy, or sleeps at a line of the script; reading the clock has no line."""

    seconds: float
    line: str = ""


@dataclass(frozen=True, slots=True)
class Groups:
    """The process groups that the script has made, by axis."""

    groups: dict[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, slots=True)
class Posted:
    """A message to another running rank was sent, by its name."""

    message: str


@dataclass(frozen=True, slots=True)
class Awaited:
    """The host waits for a message from another running rank, by its name."""

    message: str


@dataclass(frozen=True, slots=True)
class StepOver:
    """The optimizer returned from ``step()``."""


@dataclass(frozen=True, slots=True)
class Said:
    """The script wrote to its standard output or standard error; or a note or an error of ours, shown once for all ranks."""

    stream: Literal["out", "err", "note", "error"]
    text: bytes


@dataclass(frozen=True, slots=True)
class ReadClock:
    """A question: what time is it? The answer is in seconds since the run began."""


@dataclass(frozen=True, slots=True)
class ElapsedTime:
    """A question: how many seconds passed between two timed events? The answer is None while one of them is not done."""

    first: int
    second: int


@dataclass(frozen=True, slots=True)
class EventDone:
    """A question: is a timed event done?"""

    number: int


@dataclass(frozen=True, slots=True)
class ProfileBegins:
    """The script's profiler starts."""


@dataclass(frozen=True, slots=True)
class RangeBegins:
    """The script begins a range that it names, while its profiler runs."""

    name: str


@dataclass(frozen=True, slots=True)
class RangeEnds:
    """The innermost range of the script ends."""


@dataclass(frozen=True, slots=True)
class ProfileEnds:
    """A question: what ran while the script's profiler did? The answer is True, and that the file holds the profile."""

    file: str
    owner: ProfiledRank


@dataclass(frozen=True, slots=True)
class At:
    """The line that the script is at, as it is asked for when nothing was heard of it for long."""

    line: str


@dataclass(frozen=True, slots=True)
class KeptTraces:
    """The traces that a rank has kept so far, as they are asked for when the run is interrupted.

    ``kinds`` is the kind of each step, by which the ``traces`` are; ``sample_axes`` say which samples the
    rank has.
    """

    kinds: tuple[int, ...]
    traces: Mapping[int, Trace]
    sample_axes: SampleAxes

    def of(self, step: int) -> Trace | None:
        """Return the trace of a step; None where none of its kind was kept."""
        return self.traces.get(self.kinds[step]) if step < len(self.kinds) else None


@dataclass(frozen=True, slots=True)
class Ended:
    """The script ended with an exit status."""

    status: int


Question = ReadClock | ElapsedTime | EventDone | ProfileEnds
#: What a script's profiler does beside asking.
ProfilerAction = ProfileBegins | RangeBegins | RangeEnds
#: What the host of a rank does beside launching.
HostAction = HostWork | StepOver | Said | Posted | Awaited | ProfilerAction | Question | TimedEvent | Ended
Item = int | NewOperator | Communicated | Mark | Groups | At | KeptTraces | HostAction
