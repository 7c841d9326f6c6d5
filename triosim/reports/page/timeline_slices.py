"""What each rank did and when, as the page's timeline and a recorded ``result.json`` hold it.

A track is a stream of a GPU; ranks that did the same at the same times share theirs. The starts of its slices are given as
differences, which are short numbers, and what a slice shows by its place in ``whats``: name, kind and detail.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triosim.engine import Recording
from triosim.engine.recording import matched_sends, operator_times
from triosim.reports.page.memory_curve import MOST_RANKS
from triosim.reports.tracks import TrackNumbers, Tracks, stream_of, track_order
from triosim.reports.transfer_names import Transfer, begin_of, layer_names, transfer_name
from triosim.tasks import Collective, Communicator, Compute, Copy, Handle, Recv, Send
from triosim.units import format_ranks, whole_nanoseconds

#: More slices make a page that is slow to load; the ranks beyond are left out, and the page says so.
MAX_SLICES = 200_000
MAX_ARROWS = 20_000

#: The track of a rank: the rank and the track's name.
Place = tuple[int, str]


@dataclass(slots=True)
class _Track:
    """The slices of one track in order; ``waits`` are (slice, nanoseconds, the rank that it waited for, None for several)."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    whats: list[int] = field(default_factory=list)
    waits: list[tuple[int, int, int | None]] = field(default_factory=list)

    def add(self, start: int, end: int, what: int) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.whats.append(what)

    def contents(self) -> tuple[tuple[Any, ...], ...]:
        """Return what tells it from other tracks."""
        return tuple(self.starts), tuple(self.ends), tuple(self.whats), tuple(self.waits)

    def values(self, stream: str, ranks: list[int]) -> dict[str, Any]:
        """Return it as JSON has it, for all ranks that share it."""
        before = [0, *self.starts]
        return {
            "label": f"GPU {format_ranks(ranks, MOST_RANKS)} {stream}",
            "ranks": ranks,
            "stream": stream,
            "starts": [start - last for start, last in zip(self.starts, before, strict=False)],
            "lasts": [end - start for start, end in zip(self.starts, self.ends, strict=True)],
            "whats": self.whats,
            "waits": [list(wait) for wait in self.waits],
        }


def timeline_slices(recording: Recording) -> dict[str, Any]:
    """Return the tracks of all ranks, with arrows from sends to receives; the recording holds its tasks' handles."""
    by_rank: dict[int, list[Handle]] = defaultdict(list)
    for handle in recording.handles or ():
        if handle.finished is not None and isinstance(handle.task, Compute | Transfer):
            by_rank[handle.rank].append(handle)
    slices = _Slices(by_rank)
    shared: dict[tuple[Any, ...], list[Place]] = {}
    drawn: dict[Place, _Track] = {}
    left_out = 0
    for rank, handles in sorted(by_rank.items()):
        if sum(len(drawn[places[0]].starts) for places in shared.values()) > MAX_SLICES:
            left_out += 1
            continue
        for stream, track in slices.of_rank(rank, handles).items():
            drawn[rank, stream] = track
            shared.setdefault((stream, track.contents()), []).append((rank, stream))
    ordered = sorted(shared.values(), key=lambda places: (places[0][0], track_order(places[0][1])))
    number = {place: index for index, places in enumerate(ordered) for place in places}
    return {
        "end_ns": whole_nanoseconds(recording.end),
        "whats": [list(what) for what in slices.whats],
        "tracks": [drawn[places[0]].values(places[0][1], [rank for rank, _ in places]) for places in ordered],
        "arrows": slices.arrows(by_rank, number),
        "ranks_left_out": left_out,
    }


