"""Sends a script's files into an overlay: replaces ``open`` and the functions of ``os``, under every name that they have.

``shutil``, ``pathlib``, ``tempfile`` and the import system call these. The script's temporary folder is that of the overlay, so
that libraries which open files by themselves, and programs that the script starts, find it too.
"""

from __future__ import annotations

import errno
import glob
import io
import os
import pathlib
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from typing import Any

from triosim.tracer.patches import Patch, Patches
from triosim.tracer.surroundings.file_overlay import FileOverlay
from triosim.tracer.surroundings.merged_folders import Entry, Scan

Function = Callable[..., Any]
_OPEN_FILES = "/proc/self/fd"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
#: Functions of ``os`` whose first argument is a path to read, of which the last ones mean a link itself.
_READING = ("stat", "access", "statvfs", "getxattr", "listxattr")
_READING_LINKS = ("lstat", "readlink")
#: Functions of ``os`` that change what lies at their first argument.
_CHANGING = ("truncate", "utime", "chmod", "chown", "setxattr", "removexattr")
_CHANGING_LINKS = ("lchown", "mkfifo", "mknod")
#: Those that change an open file, and are called as another one with an "f" before.
_CHANGING_OPEN = ("fchmod", "fchown")


def install(patches: Patches, files: FileOverlay) -> None:
    """Send what is written into the overlay until the patches are undone."""
    patches.make([Patch(sys, "dont_write_bytecode", True), Patch(shutil, "_use_fd_functions", False, "leave")])
    temporary = files.to_write(os.path.realpath(tempfile.gettempdir()))
    os.makedirs(temporary, exist_ok=True)
    patches.make([Patch(tempfile, "tempdir", temporary)])
    patches.set_variable("TMPDIR", temporary)
    functions = dict(_Functions(files).replaced())
    patches.replace_values(functions)
    replaced = {id(original): function for original, function in functions.items()}
    patches.rebind(replaced, _closers(), spared=lambda module: module == FileOverlay.__module__)
    patches.make(_attributes(replaced))


def _closers() -> Iterator[Any]:
    """Yield functions of the standard library that have a function for files as the default of an argument."""
    closer: Any = getattr(tempfile, "_TemporaryFileCloser", None)
    yield from (one for one in vars(closer).values() if getattr(one, "__defaults__", None))


def _attributes(replaced: Mapping[int, Function]) -> Iterator[Patch]:
    """Yield patches of the classes that hold functions for files: ``pathlib`` of Python 3.10, ``glob`` from 3.13 on."""
    classes = [one for module in (glob, pathlib) for one in vars(module).values() if isinstance(one, type)]
    for owner in classes:
        for name, value in vars(owner).items():
            function = value.__func__ if isinstance(value, staticmethod) else value
            if id(function) in replaced:
                yield Patch(owner, name, staticmethod(replaced[id(function)]))


