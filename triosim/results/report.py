"""The interface of a report, which writes a result or a comparison to a file.

A result finds its reports by name in the plug-in registry (group ``triosim.reports``). A user's report is a class with
``write(result, path)``, named as ``file.py:Class`` or by an entry point of that group.
"""

from __future__ import annotations

import inspect
import os
import stat
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from triosim import plugins
from triosim.config import Option, parsed
from triosim.errors import OptionError, PluginError, nearest
from triosim.output_files import STANDARD_OUTPUT, PathLike, writing_text

#: Records that a run keeps on demand: every task with its times, or the load of each link over time.
Records = Literal["timeline", "links"]
#: The subject of a report: a ``Result``, or a ``Comparison`` of strategies.
Subject = Literal["result", "comparison"]


class Report:
    """A view of a ``subject`` as a file; the run must have kept the ``records``.

    The constructor's keywords are its options, which ``--option`` gives too: checked and converted for those declared in
    ``options``, else as texts. One that ``is_folder`` writes files of its own into a folder, and checks that itself.
    """

    subject: ClassVar[Subject] = "result"
    records: ClassVar[tuple[Records, ...]] = ()
    options: ClassVar[tuple[Option, ...]] = ()
    is_folder: ClassVar[bool] = False

    @classmethod
    def check(cls, path: PathLike) -> None:
        """Raise ``TriosimError``, before the run, where the file cannot be written, as for an unknown kind of picture."""

    def write(self, result: Any, path: PathLike) -> None:
        """Write a ``Result`` (or ``Comparison``, by ``subject``) to a file; see ``triosim.output_files`` for whole files."""
        raise NotImplementedError


class TextReport(Report):
    """A report that is a text, also for ``print``."""

    def text(self, subject: Any) -> str:
        """Return the text, without a line end."""
        raise NotImplementedError

    def write(self, subject: Any, path: PathLike) -> None:
        """Write the text."""
        with writing_text(path) as file:
            file.write(self.text(subject) + "\n")


class Reportable:
    """A subject of reports; it prints as its text, and notebooks show its HTML."""

    subject: ClassVar[Subject]

    def write(self, report: str | type, path: PathLike, **options: Any) -> None:
        """Write a report: one that ships with triosim ("csv", "html", "plot"), a plug-in ("file.py:Class"), or a class.

        ``options`` are the report's. Raises ``TriosimError`` where there is no such report of this subject, or the run did not
        record what it needs.
        """
        kind = find(report, self.subject)
        if not isinstance(path, (str, os.PathLike)):
            raise OptionError(f"{path!r} is not a path", where="path", fix="give the file to write")
        known = plugins.option_names(kind)
        for name in options:
            if name not in known:
                raise OptionError(f"the report '{report}' has no option '{name}'", fix=nearest(name, known))
        write(kind, self, path, parsed(kind, options))

    def __str__(self) -> str:
        return self._as("text")

    def _repr_html_(self) -> str:
        return self._as("html")

    def _as(self, name: str) -> str:
        report = name if self.subject == "result" else f"{self.subject}-{name}"
        return str(find(report, self.subject)().text(self))


def find(report: str | type, subject: Subject = "result") -> Any:
    """Return a report's class by its name, entry point or ``file.py:Class``.

    Raises ``PluginError`` where there is none, ``OptionError`` where it is a report of something else than ``subject``.
    """
    found = plugins.find("reports", report)
    of = getattr(found, "subject", "result")
    if of != subject:
        raise OptionError(f"the report '{report}' is of a {of}, not of a {subject}", where="report")
    return found


def records(report: Any) -> tuple[Records, ...]:
    """Return what a run must record for a report, which need not derive from ``Report``.

    Raises ``PluginError`` where it asks for something else than ``Records``.
    """
    found: tuple[Records, ...] = getattr(report, "records", ())
    for name in found:
        if name not in get_args(Records):
            raise PluginError(
                f"records: '{name}' is no record", where=_name(report), fix=nearest(name, get_args(Records))
            )
    return found


def check(report: Any, path: PathLike) -> None:
    """Let a report refuse a path, where it has a check.

    Raises ``PluginError`` where that is a method of the report, which is made only after the run.
    """
    if hasattr(report, "check"):
        if inspect.isfunction(inspect.getattr_static(report, "check")):
            raise PluginError("check is no class method", where=_name(report), fix="write @classmethod above it")
        with plugins.blamed():
            report.check(path)


def write(report: Any, written: Any, path: PathLike, options: Mapping[str, Any]) -> None:
    """Make a report with its options and write it. Raises ``PluginError`` where it then left the file as it was."""
    before = _state(path)
    with plugins.blamed():
        report(**options).write(written, path)
    if before == _state(path):
        raise PluginError(f"did not write '{path}'", where=_name(report), fix="let its write(result, path) do so")


def _name(report: Any) -> str:
    return str(report.__qualname__)


def _state(path: PathLike) -> tuple[int, int] | None:
    """Return what changes when a file is written; None where there is none. A device or a pipe is always another."""
    if str(path) == STANDARD_OUTPUT:
        return 0, time.monotonic_ns()
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else (0, time.monotonic_ns())
