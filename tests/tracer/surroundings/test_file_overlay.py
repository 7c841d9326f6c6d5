"""Whatever a script does to files, those that were there stay as they were, and it finds what it wrote."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from triosim.tracer.patches import Patches
from triosim.tracer.surroundings.file_overlay import FileOverlay


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with two files, one of them deeper."""
    (tmp_path / "user" / "deep").mkdir(parents=True)
    (tmp_path / "user" / "notes.txt").write_text("old")
    (tmp_path / "user" / "deep" / "data.txt").write_text("data")
    return tmp_path / "user"


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def overlay(tmp_path: Path, folder: Path) -> Iterator[FileOverlay]:
    before = contents(folder)
    with Patches() as patches:
        made = FileOverlay(tmp_path / "files")
        made.install(patches)
        yield made
    assert contents(folder) == before


def test_what_is_written_is_read_back_and_lies_in_the_overlay(overlay: FileOverlay, folder: Path) -> None:
    (folder / "notes.txt").write_text("new")
    with open(folder / "deep" / "data.txt", "a") as file:
        file.write(" and more")
    os.makedirs(folder / "runs" / "1")
    (folder / "runs" / "1" / "log").touch()
    assert (folder / "notes.txt").read_text() == "new"
    assert (folder / "deep" / "data.txt").read_text() == "data and more"
    assert sorted(os.listdir(folder)) == ["deep", "notes.txt", "runs"]
    assert [path.name for path in sorted(folder.rglob("*"))] == ["deep", "data.txt", "notes.txt", "runs", "1", "log"]
    upper = Path(overlay.folder, *folder.parts[1:])
    assert (upper / "notes.txt").read_text() == "new"


def test_what_is_deleted_is_gone_and_can_be_made_again(overlay: FileOverlay, folder: Path) -> None:
    os.remove(folder / "notes.txt")
    assert not (folder / "notes.txt").exists()
    with pytest.raises(FileNotFoundError):
        (folder / "notes.txt").read_text()
    shutil.rmtree(folder / "deep")
    assert os.listdir(folder) == []
    (folder / "deep").mkdir()
    assert os.listdir(folder / "deep") == []
    shutil.rmtree(folder)
    assert not folder.exists()


def test_a_file_is_written_beside_and_moved_over_another(overlay: FileOverlay, folder: Path) -> None:
    (folder / "notes.tmp").write_text("new")
    os.replace(folder / "notes.tmp", folder / "notes.txt")
    shutil.move(folder / "deep", folder / "moved")
    shutil.copyfile(folder / "notes.txt", folder / "copy.txt")
    assert sorted(os.listdir(folder)) == ["copy.txt", "moved", "notes.txt"]
    assert (folder / "copy.txt").read_text() == "new"
    assert (folder / "moved" / "data.txt").read_text() == "data"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda folder: (folder / "notes.txt").touch(exist_ok=False), FileExistsError),
        (lambda folder: os.mkdir(folder / "deep"), FileExistsError),
        (lambda folder: os.rmdir(folder / "deep"), OSError),
        (lambda folder: (folder / "no" / "such").write_text(""), FileNotFoundError),
        (lambda folder: os.remove(folder / "no"), FileNotFoundError),
    ],
)
def test_what_fails_still_fails(
    overlay: FileOverlay, folder: Path, call: Callable[[Path], object], error: type[OSError]
) -> None:
    with pytest.raises(error):
        call(folder)


def test_relative_paths_links_and_temporary_files(
    overlay: FileOverlay, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with open("here.txt", "w") as file:
        file.write("here")
    os.symlink("here.txt", "link.txt")
    assert Path("link.txt").read_text() == "here"
    assert os.listdir() == os.listdir(".") == ["deep", "here.txt", "link.txt", "notes.txt"]
    assert sorted(entry.name for entry in os.scandir(".")) == os.listdir(".")
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary, "one").write_text("1")
        assert os.listdir(temporary) == ["one"]
    assert not os.path.exists(temporary)


def test_folders_that_are_shared_are_written(tmp_path: Path) -> None:
    with Patches() as patches:
        FileOverlay(tmp_path / "files", (tmp_path / "shared",)).install(patches)
        os.makedirs(os.devnull.replace("null", ""), exist_ok=True)
        with open(os.devnull, "w") as file:
            file.write("gone")
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared" / "one").write_text("1")
    assert (tmp_path / "shared" / "one").read_text() == "1"
