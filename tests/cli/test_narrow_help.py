"""The help of every command on terminals of 40 and 80 columns."""

from __future__ import annotations

import pytest

from triosim import cli
from triosim.cli.calibrate import CalibrateCommands
from triosim.cli.main import Commands

COMMANDS = [[name] for name in Commands.lazy] + [["calibrate", name] for name in CalibrateCommands.lazy]


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_help_fits_and_shows_whole_names(
    command: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.run([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    assert "<" not in text.replace("<=", "")
    assert "…" not in text


def test_a_narrow_help_has_an_option_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    cli.run(["simulate", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert "  --global-batch-size N" in lines
    assert "  --copy-input, --no-copy-input" in lines
    assert "[bold]" not in "".join(lines)
