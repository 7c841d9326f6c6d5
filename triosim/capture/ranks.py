"""Which ranks of a distributed script differ, and their captures put together: ``triosim capture --fake --world N``.

The groups that a script makes give each rank a place along some axes: the dimensions of its mesh. Two far corners that do the
same say that all ranks do. Otherwise the ends of each axis are compared, and, where they differ, what is between them by
halves; the first rank, which often prints and saves, counts apart. A rank does what the captured one does whose places do.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from triosim import gpus
from triosim.capture.processes import Finding, Fleet, Job
from triosim.compute.base import ComputeModel
from triosim.compute.pricing.prediction import DEFAULT_GPU, predicted
from triosim.errors import CaptureError, OptionError
from triosim.trace.task_streams import TaskStreams

#: Which ranks are captured, where not a list of them.
CHOICES = ("auto", "all")

Families = Mapping[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, slots=True)
class CapturedStreams:
    """The captured streams, and what went otherwise than on a GPU, a line of the script each.

    ``compared`` are, where nobody named ranks, those that were run to find which differ; every other rank is taken to do
    what one of them does.
    """

    streams: TaskStreams
    notes: tuple[str, ...]
    compared: tuple[int, ...] = ()


def capture_ranks(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    world: int,
    ranks: str | Sequence[int] = "auto",
    gpu: str = DEFAULT_GPU,
    skip: int = 1,
    batch_size: int | None = None,
    model: ComputeModel | None = None,
) -> CapturedStreams:
    """Run a distributed script as ``world`` ranks of GPUs that are not there, and return the streams of all of them.

    ``ranks`` are those to be captured: "all", a list, or "auto": those that differ. ``batch_size`` is a rank's. Raises
    ``OptionError`` for a rank or a GPU that there is not, ``CaptureError`` when the script has no such step.
    """
    from triosim.tracer.script import check_script

    check_script(path)
    chosen = checked_ranks(ranks, world)
    job = Job(os.fspath(path), tuple(arguments), gpus.find(gpu), world, skip)
    with tempfile.TemporaryDirectory(prefix="triosim-") as folder, Fleet(job, Path(folder)) as fleet:
        like = _like(fleet, world) if chosen is None else _given(fleet, chosen, world)
        captured = sorted(set(like))
        findings = dict(zip(captured, fleet.findings(captured), strict=True))
        compared = fleet.compared if chosen is None else ()
        traces = {rank: predicted(fleet.trace(rank), model) for rank in captured}
    if batch_size is not None:
        traces = {rank: replace(trace, batch_size=batch_size) for rank, trace in traces.items()}
    families = _families(findings.values())
    data = frozenset().union(*(finding.data for finding in findings.values()))
    samples = max(trace.batch_size for trace in traces.values()) * _replicas(families, data)
    notes = tuple(dict.fromkeys(note for finding in findings.values() for note in finding.notes))
    used = {
        operator.communication.group
        for trace in traces.values()
        for operator in trace.operators
        if operator.communication is not None
    }
    groups = {name: family for name, family in families.items() if name in used}
    return CapturedStreams(TaskStreams(traces, like, groups, global_batch_size=samples), notes, compared)


def checked_ranks(ranks: str | Sequence[int], world: int) -> list[int] | None:
    """Return the ranks that are to be captured, None for those that differ. Raises ``OptionError``."""
    if world < 1:
        raise OptionError(f"{world} is too few", where="--world", fix="give 1 or more")
    if ranks == "auto":
        return None
    if ranks == "all":
        return list(range(world))
    try:
        found = sorted({int(rank) for rank in (ranks.split(",") if isinstance(ranks, str) else ranks)})
    except ValueError:
        raise OptionError(f"'{ranks}' is no list of ranks", where="--ranks", fix="give auto, all or 0,8,16") from None
    wrong = [rank for rank in found if not 0 <= rank < world]
    if wrong or not found:
        what = f"there is no rank {wrong[0]} in a world of {world}" if wrong else "there are no ranks in it"
        raise OptionError(what, where="--ranks", fix=f"give ranks from 0 to {world - 1}")
    return found


def _like(fleet: Fleet, world: int) -> tuple[int, ...]:
    """Return for each rank the one to be captured that does the same."""
    corners = fleet.findings(dict.fromkeys((0, world - 1)))
    first, last = corners[0], corners[-1]
    if first.digest == last.digest:
        return (0,) * world
    sides = axes(first.families, world)
    kinds = [_kinds(fleet, side) for side in sides]
    places = _places(sides, world)
    by_place = {place: rank for rank, place in enumerate(places)}
    return tuple(by_place[tuple([kind[at] for kind, at in zip(kinds, place, strict=True)])] for place in places)


def _given(fleet: Fleet, chosen: Sequence[int], world: int) -> tuple[int, ...]:
    """Return for each rank one of the given ones: that which shares most places with it, or the nearest before it."""
    if len(chosen) == world:
        return tuple(chosen)
    places = _places(axes(fleet.findings(chosen)[0].families, world), world)

    def likeness(rank: int, other: int) -> tuple[int, bool, int]:
        same = sum(one == two for one, two in zip(places[rank], places[other], strict=True))
        return same, rank <= other, rank if rank <= other else -rank

    return tuple(max(chosen, key=lambda rank: likeness(rank, other)) for other in range(world))


@dataclass(frozen=True, slots=True)
class Axis:
    """A family of groups as an axis of the world: a rank's place along it is its place in its group."""

    groups: tuple[tuple[int, ...], ...]

    @property
    def line(self) -> tuple[int, ...]:
        """The ranks along it that begin with rank 0."""
        return next(group for group in self.groups if 0 in group)

    def __len__(self) -> int:
        return len(self.groups[0])


