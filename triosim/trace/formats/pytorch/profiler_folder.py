"""The trace format of PyTorch's own files: a profiler file and the execution trace of the same step, in one directory.

An operator is an outermost ATen call of the forward pass, an autograd node of the backward pass, or a call of the optimizer.
Its time, from its first kernel's start to its last kernel's end, comes from the profiler file, its tensors from the execution
trace. In a profile without work of a GPU, calls on the host are timed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from triosim.errors import TraceError
from triosim.input_files.reading import head
from triosim.trace.formats import tensor_categories
from triosim.trace.formats.pytorch import execution_trace, kineto, memory_events, profiler_only
from triosim.trace.formats.pytorch.execution_trace import ExecutionTraceNode
from triosim.trace.formats.pytorch.joined_calls import join
from triosim.trace.formats.pytorch.kineto import Profile
from triosim.trace.formats.pytorch.light_profiles import with_light_times
from triosim.trace.formats.pytorch.partial_steps import check_step
from triosim.trace.formats.pytorch.profiled_step import ProfiledStep, world_of
from triosim.trace.formats.pytorch.ranks import rank_profiles, samples
from triosim.trace.formats.pytorch.ranks.rank_calls import INFERRED
from triosim.trace.task_streams import TaskStreams
from triosim.trace.trace import Trace
from triosim.units import format_time

NAME = "pytorch"
#: The prefix of the profiler files of further steps, which the times are taken from.
LIGHT_PROFILE_PREFIX = "light"

_INFERRED = "the profile has no execution trace: its tensors, and with them its memory, are inferred from shapes"

Parsed = TypeVar("Parsed")


def recognises(path: Path) -> bool:
    """Whether the path is one of the two files, or a directory that holds one."""
    profiles, graphs = _files(path)
    return bool(profiles or graphs)


def read(path: Path, *, batch_size: int | None = None) -> Trace | TaskStreams:
    """Return the trace of the last complete step; the batch size is the input's first dimension, unless it is given.

    A directory with profiles of ranks of a distributed step holds its task streams; the file of one is a trace of its GPU.
    Raises ``TraceError`` when a file is missing or damaged.
    """
    profiles, graphs = _files(path)
    lightly = [file for file in profiles if file.name.startswith(LIGHT_PROFILE_PREFIX)] if len(profiles) > 1 else []
    profiles = [file for file in profiles if file not in lightly]
    if not profiles:
        what = f"there is no profiler file next to {graphs[0].name if graphs else 'it'}"
        fix = "give a directory with both, as triosim.tracer.capture() writes them"
        raise TraceError(what, where=str(path), fix=fix)
    if path.is_dir() and any(_is_of_several(file) for file in profiles):
        _check_names(path, profiles)
        parsed = [(file, _parsed(kineto.read, file, "PyTorch's profiler writes it")) for file in profiles]
        if any(profile.work for _, profile in parsed):
            return rank_profiles.read(parsed, path)
        if len(profiles) > 1:
            what = f"{profiles[0].name} and {profiles[1].name} are of several ranks without work of a GPU"
            fix = "profile ranks on GPUs with ProfilerActivity.CUDA, or keep the files of one rank a directory"
            raise TraceError(what, where=str(path), fix=fix)
    for kind, found in (("profiler file", profiles), ("execution trace", graphs)):
        if len(found) > 1:
            what = f"there is more than one {kind}: {found[0].name} and {found[1].name}"
            raise TraceError(what, where=str(path), fix="keep one step a directory")
    return read_step(path, profiles[0], graphs[0] if graphs else None, lightly=lightly, batch_size=batch_size)[0]


def _check_names(folder: Path, profiles: Sequence[Path]) -> None:
    """Raise ``TraceError`` for a file that is called like the profiles, but for the rank, and is none."""
    names = {re.sub(r"\d+", "0", file.name) for file in profiles}
    for file in sorted(folder.iterdir()):
        if file.is_file() and file not in profiles and re.sub(r"\d+", "0", file.name) in names:
            if execution_trace.recognises(file):
                continue
            what = "is called like the profiles beside it and is none: it is empty, cut short or of another kind"
            raise TraceError(what, where=str(file), fix="write it again, or delete it")


def _is_of_several(profile: Path) -> bool:
    """Whether a profile says at its top that it is one of several ranks'."""
    stated = re.search(rb'"distributedInfo"\s*:\s*\{[^{}]*?"world_size"\s*:\s*(\d+)', head(profile))
    return stated is not None and int(stated[1]) > 1


