"""A study: finished points are in its file at once, and a search goes on in it, beside others, after whatever ended it."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from triosim.configuration_search.outcome import Figures, Outcome
from triosim.configuration_search.study import StudyError, opened, shown
from triosim.errors import OutputError

SPACE = json.dumps({"subject": "gpt2", "axes": {"tp": [1, 2]}})
DONE = Outcome("a", "simulated", figures=Figures(1.0, 8, 4.0, 0.7, 0.1, 0.2, 0.0))


@dataclass(frozen=True)
class NamedPoint:
    key: str


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.db"


def excluded(points: Iterable[NamedPoint]) -> Iterator[tuple[NamedPoint, Outcome]]:
    for point in points:
        yield point, Outcome(point.key, "excluded")


def test_what_is_recorded_is_known_to_others_at_once(path: Path) -> None:
    with opened(path, SPACE) as first, opened(path, SPACE) as second:
        assert second.known("a") is None
        first.record(DONE, Outcome("b", "out_of_memory"))
        assert second.known("a") == DONE
        assert {one.key for one in second.outcomes()} == {"a", "b"}
    with shown(path) as study:
        assert study.space == SPACE
        assert study.known("a") == DONE


def test_a_point_is_evaluated_once(path: Path) -> None:
    points = [NamedPoint(key) for key in "abc"]
    with opened(path, SPACE) as study:
        study.record(DONE)
        assert {point.key for point, _ in study.evaluate(excluded, points)} == {"a", "b", "c"}
        assert study.known("a") == DONE
        assert study.known("b") == Outcome("b", "excluded")


def test_what_is_known_may_not_be_enough(path: Path) -> None:
    with opened(path, SPACE) as study:
        study.record(Outcome("a", "excluded"), Outcome("b", "out_of_memory"))
        points = [NamedPoint(key) for key in "ab"]
        found = dict(study.evaluate(excluded, points, lambda outcome: outcome.state != "excluded"))
    assert found == {points[0]: Outcome("a", "excluded"), points[1]: Outcome("b", "out_of_memory")}


def test_a_point_that_another_process_is_at_comes_last(path: Path) -> None:
    def claim_and_record(key: str) -> None:
        with opened(path, SPACE) as study:
            assert study.claim(key)
            time.sleep(60)

    process = multiprocessing.get_context("fork").Process(target=claim_and_record, args=("a",))
    process.start()
    with opened(path, SPACE) as study:
        while study._connection.execute("SELECT count(*) FROM claims").fetchone() == (0,):
            time.sleep(0.01)
        points = [NamedPoint(key) for key in "abc"]
        assert [point.key for point, _ in study.evaluate(excluded, points)] == ["b", "c", "a"]
        process.kill()
        process.join()
        assert study.claim("a")


def test_the_claim_of_another_machine_holds(path: Path) -> None:
    with opened(path, SPACE) as study:
        study._connection.execute("INSERT INTO claims VALUES ('a', 'elsewhere', 1)")
        study._connection.execute("INSERT INTO claims VALUES ('b', ?, ?)", (platform.node(), os.getpid()))
        assert not study.claim("a")
        assert study.claim("b")


KILLED = """
import sys
from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.study import opened
with opened(sys.argv[1], sys.argv[2]) as study:
    for number in range(10_000_000):
        study.record(Outcome(str(number), "excluded"))
        print(number, flush=True)
"""


def test_a_search_that_is_killed_leaves_what_it_found(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path), SPACE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 20:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    with opened(path, SPACE) as study:
        assert {str(number) for number in range(21)} <= {one.key for one in study.outcomes()}
        study.record(DONE)


def test_a_full_disk_leaves_a_readable_study(path: Path) -> None:
    with opened(path, SPACE) as study:
        study.record(DONE)
        (pages,) = study._connection.execute("PRAGMA page_count").fetchone()
        study._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(OutputError, match="full; make room on the disk"):
            study.record(*(Outcome(str(number), "excluded", "x" * 1000) for number in range(100)))
        assert study.outcomes() == [DONE]
    with shown(path) as study:
        assert study.outcomes() == [DONE]


def test_the_study_of_another_search_is_refused(path: Path) -> None:
    with opened(path, SPACE):
        pass
    other = json.dumps({"subject": "gpt2", "axes": {"tp": [1, 2, 4]}})
    said = r"another search: its axis 'tp' is \[1, 2\], not \[1, 2, 4\]"
    with pytest.raises(StudyError, match=said), opened(path, other):
        pass


def test_the_study_of_another_version_is_refused_and_can_be_read(path: Path) -> None:
    with opened(path, SPACE) as study:
        study.record(DONE)
        study._connection.execute("UPDATE study SET value = '0.0.1' WHERE name = 'version'")
    with pytest.raises(StudyError, match=r"was begun by triosim 0\.0\.1, and this is"), opened(path, SPACE):
        pass
    with shown(path) as study:
        assert study.outcomes() == [DONE]


def test_a_file_that_is_no_study_is_refused_and_left_alone(path: Path) -> None:
    for text in ("no study\n" * 100, "x"):
        path.write_text(text)
        with pytest.raises(StudyError, match="is not a study"), opened(path, SPACE):
            pass
        with pytest.raises(StudyError, match="is not a study"), shown(path):
            pass
        assert path.read_text() == text
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE customers (name)")
    with pytest.raises(StudyError, match="is not a study"), opened(path, SPACE):
        pass
    with pytest.raises(StudyError, match="there is no such study"), shown(path.with_name("none.db")):
        pass
    with pytest.raises(OutputError, match="does not exist"), opened(path.parent / "none" / "study.db", SPACE):
        pass


@pytest.mark.parametrize("name", ["version", "space"])
def test_a_study_that_lost_what_it_says_of_itself_is_none(path: Path, name: str) -> None:
    with opened(path, SPACE):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM study WHERE name = ?", (name,))
        connection.commit()
    for reading in (opened(path, SPACE), shown(path)):
        with pytest.raises(StudyError, match="is not a study"), reading:
            pass
