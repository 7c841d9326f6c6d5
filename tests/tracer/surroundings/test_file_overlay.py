"""Whatever a script does to files, those that were there stay as they were, and it finds what it wrote."""

from __future__ import annotations

import bz2
import gc
import os
import posix
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from triosim.tracer.patches import Patches
from triosim.tracer.surroundings import file_functions
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
        file_functions.install(patches, made)
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


#: What a module made when it was imported, as ``numpy`` does for its files of text.
OPENERS = {".txt": open}


@pytest.mark.parametrize("frozen", [False, True])
def test_functions_that_a_table_holds_find_what_was_written(tmp_path: Path, folder: Path, frozen: bool) -> None:
    gc.collect()
    if frozen:
        gc.freeze()
    try:
        with Patches() as patches:
            file_functions.install(patches, FileOverlay(tmp_path / "files"))
            (folder / "new.txt").write_text("new")
            with OPENERS[".txt"](folder / "new.txt") as file:
                assert file.read() == "new"
            assert bool(gc.get_freeze_count()) == frozen
    finally:
        gc.unfreeze()
    assert OPENERS[".txt"] is open
    assert not (folder / "new.txt").exists()


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


def test_temporary_files_are_closed_and_lie_in_the_overlay(overlay: FileOverlay) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"1")
        assert file.name.startswith(overlay.folder)
    assert not os.path.exists(file.name)
    descriptor, made = tempfile.mkstemp(text=True)
    os.close(descriptor)
    assert made.startswith(os.environ["TMPDIR"])


