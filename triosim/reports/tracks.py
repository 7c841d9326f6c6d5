"""The tracks of a GPU in a picture of a run: one for each stream, and more where tasks of a stream overlap.

They are numbered alike on every GPU, so that viewers, which sort by number, show the same order everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Numbers between two streams, for the tracks of tasks that overlap.
_STEP = 1000


def track_order(stream: str) -> tuple[int, str]:
    """Return a sort key: compute streams first, then communication, then the network's flows."""
    return (0 if stream.startswith("compute") else 2 if stream.startswith("network") else 1, stream)


class TrackNumbers:
    """The numbers of all streams of a run, from ``first`` on."""

    def __init__(self, streams: Iterable[str], first: int = 1) -> None:
        ordered = sorted(set(streams), key=track_order)
        self._numbers = {stream: first + place for place, stream in enumerate(ordered)}

    def number(self, stream: str, lane: int) -> int:
        """Return the number of a stream's track."""
        return self._numbers[stream] + lane * _STEP

    def name(self, number: int) -> str:
        """Return the name of a track: the stream's, numbered where it has several."""
        lane, first = divmod(number, _STEP)
        stream = next(stream for stream, one in self._numbers.items() if one == first)
        return stream if lane == 0 else f"{stream} ({lane + 1})"


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
        return dict(sorted(found.items(), key=lambda pair: track_order(pair[1])))
