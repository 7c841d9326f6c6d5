"""Calls of the system that name a path, by a program that runs over an overlay: which they are, and what becomes of them.

A call that reads, opens or changes what lies at a path gets another path, where that lies in the overlay. A call that makes,
removes or renames is not made: the overlay does it, and the program gets the answer. Numbers are those of Linux on x86-64
(``arch/x86/entry/syscalls/syscall_64.tbl``).
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from triosim.tracer.surroundings.file_overlay import FileOverlay

_AT_FDCWD = -100
_AT_REMOVEDIR, _AT_SYMLINK_NOFOLLOW, _RENAME_NOREPLACE = 0x200, 0x100, 1
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
#: Folders of programs and libraries, of which nothing is looked for in an overlay that has no such folder.
_OF_PROGRAMS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt")
#: A folder of more names is listed as it was before the run.
_MOST_LISTED = 10_000


#: Of so many listings those that nobody reads any more are removed.
_MANY_LISTINGS = 64
_RIGHTS = 0o7777


class StoppedCall(Protocol):
    """A program that is stopped at a call of the system, with the numbers and addresses that it gives."""

    pid: int
    number: int

    def argument(self, position: int) -> int:
        """Return an argument, as a signed number."""

    def text(self, address: int) -> str:
        """Return the text at an address."""

    def word(self, address: int) -> int:
        """Return the number of 64 bits at an address."""

    def replace(self, texts: Mapping[int, str]) -> None:
        """Give the call other texts, by the position of the argument."""

    def put(self, address: int, text: str) -> None:
        """Write a text at an address."""

    def answer(self, value: int) -> None:
        """Give the program an answer, without the call."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call: what it does, the position of its path, and, where it has them, those of a folder's descriptor and of flags."""

    does: Callable[[PathCalls, StoppedCall, Call], None]
    path: int = 0
    folder: int | None = None
    flags: int | None = None
    links: bool = False  # whether a link is meant itself


