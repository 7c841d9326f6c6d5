"""The tracks of a GPU in a picture of a run: one for each stream, and more where tasks of a stream overlap.

They are numbered alike on every GPU, so that viewers, which sort by number, show the same order everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from triosim.engine.recording import operator_times
from triosim.tasks import Handle, Task
from triosim.trace import Operator
from triosim.units import whole_nanoseconds

#: The tracks of a network's flows, and of operators and transfers that take no time.
NETWORK_OUT, NETWORK_IN, INSTANTS = "network out", "network in", "takes no time"


def track_order(stream: str) -> tuple[int, str]:
    """Return a sort key: compute streams first, then communication, the network's flows, and what takes no time."""
    last = {NETWORK_OUT: 2, NETWORK_IN: 2, INSTANTS: 3}
    return (0 if stream.startswith("compute") else last.get(stream, 1), stream)


def stream_of(task: Task) -> str:
    """Return the stream of a task; one for those of a dependency graph, which have none."""
    return getattr(task, "stream", None) or "unordered"


def operator_spans(handle: Handle) -> Iterator[tuple[Operator, int, int]]:
    """Yield each operator of a Compute task with its start and end in whole nanoseconds; none begins before the last ended."""
    before = 0
    for operator, started, ended in operator_times(handle):
        begin = max(before, whole_nanoseconds(started))
        before = max(begin, whole_nanoseconds(ended))
        yield operator, begin, before


class TrackNumbers:
    """The numbers of all streams of a run, from ``first`` on."""

    def __init__(self, streams: Iterable[str], first: int = 1) -> None:
        self._first = first
        self._streams = sorted(set(streams), key=track_order)
        self._places = {stream: place for place, stream in enumerate(self._streams)}

    def number(self, stream: str, lane: int) -> int:
        """Return the number of a stream's track."""
        return self._first + self._places[stream] + lane * len(self._streams)

    def name(self, number: int) -> str:
        """Return the name of a track: the stream's, numbered where it has several."""
        lane, place = divmod(number - self._first, len(self._streams))
        return self._streams[place] if lane == 0 else f"{self._streams[place]} ({lane + 1})"


class Tracks:
    """The tracks of one GPU that are in use."""

    def __init__(self, numbers: TrackNumbers) -> None:
        self._numbers = numbers
        self._ends: dict[str, list[int]] = {}
        self._used: set[int] = set()

    def track(self, stream: str, start: int, end: int) -> int:
        """Return the number of the stream's track that is free from ``start``, and take it until ``end``."""
        ends = self._ends.setdefault(stream, [])
        lane = next((index for index, taken in enumerate(ends) if taken <= start), len(ends))
        ends[lane : lane + 1] = [end]
        number = self._numbers.number(stream, lane)
        self._used.add(number)
        return number

    @property
    def names(self) -> dict[int, str]:
        """The names of the tracks by number, in the order in which they are shown."""
        found = {number: self._numbers.name(number) for number in self._used}
        return dict(sorted(found.items(), key=lambda pair: track_order(pair[1].partition(" (")[0])))
