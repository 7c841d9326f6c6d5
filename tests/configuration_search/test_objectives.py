"""Objectives: their values worked out by hand, what a bound excludes, and the Pareto front."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from triosim.configuration_search.objectives import Objectives, names
from triosim.configuration_search.outcome import Figures, Memory, Outcome
from triosim.errors import OptionError

#: 64 samples of 2,048 tokens in 2 s on 8 GPUs of $3 an hour and 700 W each.
STEP = Figures(2.0, 8, 32.0, 1.5, 0.2, 0.1, 0.0, tokens_per_s=65536.0, cost=8 * 3 * 2 / 3600, energy_j=8 * 700 * 2)
ROOM = Memory(60e9, 80e9)


def step(key: str = "a", memory: Memory | None = ROOM, **changed: object) -> Outcome:
    return Outcome(key, "simulated", figures=dataclasses.replace(STEP, **changed), memory=memory)


def at_bound(**changed: object) -> Outcome:
    return Outcome("b", "excluded", at_bound=dataclasses.replace(STEP, **changed), memory=ROOM)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step-time", 2.0),
        ("p90-step-time", 2.0),
        ("tokens-per-second", 65536),
        ("cost", 24 / 3600 / 65536 * 1e6),
        ("run-cost=1e9", 24 / 3600 / 65536 * 1e9),
        ("energy", 8 * 700 / 65536),
        ("memory-headroom", 20e9),
        ("fewest-gpus=65536", 8),
        ("fewest-gpus=65537", math.inf),
    ],
)
def test_a_value_is_of_a_token_whatever_the_batch(name: str, value: float) -> None:
    (objective,) = Objectives.read(name).all
    assert objective.value(STEP, ROOM) == pytest.approx(value)


def test_without_tokens_it_is_of_a_sample() -> None:
    (objective,) = Objectives.read("cost").all
    assert objective.value(dataclasses.replace(STEP, tokens_per_s=None), None) == pytest.approx(24 / 3600 / 32 * 1e6)


def test_a_risk_is_the_upper_end_of_the_interval() -> None:
    sure, risky = step("sure", interval=(1.9, 2.1)), step("risky", step_time_s=1.8, interval=(1.4, 2.3))
    assert [one.key for one in Objectives.read("step-time").ranked([sure, risky])] == ["risky", "sure"]
    assert [one.key for one in Objectives.read("p90-step-time").ranked([sure, risky])] == ["sure", "risky"]


@pytest.mark.parametrize("within", [0.0, 0.05])
@pytest.mark.parametrize("name", ["step-time", "tokens-per-second", "cost"])
def test_a_bound_excludes_what_is_worse_by_more_than_asked(name: str, within: float) -> None:
    objectives = Objectives.read(name, within)

    def slower(factor: float) -> Outcome:
        cost, rate = STEP.cost or 0.0, STEP.tokens_per_s or 0.0
        return at_bound(step_time_s=2.0 * factor, tokens_per_s=rate / factor, cost=cost * factor)

    scores = objectives.scores(step())
    assert not objectives.excludes(scores, objectives.bounds(slower((1 + within) * 0.999)))
    assert objectives.excludes(scores, objectives.bounds(slower((1 + within) * 1.001)))
    assert not Objectives.read(name).excludes(scores, scores)


def test_a_time_that_is_not_known_excludes_nothing() -> None:
    objectives = Objectives.read("energy")
    assert not objectives.excludes(objectives.scores(step()), objectives.bounds(Outcome("b", "excluded")))


def test_of_two_objectives_only_a_dominated_point_is_excluded() -> None:
    objectives = Objectives.read("step-time,memory-headroom")
    scores = objectives.scores(step())
    slower = dataclasses.replace(at_bound(step_time_s=3.0), memory=Memory(50e9, 80e9))
    assert not objectives.excludes(scores, objectives.bounds(slower))
    assert objectives.excludes(scores, objectives.bounds(dataclasses.replace(slower, memory=Memory(70e9, 80e9))))


def test_the_front_is_what_nothing_dominates() -> None:
    draw = random.Random(1)
    points = [
        step(str(number), Memory(draw.randrange(8), 8.0), step_time_s=float(draw.randrange(1, 8)))
        for number in range(40)
    ]
    objectives = Objectives.read("step-time,memory-headroom")
    scores = {one.key: objectives.scores(one) for one in points}

    def is_dominated(key: str) -> bool:
        own = scores[key]
        return any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in scores.values())

    assert {one.key for one in objectives.front(points)} == {key for key in scores if not is_dominated(key)}
    ranked = objectives.ranked([*points, Outcome("refused", "refused")])
    assert len(ranked) == 40
    assert ranked[: len(objectives.front(points))] == objectives.front(points)


def test_what_does_not_reach_what_is_asked_is_no_answer() -> None:
    objectives = Objectives.read("fewest-gpus=60000")
    enough, more, less = step("8"), step("16", gpus=16), step("4", gpus=4, tokens_per_s=50000.0)
    assert [one.key for one in objectives.ranked([more, less, enough])] == ["8", "16"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed", "'speed' is no objective"),
        ("step-tim", "did you mean 'step-time'?"),
        ("step-time=2", "'step-time' takes no number"),
        ("run-cost", "write run-cost=NUMBER: the tokens of the run"),
        ("fewest-gpus=-1", "no number above 0"),
        ("step-time,", "'' is no objective"),
    ],
)
def test_a_wrong_objective_ends_in_one_line(text: str, said: str) -> None:
    with pytest.raises(OptionError, match="--objective") as error:
        Objectives.read(text)
    assert said in str(error.value)


def test_an_objective_that_cannot_be_said_of_a_point_is_an_error() -> None:
    for name, changed in (("cost", {"cost": None}), ("tokens-per-second", {"tokens_per_s": None})):
        with pytest.raises(OptionError, match="give --"):
            Objectives.read(name).scores(step(**changed))
        with pytest.raises(OptionError, match="give --"):
            Objectives.read(name).bounds(at_bound(**changed))
    assert "run-cost=NUMBER" in names()
