"""A program that a script starts writes into the overlay, whatever it is written in, and finds what the script wrote."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from triosim.tracer.patches import Patches
from triosim.tracer.programs import program_tracer, started_programs, traced_calls
from triosim.tracer.surroundings import file_functions
from triosim.tracer.surroundings.file_overlay import FileOverlay

pytestmark = pytest.mark.skipif(not program_tracer.is_able(), reason="programs are watched on Linux on x86-64")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder, which nothing changes; the working directory."""
    user, temporary = tmp_path / "user", tmp_path / "temporary"
    for made in (user / "deep", temporary):
        made.mkdir(parents=True)
    (user / "notes").write_text("old")
    (user / "deep" / "data").write_text("data")
    monkeypatch.chdir(user)
    before = {path: path.read_bytes() for path in user.rglob("*") if path.is_file()}
    with Patches() as patches:
        files = FileOverlay(tmp_path / "files", (temporary,))
        file_functions.install(patches, files)
        started_programs.install(patches, files)
        yield user
    assert {path: path.read_bytes() for path in user.rglob("*") if path.is_file()} == before


def shell(command: str, **options: object) -> str:
    done = subprocess.run(command, shell=True, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert (done.stderr, done.args) == ("", command)
    return str(done.stdout)


def test_what_a_program_writes_the_script_reads(folder: Path) -> None:
    shell("mkdir -p out/deep && echo new > notes && cp deep/data out/deep/copy && echo more >> out/deep/copy")
    assert (folder / "notes").read_text() == "new\n"
    assert (folder / "out" / "deep" / "copy").read_text() == "datamore\n"


def test_what_the_script_writes_a_program_reads(folder: Path) -> None:
    (folder / "made").mkdir()
    (folder / "made" / "one").write_text("1")
    os.remove("notes")
    assert shell("ls; cat made/one; [ -e notes ] || echo gone").split() == ["deep", "made", "1gone"]


def test_both_layers_of_a_folder_are_listed(folder: Path) -> None:
    (folder / "deep" / "new").write_text("")
    assert shell("echo deep/*; ls deep").split() == ["deep/data", "deep/new", "data", "new"]
    assert shell("find deep -type f | sort").split() == ["deep/data", "deep/new"]


def test_what_a_program_removes_and_renames_is_gone(folder: Path) -> None:
    shell("rm -r deep && mv notes moved && ln -s moved link && ls -l > /dev/null")
    assert sorted(os.listdir()) == ["link", "moved"]
    assert (folder / "link").read_text() == "old"
    assert shell("mkdir deep && ls -A deep") == ""


def test_a_program_that_the_script_wrote_runs_in_a_folder_that_it_made(folder: Path) -> None:
    os.makedirs("run")
    Path("run/start.sh").write_text("#!/bin/sh\necho $1 > here; pwd")
    os.chmod("run/start.sh", 0o755)
    done = subprocess.run(["./start.sh", "7"], cwd="run", capture_output=True, text=True, check=True)
    assert done.stdout == f"{folder}/run\n"
    assert Path("run/here").read_text() == "7\n"


def test_python_is_started_with_the_overlay(folder: Path) -> None:
    Path("own.py").write_text("import os; open('notes', 'w').write('new'); print(sorted(os.listdir()))")
    for command in ([sys.executable, "own.py"], ["sh", "-c", f"{sys.executable} own.py"]):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == "['deep', 'notes', 'own.py']\n"
    assert Path("notes").read_text() == "new"


def test_programs_end_as_they_always_do(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        subprocess.run(["no-such-program"])
    with pytest.raises(subprocess.CalledProcessError, match=r"\['false'\]"):
        subprocess.check_call(["false"])
    assert os.waitstatus_to_exitcode(os.system("exit 3")) == 3
    assert subprocess.run("kill -9 $$", shell=True).returncode == -signal.SIGKILL
    sleeping = subprocess.Popen(["sleep", "100"])
    sleeping.terminate()
    assert sleeping.wait() == -signal.SIGTERM
    assert shell("sleep 2 > /dev/null 2>&1 & echo started") == "started\n"  # nobody waits for the other one
    assert subprocess.run(["cat"], input="text", capture_output=True, text=True).stdout == "text"


def test_folders_that_a_program_makes_have_the_rights_that_its_mask_leaves(folder: Path) -> None:
    shell("umask 077; mkdir closed; umask 0; mkdir open; mkdir -m 711 asked")
    assert [os.stat(name).st_mode & 0o777 for name in ("closed", "open", "asked")] == [0o700, 0o777, 0o711]


def test_hard_links_of_programs_are_two_names_of_one_file(folder: Path) -> None:
    shell("ln notes second; echo new > second; cp -l deep/data third; rm notes")
    assert (Path("second").read_text(), sorted(os.listdir())) == ("new\n", ["deep", "second", "third"])


def test_listings_of_folders_are_kept_while_they_are_true_and_read(folder: Path) -> None:
    Path("deep/new").write_text("")
    environment = {**os.environ, "LISTINGS": str(folder.parent / "temporary")}
    same = "for i in 1 2 3 4 5 6; do ls deep > /dev/null; done; ls $LISTINGS | wc -l"
    assert int(shell(same, env=environment)) == 1
    changing = "for i in $(seq 80); do : > deep/$i; ls deep > /dev/null; done; ls $LISTINGS | wc -l"
    assert 1 < int(shell(changing, env=environment)) <= traced_calls._MANY_LISTINGS
    assert len(shell("ls deep").split()) == 82


@pytest.mark.parametrize("start", ["posix_spawn", "exec"])
def test_programs_that_are_started_by_their_path_are_watched(folder: Path, start: str) -> None:
    words = ["sh", "-c", "echo new > notes; cat deep/data > copy"]
    if start == "posix_spawn":
        process = os.posix_spawn("/bin/sh", words, os.environ)
    elif not (process := os.fork()):
        os.execv("/bin/sh", words)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert (Path("notes").read_text(), Path("copy").read_text()) == ("new\n", "data")


def test_a_program_that_cannot_be_stopped_at_its_calls_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(program_tracer, "_is_watched", lambda *_: True)
    monkeypatch.setattr(program_tracer, "_SET_SECCOMP", 10**6)  # no operation of prctl
    monkeypatch.setattr(program_tracer, "_NO_NEW_PRIVILEGES", 3)  # one that changes nothing
    monkeypatch.setattr(os, "execvp", lambda *_: None)
    program_tracer.main(str(tmp_path), str(tmp_path), "true", ["true"])
    assert "no program be watched" in capsys.readouterr().err