class _Slices:
    """Makes slices of handles; ``whats`` are what they show, by their places in it."""

    def __init__(self, by_rank: Mapping[int, Iterable[Handle]]) -> None:
        self.whats: dict[tuple[str, str, str], int] = {}
        self._tasks: dict[int, int] = {}  # by id() of an operator or a task, since the recording keeps them all
        self._placed: dict[Handle, str] = {}
        self._last: dict[tuple[Communicator, int], tuple[float, int]] = {}  # the last arrival at each collective
        streams = set()
        for rank, handles in by_rank.items():
            for handle in handles:
                streams.add(_stream(handle))
                if isinstance(handle.task, Collective) and handle.arrived is not None:
                    meeting = handle.task.group, handle.sequence_numbers[0] if handle.sequence_numbers else 0
                    self._last[meeting] = max(self._last.get(meeting, (0.0, rank)), (handle.arrived, rank))
        self._numbers = TrackNumbers(streams)

    def of_rank(self, rank: int, handles: Iterable[Handle]) -> dict[str, _Track]:
        """Return the tracks of a rank by name."""
        lanes, found = Tracks(self._numbers), defaultdict[int, _Track](_Track)
        for handle in sorted(handles, key=begin_of):
            start, end = whole_nanoseconds(begin_of(handle)), whole_nanoseconds(handle.finished or 0.0)
            if end == start:
                continue
            number = lanes.track(_stream(handle), start, end)
            track = found[number]
            if isinstance(handle.task, Compute):
                self._compute(track, handle, end)
            else:
                self._transfer(track, handle, rank, start, end)
                self._placed[handle] = lanes.names[number]
        return {name: found[number] for number, name in lanes.names.items() if number in found}

    def arrows(self, by_rank: Mapping[int, Iterable[Handle]], number: Mapping[Place, int]) -> list[list[int]]:
        """Return (track, nanoseconds sent, track, nanoseconds received), each once."""
        found: dict[tuple[int, int, int, int], None] = {}
        for sender, receiver in matched_sends(by_rank):
            ends = [number.get((one.rank, self._placed.get(one, ""))) for one in (sender, receiver)]
            if None not in ends and sender.started is not None and receiver.finished is not None:
                a, b = (end for end in ends if end is not None)
                found[a, whole_nanoseconds(sender.started), b, whole_nanoseconds(receiver.finished)] = None
        return [list(arrow) for arrow in list(found)[:MAX_ARROWS]]

    def _compute(self, track: _Track, handle: Handle, until: int) -> None:
        for operator, began, ended in operator_times(handle):
            start, end = whole_nanoseconds(began), min(whole_nanoseconds(ended), until)
            if end > start:
                track.add(start, end, self._what(id(operator), operator.name, operator.phase, operator.layer))

    def _transfer(self, track: _Track, handle: Handle, rank: int, start: int, end: int) -> None:
        task: Any = handle.task
        known = self._tasks.get(id(task))
        track.add(start, end, self._what(id(task), *_shown(task)) if known is None else known)
        waited = whole_nanoseconds(handle.started or 0.0) - start
        if waited > 0:
            track.waits.append((len(track.starts) - 1, waited, self._waited_for(task, handle, rank)))

    def _waited_for(self, task: Transfer, handle: Handle, rank: int) -> int | None:
        """Return the rank that was the last to come; None where there is no one rank."""
        if isinstance(task, Collective):
            meeting = task.group, handle.sequence_numbers[0] if handle.sequence_numbers else 0
            last = self._last[meeting][1]
            return None if last == rank else last
        return task.source if isinstance(task, Recv) else task.destination if isinstance(task, Send) else None

    def _what(self, key: int, name: str, kind: str, detail: str) -> int:
        found = self._tasks.get(key)
        if found is None:
            found = self._tasks[key] = self.whats.setdefault((name, kind, detail), len(self.whats))
        return found


def _stream(handle: Handle) -> str:
    """Return the stream that a task is shown on: sends to all partners share one, and so do receives."""
    if isinstance(handle.task, Send):
        return "send"
    if isinstance(handle.task, Recv):
        return "receive"
    return stream_of(handle.task)


def _shown(task: Transfer) -> tuple[str, str, str]:
    """Return the name, kind and detail of a transfer."""
    detail = [task.label] if task.label else []
    if isinstance(task, Collective):
        detail = [f"{task.group.name} over GPUs {format_ranks(task.group.ranks, MOST_RANKS)}"]
    if task.layers is not None:
        detail.append(layer_names(task.layers))
    on_host = isinstance(task, Copy) and task.is_host_computation
    return transfer_name(task), "host computation" if on_host else "communication", "; ".join(detail)