class PathCalls:
    """What becomes of calls with paths over an overlay. ``temporary`` is a folder for listings of folders in both layers."""

    def __init__(self, files: FileOverlay, temporary: str) -> None:
        self._files = files
        self._temporary = temporary
        self._listed: dict[str, str] = {}  # folders, by those that list them
        self._made: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}  # those, by the folder and what they show
        self._most_made = _MANY_LISTINGS

    def handle(self, stopped: StoppedCall) -> None:
        """Let a stopped call do what it does over the overlay."""
        call = CALLS.get(stopped.number)
        if call is not None:
            call.does(self, stopped, call)

    def close(self) -> None:
        """Remove what was made for listings."""
        for folder in self._listed:
            shutil.rmtree(folder, ignore_errors=True)

    # ---- paths -------------------------------------------------------------------------------------------------

    def _path(self, stopped: StoppedCall, path: int, folder: int | None) -> tuple[str, bool] | None:
        """Return the whole path of a call, and whether the system would understand it so; None where it names none."""
        address = stopped.argument(path)
        given = stopped.text(address) if address else ""
        if not given:
            return None
        if given.startswith(os.sep):
            return given, True
        descriptor = _AT_FDCWD if folder is None else _signed(stopped.argument(folder))
        of = "cwd" if descriptor == _AT_FDCWD else f"fd/{descriptor}"
        try:
            base = os.readlink(f"/proc/{stopped.pid}/{of}")
        except OSError:
            return None
        known = self._known(base)
        return os.path.join(known, given), known == base

    def _known(self, folder: str) -> str:
        """Return the path by which the program knows a folder that it has opened or entered."""
        for listing, listed in self._listed.items():
            if f"{folder}{os.sep}".startswith(f"{listing}{os.sep}"):
                return listed + folder[len(listing) :]
        return self._files.logical(folder)

    def _placed(self, stopped: StoppedCall, call: Call, place: Callable[[str], str]) -> None:
        found = self._path(stopped, call.path, call.folder)
        if found is None:
            return
        path, is_plain = found
        if place == self._files.to_read and is_plain and self._is_of_programs(path):
            return
        lies = os.fspath(place(path))
        if lies != path or not is_plain:
            stopped.replace({call.path: lies})

    def _is_of_programs(self, path: str) -> bool:
        top = f"/{path.split(os.sep)[1]}"
        return top in _OF_PROGRAMS and ".." not in path and not os.path.lexists(self._files.folder + top)

    # ---- what calls do -----------------------------------------------------------------------------------------

    def read(self, stopped: StoppedCall, call: Call) -> None:
        """Read what lies at a path."""
        flags = 0 if call.flags is None else stopped.argument(call.flags)
        if call.links or flags & _AT_SYMLINK_NOFOLLOW:
            self._placed(stopped, call, lambda path: self._files.to_read(path, follow=False))
        else:
            self._placed(stopped, call, self._files.to_read)

    def change(self, stopped: StoppedCall, call: Call) -> None:
        """Change what lies at a path."""
        self._placed(stopped, call, lambda path: self._files.to_write(path, copy=True, follow=not call.links))

    def enter(self, stopped: StoppedCall, call: Call) -> None:
        """Make a folder the working directory."""
        self._placed(stopped, call, self._files.to_enter)

    def tell_folder(self, stopped: StoppedCall, call: Call) -> None:
        """Tell the program its working directory."""
        folder = os.readlink(f"/proc/{stopped.pid}/cwd")
        known = self._known(folder)
        needed = len(os.fsencode(known)) + 1
        if known != folder and needed <= stopped.argument(1):
            stopped.put(stopped.argument(0), known)
            stopped.answer(needed)

    def open(self, stopped: StoppedCall, call: Call) -> None:
        """Open what lies at a path."""
        self._open(stopped, call, 0 if call.flags is None else stopped.argument(call.flags))

    def create(self, stopped: StoppedCall, call: Call) -> None:
        """Open what lies at a path to write it anew."""
        self._open(stopped, call, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)

    def open_how(self, stopped: StoppedCall, call: Call) -> None:
        """Open what lies at a path, with flags in memory (``openat2``)."""
        self._open(stopped, call, 0 if call.flags is None else stopped.word(stopped.argument(call.flags)))

    def _open(self, stopped: StoppedCall, call: Call, flags: int) -> None:
        temporary = flags & getattr(os, "O_TMPFILE", 0) == getattr(os, "O_TMPFILE", -1)
        found = self._path(stopped, call.path, call.folder)
        if flags & os.O_CREAT and flags & os.O_EXCL and not temporary and found and self._files.exists(found[0]):
            stopped.answer(-errno.EEXIST)
        elif flags & _WRITES:
            replaces = bool(flags & os.O_TRUNC and flags & os.O_CREAT)
            follow = not flags & os.O_NOFOLLOW
            self._placed(stopped, call, lambda path: self._files.to_write(path, copy=not replaces, follow=follow))
        elif flags & os.O_NOFOLLOW:
            self._placed(stopped, call, lambda path: self._listing(path, follow=False))
        elif found is not None and not (found[1] and self._is_of_programs(found[0])):
            self._placed(stopped, call, self._listing)

    def _listing(self, path: str, follow: bool = True) -> str:
        """Return where to read a path; a folder in which both layers have something is made anew, to be listed."""
        files = self._files
        place = os.fspath(files.to_read(path, follow=follow))
        if not (files.is_merged(path) and files.is_below(path)) or (not follow and os.path.islink(path)):
            return place
        names = files.names(path)
        if len(names) > _MOST_LISTED:
            return path
        places = {name: os.fspath(files.to_read(os.path.join(path, name), follow=False)) for name in names}
        known = files.logical(os.path.realpath(place))
        with files.as_it_is():
            shows = known, tuple([(name, _kind(original)) for name, original in places.items()])
            if shows not in self._made:
                self._forget_unused()
                self._made[shows] = tempfile.mkdtemp(dir=self._temporary)
                self._listed[self._made[shows]] = known
                for name, original in places.items():
                    _stand_in(original, os.path.join(self._made[shows], name))
        return self._made[shows]

    def _forget_unused(self) -> None:
        """Remove listings, where there are many, that no program has open or is in."""
        if len(self._made) < self._most_made:
            return
        held = set(_open_files())
        for shows, folder in list(self._made.items()):
            if not any(f"{one}{os.sep}".startswith(f"{folder}{os.sep}") for one in held):
                shutil.rmtree(folder, ignore_errors=True)
                del self._made[shows], self._listed[folder]
        self._most_made = max(_MANY_LISTINGS, 2 * len(self._made))

    def make_folder(self, stopped: StoppedCall, call: Call) -> None:
        """Make a folder, with the rights that the program's own mask of rights leaves."""
        mode = stopped.argument(call.path + 1) & _RIGHTS & ~_mask(stopped.pid)

        def make(path: str) -> None:
            os.mkdir(path)
            os.chmod(path, mode)

        self._done(stopped, [(call.path, call.folder)], make)

    def remove(self, stopped: StoppedCall, call: Call) -> None:
        """Remove a file, or a folder."""
        folder = call.flags is not None and stopped.argument(call.flags) & _AT_REMOVEDIR
        self._done(stopped, [(call.path, call.folder)], os.rmdir if folder else os.unlink)

    def remove_folder(self, stopped: StoppedCall, call: Call) -> None:
        """Remove a folder."""
        self._done(stopped, [(call.path, call.folder)], os.rmdir)

    def rename(self, stopped: StoppedCall, call: Call) -> None:
        """Give a file or folder another name."""
        flags = 0 if call.flags is None else stopped.argument(call.flags)
        if flags & ~_RENAME_NOREPLACE:
            stopped.answer(-errno.EINVAL)
            return

        def rename(source: str, target: str) -> None:
            if flags and self._files.exists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            os.rename(source, target)

        self._done(stopped, _pair(call), rename)

    def link(self, stopped: StoppedCall, call: Call) -> None:
        """Give a file a second name."""
        self._done(stopped, _pair(call), os.link)

    def make_link(self, stopped: StoppedCall, call: Call) -> None:
        """Make a link that leads to a path."""
        leads = stopped.text(stopped.argument(0))
        self._done(stopped, [(call.path, call.folder)], lambda path: os.symlink(leads, path))

    def _done(self, stopped: StoppedCall, paths: list[tuple[int, int | None]], does: Callable[..., None]) -> None:
        """Do what a call would do with paths, and answer as the system does."""
        found = [self._path(stopped, *one) for one in paths]
        whole = [one[0] for one in found if one is not None]
        if len(whole) < len(found):
            return
        try:
            does(*whole)
        except OSError as error:
            stopped.answer(-(error.errno or errno.EIO))
        else:
            stopped.answer(0)


