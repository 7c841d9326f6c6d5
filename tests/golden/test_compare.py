"""The golden comparison finds a changed figure and a changed text, and nothing in a tree that did not change."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("single", "error-option")


def compare(store: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.golden.compare", *NAMES, "--store", str(store), "--jobs", "2", *options]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.returncode, found.stdout


def test_a_tree_is_equal_to_itself_and_a_change_is_found(tmp_path: Path) -> None:
    assert compare(tmp_path / "none") == (
        1,
        "nothing is frozen yet: run it with --freeze on the tree to compare with\n",
    )
    assert compare(tmp_path, "--freeze")[0] == 0
    status, said = compare(tmp_path)
    assert (status, "0 configurations with other figures, 0 with other texts" in said) == (0, True)
    figures, text = tmp_path / "figures" / "single.json.gz", tmp_path / "texts" / "error-option.txt"
    figures.write_bytes(gzip.compress(gzip.decompress(figures.read_bytes()).replace(b"step_time_s", b"step_time_ms")))
    text.write_text(text.read_text(encoding="utf-8").replace("exit status 2", "exit status 1"), encoding="utf-8")
    status, said = compare(tmp_path)
    assert (status, "1 configurations with other figures, 1 with other texts" in said) == (1, True)
