"""A loop's end depends on a line whose value it tests, directly or by name."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from triosim.tracer.recorder.script_lines import is_waited_for


@pytest.mark.parametrize(
    ("source", "waits"),
    [
        ("while read() > 1:\n    pass", True),
        ("x = 2\nwhile x > 1:\n    x = read()", True),
        ("while True:\n    x, y = read()\n    if x < 1 and z:\n        break", True),
        ("while True:\n    if read() < 1:\n        print()\n        break", True),
        ("while 1:\n    for i in a:\n        x += read()\n    if x > 1: break", True),
        ("while True:\n    x = read()\n    if i > 9:\n        break", False),
        ("while i < 9:\n    print(read())\n    i += 1", False),
        ("for i in a:\n    if read() < 1:\n        break", False),
        ("while i < 9:\n    def f():\n        i = read()\n    i += 1", False),
        ("read()\nwhile i < 9:\n    i += 1", False),
        ("this is no Python: read()", False),
    ],
)
def test_which_loops_wait_for_what_a_line_reads(tmp_path: Path, source: str, waits: bool) -> None:
    file = tmp_path / "script.py"
    file.write_text(source, encoding="utf-8")
    (line,) = [number for number, text in enumerate(source.split("\n"), 1) if "read()" in text]
    assert is_waited_for(str(file), line) == waits
