"""A trace format of a user's is one file outside of the package, whose traces every command reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triosim.cli import run

#: A line a linear layer, ``features forward_us backward_us``, after a line with the batch size.
PLUGIN = """
from triosim import Operator, Tensor, Trace

NAME = "lines"

def recognises(path):
    return path.is_file() and path.read_bytes()[:6] == b"batch "

def read(path):
    title, *lines = path.read_text().splitlines()
    batch, operators, backward, x = int(title.split()[1]), [], [], None
    for number, line in enumerate(lines):
        width, forward, back = map(float, line.split())
        width, first = int(width), 10 * number
        x = x or Tensor(9999, (batch, width), category="input")
        y, w = Tensor(first, (batch, width)), Tensor(first + 1, (width, x.shape[1]), category="parameter")
        g = Tensor(first + 2, w.shape, category="gradient", parameter=w.id)
        layer = f"layers.{number}.fc"
        operators.append(Operator(number + 1, "aten::linear", "forward", layer, (x, w), (y,), forward * 1e-6))
        backward.insert(0, Operator(100 + number, "AddmmBackward0", "backward", layer, (y, x, w), (g,), back * 1e-6,
                                    forward=number + 1))
        x = y
    return Trace((*operators, *backward), batch, model="lines", gpu="A100", source=str(path))
"""
TRACE = "batch 8\n64 10 20\n64 10 20\n"


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "lines.py").write_text(PLUGIN)
    (tmp_path / "net.txt").write_text(TRACE)
    return [str(tmp_path / "net.txt"), "--trace-format", str(tmp_path / "lines.py")]


def test_a_run_with_tp_reads_it(tmp_path: Path, arguments: list[str]) -> None:
    out = tmp_path / "result.json"
    assert run(["simulate", *arguments, "--parallel", "dp=2,tp=2", "--output", str(out), "--quiet"]) == 0
    result = json.loads(out.read_text())
    assert result["step_time_s"] > 60e-6  # both layers' forward and backward passes, and their all-reduces
    assert not [note for note in result["notes"] if "no effect" in note or "format" in note]


def test_memory_and_show_read_it(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["memory", *arguments, "--parallel", "tp=2"], ["show", *arguments]):
        assert run(command) == 0, command
        assert "lines" in capsys.readouterr().out
