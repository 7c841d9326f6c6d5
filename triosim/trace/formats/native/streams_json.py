"""The format of task streams, ``streams.json.gz``: the traces of captured ranks, whom each represents, and the groups.

Each trace is an object as in a ``trace.json`` (docs/trace-format.md). Every value is checked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triosim.errors import TraceError
from triosim.garbage_collector import without_collecting
from triosim.input_files.reading import head, read_object
from triosim.output_files import writing_text
from triosim.trace.formats.native.checks import Checks
from triosim.trace.formats.native.trace_json import TraceReader, lines
from triosim.trace.task_streams import TaskStreams
from triosim.trace.trace import Trace

NAME = "streams"
SCHEMA = "triosim-streams/1"

STREAMS_KEYS = {
    "schema": True,
    "global_batch_size": False,
    "measured_together": False,
    "memory_bound": False,
    "sample_parts": False,
    "like": True,
    "groups": True,
    "traces": True,
}


def recognises(path: Path) -> bool:
    """Whether the file says that it holds task streams, of whatever version."""
    return path.is_file() and re.search(rb'"schema"\s*:\s*"triosim-streams', head(path)) is not None


def read(path: Path) -> TaskStreams:
    """Return the task streams in a file. Raises ``TraceError`` that names the file and the key that is wrong."""
    with without_collecting():
        return StreamsReader(str(path)).streams(read_object(path, finite=False))


def write(streams: TaskStreams, path: str | os.PathLike[str]) -> None:
    """Write task streams; compressed where the path ends in ``.gz``. The file appears only when it is whole."""
    text = "".join(_lines(streams))
    with writing_text(path) as file:
        file.write(text)


class StreamsReader(Checks):
    """Checks each value and builds the task streams."""

    def streams(self, data: dict[str, Any]) -> TaskStreams:
        """Return the task streams that a JSON object describes."""
        if data.get("schema") != SCHEMA:
            self.fail(
                "schema", f"{data.get('schema')!r:.40} is not a version that this triosim reads", f"it is '{SCHEMA}'"
            )
        self.keys(data, STREAMS_KEYS, "")
        batch = data.get("global_batch_size")
        if batch is not None:
            self.integer(batch, "global_batch_size", least=1)
        parts = self.integer(data.get("sample_parts", 1), "sample_parts", least=1)
        like = self.rows(data["like"], "like")
        if not like:
            self.fail("like", "there are no ranks", "give for each rank the captured rank that represents it")
        traces = self.traces(data["traces"], len(like))
        for rank, model in enumerate(like):
            if self.integer(model, f"like[{rank}]") not in traces:
                known = ", ".join(map(str, traces))
                self.fail(f"like[{rank}]", f"rank {model} was not captured", f"captured: {known}")
        groups = self.groups(data["groups"], len(like))
        for rank, trace in traces.items():
            self.communications(trace, rank, groups)
        together = data.get("measured_together", False)
        if not isinstance(together, bool):
            self.fail(
                "measured_together", f"{together!r:.40} is not true or false", "leave it out, or write one of them"
            )
        waiting = self.number(data.get("memory_bound"), "memory_bound", 1.0)
        return TaskStreams(
            traces,
            tuple(like),
            groups,
            self.file,
            batch,
            memory_bound=waiting,
            measured_together=together,
            sample_parts=parts,
        )

    def traces(self, value: Any, world: int) -> dict[int, Trace]:
        """Return the traces by rank."""
        if type(value) is not dict or not value:
            self.fail("traces", "there is no trace", 'write {"0": {...}}')
        found = {}
        for key, data in value.items():
            if not re.fullmatch("0|[1-9][0-9]{0,8}", key) or int(key) >= world:
                self.fail(f"traces.{key}", f"is not a rank from 0 to {world - 1}")
            trace = self.mapping(data, f"traces.{key}", "a trace as in trace.json")
            found[int(key)] = TraceReader(self.file, f"traces.{key}").trace(trace)
        return found

    def groups(self, value: Any, world: int) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Return the families of groups; a rank is in one group of a family or in none."""
        found = {}
        for name, family in self.mapping(value, "groups", '{"world": [[0, 1]]}').items():
            self.text(name, "groups", filled=True)
            seen: set[int] = set()
            for index, group in enumerate(self.rows(family, f"groups.{name}")):
                for member, rank in enumerate(self.rows(group, f"groups.{name}[{index}]")):
                    where = f"groups.{name}[{index}][{member}]"
                    if self.integer(rank, where) >= world:
                        self.fail(where, f"there is no rank {rank} in a world of {world}")
                    if rank in seen:
                        self.fail(where, f"rank {rank} is in two groups of '{name}'", "give the groups different names")
                    seen.add(rank)
            found[name] = tuple(map(tuple, family))
        return found

    def communications(self, trace: Trace, rank: int, groups: dict[str, tuple[tuple[int, ...], ...]]) -> None:
        """Check that each communication of a captured rank has a group, and that roots and peers are in it."""
        sizes = {name: len(group) for name, family in groups.items() for group in family if rank in group}
        for index, operator in enumerate(trace.operators):
            asked = operator.communication
            if asked is None:
                continue
            key_path = f"traces.{rank}.operators[{index}].communication"
            if asked.group not in sizes:
                self.fail(
                    f"{key_path}.group", f"rank {rank} belongs to no group of '{asked.group}'", "list it under 'groups'"
                )
            size = sizes[asked.group]
            for key, member in (("root", asked.root), ("peer", asked.peer)):
                if member is not None and member >= size:
                    self.fail(f"{key_path}.{key}", f"the group has {size} ranks, and none at index {member}")
            if asked.shares is not None and len(asked.shares) != size:
                self.fail(f"{key_path}.shares", f"{len(asked.shares)} shares for a group of {size} ranks")


def _lines(streams: TaskStreams) -> Iterator[str]:
    if not streams.traces:
        raise TraceError("there is no trace to write")
    yield f'{{\n"schema": "{SCHEMA}",\n'
    if streams.global_batch_size is not None:
        yield f'"global_batch_size": {streams.global_batch_size},\n'
    if streams.measured_together:
        yield '"measured_together": true,\n'
    if streams.memory_bound is not None:
        yield f'"memory_bound": {streams.memory_bound!r},\n'
    if streams.sample_parts > 1:
        yield f'"sample_parts": {streams.sample_parts},\n'
    yield f'"like": {json.dumps(streams.like)},\n"groups": {{\n'
    yield ",\n".join(f"{json.dumps(name)}: {json.dumps(family)}" for name, family in streams.groups.items())
    yield '\n},\n"traces": {\n'
    for number, (rank, trace) in enumerate(streams.traces.items()):
        yield f'"{rank}": ' if number == 0 else f',\n"{rank}": '
        yield from lines(trace)
    yield "}\n}\n"
