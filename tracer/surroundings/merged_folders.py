"""What ``os.scandir`` returns of a folder in which the script has written: entries of both layers, by the script's paths."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any


class Entry:
    """An entry of a folder, as ``os.DirEntry``; it asks for what it is by its path, and so in the right layer."""

    def __init__(self, folder: Any, name: str) -> None:
        encode: Any = os.fsencode if isinstance(folder, bytes) else str
        self.name = encode(name)
        self.path = os.path.join(os.fspath(folder), self.name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return what the system says of it."""
        return os.stat(self.path) if follow_symlinks else os.lstat(self.path)

    def inode(self) -> int:
        """Return its number in the file system of its layer."""
        return os.lstat(self.path).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file."""
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        """Whether it is a link."""
        return self._is(stat.S_ISLNK, False)

    def is_junction(self) -> bool:
        """Whether it is a junction, which only Windows has."""
        return False

    def _is(self, kind: Any, follow: bool) -> bool:
        try:
            return bool(kind(self.stat(follow_symlinks=follow).st_mode))
        except FileNotFoundError:
            return False


class Scan:
    """The iterator that ``os.scandir`` returns."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[Entry]:
        return self._entries

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration."""
        self._entries = iter(())
