"""``triosim.search``: the answer of the command line, as values and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import triosim
from tests.search_spaces import GPT
from triosim.cli import run
from triosim.errors import OptionError

RUN = {"gpus": 4, "topology": "dgx-h100", "global_batch_size": 8}
VARIED = {"tp": [1, 2], "pp": [1, 2]}


def as_read(found: triosim.SearchResult) -> dict[str, Any]:
    """Return an answer as a file has it."""
    read: dict[str, Any] = json.loads(json.dumps(found.to_dict()))
    return read


def test_the_answer_is_that_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--gpus", "4", "--topology", "dgx-h100", "--global-batch-size", "8", "--format", "json"]
    assert run(["search", GPT, *arguments, "--vary", "tp=1,2", "--vary", "pp=1,2", "--jobs", "1"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {**as_read(triosim.search(GPT, vary=VARIED, **RUN)), "seconds": 0} == {**said, "seconds": 0}


def test_what_is_found_is_in_tables_and_files(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    phases: list[str] = []
    found = triosim.search(GPT, vary=VARIED, **{**RUN, "gpus": [2, 4]}, tell=lambda phase, *_: phases.append(phase))
    assert found.best is not None
    assert found.best["settings"].keys() == {"gpus", "tp", "pp"}
    assert list(found.points.state.value_counts().sort_index().index)[-1] == "simulated"
    assert len(found.points) == 7  # two GPUs have no room for tp=2 and pp=2
    assert found.top.step_time_s.is_monotonic_increasing
    assert found.points.step_time_s[0] == found.best["step_time_s"]
    assert {*found.neighbours.axis} == {"gpus", "tp", "pp"}
    assert {*phases} == {"memory and bounds", "simulations"}
    assert "certificate" in str(found)
    found.save(tmp_path / "search.json")
    assert json.loads((tmp_path / "search.json").read_text()) == as_read(found)


def test_neighbours_say_what_they_cost_where_that_is_asked_for() -> None:
    found = triosim.search(GPT, vary={"tp": [1, 2]}, objective="cost", price=2.0, **{**RUN, "gpus": [2, 4]}).to_dict()
    best = found["best"]["settings"]["gpus"]
    (other,) = [one for one in found["neighbours"] if one["axis"] == "gpus"]
    assert 1 + other["objective"] == pytest.approx((1 + other["change"]) * other["value"] / best)


def test_a_screened_search_proves_nothing_and_says_how_much_better_others_may_be() -> None:
    every = triosim.search(GPT, vary=VARIED, top=4, **RUN)
    screened = triosim.search(GPT, vary=VARIED, top=1, screen="analytical", **RUN)
    found = screened.to_dict()
    assert (every.to_dict()["simulated"], found["simulated"]) == (4, 1)
    assert found["certificate"] == "none"
    assert found["excluded_by_bound"] + found["left"] == 3
    assert (found["gap"] > 0) == (found["left"] > 0)
    assert found["best"]["step_time_s"] in {*every.top.step_time_s}


def test_what_is_known_of_no_point_that_fits_is_said() -> None:
    found = triosim.search("llama3-8b(layers=64)", vary={"tp": [1, 2]}, **{**RUN, "gpus": 2})
    assert found.best is None
    assert "no point fits: ddp=2 needs" in str(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trace": None}, "search: there is nothing to search; give a trace, a model or a script"),
        ({"vary": {"tpp": [1]}}, "vary tpp: there is no option 'tpp' that can vary; did you mean 'tp'?"),
        ({"vary": {"tp": []}}, "vary tp: has no values; write tp=VALUE,VALUE"),
        ({"screen": "packet"}, "--screen: points run on it, or on several"),
        ({"vary": {"network": ["packet", "analytical"]}, "screen": "analytical"}, "--screen: points run on it"),
        ({"top": 0}, "--top: 0 is less than 1"),
        ({"vary_argument": ["--tp=1,2"]}, "--vary-argument: there is no script whose arguments could vary"),
    ],
)
def test_what_is_wrong_is_one_line(options: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError) as error:
        triosim.search(**{"trace": GPT, "vary": VARIED, **RUN, **options})
    assert said in str(error.value)
