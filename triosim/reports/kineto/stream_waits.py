"""What the work of a rank's streams waits for on other streams: CUDA events, as PyTorch records them and waits for them.

A transfer waits for the stream that issued it, a stream for the tasks of its ``Wait``, and a collective for the one before it
of its communicator, which NCCL runs in order of issue whatever their streams. What a task waits for on its own stream needs
no event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from triosim.reports.tracks import stream_of
from triosim.reports.transfer_names import Transfer, begin_of
from triosim.tasks import Collective, Communicator, Compute, Handle, Record, Wait
from triosim.units import whole_nanoseconds


@dataclass(frozen=True, slots=True)
class StreamWaits:
    """The work that each task waits for on other streams, the last of each stream, in the order in which they end."""

    awaited: Mapping[Handle, Sequence[Handle]]
    recorded: frozenset[Handle]  # after which an event is recorded

    @classmethod
    def of(cls, handles: Iterable[Handle]) -> StreamWaits:
        """Return those of a rank, given its handles in order of issue."""
        issued = _Issued()
        awaited = {}
        for handle in handles:
            found = issued.add(handle)
            if found and _runs(handle):
                last = {stream_of(one.task): one for one in sorted(found, key=_end)}
                last.pop(stream_of(handle.task), None)
                if last:
                    awaited[handle] = sorted(last.values(), key=_end)
        return cls(awaited, frozenset(one for some in awaited.values() for one in some))


class _Issued:
    """The tasks of a rank as they are issued: what the next task of each stream waits for, and what events stand for."""

    def __init__(self) -> None:
        self._next: dict[str, tuple[Handle, ...]] = {}
        self._stands_for: dict[Handle, tuple[Handle, ...]] = {}
        self._collectives: dict[Communicator, Handle] = {}  # the last of each communicator

    def add(self, handle: Handle) -> tuple[Handle, ...]:
        """Issue a task, and return the work that it waits for."""
        task = handle.task
        stream: str | None = getattr(task, "stream", None)
        found = (() if stream is None else self._next.get(stream, ())) + self._work_of(task.after)
        if isinstance(task, Wait):
            found += self._work_of(task.handles)
        if isinstance(task, Collective):
            found += self._work_of([self._collectives[task.group]] if task.group in self._collectives else [])
            self._collectives[task.group] = handle
        issuer: str | None = getattr(task, "issuer", None)
        if issuer is not None:
            found += self._next.get(issuer, ())
        found = tuple(dict.fromkeys(found))
        own = (handle,) if _runs(handle) else found
        self._stands_for[handle] = own
        if stream is not None and not isinstance(task, Record):
            self._next[stream] = own
        if issuer is not None and isinstance(task, Collective) and task.blocks:
            self._next[issuer] = tuple(dict.fromkeys(self._next.get(issuer, ()) + own))
        return found

    def _work_of(self, handles: Iterable[Handle]) -> tuple[Handle, ...]:
        return tuple(one for handle in handles for one in self._stands_for.get(handle, ()))


def _runs(handle: Handle) -> bool:
    """Return whether the GPU has work of a task: Compute tasks and transfers that take time."""
    if handle.finished is None or not isinstance(handle.task, Compute | Transfer):
        return False
    return whole_nanoseconds(handle.finished) > whole_nanoseconds(begin_of(handle))


def _end(handle: Handle) -> float:
    return handle.finished or 0.0
