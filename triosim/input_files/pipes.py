"""Pipes as inputs: what comes through one is kept in a temporary file, because a format is found by a look at the beginning.

``-`` is standard input; ``<(zcat trace.json.gz)`` of a shell, a FIFO and ``/dev/stdin`` are files that can be read once.
"""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

from triosim.errors import TraceError
from triosim.input_files.limits import FILE_BYTES
from triosim.temporary_folder import TemporaryFolder

STANDARD_INPUT = "-"
_PIECE = 1 << 20


def seekable(path: str | os.PathLike[str]) -> str:
    """Return the path of a file that may be read again: of a pipe, the temporary file that has its content.

    Raises ``TraceError`` for a pipe that cannot be read, or brings more than the limit.
    """
    name = os.fspath(path)
    if name == STANDARD_INPUT:
        return _kept(_identity("/dev/stdin"), "/dev/stdin", "standard input")
    return _kept(_identity(name), name, name) if _is_pipe(name) else name


def renamed(text: str) -> str:
    """Return a message in which temporary files have the names that the user gave them."""
    for temporary, shown in _NAMES.items():
        text = text.replace(temporary, shown)
    return text


def _is_pipe(name: str) -> bool:
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError):  # whoever opens it says what is wrong
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def _identity(name: str) -> tuple[int, int]:
    """Return what is the same of all names of one pipe, such as ``-`` and ``/dev/stdin``: its device and its number there."""
    try:
        state = os.stat(name)
    except OSError as failed:
        raise TraceError(f"cannot be read: {failed.strerror or failed}", where=name) from failed
    return state.st_dev, state.st_ino


@cache
def _folder() -> str:
    kept = TemporaryFolder()  # removed when the process ends
    _FOLDERS.append(kept)
    return kept.name


_FOLDERS: list[TemporaryFolder] = []
#: The temporary file of each pipe, and the names that messages show in their place.
_KEPT: dict[tuple[int, int], str] = {}
_NAMES: dict[str, str] = {}


def _kept(identity: tuple[int, int], name: str, shown: str) -> str:
    if identity in _KEPT:
        return _KEPT[identity]
    size = 0
    try:
        target = Path(_folder(), str(len(_KEPT)), Path(shown).name)
        target.parent.mkdir()
        with open(name, "rb") as source, target.open("wb") as file:
            while piece := source.read(_PIECE):
                file.write(piece)
                size += len(piece)
                FILE_BYTES.check(size, shown, TraceError)
    except OSError as failed:
        raise TraceError(f"cannot be read: {failed.strerror or failed}", where=shown) from failed
    _KEPT[identity] = str(target)
    _NAMES[str(target)] = shown
    return str(target)
