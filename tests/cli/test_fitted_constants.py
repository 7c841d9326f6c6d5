import json
from importlib.util import find_spec

import pytest

from triosim.cli import run
from triosim.cli.calibrate.fitted_constants import fitted_constants
from triosim.compute.models import roofline
from triosim.config.stacks import STACKS
from triosim.gpus import energy
from triosim.results import uncertainty
from validation.steps.spread import CONSTANTS


def test_every_constant_says_its_unit_and_what_it_rests_on_once() -> None:
    found = fitted_constants()

    assert all(one.unit and one.source and one.value > 0 for one in found)
    assert len({one.name for one in found}) == len(found)


def test_every_stack_architecture_class_and_doubt_is_in_the_list() -> None:
    names = {one.name for one in fitted_constants()}

    assert names >= {f"launch, {stack}" for stack in STACKS}
    assert names >= {f"FLOP, {architecture}" for architecture in energy.HALF}
    assert names >= {f"{name}, of bandwidth" for name in roofline.DEFAULTS}
    assert names >= {f"doubt, {source}" for source in CONSTANTS}


def test_a_constant_that_is_changed_is_listed_as_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncertainty, "STEP_ERROR", 0.11)

    listed = {one.name: one.value for one in fitted_constants()}

    assert listed["doubt, machine and framework"] == 0.11


def test_scripts_that_fit_a_constant_are_there_and_errors_left_out_are_no_smaller() -> None:
    """A value in use is a rounded one, and may be a little worse than a fit without a source."""
    for one in fitted_constants():
        if one.script:
            assert find_spec(one.script.split()[2]) is not None, one.script
        if one.left_out is not None:
            assert one.fit is not None
            assert one.fit <= 1.05 * one.left_out


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "constants", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)

    launch = next(one for one in listed if one["name"] == "launch, deepspeed")
    assert launch["value"] == pytest.approx(73.5)
    assert launch["unit"] == "us"
    assert "constant_fit launch deepspeed" in launch["script"]
