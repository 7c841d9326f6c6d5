"""Points evaluated in processes: drawn as they are needed, all answered, and a process that dies or fails ends the search."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import pytest

from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.workers import _work, processes
from triosim.errors import OptionError, SimulationError


def named(point: int) -> Outcome:
    return Outcome(str(point), "excluded", str(os.getpid()))


def dying(point: int) -> Outcome:
    if point == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return named(point)


def failing(point: int) -> Outcome:
    if point == 3:
        raise OptionError("no such GPU", where="--gpu H1000")
    return named(point)


def in_runs_of(size: int) -> Callable[[int], int]:
    return lambda point: point // size


@pytest.mark.parametrize("run", [1, 7])
@pytest.mark.parametrize("jobs", [1, 3])
def test_every_point_is_answered_once(jobs: int, run: int) -> None:
    with processes(named, jobs=jobs) as (evaluate,):
        found = list(evaluate(range(20), shared=in_runs_of(run)))
    assert sorted(point for point, _ in found) == list(range(20))
    assert all(outcome.key == str(point) for point, outcome in found)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("run", [1, 4])
@pytest.mark.parametrize("jobs", [1, 3])
def test_no_more_points_are_drawn_than_processes_take(jobs: int, run: int) -> None:
    drawn = []

    def points() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield number

    with processes(named, jobs=jobs) as (evaluate,):
        for answered, _ in enumerate(evaluate(points(), shared=in_runs_of(run)), 1):
            assert len(drawn) <= answered - 1 + jobs * run + (jobs > 1)  # the first of the next run ends this one
            if answered == 5:
                break


def test_a_run_of_points_is_for_one_process() -> None:
    with processes(named, jobs=3) as (evaluate,):
        process_of = {point: outcome.reason for point, outcome in evaluate(range(12), shared=in_runs_of(4))}
    for first in (0, 4, 8):
        assert len({process_of[point] for point in range(first, first + 4)}) == 1


def test_a_long_run_is_for_several_processes() -> None:
    with processes(named, jobs=2) as (evaluate,):
        process_of = {point: outcome.reason for point, outcome in evaluate(range(80), shared=lambda _: 0)}
    for first in (0, 32, 64):
        assert len({process_of[point] for point in range(first, min(first + 32, 80))}) == 1


def test_all_tasks_run_in_the_same_processes() -> None:
    with processes(named, failing, jobs=2) as (first, second):
        before = {outcome.reason for _, outcome in first(range(10))}
        assert {outcome.reason for _, outcome in second(range(10, 20))} <= before


def test_what_nobody_waits_for_any_more_is_forgotten() -> None:
    with processes(named, jobs=2) as (evaluate,):
        next(iter(evaluate(range(100), shared=in_runs_of(5))))
        assert sorted(point for point, _ in evaluate(range(3))) == [0, 1, 2]
    assert not multiprocessing.active_children()


def test_a_process_that_dies_is_reported_with_its_point() -> None:
    with processes(dying, jobs=2) as (evaluate,), pytest.raises(SimulationError) as error:
        list(evaluate(range(5), shared=in_runs_of(2)))
    assert str(error.value).startswith("3: the process that simulated it was killed by SIGKILL; give fewer --jobs")
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_the_user_ends_the_search(jobs: int) -> None:
    with processes(failing, jobs=jobs) as (evaluate,), pytest.raises(OptionError, match="no such GPU"):
        list(evaluate(range(5)))
    assert not multiprocessing.active_children()


def test_a_process_ends_in_silence_where_the_search_is_gone(capfd: pytest.CaptureFixture[str]) -> None:
    ours, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_work_alone, args=(its, ours))
    process.start()
    its.close()
    ours.send((0, [1, 2, 3]))
    ours.close()
    process.join(30)
    assert process.exitcode == 0
    assert not capfd.readouterr().err


def _work_alone(its: Connection, ours: Connection) -> None:
    ours.close()
    _work(its, [_slow])


def _slow(point: int) -> Outcome:
    time.sleep(0.1)
    return named(point)
