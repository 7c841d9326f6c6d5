"""Names that come from a file are shown as they are: no escape sequence, markup, HTML or formula of theirs takes effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from traces import mlp

from triosim import cli, compare, load_trace, save_trace, simulate
from triosim.errors import TopologyError, printable
from triosim.reports.terminal.tables import plain_text, table

EVIL = "net\x1b[31m\x1b]0;owned\x07[red]$x^{$<script>alert(1)</script>\u202egnp"


def test_control_characters_become_pictures_and_line_breaks_stay() -> None:
    assert printable("a\x1b[31mb\x07\x7f\x9b\u202ec\n\td\u00e9") == "a\u241b[31mb\u2407\u2421\ufffd\ufffdc\n\td\u00e9"
    assert str(TopologyError("unknown", where="t\x1b[2J")) == "t\u241b[2J: unknown"


def test_a_name_in_a_table_is_neither_markup_nor_an_escape_sequence() -> None:
    shown = plain_text(table(EVIL, "the name of the model, which is as wide as its title", rows=[[EVIL]]))
    assert shown.count("net\u241b[31m\u241b]0;owned[red]$x^{$<script>") == 2  # rich leaves out bells


def test_a_text_is_a_text_in_a_notebook_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert plain_text(table("steps", "step", rows=[["3 ms"]])).splitlines()[0] == "steps"


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    path = tmp_path / "evil.json"
    save_trace(mlp(), path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"] = EVIL
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_values_in_a_python_session_show_no_escape_sequence_of_a_model_name(evil: Path) -> None:
    values = load_trace(evil), simulate(evil, "ddp", gpus=2), compare(evil, 2)
    for value in values:
        assert "net\u241b[31m" in repr(value)
        assert not set("\x1b\x07\u202e") & set(repr(value))


@pytest.mark.parametrize(
    "command", [["show"], ["simulate", "-p", "ddp", "-n", "2"], ["compare", "-n", "2"], ["memory"]]
)
def test_no_command_prints_an_escape_sequence_of_a_model_name(
    evil: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    topology = ["-t", "ring(2, bandwidth=1 GB/s)"] if "-n" in command else []
    assert cli.run([command[0], str(evil), *command[1:], *topology]) == 0
    shown = "".join(capsys.readouterr())
    assert "\u241b[31m" in shown
    assert not set("\x1b\x07\u202e") & set(shown)


def test_a_picture_shows_the_name_as_text(evil: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["-p", "ddp", "-n", "2", "-t", "ring(2, bandwidth=1 GB/s)", "--plot", str(tmp_path / "a.png")]
    assert cli.run(["simulate", str(evil), *options, "-q"]) == 0
    assert (tmp_path / "a.png").stat().st_size > 1000
