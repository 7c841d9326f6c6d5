"""Temporary folders go, whatever comes while they do."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from triosim.temporary_folder import TemporaryFolder


def test_a_folder_whose_removal_is_interrupted_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = TemporaryFolder._rmtree
    calls: list[str] = []

    def interrupted(name: str, **options: bool) -> None:
        calls.append(name)
        if len(calls) == 1:
            raise KeyboardInterrupt
        remove(name, **options)

    monkeypatch.setattr(TemporaryFolder, "_rmtree", staticmethod(interrupted))
    folder = TemporaryFolder()
    (Path(folder.name) / "file").touch()
    with pytest.raises(KeyboardInterrupt):
        folder.cleanup()
    assert not Path(folder.name).exists()


def test_a_folder_into_which_a_process_still_writes_is_removed_once_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = TemporaryFolder._rmtree
    calls: list[str] = []

    def beside_a_writer(name: str, **options: bool) -> None:
        calls.append(name)
        if len(calls) < 3:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", name)
        remove(name, **options)

    monkeypatch.setattr(TemporaryFolder, "_rmtree", staticmethod(beside_a_writer))
    with TemporaryFolder() as folder:
        (Path(folder) / "file").touch()
    assert not Path(folder).exists()
