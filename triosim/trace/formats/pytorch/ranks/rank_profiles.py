"""Profiles of the ranks of a distributed step as task streams: what each GPU ran, in the order in which its host launched it.

The profiler (PyTorch 2.3 and later) says of a kernel of NCCL's which collective it is, of how many elements and in which
group, and of a file which rank it is of. It does not say what waited for what. A kernel is taken to have waited for what ended
last on another stream where it starts later than its own stream and its launch explain; and where the host lets a stream wait
(``cudaStreamWaitEvent``), for the first communication that nothing has waited for and that was over when the next kernel began.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from triosim.errors import TraceError
from triosim.trace.copies import COPIED_BYTES, COPY_LABEL, COPY_STREAM, is_host_copy
from triosim.trace.formats.pytorch.host_waits import HostWaits, blocks
from triosim.trace.formats.pytorch.joined_calls import last_step
from triosim.trace.formats.pytorch.kineto import Profile, Span, Work
from triosim.trace.formats.pytorch.profiled_step import MICROSECONDS, OPTIMIZER_STEP, world_of
from triosim.trace.formats.pytorch.ranks import missing_ranks
from triosim.trace.formats.pytorch.ranks.nccl_kernels import Transfer, purposes_of, transfer_of
from triosim.trace.formats.pytorch.ranks.rank_calls import INFERRED, calls_of
from triosim.trace.formats.pytorch.ranks.samples import RankBatch, parts_of_samples, rank_batch, samples
from triosim.trace.group_families import GroupFamilies
from triosim.trace.task_streams import TaskStreams
from triosim.trace.trace import Mark, Operator, Phase, Trace

#: Microseconds by which a kernel starts after its launch, or after the one before it, at most if it waits for nothing.
_LATE = 10.0
#: Microseconds by which clocks may be off.
_ROUNDING = 1.0
_COMPUTE = "compute"


def read(profiles: Sequence[tuple[Path, Profile]], source: Path) -> TaskStreams:
    """Return the step of several ranks; those without a profile run what others do (``missing_ranks``).

    Raises ``TraceError`` where a profile does not say what is needed, two are of one rank, or what is missing cannot be known.
    """
    by_rank: dict[int, Profile] = {}
    world = 0
    for path, profile in profiles:
        rank, size = (profile.distributed.get(key) for key in ("rank", "world_size"))
        if not isinstance(rank, int) or not isinstance(size, int) or not 0 <= rank < size:
            what = "does not say which rank it is of ('distributedInfo')"
            raise TraceError(what, where=str(path), fix="profile with torch.distributed, or keep one step a directory")
        if rank in by_rank or world not in (0, size):
            what = (
                f"is of rank {rank} of {size}, as another is"
                if rank in by_rank
                else f"is of {size} ranks, others of {world}"
            )
            raise TraceError(what, where=str(path), fix="keep the profiles of one run a directory")
        by_rank[rank], world = profile, size
    families = GroupFamilies(world)
    known = sorted(by_rank)
    readers = {rank: _RankReader(rank, by_rank[rank], families, source) for rank in known}
    traces = {rank: reader.trace() for rank, reader in readers.items()}
    groups = families.groups if len(known) == world else missing_ranks.completed(families.groups, world)
    like = missing_ranks.stand_ins(traces, groups, world, str(source))
    batches = {rank: reader.batch() for rank, reader in readers.items()}
    found = samples(batches, like)
    traces = {rank: replace(trace, batch_size=found.by_rank.get(rank, 1)) for rank, trace in traces.items()}
    complete = len(known) == world
    if not complete:  # said in the title: what is filled in looks like the rest
        profiled = f"profiles of {len(known)} of {world} ranks"
        traces = {rank: replace(trace, model=f"{trace.model} ({profiled})") for rank, trace in traces.items()}
    facts = by_rank[known[0]].facts
    return TaskStreams(
        traces,
        like,
        groups,
        source=str(source),
        global_batch_size=facts.global_batch_size or found.total,
        complete=complete,
        memory_bound=facts.memory_bound,
        notes=tuple(dict.fromkeys(note for one in batches.values() for note in one.notes)),
        measured_together=True,
        sample_parts=max(facts.sample_parts, parts_of_samples(groups)),
    )


@dataclass(slots=True)
class _Stream:
    """A stream of a rank: its work so far, with the ends, and the position of each in the trace."""

    name: str
    work: list[Work] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class _RankReader:
    """Writes the trace of one rank."""

    def __init__(self, rank: int, profile: Profile, families: GroupFamilies, source: Path) -> None:
        self._rank, self._profile, self._families, self._source = rank, profile, families, source
        step = last_step(profile)
        begin, end = (step.start, step.end) if step is not None else (float("-inf"), float("inf"))
        work = [one for one in profile.work if begin <= _issued(one) <= end]
        self._waits = sorted((one for one in profile.waits if begin <= one.start <= end), key=lambda one: one.start)
        self._work = sorted(work, key=lambda one: (_issued(one), one.start))
        self._host_waits = HostWaits(profile)
        self._purposes = purposes_of(profile.distributed)
        self._names = {call.external: call.name for call in profile.calls if call.external is not None}
        self._calls = calls_of(profile, f"{source}: rank {rank}")
        self._optimizing = sorted(
            (call.start, call.end) for call in profile.calls if call.annotation and call.name.startswith(OPTIMIZER_STEP)
        )
        self._transfers = self._found_transfers()
        self._streams = self._named_streams()
        self._operators: list[Operator] = []
        self._marks: list[Mark] = []
        self._asked: dict[
            int, list[int]
        ] = {}  # positions of what the next work of a stream waits for, as the profile says
        self._unawaited: list[tuple[float, int]] = []  # communication that nothing has waited for: its end, its number
        self._host = begin if step is not None else min(map(_issued, self._work), default=0.0)

    def trace(self) -> Trace:
        """Return the trace. Raises ``TraceError`` where the GPU ran nothing."""
        waits, pending = iter([*self._waits, None]), 0
        wait = next(waits)
        for work in self._work:
            while wait is not None and wait.start < _issued(work):
                pending += self._on_host(wait)
                wait = next(waits)
            transfer = self._transfers.get(id(work))
            if transfer is None:
                self._computed(work, pending)
            else:
                self._communicated(work, transfer)
            pending = 0  # a wait before a transfer is that of its own stream for what it sends
        marks = sorted(self._marks, key=lambda mark: mark.position)
        profile, calls = self._profile, self._calls
        model = f"rank {self._rank} of {profile.distributed['world_size']}"
        return Trace(
            tuple(self._operators),
            1,
            calls.model if calls is not None and calls.model != "unknown" else model,
            profile.gpu,
            profile.times,
            software={**profile.software, "tensors": INFERRED}
            if calls is not None and calls.has_shapes
            else profile.software,
            source=str(self._source),
            marks=tuple(marks),
            storages=() if calls is None else calls.storages(self._operators),
        )

    def batch(self) -> RankBatch:
        """Return the samples of the rank, and who works on them too."""
        carried = ((work, self._transfers.get(id(work))) for work in self._work)
        parts = [(work, part) for work, transfer in carried if transfer for part in transfer.parts]
        return rank_batch(self._profile, self._calls, parts)

    def _on_host(self, wait: Span) -> int:
        """Take a call that waits; return 1 where it lets a stream wait."""
        if "WaitEvent" in wait.name:
            return self._let_wait(wait)
        if "Event" not in wait.name:
            stream = None if "Device" in wait.name else _COMPUTE
            self._marks.append(Mark(len(self._operators), "synchronize", stream))
        self._host = wait.end  # while it waits, the host does nothing else
        return 0

    def _let_wait(self, wait: Span) -> int:
        """Take a call that lets a stream wait; return 1 where the profile does not say for what."""
        asked = self._profile.event_waits.get(wait.arguments.get("correlation", -1))
        if asked is not None and asked.awaited in self._streams:
            awaited = self._streams[asked.awaited]
            before = bisect.bisect_right(awaited.work, asked.recorded, key=_issued)
            if before:
                self._asked.setdefault(asked.stream, []).append(awaited.positions[before - 1])
        return 0 if self._profile.event_waits else 1

    def _computed(self, work: Work, pending: int) -> None:
        stream, position = self._streams[work.stream], len(self._operators)
        for awaited in self._asked.pop(work.stream, ()):
            self._wait_for(stream.name, awaited)
        ready = max(work.returned, stream.ends[-1] if stream.ends else 0.0)
        if work.start > ready + _LATE and not self._profile.event_waits:
            self._wait_for_last(work, stream, ready)
        for _ in range(pending):
            over = next((one for one in self._unawaited if one[0] <= work.start + _ROUNDING), None)
            if over is not None:
                self._wait_work(stream, over)
        self._operators.append(self._operator(work, position, stream.name))
        self._keep(stream, work, position)
        if blocks(work):
            self._marks.append(Mark(position + 1, "synchronize", stream.name))

    def _operator(self, work: Work, position: int, stream: str) -> Operator:
        """Return a kernel as an operator: what its call says of it, or else its name."""
        seconds, host_seconds = (work.end - work.start) / MICROSECONDS, self._launched(work)
        launcher = None if self._calls is None else self._calls.launcher(work, position)
        if launcher is None:
            name = self._names.get(work.external, work.name) if work.external is not None else work.name
            named = name, self._phase(work), "", (), ()
            return Operator(position, *named, seconds, host_seconds=host_seconds, kernels=(work.name,), stream=stream)
        call = launcher.call
        tensors = (call.inputs, call.outputs) if launcher.first else ((), ())
        return Operator(
            position,
            call.name,
            call.phase,
            call.layer,
            *tensors,
            seconds,
            host_seconds=host_seconds,
            forward=launcher.forward,
            kernels=(work.name,),
            attributes={**call.attributes, **_copied(work)} if stream.startswith(COPY_STREAM) else call.attributes,
            stream=stream,
        )

    def _phase(self, work: Work) -> Phase:
        """Return whether the optimizer launched it; a profile of ranks does not say more."""
        at = bisect.bisect_right(self._optimizing, (_issued(work), math.inf)) - 1
        return "optimizer" if at >= 0 and _issued(work) < self._optimizing[at][1] else "forward"

    def _communicated(self, work: Work, transfer: Transfer) -> None:
        """Write a transfer; it waits for the tail of the stream that issued it, by what ended before it began."""
        stream, position = self._streams[work.stream], len(self._operators)
        waits = (
            stream.name == _COMPUTE
        )  # the current stream carries it itself, as PyTorch does where nobody goes on meanwhile
        issuer = _COMPUTE if waits else self._issuer(work, stream)
        work_number, batch = None if waits else position, position if len(transfer.parts) > 1 else None
        host_seconds = self._launched(work)
        for part in transfer.parts:
            asked = part.as_communication(self._families, self._purposes, work_number, batch)
            number = len(self._operators)
            self._operators.append(
                Operator(
                    number,
                    asked.kind,
                    "forward",
                    "",
                    (),
                    (),
                    0.0,
                    host_seconds=host_seconds,
                    kernels=(work.name,),
                    stream=issuer,
                    communication=asked,
                )
            )
        if not waits:
            self._unawaited.append((work.end, position))
        self._keep(stream, work, position)

    def _issuer(self, work: Work, stream: _Stream) -> str:
        """Return the stream whose tail a transfer waits for; one of its own where that is none, or more than a tail."""
        asked = self._asked.pop(work.stream, [])
        tails = [one for one in self._streams.values() if one.work and not one.name.startswith("communication")]
        own = f"{stream.name} alone"
        if not self._profile.event_waits:
            tails.sort(key=lambda one: -one.work[-1].launched)
            return next((one.name for one in tails if one.ends[-1] <= work.start + _ROUNDING), own)
        for one in tails:
            if asked == one.positions[-1:]:
                return one.name
        for awaited in asked:
            self._wait_for(own, awaited)
        return own

    def _wait_for(self, stream: str, awaited: int) -> None:
        """Let a stream wait for the operator at a position."""
        operator, now = self._operators[awaited], len(self._operators)
        if operator.communication is not None and operator.communication.work is not None:
            self._marks.append(Mark(now, "wait_work", stream, awaited))
            return
        self._marks.append(Mark(awaited + 1, "record", operator.stream, awaited))
        self._marks.append(Mark(now, "wait", stream, awaited))

    def _launched(self, work: Work) -> float | None:
        """Return what a launch cost the host, of all since the one before, less what it waited; None where none is known."""
        waited = self._host_waits.of_launch(work)
        seconds = max(0.0, work.returned - self._host - waited) / MICROSECONDS
        self._host = max(self._host, work.returned)
        return None if work.thread is None or self._profile.facts.free_launches else seconds

    def _wait_for_last(self, work: Work, stream: _Stream, ready: float) -> None:
        """Let a stream wait for what ended last elsewhere before a kernel that starts late."""
        latest: tuple[float, _Stream, int] | None = None
        for other in self._streams.values():
            place = bisect.bisect_right(other.ends, work.start + _ROUNDING) - 1
            if other is stream or place < 0 or other.ends[place] <= ready:
                continue
            if latest is None or other.ends[place] > latest[0]:
                latest = other.ends[place], other, other.positions[place]
        if latest is None:
            return
        end, other, position = latest
        if self._operators[position].communication is not None:
            self._wait_work(stream, (end, position))
            return
        self._marks.append(Mark(position + 1, "record", other.name, position))
        self._marks.append(Mark(len(self._operators), "wait", stream.name, position))

    def _wait_work(self, stream: _Stream, awaited: tuple[float, int]) -> None:
        self._marks.append(Mark(len(self._operators), "wait_work", stream.name, awaited[1]))
        if awaited in self._unawaited:
            self._unawaited.remove(awaited)

    def _keep(self, stream: _Stream, work: Work, position: int) -> None:
        stream.work.append(work)
        stream.ends.append(max(work.end, stream.ends[-1] if stream.ends else 0.0))
        stream.positions.append(position)

    def _found_transfers(self) -> dict[int, Transfer]:
        """Return what each kernel of NCCL's carries, by its identity."""
        found: dict[int, Transfer] = {}
        calls = sorted(
            (one for one in self._profile.calls if one.name == "record_param_comms"), key=lambda one: one.start
        )
        starts = [one.start for one in calls]
        groups = _stated_groups(self._profile.distributed)
        before = float("-inf")
        for work in self._work:
            if "nccl" not in work.name.lower():
                continue
            since, until = bisect.bisect_right(starts, before), bisect.bisect_right(starts, work.returned)
            beside = [one.arguments for one in calls[since:until]]
            found[id(work)] = transfer_of(
                work.arguments,
                beside,
                groups,
                self._rank,
                world_of(self._profile),
                f"{self._source}: rank {self._rank}",
            )
            before = work.returned
        return found

    def _named_streams(self) -> dict[int, _Stream]:
        """Return the streams: the one that computes longest is the device's current one."""
        spent: dict[int, float] = {}
        for work in self._work:
            spent[work.stream] = spent.get(work.stream, 0.0) + (
                0.0 if id(work) in self._transfers else work.end - work.start
            )
        carrying = {work.stream for work in self._work if id(work) in self._transfers}
        copying = spent.keys() - {work.stream for work in self._work if not is_host_copy([work.name])}
        main = max(spent.keys() - copying, key=lambda number: spent[number], default=0)
        names = {number: f"{COPY_STREAM} {number}" for number in copying}
        return {number: _Stream(names.get(number) or _name(number, main, carrying)) for number in spent}


def _copied(work: Work) -> dict[str, Any]:
    """Return what is said of a copy."""
    return {key: work.arguments[key] for key in (COPIED_BYTES, COPY_LABEL) if key in work.arguments}


def _issued(work: Work) -> float:
    """Return when the host launched something; of a launch that is not in the file, when it ran."""
    return work.start if work.thread is None else work.launched


def _name(number: int, main: int, carrying: set[int]) -> str:
    if number == main:
        return _COMPUTE
    return f"communication {number}" if number in carrying else f"stream {number}"


def _stated_groups(distributed: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group by its name, as the top of a profile states them."""
    return dict(_groups(distributed.get("pg_config")))


def _groups(rows: object) -> Iterator[tuple[str, tuple[int, ...]]]:
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("ranks"), list):
            yield str(row.get("pg_name")), tuple(int(rank) for rank in row["ranks"])
