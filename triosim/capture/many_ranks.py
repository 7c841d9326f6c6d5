"""Captures the ranks of a distributed script that differ, and joins them: ``triosim capture --fake --world N``.

The process groups that a script makes give each rank a coordinate along some axes, such as the dimensions of its device mesh.
Rank 0 and the last rank are captured first; if they run the same operators, all ranks are assumed to. Otherwise the two ends of
each axis are compared, and, where they differ, the ranks between them by bisection. Rank 0, which often prints and saves, is
compared apart, and so is one of those ranks that the script names (``rank == 5``). Every other rank is assumed to run what the
captured rank with equivalent coordinates runs.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from triosim import gpus
from triosim.capture.process_pool import CaptureJob, RankPool
from triosim.compute.pricing.prediction import with_predicted_times
from triosim.errors import CaptureError, OptionError
from triosim.extrapolators.expert.expert_loads import LoadDistribution
from triosim.gpus import DEFAULT_GPU
from triosim.temporary_folder import TemporaryFolder
from triosim.trace import Trace
from triosim.trace.sample_axes import Groups, SampleAxes
from triosim.trace.task_streams import TaskStreams
from triosim.tracer.script_runner import Script, check_script
from triosim.units import parse_ranks

#: Process groups along one axis, which have one size and share no rank. A rank's coordinate along an axis of groups that divide
#: the world is its position in its group.


@dataclass(frozen=True, slots=True)
class CapturedStreams:
    """The task streams of all ranks, and the ranks that were ``compared`` to find which differ.

    Every other rank is assumed to run what one of them runs. None were compared where the caller listed the ranks.
    ``exchanges`` are pairs of a rank and a captured one that needed a message from it, ``singled_out`` those ranks that the
    script names, of those that it names together the first.
    """

    streams: TaskStreams
    compared: tuple[int, ...] = ()
    exchanges: tuple[tuple[int, int], ...] = ()
    singled_out: tuple[int, ...] = ()


def capture_ranks(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    world: int,
    ranks: str | Sequence[int] = "auto",
    gpu: str = DEFAULT_GPU,
    skip: int = 1,
    batch_size: int | None = None,
    quiet: bool = False,
    routing: LoadDistribution | None = None,
) -> CapturedStreams:
    """Run a distributed script as ``world`` ranks of GPUs that are not there, and return the streams of all of them.

    ``ranks`` are those to be captured: "all", a list, or "auto": those that differ. ``batch_size`` is a rank's;
    ``quiet`` hides what the script prints; ``routing`` is how the choice of
    routers is drawn. Raises ``OptionError`` for a rank or a GPU that does not exist, ``CaptureError``
    when the script has no such step.
    """
    check_script(path)
    script = Script(os.fspath(path), tuple(arguments), routing=routing)
    job = CaptureJob(script, gpus.find(gpu), world, skip, batch_size)
    return captured_streams(job, checked_ranks(ranks, world), quiet=quiet)


def captured_streams(job: CaptureJob, chosen: Sequence[int] | None, *, quiet: bool = False) -> CapturedStreams:
    """Capture the ``chosen`` ranks of a world, or, with None, those that differ, and return the streams of all ranks."""
    world = job.world
    with TemporaryFolder() as folder, RankPool(job, Path(folder), quiet) as pool:
        like = _with_singled_out(pool, _compared(pool, world)) if chosen is None else _nearest(pool, chosen, world)
        captured = sorted(set(like))
        summaries = dict(zip(captured, pool.summaries(captured), strict=True))
        compared = pool.captured if chosen is None else ()
        traces = {rank: with_predicted_times(pool.trace(rank)) for rank in captured}
        exchanges = pool.exchanges
    axes = _all_axes(summary.groups for summary in summaries.values())
    sample_axes = reduce(SampleAxes.joined, (summary.sample_axes for summary in summaries.values()))
    named = () if chosen is not None else tuple(dict.fromkeys(group[0] for group in summaries[0].singled_out))
    return CapturedStreams(joined_streams(traces, like, axes, sample_axes), compared, exchanges, named)


def joined_streams(
    traces: Mapping[int, Trace], like: tuple[int, ...], axes: Mapping[str, Groups], sample_axes: SampleAxes
) -> TaskStreams:
    """Return the task streams of all ranks, each of which runs ``like`` one of the captured ones.

    ``sample_axes`` are those of the ``axes`` that say which samples a rank has. Ranks that do not communicate have samples of
    their own: each trains by itself.
    """
    used = {
        operator.communication.group
        for trace in traces.values()
        for operator in trace.operators
        if operator.communication is not None
    }
    groups = {name: found for name, found in axes.items() if name in used}
    replicas = sample_axes.replicas(axes) if used else len(like)
    samples = max(trace.batch_size for trace in traces.values()) * replicas
    return TaskStreams(traces, like, groups, global_batch_size=samples, sample_parts=sample_axes.parts(axes))


def checked_ranks(ranks: str | Sequence[int], world: int, where: str = "--ranks") -> list[int] | None:
    """Return the ranks to capture, None for "auto": those that differ. Raises ``OptionError`` about the option ``where``."""
    if world < 1:
        raise OptionError(f"{world} is too few", where="--world", fix="give 1 or more")
    if ranks == "auto":
        return None
    if ranks == "all":
        return list(range(world))
    try:
        found = sorted(set(parse_ranks(ranks) if isinstance(ranks, str) else map(int, ranks)))
    except ValueError:
        raise OptionError(f"'{ranks}' is not a list of ranks", where=where, fix="give auto, all or 0,8,12-15") from None
    wrong = [rank for rank in found if not 0 <= rank < world]
    if wrong or not found:
        what = f"there is no rank {wrong[0]} in a world of {world}" if wrong else "there are no ranks in it"
        raise OptionError(what, where=where, fix=f"give ranks from 0 to {world - 1}")
    return found


def _compared(pool: RankPool, world: int) -> tuple[int, ...]:
    """Return for each rank the captured one that runs the same, comparing no more ranks than needed."""
    corners = pool.summaries(dict.fromkeys((0, world - 1)))
    first, last = corners[0], corners[-1]
    if first.digest == last.digest:
        return (0,) * world
    axes = independent_axes(first.groups, world)
    same = [_equivalent_positions(pool, axis) for axis in axes]
    coordinates = _coordinates(axes, world)
    rank_at = {coordinate: rank for rank, coordinate in enumerate(coordinates)}
    return tuple(
        rank_at[tuple([equivalent[at] for equivalent, at in zip(same, coordinate, strict=True)])]
        for coordinate in coordinates
    )


def _with_singled_out(pool: RankPool, like: tuple[int, ...]) -> tuple[int, ...]:
    """Return for each rank the captured one that runs the same, after comparing the ranks that the script singles out too."""
    groups = pool.summaries([0])[0].singled_out
    known, found = set(pool.captured), list(like)
    pool.summaries(dict.fromkeys(group[0] for group in groups))
    for first, *others in groups:
        before = like[first]
        if pool.summaries([first])[0].digest != pool.summaries([before])[0].digest:
            for rank in (first, *(one for one in others if like[one] == before and one not in known)):
                found[rank] = first
    return tuple(found)


def _nearest(pool: RankPool, chosen: Sequence[int], world: int) -> tuple[int, ...]:
    """Return for each rank the chosen one that has most coordinates in common with it, or the nearest before it."""
    if len(chosen) == world:
        return tuple(chosen)
    coordinates = _coordinates(independent_axes(pool.summaries(chosen)[0].groups, world), world)

    def closeness(rank: int, other: int) -> tuple[int, bool, int]:
        same = sum(one == two for one, two in zip(coordinates[rank], coordinates[other], strict=True))
        return same, rank <= other, rank if rank <= other else -rank

    return tuple(max(chosen, key=lambda rank: closeness(rank, other)) for other in range(world))


def independent_axes(axes: Mapping[str, Groups], world: int) -> list[Groups]:
    """Return as many axes as there can be whose coordinates tell all ranks apart; at worst the world is the only one."""
    whole = [groups for groups in dict.fromkeys(axes.values()) if len(groups[0]) > 1 and sum(map(len, groups)) == world]
    for count in range(min(len(whole), world.bit_length()), 0, -1):
        for chosen in itertools.combinations(whole, count):
            if (
                math.prod(len(groups[0]) for groups in chosen) == world
                and len(set(_coordinates(chosen, world))) == world
            ):
                return list(chosen)
    return [(tuple(range(world)),)]


def _coordinates(axes: Sequence[Groups], world: int) -> list[tuple[int, ...]]:
    """Return the coordinates of each rank along some axes."""
    found = [[0] * len(axes) for _ in range(world)]
    for number, axis in enumerate(axes):
        for group in axis:
            for position, rank in enumerate(group):
                found[rank][number] = position
    return [tuple(coordinate) for coordinate in found]


def _equivalent_positions(pool: RankPool, axis: Groups) -> list[int]:
    """Return for each position along an axis the first one that runs the same, by bisection between positions that differ.

    Positions where shards become smaller are where ranks most likely begin to differ: between them it looks first.
    """
    group = next(group for group in axis if 0 in group)
    last = len(group) - 1
    found = list(range(len(group)))
    if _same(pool, group, 0, last):
        ranges = [(0, last)]
    else:
        starts = [0, 1, *pool.summaries([group[0]])[0].uneven.get(len(group), ())]  # rank 0 apart
        starts = sorted({start for start in starts if start <= last})
        ranges = list(zip(starts, [*[start - 1 for start in starts[1:]], last], strict=True))
    borders = [start for start, _ in ranges if start]
    while ranges:
        pool.summaries(dict.fromkeys(group[position] for ends in ranges for position in ends))
        halves = []
        for start, end in ranges:
            if _same(pool, group, start, end):
                found[start : end + 1] = [found[start]] * (end - start + 1)
            elif end - start > 1:
                middle = (start + end) // 2
                halves += [(start, middle), (middle, end)]
        ranges = halves
    for border in borders:
        if _same(pool, group, border - 1, border):
            found = [found[border - 1] if one == found[border] else one for one in found]
    return found


def _same(pool: RankPool, group: Sequence[int], start: int, end: int) -> bool:
    one, other = (pool.summaries([group[position]])[0] for position in (start, end))
    return one.digest == other.digest


def _all_axes(made: Iterable[Mapping[str, Groups]]) -> dict[str, Groups]:
    """Return the groups that any captured rank ``made``. Raises ``CaptureError`` where one name has different groups."""
    found: dict[str, Groups] = {}
    for of_a_rank in made:
        for name, groups in of_a_rank.items():
            together = tuple(dict.fromkeys((*found.get(name, ()), *groups)))
            members = [rank for group in together for rank in group]
            if len(set(members)) != len(members):
                raise CaptureError(
                    f"the captured ranks disagree about the groups of '{name}'", fix="make all groups on all ranks"
                )
            found[name] = together
    return found
