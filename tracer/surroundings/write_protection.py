"""Lets the kernel refuse what would change files outside an overlay: Landlock, in Linux 5.19 and later.

Functions that are replaced do not reach libraries that open files by themselves. They get "Permission denied" where they would
change a file that existed; so do programs that are started, where they cannot be watched. (https://docs.kernel.org/userspace-api/landlock.html)
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import struct
import sys
from collections.abc import Iterator

from triosim.tracer.surroundings.file_overlay import FileOverlay

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, with these numbers on every architecture
_ASK_VERSION, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
#: Writing files, removing and making whatever has a name (bits 1, 4 to 12), moving between folders, and cutting off.
_WRITING = 1 << 1 | sum(1 << bit for bit in range(4, 13))
_MOVING, _CUTTING = 1 << 13, 1 << 14
#: The first version in which files may be moved from one folder to another, and the one that knows of cutting off.
_MOVES, _CUTS = 2, 3


def protect(files: FileOverlay) -> bool:
    """Refuse this process and its children to write outside the overlay, for ever; return whether the kernel can."""
    if sys.platform != "linux" or (version := _call(_CREATE_RULESET, None, 0, _ASK_VERSION)) < _MOVES:
        return False
    writing = _WRITING | _MOVING | (_CUTTING if version >= _CUTS else 0)
    rules = _call(_CREATE_RULESET, struct.pack("Q", writing), 8, 0)
    if rules < 0:
        return False
    try:
        for folder in files.written:
            _allow(rules, folder, writing)
        prctl = ctypes.CDLL(None).prctl  # what Landlock asks for: nothing that is started has more rights
        return prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and _call(_RESTRICT_SELF, rules, 0) == 0
    finally:
        os.close(rules)


def refusal(error: BaseException) -> str | None:
    """Return a line that says why writing was refused, if that is what an error of the script comes from."""
    if not any(_is_refusal(one) for one in _causes(error)):
        return None
    return (
        "files outside --files are only read in a run: what opens files by itself, such as a library in C, may write below "
        "--files and the temporary folder (TMPDIR) alone"
    )


def full_disk(error: BaseException, files: FileOverlay) -> str | None:
    """Return a line that says that the overlay's disk is full, if that is what an error of the script comes from."""
    if not any(getattr(one, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for one in _causes(error)):
        return None
    free = shutil.disk_usage(files.folder).free
    return f"the disk of --files is full: {files.folder} has {free / 2**20:.1f} MiB left; name a folder on another disk"


def _is_refusal(error: BaseException) -> bool:
    numbers = (errno.EACCES, errno.EPERM, errno.EROFS)
    text = str(error).lower()
    return getattr(error, "errno", None) in numbers or "permission denied" in text or "readonly database" in text


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    known: set[int] = set()
    while error is not None and id(error) not in known:
        known.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _allow(rules: int, folder: str, rights: int) -> None:
    if not os.path.isdir(folder):
        return
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        _call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """Return what a system call returns."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return int(call(ctypes.c_long(number), *(_argument(one) for one in arguments)))


def _argument(value: int | bytes | None) -> ctypes.c_long | bytes | None:
    return ctypes.c_long(value) if isinstance(value, int) else value
