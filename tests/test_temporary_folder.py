"""Temporary folders go, whatever comes while they do."""

from __future__ import annotations

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
