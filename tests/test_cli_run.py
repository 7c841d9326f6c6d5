"""simulate and compare take their options from one list, and what the list says is what ``triosim.simulate`` takes."""

from __future__ import annotations

import inspect

import pytest

import triosim
from triosim.cli import compare as cli_compare
from triosim.cli import main as cli
from triosim.cli import run_options as cli_run

#: What a command does with what comes back, which is no argument of a run.
SHOWN = {"output", "csv", "plot", "link_plot", "by_layer", "what_if", "format", "quiet"}


def parameters(command: object) -> dict[str, object]:
    return {one.name: one.default for one in inspect.signature(command).parameters.values()}  # type: ignore[arg-type]


def test_every_option_is_an_argument_of_simulate_with_its_default() -> None:
    defaults = parameters(triosim.simulate)
    options = {one.name: one.default for one in cli_run.OPTIONS if one.name not in SHOWN}
    arguments = cli_run.arguments_of(options)
    assert arguments.keys() <= defaults.keys()
    empty = {"conditions": {}, "options": {}, "timeline": None}
    assert {name: value for name, value in arguments.items() if value != defaults[name]} == empty


def test_both_commands_have_an_option_alike() -> None:
    simulate, compare = parameters(cli.simulate), parameters(cli_compare.compare)
    shared = {one.name for one in cli_run.OPTIONS if one.compare}
    assert shared | {"trace", "gpus"} == compare.keys()
    assert {one.name for one in cli_run.OPTIONS} | {"trace"} == simulate.keys()
    assert all(simulate[name] == compare[name] for name in shared)


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_the_help_fits_eighty_columns_in_groups(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run([command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    titles = [line.split()[1] for line in lines if line.startswith("╭─")]
    assert {"Parallelism", "System", "Operator", "Conditions", "Output"} <= set(titles)
    assert "**options" not in "".join(lines)
