"""A study: the SQLite file of a search, which has every finished point at once and lets the search go on where it ended.

Every process opens the file itself. A point that is begun is *claimed*, so that two searches in one study take different ones;
the claim of a process of this machine that is gone counts for nothing, and a claimed point that is left at the end is
simulated all the same. SQLite writes a change whole or not at all, so the file can be read after whatever ended a search.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import triosim
from triosim.configuration_search.outcome import Outcome
from triosim.errors import OutputError, TriosimError
from triosim.input_files.reading import parse_json
from triosim.output_files import PathLike, check_writable

SCHEMA = "triosim-study/1"

#: How many seconds a change waits for that of another process.
_PATIENCE = 60
_ANOTHER = "give another file"
_TABLES = """
    CREATE TABLE IF NOT EXISTS study (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS outcomes (key TEXT PRIMARY KEY, state TEXT NOT NULL, outcome TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS claims (key TEXT PRIMARY KEY, host TEXT NOT NULL, process INTEGER NOT NULL) WITHOUT ROWID;
"""


class HasKey(Protocol):
    """What a study knows a point by."""

    @property
    def key(self) -> str:
        """The point's settings as canonical JSON."""


Point = TypeVar("Point", bound=HasKey)


class StudyError(TriosimError):
    """A study that cannot be read or written, or that is of another search."""


@dataclass(frozen=True, slots=True)
class Study:
    """An open study; ``space`` is the fingerprint of what it searches."""

    path: str
    space: str
    _connection: sqlite3.Connection

    def record(self, *outcomes: Outcome) -> None:
        """Write what was found of some points, and give up their claims. Raises ``StudyError`` where that cannot be."""
        rows = [(one.key, one.state, json.dumps(one.plain(), separators=(",", ":"))) for one in outcomes]
        with _named_errors(self.path), _transaction(self._connection):
            self._connection.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?)", rows)
            self._connection.executemany("DELETE FROM claims WHERE key = ?", [(one.key,) for one in outcomes])

    def known(self, key: str) -> Outcome | None:
        """Return what is known of a point by now, in whichever process it was found."""
        with _named_errors(self.path):
            row = self._connection.execute("SELECT outcome FROM outcomes WHERE key = ?", (key,)).fetchone()
        return None if row is None else self._read(row[0])

    def outcomes(self) -> list[Outcome]:
        """Return what is known of all points."""
        with _named_errors(self.path):
            rows = self._connection.execute("SELECT outcome FROM outcomes ORDER BY key").fetchall()
        return [self._read(text) for (text,) in rows]

    def _read(self, text: str) -> Outcome:
        with damage_named(self.path):
            return Outcome.read(parse_json(text, self.path, StudyError))

    def claim(self, key: str) -> bool:
        """Take a point, unless another process that is alive has."""
        with _named_errors(self.path), _transaction(self._connection):
            query = self._connection.execute("SELECT host, process FROM claims WHERE key = ?", (key,))
            if _is_alive(query.fetchone()):
                return False
            self._connection.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (key, _HOST, os.getpid()))
        return True

    def evaluate(
        self,
        evaluate: Callable[[Iterable[Point]], Iterator[tuple[Point, Outcome]]],
        points: Iterable[Point],
        is_enough: Callable[[Outcome], bool] = lambda _: True,
    ) -> Iterator[tuple[Point, Outcome]]:
        """Yield points with what is known of them, if that ``is_enough``, or what ``evaluate`` finds, which is recorded.

        Points that another process is at come last: with what it found, or evaluated here if it is not through.
        """
        found: list[tuple[Point, Outcome]] = []

        def is_known(point: Point) -> bool:
            outcome = self.known(point.key)
            if outcome is None or not is_enough(outcome):
                return False
            found.append((point, outcome))
            return True

        def unknown() -> Iterator[Point]:
            taken: list[Point] = []
            for point in points:
                if is_known(point):
                    continue
                if self.claim(point.key):
                    yield point
                else:
                    taken.append(point)
            yield from (point for point in taken if not is_known(point))

        for point, outcome in evaluate(unknown()):
            self.record(outcome)
            yield point, outcome
            while found:
                yield found.pop(0)
        yield from found


