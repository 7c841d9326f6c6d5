"""Pipes as inputs: what comes through one is kept in a temporary file, because a format is found by a look at the beginning.

``-`` is standard input; ``<(zcat trace.json.gz)`` of a shell, a FIFO and ``/dev/stdin`` are files that can be read once.
"""

from __future__ import annotations

import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from triosim.errors import TraceError
from triosim.input_files.limits import FILE_BYTES

STANDARD_INPUT = "-"
_PIECE = 1 << 20


def seekable(path: str | os.PathLike[str]) -> str:
    """Return the path of a file that may be read again: of a pipe, the temporary file that has its content.

    Raises ``TraceError`` for a pipe that cannot be read, or brings more than the limit.
    """
    name = os.fspath(path)
    return name if name != STANDARD_INPUT and not _is_pipe(name) else _kept(name)


def renamed(text: str) -> str:
    """Return a message in which temporary files have the names that the user gave them."""
    return text if not _folder.cache_info().currsize else text.replace(f"{_folder()}{os.sep}", "")


def _is_pipe(name: str) -> bool:
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError):  # whoever opens it says what is wrong
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


@cache
def _folder() -> str:
    kept = tempfile.TemporaryDirectory(prefix="triosim-")  # removed when the process ends
    _FOLDERS.append(kept)
    return kept.name


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


@cache
def _kept(name: str) -> str:
    target = Path(_folder(), "standard input" if name == STANDARD_INPUT else name.strip(os.sep).replace(os.sep, "-"))
    shown, size = target.name, 0
    try:
        with open("/dev/stdin" if name == STANDARD_INPUT else name, "rb") as source, target.open("wb") as file:
            while piece := source.read(_PIECE):
                file.write(piece)
                size += len(piece)
                FILE_BYTES.check(size, shown, TraceError)
    except OSError as failed:
        raise TraceError(f"cannot be read: {failed.strerror or failed}", where=shown) from failed
    return str(target)