def read_step(
    source: Path, profile: Path, graph: Path | None, *, lightly: Sequence[Path] = (), batch_size: int | None = None
) -> tuple[Trace, bool]:
    """Return the trace of a step whose files are named, and whether its times come from other steps.

    ``lightly`` are profiler files of further steps, whose times are taken where they have the same calls. Errors name
    ``source``.
    """
    full = _parsed(kineto.read, profile, "PyTorch's profiler writes it")
    if graph is None:
        nodes = _parsed(lambda path: profiler_only.nodes(full, str(path)), profile, "PyTorch's profiler writes it")
    else:
        nodes = _parsed(lambda path: execution_trace.read(path, on_gpu=bool(full.work)), graph, "PyTorch writes it")
    light = with_light_times(full, [_parsed(kineto.read, path, "PyTorch's profiler writes it") for path in lightly])
    if graph is None:
        (light or full).software["tensors"] = INFERRED
    return _trace(full, light or full, nodes, source, graph or profile, batch_size), light is not None


def _parsed(read: Callable[[Path], Parsed], path: Path, how: str) -> Parsed:
    try:
        return read(path)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, OverflowError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise TraceError(f"is not as {how}: {reason}", where=str(path)) from error


def _trace(
    full: Profile, timed: Profile, nodes: list[ExecutionTraceNode], path: Path, graph_path: Path, batch_size: int | None
) -> Trace:
    step = ProfiledStep(timed, nodes, str(path))
    step.hints.batch_size = batch_size
    found = step.operators()
    notes = tuple(_notes_of_rank(step))
    if "tensors" in timed.software:
        notes += (*check_step(step, found, str(path)), _INFERRED)
    if not found:
        raise TraceError("the trace has no operators", where=str(path), fix="capture at least one step")
    batch = tensor_categories.batch_size(found, step.hints)
    if not batch:
        raise TraceError("no operator reads an input, so the batch size is unknown", where=str(graph_path))
    if batch_size is None:
        batch *= samples.passes([samples.forward_runs(step)])
    operators = tensor_categories.build(found, tensor_categories.assign(found, step.hints))
    rows = {one: row for row, one in enumerate(found)}
    spans = join(full, nodes, str(path))
    moments = [(spans[number], rows[one]) for number, one in step.by_call.items() if number in spans and one in rows]
    return Trace(
        operators,
        batch,
        step.model if world_of(full) == 1 else f"{step.model}, rank {full.distributed.get('rank')} of {world_of(full)}",
        timed.gpu if timed.work else "CPU",
        timed.times,
        software=timed.software,
        source=str(path),
        storages=memory_events.storages(full, moments, operators, step.hints.annotated),
        notes=notes,
    )


def _notes_of_rank(step: ProfiledStep) -> Iterator[str]:
    """Yield what to know of the profile of one of several ranks."""
    world, rank = world_of(step.profile), step.profile.distributed.get("rank")
    if world > 1:
        left_out = f"its communication ({format_time(step.left_out)}) is left out; " if step.left_out else ""
        part = ""
        if samples.works_with_others(step.profile):
            part = "other ranks work on its samples too, so samples/s, tokens/s and MFU are those of its part of the model; "
        yield (
            f"the profile is of rank {rank} of {world}, as one GPU: {left_out}{part}a folder with the profiles of all ranks is "
            "simulated as their step"
        )


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the profiler files and the execution traces at a path; for a file, the ones that go with it."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and ".json" in file.suffixes[-2:])
        graphs = [file for file in files if execution_trace.recognises(file)]
        return [file for file in files if file not in graphs and kineto.recognises(file)], graphs
    if not path.is_file():
        return [], []
    if execution_trace.recognises(path):
        return _files(path.parent)[0], [path]
    if kineto.recognises(path):
        return [path], _files(path.parent)[1]
    return [], []