def opened_folder(path: str) -> int:
    return os.open(os.path.dirname(path), os.O_RDONLY)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: bz2.open(path, "wb").close(),
        lambda path: tarfile.open(path, "w").close(),
        lambda path: zipfile.ZipFile(path, "w").close(),
        lambda path: posix.unlink(path),
        lambda path: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
        lambda path: os.close(os.open(path, os.O_RDWR | os.O_APPEND)),
        lambda path: os.truncate(path, 0),
        lambda path: os.utime(path, (0, 0)),
        lambda path: Path(path).chmod(0o600),
        lambda path: open(f"{path}.link", "w").close(),
        lambda path: (os.symlink(path, f"{path}.new"), Path(f"{path}.new").write_text("through a link")),
        lambda path: (os.link(path, f"{path}.hard"), Path(f"{path}.hard").write_text("through a link")),
        lambda path: os.rename(os.path.dirname(path), f"{os.path.dirname(path)}.moved"),
        lambda path: os.fchmod(os.open(path, os.O_RDONLY), 0o777),
        lambda path: os.chmod(os.open(path, os.O_RDONLY), 0o777),
        lambda path: os.utime(os.open(path, os.O_RDONLY), (3, 3)),
        lambda path: os.close(os.open("notes.txt", os.O_RDWR | os.O_TRUNC, dir_fd=opened_folder(path))),
        lambda path: os.unlink("notes.txt", dir_fd=opened_folder(path)),
        lambda path: os.rename("notes.txt", "a", src_dir_fd=opened_folder(path), dst_dir_fd=opened_folder(path)),
    ],
)
def test_no_function_changes_what_was_there(tmp_path: Path, folder: Path, write: Callable[[str], object]) -> None:
    """Whether it was bound to another name at import, or a link leads there."""
    os.symlink("notes.txt", folder / "notes.txt.link")
    before = [(path, path.lstat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    with Patches() as patches:
        file_functions.install(patches, FileOverlay(tmp_path / "files"))
        write(str(folder / "notes.txt"))
    for path, state in before:
        now = path.lstat()
        assert (now.st_mode, now.st_size, now.st_mtime_ns) == (state.st_mode, state.st_size, state.st_mtime_ns)
    assert len(list(folder.rglob("*"))) == 4


def test_links_lead_to_what_the_script_has_written(overlay: FileOverlay, folder: Path) -> None:
    os.symlink(folder / "notes.txt", folder / "link")
    os.symlink("deep", folder / "latest")
    (folder / "link").write_text("new")
    (folder / "latest" / "data.txt").write_text("newer")
    assert (folder / "notes.txt").read_text() == "new"
    assert (folder / "deep" / "data.txt").read_text() == "newer"
    assert os.path.realpath(folder / "latest" / "data.txt") == str(folder / "deep" / "data.txt")
    os.remove(folder / "link")
    assert (folder / "notes.txt").read_text() == "new"
    os.symlink("loop", folder / "loop")
    with pytest.raises(OSError, match="levels of symbolic links"):
        (folder / "loop").read_text()


def test_the_working_directory_is_the_scripts(
    overlay: FileOverlay, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    os.makedirs("runs/1")
    os.chdir("runs/1")
    assert os.getcwd() == str(folder / "runs" / "1") == str(Path.cwd())
    Path("own.txt").write_text("own")
    assert Path("../../notes.txt").read_text() == "old"
    os.chdir("../..")
    assert os.getcwd() == str(folder)
    assert Path("runs/1/own.txt").read_text() == "own"
    Path("deep/more.txt").write_text("more")
    os.chdir("deep")  # in both layers
    assert sorted(os.listdir()) == ["data.txt", "more.txt"]
    assert Path("data.txt").read_text() == "data"
    with pytest.raises(FileNotFoundError, match=r"'no\.txt'"):
        Path("no.txt").read_text()


def test_entries_of_a_folder_are_in_the_layer_that_has_them(overlay: FileOverlay, folder: Path) -> None:
    (folder / "own").mkdir()
    os.symlink("deep", folder / "link")
    with os.scandir(folder) as found:
        entries = {entry.name: entry for entry in found}
    assert {name: (one.is_dir(), one.is_file(), one.is_symlink()) for name, one in entries.items()} == {
        "deep": (True, False, False),
        "link": (True, False, True),
        "notes.txt": (False, True, False),
        "own": (True, False, False),
    }
    assert entries["notes.txt"].path == str(folder / "notes.txt") == os.fspath(entries["notes.txt"])
    assert entries["notes.txt"].stat().st_size == 3
    assert [(one, sorted(folders), files) for one, folders, files in os.walk(folder / "deep")] == [
        (str(folder / "deep"), [], ["data.txt"])
    ]


def test_a_folder_in_both_layers_is_moved_whole(overlay: FileOverlay, folder: Path) -> None:
    (folder / "deep" / "more.txt").write_text("more")
    os.rename(folder / "deep", folder / "moved")
    assert sorted(os.listdir(folder / "moved")) == ["data.txt", "more.txt"]
    assert sorted(os.listdir(folder)) == ["moved", "notes.txt"]
    with pytest.raises(OSError, match="Directory not empty"):
        os.rename(folder / "moved", folder)
    with pytest.raises(IsADirectoryError):
        os.replace(folder / "notes.txt", folder / "moved")


def test_a_module_that_the_script_has_written_is_imported(
    overlay: FileOverlay, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    (folder / "written_by_the_script.py").write_text("NUMBER = 3")
    assert __import__("written_by_the_script").NUMBER == 3


def test_folders_that_are_shared_are_written(tmp_path: Path) -> None:
    with Patches() as patches:
        file_functions.install(patches, FileOverlay(tmp_path / "files", (tmp_path / "shared",)))
        os.makedirs(os.devnull.replace("null", ""), exist_ok=True)
        with open(os.devnull, "w") as file:
            file.write("gone")
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared" / "one").write_text("1")
    assert (tmp_path / "shared" / "one").read_text() == "1"


def test_hard_links_are_two_names_of_one_file(overlay: FileOverlay, folder: Path) -> None:
    os.link(folder / "notes.txt", folder / "second")
    (folder / "second").write_text("both")
    assert (folder / "notes.txt").read_text() == "both"
    assert os.path.samefile(folder / "notes.txt", folder / "second")
    assert (folder / "second").stat().st_nlink == 2
    os.remove(folder / "notes.txt")
    assert (folder / "second").read_text() == "both"
    with pytest.raises(FileExistsError):
        os.link(folder / "second", folder / "deep" / "data.txt")
    with pytest.raises(FileNotFoundError, match="notes"):
        os.link(folder / "notes.txt", folder / "third")
    with pytest.raises(PermissionError):
        os.link(folder / "deep", folder / "third")


def test_what_is_opened_and_changed_by_its_descriptor_is_the_copy(overlay: FileOverlay, folder: Path) -> None:
    os.chmod(folder / "notes.txt", 0o640)
    descriptor = os.open(folder / "deep" / "data.txt", os.O_RDONLY)
    os.fchmod(descriptor, 0o600)
    os.utime(descriptor, (5, 5))
    state = (folder / "deep" / "data.txt").stat()
    assert (state.st_mode & 0o777, state.st_mtime) == (0o600, 5)
    os.unlink("data.txt", dir_fd=os.open(folder / "deep", os.O_RDONLY))
    assert os.listdir(folder / "deep") == []