def _pair(call: Call) -> list[tuple[int, int | None]]:
    """Return the positions of a call's two paths, and of their folders."""
    if call.folder is None:
        return [(call.path, None), (call.path + 1, None)]
    return [(call.path, call.folder), (call.path + 2, call.folder + 2)]


def _signed(number: int) -> int:
    """Return the signed number of 32 bits that a register holds."""
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number


def _open_files() -> Iterator[str]:
    """Yield the files and folders that programs have open or are in, as far as this one may know."""
    for descriptors in glob.iglob("/proc/[0-9]*/fd"):
        for one in (*glob.iglob(f"{descriptors}/*"), f"{os.path.dirname(descriptors)}/cwd"):
            with suppress(OSError):
                yield os.readlink(one)


def _mask(pid: int) -> int:
    """Return the rights that a program takes from what it makes (``umask``)."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
        return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0)


def _kind(original: str) -> str:
    """Return what stands for something in a folder's listing: where a link leads, or which kind it is."""
    if os.path.islink(original):
        return f"link {os.readlink(original)}"
    return "folder" if os.path.isdir(original) else "file"


def _stand_in(original: str, place: str) -> None:
    """Make something at a place that is listed as the original is."""
    if os.path.islink(original):
        os.symlink(os.readlink(original), place)
    elif os.path.isdir(original):
        os.mkdir(place)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY))


def _calls() -> Iterator[tuple[int, Call]]:
    """Yield the calls, by number: each in its older form and in the one with a folder's descriptor."""
    of: Any = PathCalls
    yield 2, Call(of.open, flags=1)
    yield 257, Call(of.open, 1, 0, 2)
    yield 85, Call(of.create)
    yield 437, Call(of.open_how, 1, 0, 2)
    for number in (4, 21, 59, 137):  # stat, access, execve, statfs
        yield number, Call(of.read)
    for number in (191, 194):  # getxattr, listxattr
        yield number, Call(of.read)
    for number in (6, 89, 192, 195):  # lstat, readlink, lgetxattr, llistxattr
        yield number, Call(of.read, links=True)
    yield 262, Call(of.read, 1, 0, 3)  # newfstatat
    yield 332, Call(of.read, 1, 0, 2)  # statx
    yield 269, Call(of.read, 1, 0)  # faccessat
    yield 439, Call(of.read, 1, 0, 3)  # faccessat2
    yield 322, Call(of.read, 1, 0, 4)  # execveat
    yield 267, Call(of.read, 1, 0, links=True)  # readlinkat
    yield 79, Call(of.tell_folder)
    yield 80, Call(of.enter)
    for number in (
        76,
        90,
        92,
        132,
        133,
        188,
        197,
        235,
    ):  # truncate, chmod, chown, utime, mknod, setxattr, removexattr, utimes
        yield number, Call(of.change)
    for number in (259, 260, 261, 268, 280, 452):  # mknodat, fchownat, futimesat, fchmodat, utimensat, fchmodat2
        yield number, Call(of.change, 1, 0)
    for number in (94, 189, 198):  # lchown, lsetxattr, lremovexattr
        yield number, Call(of.change, links=True)
    yield 83, Call(of.make_folder)
    yield 258, Call(of.make_folder, 1, 0)
    yield 84, Call(of.remove_folder)
    yield 87, Call(of.remove)
    yield 263, Call(of.remove, 1, 0, 2)
    yield 82, Call(of.rename)
    yield 264, Call(of.rename, 1, 0)
    yield 316, Call(of.rename, 1, 0, 4)
    yield 86, Call(of.link)
    yield 265, Call(of.link, 1, 0)
    yield 88, Call(of.make_link, 1)
    yield 266, Call(of.make_link, 2, 1)


CALLS: Mapping[int, Call] = dict(_calls())