def axes(families: Families, world: int) -> list[Axis]:
    """Return families whose places tell all ranks apart, as many as there can be; at worst the world is one axis."""
    whole = [
        Axis(groups)
        for groups in dict.fromkeys(families.values())
        if len(groups[0]) > 1 and sum(map(len, groups)) == world
    ]
    for count in range(min(len(whole), world.bit_length()), 0, -1):
        for chosen in itertools.combinations(whole, count):
            if math.prod(map(len, chosen)) == world and len(set(_places(chosen, world))) == world:
                return list(chosen)
    return [Axis((tuple(range(world)),))]


def _places(sides: Sequence[Axis], world: int) -> list[tuple[int, ...]]:
    found = [[0] * len(sides) for _ in range(world)]
    for number, side in enumerate(sides):
        for group in side.groups:
            for place, rank in enumerate(group):
                found[rank][number] = place
    return [tuple(place) for place in found]


def _kinds(fleet: Fleet, side: Axis) -> list[int]:
    """Return for each place along an axis the place that does the same."""
    line = side.line
    last = len(line) - 1
    kinds = list(range(len(line)))
    todo = [(0, 0), (min(1, last), last)]  # rank 0 apart
    if _same(fleet, line, 0, last):
        todo = [(0, last)]
    while todo:
        fleet.findings(dict.fromkeys(line[place] for ends in todo for place in ends))
        halves = []
        for start, end in todo:
            if _same(fleet, line, start, end):
                kinds[start : end + 1] = [kinds[start]] * (end - start + 1)
            elif end - start > 1:
                middle = (start + end) // 2
                halves += [(start, middle), (middle, end)]
        todo = halves
    return kinds


def _same(fleet: Fleet, line: Sequence[int], start: int, end: int) -> bool:
    one, other = (fleet.findings([line[place]])[0] for place in (start, end))
    return one.digest == other.digest


def _families(findings: Iterable[Finding]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the families of all captured ranks. Raises ``CaptureError`` where one name stands for different groups."""
    found: dict[str, tuple[tuple[int, ...], ...]] = {}
    for finding in findings:
        for name, groups in finding.families.items():
            together = tuple(dict.fromkeys((*found.get(name, ()), *groups)))
            members = [rank for group in together for rank in group]
            if len(set(members)) != len(members):
                raise CaptureError(
                    f"the captured ranks disagree about the groups of '{name}'", fix="make all groups on all ranks"
                )
            found[name] = together
    return found


def _replicas(families: Families, data: frozenset[str]) -> int:
    """Return how many ranks work on samples of their own."""
    different = dict.fromkeys(families[name] for name in sorted(data) if name in families)
    return math.prod(len(groups[0]) for groups in different)
