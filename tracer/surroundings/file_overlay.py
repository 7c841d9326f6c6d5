"""Keeps files that existed before a run as they were: what the script writes goes into a folder of its own, and is read there.

The folder holds each file under its absolute path, as the upper layer of a union mount does, and an empty file ``.wh.NAME`` for
one that the script has deleted below (AUFS's convention). Python's own functions for files are replaced: ``open`` and those of
``os``, which ``shutil``, ``pathlib`` and ``tempfile`` call. Programs that the script starts, and libraries that open files by
themselves, are not.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from triosim.tracer.patches import Patch, Patches

#: Folders that hold no files of a user.
_OF_THE_SYSTEM = ("/dev", "/proc", "/sys", "/run")
_DELETED = ".wh."
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
Function = Callable[..., Any]


class FileOverlay:
    """The layer of files that a script writes, in ``folder``; files below it are only read.

    What lies in the folders ``shared`` is read and written there.
    """

    def __init__(self, folder: str | os.PathLike[str], shared: tuple[str | os.PathLike[str], ...] = ()) -> None:
        self.folder = os.path.realpath(folder)
        self._below = tuple(f"{os.path.realpath(one)}{os.sep}" for one in (folder, *shared, *_OF_THE_SYSTEM))
        self._state = threading.local()
        os.makedirs(self.folder, exist_ok=True)

    def install(self, patches: Patches) -> None:
        """Send what is written into the folder until the patches are undone."""
        for owner, name, value in ((sys, "dont_write_bytecode", True), (shutil, "_use_fd_functions", False)):
            patches.make([Patch(owner, name, value, "leave")])
        patches.make(self._patches())

    # ---- paths -------------------------------------------------------------------------------------------------

    def to_read(self, path: Any) -> Any:
        """Return where to read a path: what the script has written, or what was there before."""
        upper = self._upper(path)
        return path if upper is None or not (os.path.lexists(upper) or self._is_deleted(upper)) else upper

    def to_write(self, path: Any, *, copy: bool = False) -> Any:
        """Return where to write a path, in a folder that exists if the path's does; with ``copy``, what it held is there."""
        upper = self._upper(path)
        if upper is None:
            return path
        below = os.path.dirname(os.path.abspath(os.fspath(path)))
        if os.path.isdir(self.to_read(below)):
            os.makedirs(os.path.dirname(upper), exist_ok=True)
        if copy and not os.path.lexists(upper) and not self._is_deleted(upper) and os.path.isfile(path):
            shutil.copyfile(path, upper)
        return upper

    def exists(self, path: Any) -> bool:
        """Whether a path is there for the script."""
        return os.path.lexists(self.to_read(path))

    def _upper(self, path: Any) -> str | None:
        """Return the place in the folder for a path; None where it is written as it is."""
        folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        whole = os.path.join(os.path.realpath(folder), name)
        if f"{whole}{os.sep}".startswith(self._below):
            return None
        return os.path.join(self.folder, whole.lstrip(os.sep))

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

    def _delete_below(self, path: Any) -> None:
        """Note that what is below is deleted, if anything is."""
        upper = self._upper(path)
        if upper is None or not os.path.lexists(path):
            return
        folder, name = os.path.split(upper)
        os.makedirs(folder, exist_ok=True)
        for mark in (os.path.join(self.folder, _DELETED), os.path.join(folder, f"{_DELETED}{name}")):
            with builtins.open(mark, "wb"):
                pass

    def _names(self, path: Any) -> list[str]:
        """Return the names in a folder, in both layers."""
        upper, found = self._upper(path), set()
        if upper is not None and os.path.isdir(upper):
            found = {name for name in os.listdir(upper) if not name.startswith(_DELETED)}
        if upper is None or (os.path.isdir(path) and not self._is_deleted(upper)):
            below = os.listdir(path)
            found |= {one for one in below if upper is None or not self._is_deleted(os.path.join(upper, one))}
        return sorted(found)

    # ---- functions ---------------------------------------------------------------------------------------------

    def _patches(self) -> Iterator[Patch]:
        for name in ("stat", "lstat", "access", "readlink", "chdir"):
            yield Patch(os, name, self._translated(getattr(os, name), self.to_read))
        for name in ("truncate", "utime", "chmod"):
            yield Patch(os, name, self._translated(getattr(os, name), lambda path: self.to_write(path, copy=True)))
        for owner in (builtins, io):
            yield Patch(owner, "open", self._open(owner.open))
        yield Patch(os, "open", self._open_descriptor(os.open))
        for name in ("listdir", "scandir"):
            yield Patch(os, name, self._listing(getattr(os, name)))
        yield Patch(os, "mkdir", self._mkdir(os.mkdir))
        for name in ("remove", "unlink", "rmdir"):
            yield Patch(os, name, self._removal(getattr(os, name)))
        for name in ("rename", "replace"):
            yield Patch(os, name, self._rename(getattr(os, name)))
        for name in ("link", "symlink"):
            yield Patch(os, name, self._link(getattr(os, name)))

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Call functions for files as they are."""
        self._state.ours = True
        try:
            yield
        finally:
            self._state.ours = False

    def _is_ours(self, path: Any) -> bool:
        return getattr(self._state, "ours", False) or not isinstance(path, (str, bytes, os.PathLike))

    def _translated(self, original: Function, translate: Function) -> Function:
        @wraps(original)
        def function(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if self._is_ours(path) or kwargs.get("dir_fd") is not None:
                return original(path, *args, **kwargs)
            with self._ours():
                path = translate(path)
            return original(path, *args, **kwargs)

        return function

    def _open(self, original: Function) -> Function:
        @wraps(original)
        def function(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if self._is_ours(file):
                return original(file, mode, *args, **kwargs)
            with self._ours():
                if "x" in mode and self.exists(file):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
                writes = any(one in mode for one in "wax+")
                file = self.to_write(file, copy="w" not in mode) if writes else self.to_read(file)
            return original(file, mode, *args, **kwargs)

        return function

    def _open_descriptor(self, original: Function) -> Function:
        @wraps(original)
        def function(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            if self._is_ours(path) or kwargs.get("dir_fd") is not None:
                return original(path, flags, *args, **kwargs)
            with self._ours():
                if flags & os.O_CREAT and flags & os.O_EXCL and self.exists(path):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
                replaces = flags & os.O_TRUNC and flags & os.O_CREAT
                path = self.to_write(path, copy=not replaces) if flags & _WRITES else self.to_read(path)
            return original(path, flags, *args, **kwargs)

        return function

    def _listing(self, original: Function) -> Function:
        """Return a function that lists both layers of a folder; entries of a scan are those of the layer that has them."""

        @wraps(original)
        def function(path: Any = ".") -> Any:
            if self._is_ours(path) or isinstance(path, bytes):
                return original(path)
            with self._ours():
                upper = self._upper(path)
                if upper is None or not os.path.isdir(upper):
                    return original(self.to_read(path))
                names = self._names(path)
                if original.__name__ == "listdir":
                    return names
                return _Scan(path, upper, names, original)

        return function

    def _mkdir(self, original: Function) -> Function:
        @wraps(original)
        def function(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            if self._is_ours(path) or dir_fd is not None:
                return original(path, mode, dir_fd=dir_fd)  # type: ignore[no-any-return]
            with self._ours():
                if self.exists(path):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
                return original(self.to_write(path), mode)  # type: ignore[no-any-return]

        return function

    def _removal(self, original: Function) -> Function:
        @wraps(original)
        def function(path: Any, *, dir_fd: int | None = None) -> None:
            if self._is_ours(path) or dir_fd is not None:
                return original(path, dir_fd=dir_fd)  # type: ignore[no-any-return]
            with self._ours():
                upper = self._upper(path)
                if upper is None or not self.exists(path):
                    return original(path)  # type: ignore[no-any-return]
                if original.__name__ == "rmdir" and self._names(path):
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
                if os.path.isdir(upper) and original.__name__ == "rmdir":
                    shutil.rmtree(upper)
                elif os.path.lexists(upper):
                    original(upper)
                self._delete_below(path)
                return None

        return function

    def _rename(self, original: Function) -> Function:
        @wraps(original)
        def function(source: Any, target: Any, **kwargs: Any) -> None:
            if self._is_ours(source) or self._is_ours(target):
                return original(source, target, **kwargs)  # type: ignore[no-any-return]
            with self._ours():
                found = self.to_read(source)
                where = self.to_write(target)
                if found == source and self._upper(source) is not None:  # below, where it stays
                    (shutil.copytree if os.path.isdir(found) else shutil.copy2)(found, where)
                else:
                    original(found, where)
                self._delete_below(source)
                return None

        return function

    def _link(self, original: Function) -> Function:
        @wraps(original)
        def function(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            if self._is_ours(target):
                return original(source, target, *args, **kwargs)  # type: ignore[no-any-return]
            with self._ours():
                if self.exists(target):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
                found = self.to_read(source) if original.__name__ == "link" else source
                where = self.to_write(target)
                if original.__name__ == "link":
                    shutil.copy2(found, where)
                    return None
                return original(found, where, *args, **kwargs)  # type: ignore[no-any-return]

        return function


class _Scan:
    """What ``os.scandir`` returns: the entries of both layers of a folder, by name."""

    def __init__(self, path: Any, upper: str, names: list[str], scan: Function) -> None:
        entries: dict[str, Any] = {}
        for folder in (path, upper):
            if os.path.isdir(folder):
                with scan(folder) as found:
                    entries.update((entry.name, entry) for entry in found)
        self._entries = iter([entries[name] for name in names])

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass
