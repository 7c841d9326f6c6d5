"""Trace formats: reading, in a format that is found by a file's content, and writing.

A format is a module, or an object, with ``NAME``, ``recognises(path) -> bool`` and ``read(path)``, which returns a ``Trace``
or, for a distributed step, ``TaskStreams``. The built-in ones are tried before the entry points of ``triosim.trace_formats``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from triosim import plugins
from triosim.errors import OptionError, PluginError, TraceError
from triosim.input_files.pipes import renamed, seekable
from triosim.trace.formats.native import streams_json, trace_json
from triosim.trace.task_streams import TaskStreams
from triosim.trace.trace import Trace

__all__ = ["TraceFormat", "find", "read", "read_trace", "write"]


class TraceFormat(Protocol):
    """The interface of a trace format, which is a module or an object."""

    NAME: str

    def recognises(self, path: Path) -> bool:
        """Whether the path holds this format; looks at no more of it than it must."""
        ...

    def read(self, path: Path) -> Trace | TaskStreams:
        """Return what the path holds, or raise ``TraceError`` that names the file and what is wrong in it."""
        ...


def read(path: str | os.PathLike[str], format: str | TraceFormat | None = None) -> Trace | TaskStreams:
    """Return the trace at ``path``, a file or a directory; the task streams, where it holds those of a distributed step.

    ``format`` is the name of a format (``json``, ``streams``, ``csv``, ``pytorch`` or a plug-in's) or a loaded one; by default
    it is found by content. ``-`` is standard input. Raises ``TraceError`` when there is no trace, or it contradicts itself.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError(f"{path!r} is not a path", where="trace", fix="give a file or a folder")
    check_path(path)
    file = Path(seekable(path))
    try:
        if not file.exists():
            raise TraceError("there is no such file or directory", where=str(path))
        chosen = find(file, format)
        trace = chosen.read(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"cannot be read: {reason}", where=str(path)) from error
    if not isinstance(trace, (Trace, TaskStreams)):
        raise PluginError(f"gave a {type(trace).__name__} for {file}, not a Trace", where=str(format or chosen.NAME))
    return replace(trace, source=renamed(trace.source))


def check_path(path: str | os.PathLike[str]) -> None:
    """Raise ``OptionError`` for what can be no path: an empty one, which Python takes for the current folder, or a long one."""
    if not os.fspath(path):
        raise OptionError("the path is empty", where="trace", fix="give a file or a folder; '.' is the current one")
    try:
        os.stat(path)
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG:
            raise OptionError("is not a path", where=os.fspath(path), fix="give a file or a folder") from None


def read_trace(path: str | os.PathLike[str], format: str | TraceFormat | None = None) -> Trace:
    """Return the trace of one GPU at ``path``, as ``read`` does. Raises ``TraceError`` where it holds task streams."""
    found = read(path, format)
    if isinstance(found, TaskStreams):
        what = f"holds the task streams of {found.world} ranks, not a trace of one GPU"
        raise TraceError(what, where=str(path), fix="run them with 'triosim simulate', or give a trace")
    return found


def write(trace: Trace | TaskStreams, path: str | os.PathLike[str]) -> None:
    """Write as JSON, compressed where the path ends in ``.gz``; the file appears only when it is whole."""
    if isinstance(trace, TaskStreams):
        streams_json.write(trace, path)
    else:
        trace_json.write(trace, path)


def find(path: Path, format: str | TraceFormat | None = None) -> TraceFormat:
    """Return the format of what is at a path, by its content unless it is named. Raises ``TraceError`` where it has none."""
    if format is not None:
        return _load(format)
    for candidate in _formats():
        if candidate.recognises(path):
            return candidate
    if path.is_file():
        return _load("json")  # which says what is wrong with it
    raise TraceError(
        "holds no trace that triosim knows",
        where=str(path),
        fix="give a trace.json, a directory with trace.csv and tensor.csv, one with a PyTorch profiler file and its "
        "execution trace, or a model's config.json",
    )


def _formats() -> Iterator[TraceFormat]:
    built_in = plugins.BUILT_IN["trace_formats"]
    yield from map(_load, built_in)  # before the entry points, which take long to find
    yield from (_load(name) for name in plugins.names("trace_formats") if name not in built_in)


def _load(format: str | TraceFormat) -> TraceFormat:
    if isinstance(format, str):
        found: TraceFormat = plugins.load("trace_formats", format)
        return found
    if not (callable(getattr(format, "recognises", None)) and callable(getattr(format, "read", None))):
        raise OptionError(f"{format!r} is not a trace format", fix="it needs NAME, recognises(path) and read(path)")
    return format
