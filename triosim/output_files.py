"""Writes files whole or not at all: paths are checked before the work begins, files get their name when they are complete.

A reader never sees half a file: whatever ends the writing early, Ctrl-C included, removes the temporary file and leaves
what stood there before.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from triosim.errors import OutputError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

PathLike = str | os.PathLike[str]
#: Where an output goes to standard output; whatever else a command prints then goes to standard error.
STANDARD_OUTPUT = "-"


def check_writable(path: PathLike) -> None:
    """Raise ``OutputError`` when a file cannot be written at ``path``; the file system is left as it is."""
    target = Path(path)
    folder = target.parent
    if "\0" in str(path) or not str(path):
        raise OutputError("is not a path", where=repr(str(path)), fix="choose another")
    if str(path) == STANDARD_OUTPUT:
        if sys.__stdout__ is None:
            raise OutputError("is closed", where="standard output", fix="name a file")
        return
    try:
        if target.is_dir():
            raise OutputError("is a folder, not a file", where=str(path), fix="name a file in it")
        if not folder.exists():
            raise OutputError(f"the folder '{folder}' does not exist", where=str(path), fix="make it first")
        if not folder.is_dir():
            raise OutputError(f"'{folder}' is not a folder", where=str(path), fix="name a file in a folder")
        exists = target.exists()
    except (OSError, ValueError) as error:  # a name too long, a folder that may not be entered
        raise OutputError(_reason(error), where=str(path), fix="choose another path") from None
    if not os.access(folder if not exists else target, os.W_OK) or (
        _replaceable(target) and not os.access(folder, os.W_OK)
    ):
        raise OutputError("may not be written", where=str(path), fix="choose a path that you may write")


def check_outputs(*paths: PathLike | None, reading: Iterable[PathLike | None] = ()) -> None:
    """Raise ``OutputError`` when a path cannot be written, is that of another output, or that of a file to be read."""
    seen: set[str] = set()
    read = {os.path.realpath(path) for path in reading if path}
    for path in paths:
        if path is None:
            continue
        check_writable(path)
        real = os.path.realpath(path)
        if real in seen and _replaceable(Path(path)):
            raise OutputError("is given for two outputs", where=str(path), fix="give each its own file")
        if real in read and str(path) != STANDARD_OUTPUT:
            raise OutputError(
                "is an input of this command, and would be overwritten", where=str(path), fix="choose another path"
            )
        seen.add(real)


def check_folder(path: PathLike, content: str, pattern: str) -> None:
    """Raise ``OutputError`` where no folder for files of some ``content`` can be, or where such files, by a pattern, are."""
    folder = Path(path)
    if not str(path) or str(path) == STANDARD_OUTPUT:
        raise OutputError("is no name of a folder", where=repr(str(path)), fix=f"name a folder for the {content}")
    if folder.exists() and not folder.is_dir():
        raise OutputError("is not a folder", where=str(path), fix=f"name a folder for the {content}")
    if folder.is_dir() and any(folder.glob(pattern)):
        raise OutputError(f"holds {content} already", where=str(path), fix="name another folder")
    above = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not os.access(above, os.W_OK):
        raise OutputError("may not be written", where=str(path), fix="choose a folder that you may write")


@contextmanager
def writing_folder(path: PathLike) -> Iterator[Path]:
    """Make a folder for files that belong together; what the block wrote is removed where it is left with an exception.

    Raises ``OutputError`` where the folder cannot be made.
    """
    folder = Path(path)
    before = {one.name for one in folder.iterdir()} if folder.is_dir() else None
    with _named_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            for one in folder.iterdir():
                if one.name not in (before or ()):
                    one.unlink()
            if before is None:
                folder.rmdir()
        raise


def check_ending(target: str, endings: tuple[str, ...], what: str, option: str = "--output") -> None:
    """Refuse a name under which nobody would look for ``what``; standard output, a device or a pipe may have any.

    Raises ``OutputError``.
    """
    if not target.endswith(endings) and target != STANDARD_OUTPUT and _replaceable(Path(target)):
        fix = f"end it in {', '.join(endings[:-1])} or {endings[-1]}" if endings[1:] else f"end it in {endings[0]}"
        raise OutputError(f"does not name {what}", where=f"{option} {target}", fix=fix)


def check_trace_name(target: str) -> None:
    """Refuse a name under which nobody would look for JSON. Raises ``OutputError``."""
    check_ending(target, (".json", ".json.gz"), "a trace")


@contextmanager
def writing_bytes(path: PathLike) -> Iterator[BinaryIO]:
    """Open ``path`` for bytes; it appears under its name when the block is left without an exception."""
    check_writable(path)
    if str(path) == STANDARD_OUTPUT:
        with _named_errors("standard output"), open(1, "wb", closefd=False) as output:
            yield output
        return
    if not _replaceable(Path(path)):  # a device or a pipe, such as /dev/stdout, whose real path may not be to be opened
        with _named_errors(path), open(path, "wb") as device:
            yield device
        return
    target = Path(os.path.realpath(path))  # through a symbolic link, which stays one
    _remove_abandoned(target)
    with _named_errors(path):
        temporary, file, lock = _new_temporary(target)
    try:
        with _named_errors(path):
            with file:
                yield file
            os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(lock)


@contextmanager
def writing_text(path: PathLike) -> Iterator[TextIO]:
    """Open ``path`` for UTF-8 text, compressed where the name ends in ``.gz``; the same text gives the same bytes."""
    with writing_bytes(path) as file:
        if str(path).endswith(".gz"):
            # The buffer spares the compressor from thousands of small calls; closing the text closes both.
            compressed = gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=5, mtime=0)
            with io.TextIOWrapper(cast(BinaryIO, io.BufferedWriter(compressed, 1 << 18)), "utf-8") as text:
                yield text
        else:
            text = io.TextIOWrapper(file, "utf-8", newline="\n")
            yield text
            text.flush()
            text.detach()  # the file below it is closed by its own block


def _new_temporary(target: Path) -> tuple[Path, BinaryIO, int]:
    """Return the path of a temporary file beside a target, the file, and a descriptor that holds a lock on it."""
    while True:
        path = target.with_name(f".{target.name[:180]}.{os.urandom(16).hex()}.part")
        file = open(path, "xb")  # noqa: SIM115 - who writes closes it
        lock = os.dup(file.fileno())  # the file is closed, which may fail, before it has its name
        if _lock(lock) and path.exists():  # otherwise another process took it, just made, for one that was left
            return path, file, lock
        os.close(lock)
        file.close()


def _remove_abandoned(target: Path) -> None:
    """Remove the temporary files of the same output that nobody writes any more: their processes were killed.

    Who writes one holds a lock on it, which ends with the process, on whichever machine of a shared file system that is.
    """
    for path in target.parent.glob(f".{escape(target.name[:180])}.*.part"):
        if _TEMPORARY.fullmatch(path.name.split(".")[-2]):
            with suppress(OSError), open(path, "r+b") as file:
                if _lock(file.fileno(), where_none=False):
                    path.unlink()


#: The part of a temporary file's name that is drawn; earlier versions had the number of the process there.
_TEMPORARY = re.compile("[0-9a-f]{32}|[0-9]+")


def _lock(descriptor: int, *, where_none: bool = True) -> bool:
    """Lock a file and return whether it is locked; ``where_none`` where the system or the file system has no locks."""
    if fcntl is None:
        return where_none
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return where_none
    return True


def _replaceable(path: Path) -> bool:
    return path.is_file() or not path.exists()


@contextmanager
def _named_errors(path: PathLike) -> Iterator[None]:
    """Turn the operating system's errors into one line that names the path."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"could not be written: {_reason(error)}", where=str(path)) from error


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
