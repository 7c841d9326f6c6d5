"""Pipes as inputs: what comes through one is kept in a temporary file, because a format is found by a look at the beginning.

``-`` is standard input; ``<(zcat trace.json.gz)`` of a shell, a FIFO and ``/dev/stdin`` are files that can be read once.
"""

from __future__ import annotations

import codecs
import os
import stat
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import BinaryIO

from triosim.errors import TraceError
from triosim.input_files.limits import EXPANSION, FILE_BYTES, PIPED_BYTES, REPEATED_BYTES
from triosim.temporary_folder import TemporaryFolder

STANDARD_INPUT = "-"
_PIECE = 1 << 20
#: The first bytes of gzip and of the archives that NumPy writes.
_COMPRESSED = (b"\x1f\x8b", b"PK")


def seekable(path: str | os.PathLike[str]) -> str:
    """Return the path of a file that may be read again: of a pipe, the temporary file that has its content.

    Raises ``TraceError`` for a pipe that cannot be read, or brings more than the limits, and for a device, which has no end.
    """
    name = os.fspath(path)
    if name == STANDARD_INPUT:
        return _kept(_identity("/dev/stdin"), "/dev/stdin", "standard input")
    return _kept(_identity(name), name, name) if _is_read_once(name) else name


def renamed(text: str) -> str:
    """Return a message in which temporary files have the names that the user gave them."""
    for temporary, shown in _NAMES.items():
        text = text.replace(temporary, shown)
    return text


def _is_read_once(name: str) -> bool:
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError):  # whoever opens it says what is wrong
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _check_has_end(file: BinaryIO, shown: str) -> None:
    """Raise ``TraceError`` for a device such as /dev/zero: of all devices a terminal and /dev/null have an end."""
    state = os.fstat(file.fileno())
    is_device = stat.S_ISBLK(state.st_mode) or stat.S_ISCHR(state.st_mode)
    if is_device and not file.isatty() and state.st_rdev != os.stat(os.devnull).st_rdev:
        raise TraceError("is a device, not a file", where=shown, fix="name a file, a folder or a pipe")


def _pieces(source: BinaryIO, shown: str) -> Iterator[bytes]:
    """Yield what comes through a pipe. Raises ``TraceError`` beyond the limits, and where it repeats itself without an end."""
    size, limit = 0, FILE_BYTES
    while piece := source.read(_PIECE):
        if not size and not _may_be_large(piece):
            limit = PIPED_BYTES
        before, size = size, size + len(piece)
        if before <= REPEATED_BYTES.allowed < size and EXPANSION * len(zlib.compress(piece, 1)) < len(piece):
            limit = REPEATED_BYTES
        limit.check(size, shown, TraceError)
        yield piece


def _identity(name: str) -> tuple[int, int]:
    """Return what is the same of all names of one pipe, such as ``-`` and ``/dev/stdin``: its device and its number there."""
    try:
        state = os.stat(name)
    except OSError as failed:
        raise TraceError(f"cannot be read: {failed.strerror or failed}", where=name) from failed
    return state.st_dev, state.st_ino


def _may_be_large(piece: bytes) -> bool:
    """Whether what begins so is compressed, or JSON."""
    if piece.startswith(_COMPRESSED):
        return True
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(piece)
    except UnicodeDecodeError:
        return False
    return text.lstrip()[:1] in ("{", "[")


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
    try:
        target = Path(mkdtemp(dir=_folder()), Path(shown).name)
        with open(name, "rb") as source, target.open("wb") as file:
            _check_has_end(source, shown)
            file.writelines(_pieces(source, shown))
    except OSError as failed:
        raise TraceError(f"cannot be read: {failed.strerror or failed}", where=shown) from failed
    _KEPT[identity] = str(target)
    _NAMES[str(target)] = shown
    return str(target)
