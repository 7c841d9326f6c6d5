"""The state of a file, which is part of the key of whatever is kept of its content."""

from __future__ import annotations

import os


def file_state(path: str | os.PathLike[str]) -> tuple[str, int, int] | None:
    """Return the absolute path of a file or folder, when it was last changed, and its size; None where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # the latter of a path with a null character
        return None
    return os.path.abspath(path), found.st_mtime_ns, found.st_size
