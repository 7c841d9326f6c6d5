"""The page about launch files names every key that is read and written."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim.launch_files.writing import WRITERS

PAGE = (Path(__file__).parents[2] / "docs" / "launch_files.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("framework", WRITERS)
def test_every_key_is_in_the_table(framework: str) -> None:
    assert not [key for key in WRITERS[framework][0].keys if f"`{key}`" not in PAGE]


@pytest.mark.parametrize("framework", WRITERS)
def test_the_versions_are_said(framework: str) -> None:
    assert WRITERS[framework][0].versions in PAGE
