"""The commands that simulate take their options from the declarations, as ``triosim.simulate`` does."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from itertools import pairwise, takewhile

import pytest

import triosim
from triosim.cli import main as cli
from triosim.cli import subject
from triosim.cli.calibrate import CalibrateCommands
from triosim.cli.simulate import OPTIONS
from triosim.config import COMMON, CONDITIONS, RunConfig, flags
from triosim.config.option import EVERY_COMMAND


def test_simulate_has_a_keyword_for_every_option_with_its_default() -> None:
    parameters = inspect.signature(triosim.simulate).parameters
    assert {*COMMON, *flags()} <= parameters.keys()
    assert all(parameters[name].default == option.default for name, option in (COMMON | flags()).items())
    doc = triosim.simulate.__doc__ or ""
    assert [option.name for option in flags().values() if f"{option.name}: {option.help}" not in doc] == []


def test_the_defaults_of_the_configuration_are_those_that_are_declared() -> None:
    config = RunConfig.of()
    assert config == RunConfig()
    assert not [name for name in (*COMMON, *flags()) if config.is_given(name)]


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_a_command_has_the_options_that_are_declared_for_it(command: str) -> None:
    module = import_module(f"triosim.cli.{command}")
    names = inspect.signature(module.command).parameters.keys()
    every = (*COMMON.values(), *flags().values(), *CONDITIONS)
    declared = {option.name for option in every if command in option.commands}
    assert declared | {option.name for option in module.OPTIONS} | {"trace"} == set(names)


@pytest.mark.parametrize("name", cli.Commands.lazy)
def test_what_the_list_of_commands_says_is_the_first_sentence_of_the_command(name: str) -> None:
    module, sentence = cli.Commands.lazy[name]
    loaded = import_module(module)
    command = getattr(loaded, "command", None) or loaded.calibrate
    assert " ".join((command.__doc__ or "").partition("\n\n")[0].split()) == sentence


@pytest.mark.parametrize("command", [*cli.Commands.lazy, *(f"calibrate {name}" for name in CalibrateCommands.lazy)])
def test_a_help_text_is_neither_cut_nor_broken_in_the_middle_of_a_line(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run([*command.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line]
    text = [line.strip() for line in takewhile(lambda line: not line.startswith((" Example", "╭")), lines)]
    short = [one for one, after in pairwise(text) if one and after and len(one) + 1 + len(after.split()[0]) <= 78]
    assert short == []


def test_a_flag_is_not_on_and_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["simulate", "trace.json", "--fold", "--no-fold"]) == 2
    said = "triosim: error: --fold: is given together with --no-fold; give one of the two\n"
    assert capsys.readouterr().err == said


def test_an_option_that_has_one_value_is_given_once(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["-p", "dp=2", "-p", "tp=2"], ["-p", "dp=2", "--parallel=dp=2"]):
        assert cli.run(["simulate", "trace.json", *arguments]) == 2
        assert capsys.readouterr().err == "triosim: error: --parallel: is given twice; give it once\n"


@pytest.mark.parametrize("command", ["simulate", "compare", "memory"])
def test_help_imports_nothing_that_it_does_not_show(command: str) -> None:
    program = (
        f"import sys; from triosim.cli import run; run(['{command}', '--help']); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert loaded.isdisjoint(
        {"numpy", "simpy", "triosim.simulation", "triosim.engine", "triosim.extrapolators.data.fsdp"}
    )


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
    assert "**given" not in "".join(lines)
    assert "[default: 1f1b]" in "".join(lines)


def test_what_was_not_given_is_not_said() -> None:
    given = dict.fromkeys(("parallel", "slow_gpus", "training", "timeline", "output"))
    assert subject.chosen(OPTIONS, given) == {}
    assert subject.chosen(OPTIONS, {**given, "training": True, "slow_gpus": ["3=2"], "timeline": "run.json"}) == {
        "training": False,
        "conditions": {"slow_gpus": ["3=2"]},
    }
