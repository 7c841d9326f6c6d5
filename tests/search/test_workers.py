"""Points evaluated in processes: drawn one by one, all answered, and a process that dies or fails ends the search."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator

import pytest

from triosim.errors import OptionError, SimulationError
from triosim.search.outcome import Outcome
from triosim.search.workers import evaluate


def named(point: int) -> Outcome:
    return Outcome(str(point), "excluded")


def dying(point: int) -> Outcome:
    if point == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return named(point)


def failing(point: int) -> Outcome:
    if point == 3:
        raise OptionError("no such GPU", where="--gpu H1000")
    return named(point)


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_point_is_answered_once(jobs: int) -> None:
    found = list(evaluate(named, range(20), jobs))
    assert sorted(point for point, _ in found) == list(range(20))
    assert all(outcome.key == str(point) for point, outcome in found)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("jobs", [1, 3])
def test_no_more_points_are_drawn_than_there_are_processes(jobs: int) -> None:
    drawn = []

    def points() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield number

    for answered, _ in enumerate(evaluate(named, points(), jobs), 1):
        assert len(drawn) <= answered - 1 + jobs
        if answered == 5:
            break
    assert len(drawn) < 10


def test_a_search_that_stops_leaves_no_process_behind() -> None:
    found = evaluate(named, range(100), 2)
    next(found)
    assert multiprocessing.active_children()
    found.close()
    assert not multiprocessing.active_children()


def test_a_process_that_dies_is_reported_with_its_point() -> None:
    with pytest.raises(SimulationError) as error:
        list(evaluate(dying, range(5), 2))
    assert str(error.value).startswith("3: the process that simulated it was killed by SIGKILL; give fewer --jobs")
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_the_user_ends_the_search(jobs: int) -> None:
    with pytest.raises(OptionError, match="no such GPU"):
        list(evaluate(failing, range(5), jobs))
    assert not multiprocessing.active_children()
