"""Lets the programs that a script starts write into its overlay, and start in folders that the script has made.

Python is started with the overlay in its environment (``started_python``); any other program runs under what watches its calls
of the system (``program_tracer``), where the system can.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from triosim.tracer.patches import Patch, Patches
from triosim.tracer.programs import program_tracer, started_python
from triosim.tracer.surroundings.file_overlay import FileOverlay

_SHELL = "/bin/sh"
_START = (
    "import sys; sys.path += sys.argv[1].split(':'); import triosim.tracer.programs.program_tracer as t; "
    "t.main(*sys.argv[2:5], sys.argv[5:])"
)
#: Options of Python's by which it does not read its environment, or the modules of its site.
_ISOLATED = frozenset("IES")


def install(patches: Patches, files: FileOverlay) -> None:
    """Let programs that are started write into the overlay until the patches are undone."""
    started_python.set_environment(patches, files)
    programs = _Programs(files)
    patches.make([Patch(subprocess.Popen, "__init__", programs.starting(subprocess.Popen.__init__))])
    if program_tracer.is_able():
        patches.make([Patch(os, "system", programs.in_a_shell(os.system))])
        for name in ("posix_spawn", "posix_spawnp", "execv", "execve"):
            patches.make([Patch(os, name, programs.by_path(getattr(os, name)))])


class _Programs:
    """What starts programs over an overlay."""

    def __init__(self, files: FileOverlay) -> None:
        self._files = files

    def starting(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return an initialiser of ``subprocess.Popen``."""

        @wraps(original)
        def __init__(self_: Any, args: Any, *others: Any, **kwargs: Any) -> None:  # noqa: N807
            if kwargs.get("cwd") is not None:
                kwargs["cwd"] = self._files.to_enter(kwargs["cwd"])
            watched = None if others or not program_tracer.is_able() else self._watched(args, kwargs)
            if watched is None:
                original(self_, args, *others, **kwargs)
                return
            original(self_, watched, **{**kwargs, "shell": False, "executable": None})
            self_.args = args

        return __init__

    def in_a_shell(self, original: Callable[[str], int]) -> Callable[[str], int]:
        """Return a function that runs a shell's command line (``os.system``)."""
        return wraps(original)(lambda command: original(shlex.join(self._command(_SHELL, [_SHELL, "-c", command]))))

    def by_path(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of ``os`` that starts a program, or becomes one, by its path, words and environment."""

        @wraps(original)
        def function(path: Any, args: Sequence[Any], *others: Any, **kwargs: Any) -> Any:
            env = others[0] if others else kwargs.get("env")
            is_path = isinstance(path, (str, bytes, os.PathLike)) and len(args) > 0
            watched = self._watched(args, {"executable": path, "env": env}) if is_path else None
            if watched is None:
                return original(path, args, *others, **kwargs)
            return original(watched[0], watched, *others, **kwargs)

        return function

    def _watched(self, args: Any, kwargs: Mapping[str, Any]) -> list[str] | None:
        """Return the command that starts a program watched; None for one that is started as it is, or is not there."""
        given = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
        words = [os.fsdecode(one) for one in given]
        if _START in words:
            return None  # it is the one that watches
        executable = kwargs.get("executable")
        if kwargs.get("shell"):
            shell = _SHELL if executable is None else os.fsdecode(executable)
            return self._command(shell, [shell, "-c", *words])
        name = words[0] if executable is None else os.fsdecode(executable)
        variables = os.environ if kwargs.get("env") is None else kwargs["env"]
        found = self._found(name, variables, kwargs.get("cwd"))
        if found is None or not self._can_run(found):
            return None  # the system says what is wrong
        if _is_this_python(found, words, variables) and not any(map(self._is_written, words[1:])):
            return None
        return self._command(found if os.sep in name else name, words)

    def _is_written(self, word: str) -> bool:
        """Whether a word is the path of a file that the script has written, such as one to run."""
        return os.path.isfile(word) and os.fspath(self._files.to_read(word)) != word

    def _can_run(self, program: str) -> bool:
        """Whether a file is a program or names its interpreter; the system refuses any other, and shells run it themselves."""
        try:
            with open(self._files.to_read(program), "rb") as file:
                return file.read(4).startswith((b"\x7fELF", b"#!"))
        except OSError:  # it may be run and not read
            return True

    def _found(self, name: str, variables: Mapping[str, str], folder: Any) -> str | None:
        if os.sep in name and folder is not None:
            name = os.path.join(self._files.logical(os.path.realpath(os.fsdecode(folder))), name)
        return shutil.which(name, path=variables.get("PATH"))

    def _command(self, executable: str, words: Sequence[str]) -> list[str]:
        paths = ":".join(os.path.abspath(one) for one in sys.path if one)
        folders = os.pathsep.join(self._files.folders)
        return [sys.executable, "-I", "-c", _START, paths, folders, self._files.folders[-1], executable, *words]


def _is_this_python(program: str, words: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Whether a program is this Python, with the overlay in its environment."""
    options = "".join(word[1:] for word in words[1:2] if word[:1] == "-" and word[:2] != "--")
    if _ISOLATED & set(options) or not started_python.is_set(variables):
        return False
    return os.path.abspath(program) == os.path.abspath(sys.executable)
