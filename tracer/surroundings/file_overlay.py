"""Keeps files that existed before a run as they were: what the script writes goes into a folder of its own, and is read there.

The folder holds each file under its absolute path, as the upper layer of a union mount does, and an empty file ``.wh.NAME`` for
one that the script has deleted below (AUFS's convention). Here is where a path lies; what sends the script's files there is in
``file_functions``, for Python's own functions, and in ``native_libraries``.
"""

from __future__ import annotations

import builtins
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

#: Folders that hold no files of a user.
OF_THE_SYSTEM = ("/dev", "/proc", "/sys", "/run")
_DELETED = ".wh."
#: As many links as Linux follows in one path.
_MOST_LINKS = 40
_getcwd = os.getcwd


def _of_this_machine(method: Any) -> Any:
    """Let a method of the overlay use the files of this machine, also while functions for files are replaced."""

    @wraps(method)
    def function(self: FileOverlay, *args: Any, **kwargs: Any) -> Any:
        with self.as_it_is():
            return method(self, *args, **kwargs)

    return function


class FileOverlay:
    """The layer of files that a script writes, in ``folder``; files below it are only read.

    What lies in the folders ``shared`` is read and written there.
    """

    def __init__(self, folder: str | os.PathLike[str], shared: tuple[str | os.PathLike[str], ...] = ()) -> None:
        self.folder = os.path.realpath(folder)
        self.folders = (self.folder, *(os.path.realpath(one) for one in shared))
        self.written = (*self.folders, *OF_THE_SYSTEM)
        self._below = tuple(f"{one}{os.sep}" for one in self.written)
        self._state = threading.local()
        os.makedirs(self.folder, exist_ok=True)

    # ---- paths -------------------------------------------------------------------------------------------------

    @_of_this_machine
    def to_read(self, path: Any, *, follow: bool = True) -> Any:
        """Return where to read a path: what the script has written, or what was there before.

        Without ``follow`` a link is meant itself, not what it leads to.
        """
        whole, upper = self._place(path, follow)
        if upper is not None and (os.path.lexists(upper) or self._is_deleted(upper)):
            return upper
        return self._named(path, whole)

    @_of_this_machine
    def to_enter(self, path: Any) -> Any:
        """Return where a folder is entered: that of before the run, if there is one."""
        whole, upper = self._place(path, follow=True)
        if upper is None or (os.path.isdir(whole) and not self._is_deleted(upper)):
            return self._named(path, whole)
        return upper

    @_of_this_machine
    def to_write(self, path: Any, *, copy: bool = False, follow: bool = True) -> Any:
        """Return where to write a path, in a folder that exists if the path's does; with ``copy``, what it held is there."""
        whole, upper = self._place(path, follow)
        if upper is None:
            return self._named(path, whole)
        if os.path.isdir(self.to_read(os.path.dirname(whole))):
            os.makedirs(os.path.dirname(upper), exist_ok=True)
        if copy and not os.path.lexists(upper) and not self._is_deleted(upper):
            if not follow and os.path.islink(whole):
                os.symlink(os.readlink(whole), upper)
            elif os.path.isfile(whole):
                _copy(whole, upper)
            elif os.path.isdir(whole):
                os.makedirs(upper)
        return upper

    @_of_this_machine
    def exists(self, path: Any) -> bool:
        """Whether a path is there for the script."""
        return os.path.lexists(self.to_read(path, follow=False))

    @_of_this_machine
    def is_below(self, path: Any) -> bool:
        """Whether a path was there before the run, and the script has not deleted it."""
        whole, upper = self._place(path, follow=False)
        return upper is None or (os.path.lexists(whole) and not self._is_deleted(upper))

    @_of_this_machine
    def upper(self, path: Any) -> str | None:
        """Return the place in the folder for a path itself; None where it is written as it is."""
        return self._place(path, follow=False)[1]

    @_of_this_machine
    def is_merged(self, path: Any) -> bool:
        """Whether the script has written into a folder."""
        _, upper = self._place(path, follow=True)
        return upper is not None and os.path.isdir(upper)

    @_of_this_machine
    def names(self, path: Any) -> list[str]:
        """Return the names in a folder, in both layers."""
        whole, upper = self._place(path, follow=True)
        if upper is None:
            return os.listdir(path)
        found = set(os.listdir(upper)) if os.path.isdir(upper) else set()
        found = {name for name in found if not name.startswith(_DELETED)}
        if os.path.isdir(whole) and not self._is_deleted(upper):
            found |= {one for one in os.listdir(whole) if not self._is_deleted(os.path.join(upper, one))}
        return sorted(found)

    @_of_this_machine
    def delete_below(self, path: Any) -> None:
        """Note that what was there before the run is deleted, if anything was."""
        whole, upper = self._place(path, follow=False)
        if upper is None or not os.path.lexists(whole):
            return
        folder, name = os.path.split(upper)
        os.makedirs(folder, exist_ok=True)
        for mark in (os.path.join(self.folder, _DELETED), os.path.join(folder, f"{_DELETED}{name}")):
            with builtins.open(mark, "wb"):
                pass

    def _place(self, path: Any, follow: bool) -> tuple[str, str | None]:
        """Return a path without the links in both layers, and its place in the folder; None where it is written as it is."""
        whole = os.path.abspath(os.fsdecode(path))
        upper_is_there = True
        done, left, links = os.sep, whole.split(os.sep)[:0:-1], 0
        while left and not self._is_free(whole):
            done = os.path.join(done, left.pop())
            if not left and not follow:
                break
            target = None
            if upper_is_there:
                target, upper_is_there = _link(self.folder + done)
            if not upper_is_there and (target := _link(done)[0]) is not None and self._is_deleted(self.folder + done):
                target = None
            if target is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                whole = os.path.normpath(os.path.join(os.path.dirname(done), target, *reversed(left)))
                done, left, upper_is_there = os.sep, whole.split(os.sep)[:0:-1], True
        return whole, None if self._is_free(whole) else self.folder + whole

    def _named(self, path: Any, whole: str) -> Any:
        """Return a path that is used as it is: as the script wrote it, unless that would lead elsewhere."""
        inside = f"{_getcwd()}{os.sep}".startswith(self._below[0])  # in a folder that the script has made
        return path if whole == os.path.abspath(os.fsdecode(path)) and not inside else whole

    def _is_free(self, whole: str) -> bool:
        return f"{whole}{os.sep}".startswith(self._below)

    def _is_deleted(self, upper: str) -> bool:
        """Whether the script has deleted what was below, or a folder that it was in."""
        if not os.path.lexists(os.path.join(self.folder, _DELETED)):
            return False  # nothing was ever
        while len(upper) > len(self.folder):
            folder, name = os.path.split(upper)
            if os.path.lexists(os.path.join(folder, f"{_DELETED}{name}")):
                return True
            upper = folder
        return False

    # ---- the process -------------------------------------------------------------------------------------------

    @contextmanager
    def as_it_is(self) -> Iterator[None]:
        """Use the files of this machine inside, not the script's: its replaced functions do what they did before."""
        before, self._state.real = self.is_real, True
        try:
            yield
        finally:
            self._state.real = before

    @property
    def is_real(self) -> bool:
        """Whether this thread uses the files of this machine."""
        return getattr(self._state, "real", False)

    def logical(self, folder: str) -> str:
        """Return the path by which the script knows a folder: of one in the overlay, the path that it stands for."""
        return folder[len(self.folder) :] or os.sep if f"{folder}{os.sep}".startswith(self._below[0]) else folder


def _copy(source: str, target: str) -> None:
    """Copy a file, all of it or nothing, where the disk is full."""
    unfinished = f"{target}.{os.getpid()}.{threading.get_ident()}.part"  # ranks may write one file
    try:
        shutil.copy(source, unfinished)
        os.replace(unfinished, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def _link(path: str) -> tuple[str | None, bool]:
    """Return where a link leads, None for what is none, and whether the path exists."""
    try:
        return os.readlink(path), True
    except OSError as error:
        return None, error.errno == errno.EINVAL