@contextmanager
def opened(path: PathLike, space: str) -> Iterator[Study]:
    """Open the study at ``path``, or begin one. Raises ``StudyError`` for one of another space or version, or no study."""
    where = str(path)
    check_writable(path)
    with _named_errors(where), closing(_connect(where)) as connection:
        if os.path.getsize(where):
            _check(where, _about(where, connection), space)
        with _transaction(connection):
            for statement in filter(str.strip, _TABLES.split(";")):
                connection.execute(statement)
            about = {"schema": SCHEMA, "version": triosim.__version__, "space": space}
            connection.executemany("INSERT OR IGNORE INTO study VALUES (?, ?)", about.items())
        _check(where, _about(where, connection), space)  # which another process may have begun in between
        yield Study(where, space, connection)


@contextmanager
def shown(path: PathLike) -> Iterator[Study]:
    """Open a study to read it, whatever its space. Raises ``StudyError`` where there is none."""
    where = str(path)
    if not Path(path).is_file():
        raise StudyError("there is no such study", where=where, fix="give the file of a search with --study")
    with _named_errors(where), closing(_connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as connection:
        about = _about(where, connection)
        if not _is_known(about):
            raise _no_study(where)
        yield Study(where, about["space"], connection)


def _connect(path: str, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, uri=uri)


def _about(where: str, connection: sqlite3.Connection) -> dict[str, str]:
    try:
        return dict(connection.execute("SELECT name, value FROM study").fetchall())
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise
        raise _no_study(where) from None


def _is_known(about: Mapping[str, object]) -> bool:
    """Whether what a file says of itself is what studies say; a damaged file may have rows that no study has."""
    return about.get("schema") == SCHEMA and all(isinstance(about.get(name), str) for name in ("version", "space"))


def _check(where: str, about: dict[str, str], space: str) -> None:
    if not _is_known(about):
        raise _no_study(where)
    if about["version"] != triosim.__version__:
        what = f"was begun by triosim {about['version']}, and this is {triosim.__version__}"
        raise StudyError(what, where=where, fix="give another file, or read it with --show")
    if about["space"] != space:
        fix = "give the options that it was begun with, or another file"
        raise StudyError(f"is the study of another search: {_difference(about['space'], space)}", where=where, fix=fix)


def _difference(old: str, new: str) -> str:
    """Say which axis, option or other part of a space's fingerprint differs."""
    with suppress(ValueError, AttributeError):
        before, now = _parts(json.loads(old)), _parts(json.loads(new))
        for name in dict.fromkeys((*before, *now)):
            if before.get(name) != now.get(name):
                return f"its {name} is {_short(before.get(name))}, not {_short(now.get(name))}"
    return "its space differs"


def _parts(fingerprint: Mapping[str, Any]) -> dict[str, object]:
    """Return the parts of a fingerprint by name: each axis, and each option that all points share, is one."""
    rest = {name: value for name, value in fingerprint.items() if name not in ("axes", "base")}
    axes = {f"axis '{name}'": values for name, values in dict(fingerprint.get("axes", ())).items()}
    options = {f"option '{name}'": value for name, value in dict(fingerprint.get("base", ())).items()}
    return rest | axes | options


def _short(value: object) -> str:
    text = "not given" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _no_study(where: str) -> StudyError:
    return StudyError("is not a study", where=where, fix="give the file of a search, or a new one")


@contextmanager
def damage_named(where: str) -> Iterator[None]:
    """Raise ``StudyError`` where what a study holds is not what a search wrote."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StudyError("is damaged: it holds what no search wrote", where=where, fix=_ANOTHER) from None


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Change the file whole or not at all; other processes wait from the beginning."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk has ended the transaction already
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _named_errors(where: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise StudyError("is damaged: it holds what is no text", where=where, fix=_ANOTHER) from None
    except sqlite3.Error as error:
        full = "full" in str(error)
        fix = "make room on the disk, and search again: it goes on where it ended" if full else _ANOTHER
        raise OutputError(f"the study cannot be used: {error}", where=where, fix=fix) from None


_HOST = platform.node()


def _is_alive(claim: tuple[str, int] | None) -> bool:
    """Whether a claim is that of another process that may still be at it."""
    if claim is None or claim == (_HOST, os.getpid()):
        return False
    if claim[0] != _HOST or sys.platform == "win32":  # where os.kill would end the process instead of asking for it
        return True
    try:
        os.kill(claim[1], 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True
