"""The page of a search says how far it got."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.search_spaces import GPT, space
from triosim.configuration_search.answer.page import write_search_page
from triosim.configuration_search.evaluation import Simulate, Weigh
from triosim.configuration_search.exact import Search, Searched
from triosim.configuration_search.objectives import Objectives
from triosim.configuration_search.spaces.rules import validity_of
from triosim.configuration_search.workers import processes


@pytest.fixture(scope="module")
def found() -> Searched:
    run = space(GPT, "tp=1,2 pp=1,2")
    with processes(Weigh(run), Simulate(run)) as tasks:
        return Search(run, validity_of(run), Objectives.read("step-time", 0.0), *tasks, 1).run()


def sentence(found: Searched, path: Path) -> str:
    write_search_page(found, path)
    said = re.search(r'id="sentence">(.*?)</p>', path.read_text(encoding="utf-8"))
    assert said is not None
    return said[1]


def test_a_complete_search_names_its_best_point(found: Searched, tmp_path: Path) -> None:
    assert found.best is not None
    assert found.best.figures is not None
    said = sentence(found, tmp_path / "search.html")
    assert "interrupted" not in said
    assert "The best is " in said


def test_an_interrupted_search_says_that_there_may_be_better_points(found: Searched, tmp_path: Path) -> None:
    """Only the best point was weighed and simulated before the interrupt; of the others nothing is known."""
    assert found.best is not None
    some = replace(found, outcomes={found.best.key: found.best}, interrupted=True)
    said = sentence(some, tmp_path / "search.html")
    assert said.startswith("The search was interrupted: there may be better points. Of ")
    assert f"{some.left} are left" in said
    assert "The best is " in said
    assert "proved" not in said


def test_a_search_that_was_interrupted_before_its_first_point_names_no_best(found: Searched, tmp_path: Path) -> None:
    none = replace(found, outcomes={}, interrupted=True)
    said = sentence(none, tmp_path / "search.html")
    assert said.startswith("The search was interrupted")
    assert said.endswith("were simulated, 4 are left.")
    assert "none could run" not in said