class _Functions:
    """The functions for files of a script, in an overlay. An error names the path that the script gave."""

    def __init__(self, files: FileOverlay) -> None:
        self._files = files

    def replaced(self) -> Iterator[tuple[Function, Function]]:
        """Yield pairs of a function and its replacement."""
        files = self._files
        yield from self._translated(_READING, files.to_read)
        yield from self._translated(_READING_LINKS, partial(files.to_read, follow=False))
        yield from self._translated(_CHANGING, partial(files.to_write, copy=True), opened=True)
        for name in _CHANGING_OPEN:
            if (original := getattr(os, name, None)) is not None:
                yield original, self._change_of_open(original, getattr(os, name[1:]))
        yield from self._translated(_CHANGING_LINKS, partial(files.to_write, copy=True, follow=False))
        yield from self._translated(("chdir",), files.to_enter)
        for name, function in (("getcwd", str), ("getcwdb", os.fsencode)):
            yield getattr(os, name), lambda real=os.getcwd, made=function: made(files.logical(real()))
        yield io.open, self._open(io.open)
        yield io.open_code, self._replacement(io.open_code, files.to_read)
        yield os.open, self._open_descriptor(os.open)
        for name in ("listdir", "scandir"):
            yield getattr(os, name), self._listing(getattr(os, name))
        yield os.mkdir, self._mkdir(os.mkdir)
        yield os.unlink, self._removal(os.unlink)
        yield os.remove, self._removal(os.remove)
        yield os.rmdir, self._removal(os.rmdir)
        for name in ("rename", "replace"):
            yield getattr(os, name), self._rename(getattr(os, name))
        yield os.symlink, self._symlink(os.symlink)
        yield os.link, self._link(os.link)

    def _is_free(self, path: Any) -> bool:
        """Whether a call is to do what it always did: for a file that is open, or where the overlay calls it."""
        return self._files.is_real or not isinstance(path, (str, bytes, os.PathLike))

    def _translated(
        self, names: tuple[str, ...], place: Function, *, opened: bool = False
    ) -> Iterator[tuple[Function, Function]]:
        for name in names:
            if (original := getattr(os, name, None)) is not None:
                yield original, self._replacement(original, place, opened)

    def _replacement(self, original: Function, place: Function, opened: bool = False) -> Function:
        """Return a function whose first argument is a path, which lies at another place, or, where asked, an open file."""

        @wraps(original)
        def function(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            path = self._whole(path, kwargs)
            if opened and isinstance(path, int) and not self._files.is_real:
                path = self._path_below(path)
            if self._is_free(path) or kwargs.get("dir_fd") is not None:
                return original(path, *args, **kwargs)
            return _called(original, place(path), path, *args, **kwargs)

        return function

    def _change_of_open(self, original: Function, by_path: Function) -> Function:
        """Return a function that changes an open file; of one of before the run it changes the copy, by its path."""

        @wraps(original)
        def function(fd: int, *args: Any) -> Any:
            path = fd if self._files.is_real else self._path_below(fd)
            if path is fd:
                return original(fd, *args)
            return by_path(self._files.to_write(path, copy=True), *args)

        return function

    def _path_below(self, descriptor: int) -> int | str:
        """Return the path of an open file that existed before the run; of any other its descriptor."""
        try:
            path = os.readlink(f"{_OPEN_FILES}/{descriptor}")
        except OSError:
            return descriptor
        return path if self._files.upper(path) is not None and os.path.isabs(path) else descriptor

    def _whole(self, path: Any, kwargs: dict[str, Any], name: str = "dir_fd") -> Any:
        """Return a path with the folder that a call names by a descriptor, which is taken from the arguments."""
        descriptor = kwargs.get(name)
        if descriptor is None or self._is_free(path):
            return path
        try:
            folder = self._files.logical(os.readlink(f"{_OPEN_FILES}/{descriptor}"))
        except OSError:
            return path
        del kwargs[name]
        return os.path.join(os.fsencode(folder) if isinstance(os.fspath(path), bytes) else folder, path)

    def _both(self, source: Any, target: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the two paths of a call with the folders that it names by descriptors."""
        return self._whole(source, kwargs, "src_dir_fd"), self._whole(target, kwargs, "dst_dir_fd")

    def _open(self, original: Function) -> Function:
        @wraps(original)
        def function(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if self._is_free(file):
                return original(file, mode, *args, **kwargs)
            if "x" in mode and self._files.exists(file):
                raise _error(errno.EEXIST, file)
            writes = any(one in mode for one in "wax+")
            place = self._files.to_write(file, copy="w" not in mode) if writes else self._files.to_read(file)
            return _called(original, place, file, mode, *args, **kwargs)

        return function

    def _open_descriptor(self, original: Function) -> Function:
        @wraps(original)
        def function(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            path = self._whole(path, kwargs)
            if self._is_free(path) or kwargs.get("dir_fd") is not None:
                return original(path, flags, *args, **kwargs)
            if flags & os.O_CREAT and flags & os.O_EXCL and self._files.exists(path):
                raise _error(errno.EEXIST, path)
            replaces = flags & os.O_TRUNC and flags & os.O_CREAT
            writes = flags & _WRITES
            place = self._files.to_write(path, copy=not replaces) if writes else self._files.to_read(path)
            return _called(original, place, path, flags, *args, **kwargs)

        return function

    def _listing(self, original: Function) -> Function:
        """Return a function that lists both layers of a folder."""

        @wraps(original)
        def function(path: Any = ".") -> Any:
            path = "." if path is None else path
            if self._is_free(path):
                return original(path)
            if not self._files.is_merged(path):
                return _called(original, self._files.to_read(path), path)
            names = self._files.names(path)
            if original.__name__ == "listdir":
                return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names
            return Scan(Entry(path, name) for name in names)

        return function

    def _mkdir(self, original: Function) -> Function:
        @wraps(original)
        def function(path: Any, mode: int = 0o777, **kwargs: Any) -> None:
            path = self._whole(path, kwargs)
            if self._is_free(path) or kwargs:
                original(path, mode, **kwargs)
            elif self._files.exists(path):
                raise _error(errno.EEXIST, path)
            else:
                _called(original, self._files.to_write(path), path, mode)

        return function

    def _removal(self, original: Function) -> Function:
        @wraps(original)
        def function(path: Any, **kwargs: Any) -> None:
            path = self._whole(path, kwargs)
            upper = None if self._is_free(path) or kwargs else self._files.upper(path)
            if upper is None:
                original(path, **kwargs)
                return
            folder = stat.S_ISDIR(os.lstat(path).st_mode)
            if folder != (original.__name__ == "rmdir"):
                raise _error(errno.EISDIR if folder else errno.ENOTDIR, path)
            if folder and self._files.names(path):
                raise _error(errno.ENOTEMPTY, path)
            with self._files.as_it_is():
                if folder and os.path.isdir(upper):
                    shutil.rmtree(upper)  # what was deleted in it before
                elif os.path.lexists(upper):
                    original(upper)
            self._files.delete_below(path)

        return function

    def _rename(self, original: Function) -> Function:
        @wraps(original)
        def function(source: Any, target: Any, **kwargs: Any) -> None:
            files = self._files
            source, target = self._both(source, target, kwargs)
            if self._is_free(source) or self._is_free(target) or kwargs:
                original(source, target, **kwargs)
                return
            folder = stat.S_ISDIR(os.lstat(source).st_mode)
            if os.path.isdir(target) and not os.path.islink(target) and (not folder or files.names(target)):
                raise _error(errno.ENOTEMPTY if folder else errno.EISDIR, source, target)
            if files.is_below(source) and files.upper(source) is not None:  # where it stays
                if folder:
                    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
                    shutil.rmtree(source)
                else:
                    shutil.copy2(source, target, follow_symlinks=False)
                    os.unlink(source)
                return
            place = files.to_write(target, follow=False)
            with files.as_it_is():
                original(files.to_read(source, follow=False), place)

        return function

    def _symlink(self, original: Function) -> Function:
        @wraps(original)
        def function(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            target = self._whole(target, kwargs)
            if not self._is_free(target) and self._files.exists(target):
                raise _error(errno.EEXIST, source, target)
            place = target if self._is_free(target) else self._files.to_write(target, follow=False)
            original(source, place, *args, **kwargs)

        return function

    def _link(self, original: Function) -> Function:
        """Return a function that gives a file a second name; one of before the run is copied first, and the copy has both."""

        @wraps(original)
        def function(source: Any, target: Any, **kwargs: Any) -> None:
            files = self._files
            source, target = self._both(source, target, kwargs)
            if self._is_free(source) or self._is_free(target) or kwargs.keys() - {"follow_symlinks"}:
                original(source, target, **kwargs)
                return
            if files.exists(target):
                raise _error(errno.EEXIST, source, target)
            if stat.S_ISDIR(os.lstat(source).st_mode):
                raise _error(errno.EPERM, source, target)
            held = files.to_write(source, copy=True, follow=False)
            place = files.to_write(target, follow=False)
            with files.as_it_is():
                try:
                    original(held, place, follow_symlinks=False)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise _error(error.errno or errno.EIO, source, target) from None
                    shutil.copy2(held, place, follow_symlinks=False)  # from a folder that is shared

        return function


def _called(original: Function, place: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function with the place of a path; its error names the path."""
    try:
        return original(place, *args, **kwargs)
    except OSError as error:
        if error.filename == place:
            error.filename = path
        raise


def _error(number: int, path: Any, other: Any = None) -> OSError:
    return OSError(number, os.strerror(number), path, None, other)
