"""Files appear whole or not at all."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from triosim.errors import OutputError
from triosim.output_files import check_outputs, check_writable, writing_bytes, writing_folder, writing_text


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with writing_text(path) as file:
        file.write("é\n")
        assert not path.exists()
    assert path.read_bytes() == "é\n".encode()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_ends_the_writing_early_leaves_the_old_file_and_no_other(
    tmp_path: Path, name: str, error: type[BaseException]
) -> None:
    path = tmp_path / name
    path.write_text("old")

    def write() -> None:
        with writing_text(path) as file:
            file.write("new" * 1000)
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_text_compresses_to_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        with writing_text(tmp_path / name) as file:
            file.write("text")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"text"


@pytest.mark.parametrize(
    ("path", "said"), [("none/a", "does not exist"), (".", "is a folder"), ("file/a", "is not a folder")]
)
def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, path: str, said: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=said) as caught:
        check_writable(tmp_path / path)
    assert str(tmp_path / path) in str(caught.value)


@pytest.mark.parametrize("path", ["a" * 5000, "a\0b"])
def test_a_path_that_no_file_can_have_is_an_error_in_one_line(path: str) -> None:
    with pytest.raises(OutputError):
        check_writable(path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="may not be written"):
        check_writable(tmp_path / "a")


def test_one_path_for_two_outputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="two outputs"):
        check_outputs(tmp_path / "a", None, tmp_path / "." / "a")


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="no /dev/null")
def test_a_device_is_written_as_it_is() -> None:
    with writing_bytes("/dev/null") as file:
        file.write(b"x")
    assert not Path("/dev/null").is_file()


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with writing_text(link) as file:
        file.write("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_file_that_is_read_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(OutputError, match="would be overwritten"):
        check_outputs(tmp_path / "." / "trace.json", reading=(None, tmp_path / "trace.json"))
    check_outputs(tmp_path / "result.json", reading=(tmp_path / "trace.json",))


def test_a_pipe_behind_a_device_s_name_is_written_to() -> None:
    read, write = os.pipe()
    with open(read, "rb") as reader:
        with writing_text(f"/dev/fd/{write}") as file:
            file.write("text")
        os.close(write)
        assert reader.read() == b"text"


WRITE_ENDLESSLY = """
import sys, time
from triosim.output_files import writing_text
with writing_text(sys.argv[1]) as file:
    file.write("half"), file.flush(), print(flush=True), time.sleep(60)
"""


def begin_writing(path: Path) -> subprocess.Popen[bytes]:
    writer = subprocess.Popen([sys.executable, "-c", WRITE_ENDLESSLY, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    return writer


def test_what_a_killed_process_left_is_removed_and_what_others_write_stays(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    killed = begin_writing(target)
    killed.kill()
    killed.wait()
    assert len(list(tmp_path.glob(".x.json.*.part"))) == 1
    own = tmp_path / ".x.json.notes.part"  # a user's file
    own.touch()
    others = begin_writing(target)
    written = {path.name for path in tmp_path.glob(".x.json.*.part")}
    assert len(written) == 2  # that of the killed process is gone
    with writing_text(target) as file:
        file.write("{}")
    assert {path.name for path in tmp_path.iterdir()} == {*written, "x.json"}
    others.terminate()
    others.wait()


def test_threads_may_write_one_file(tmp_path: Path) -> None:
    def write(number: int) -> None:
        with writing_text(tmp_path / "x.json") as file:
            file.write(str(number) * 100_000)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert len({*(tmp_path / "x.json").read_text()}) == 1


def test_a_folder_of_files_that_could_not_all_be_written_is_as_before(tmp_path: Path) -> None:
    own = tmp_path / "old" / "notes"
    own.parent.mkdir()
    own.touch()

    def fill(name: str) -> None:
        with writing_folder(tmp_path / name) as folder:
            (folder / "rank-0").touch()
            check_writable(tmp_path / "none" / "rank-1")

    for name in ("new", "old"):
        with pytest.raises(OutputError):
            fill(name)
    assert [path.name for path in tmp_path.rglob("*")] == ["old", "notes"]
