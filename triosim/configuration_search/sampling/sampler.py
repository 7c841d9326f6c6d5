"""Samplers of Optuna, which draw points of a space and learn from the scores that they are told.

``tpe`` is the tree-structured Parzen estimator (Bergstra et al. 2011; multivariate: Falkner et al. 2018), ``cma-es`` the
evolution strategy with a margin for whole numbers (Hansen 2001; Hamano et al. 2022), ``random`` learns nothing. The same seed
and the same scores give the same points.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from random import Random
from typing import Any

from triosim.configuration_search.objectives import Scores
from triosim.configuration_search.point import Point, Value
from triosim.configuration_search.spaces.declaration import checked
from triosim.configuration_search.spaces.layout import multiple
from triosim.configuration_search.spaces.space import Axis, Space
from triosim.errors import OptionError, TriosimError

#: What Optuna has of a point, by the names of its axes: a number of an interval, or a place in a list.
Parameters = dict[str, float]

TPE, CMA_ES, RANDOM = "tpe", "cma-es", "random"
SAMPLERS = (TPE, CMA_ES, RANDOM)

#: How many points are drawn at random before a sampler learns from them.
_AT_RANDOM = 20


class Sampler:
    """Draws points of a space, each with a number, by which the scores of the point are told."""

    def __init__(self, kind: str, space: Space, objectives: int, seed: int) -> None:
        self._axes = space.axes
        self._random = Random(seed)
        optuna = _optuna()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some of what is asked for is called experimental
            sampler = _sampler(optuna, kind, objectives, seed)
            self._study = optuna.create_study(sampler=sampler, directions=["minimize"] * objectives)
        self._drawn: dict[int, Any] = {}

    def draw(self) -> tuple[int, Point]:
        """Return a number and the point that the sampler has most hope in."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = self._study.ask()
            parameters = {axis.name: _suggested(trial, axis) for axis in self._axes}
        self._drawn[trial.number] = trial
        return trial.number, self._point(parameters)

    def at_random(self) -> tuple[Parameters, Point]:
        """Return a point without regard to what is known, and what ``adopt`` takes it by."""
        parameters = {axis.name: _random_parameter(axis, self._random) for axis in self._axes}
        return parameters, self._point(parameters)

    def adopt(self, parameters: Parameters) -> int:
        """Return the number of a point that was drawn at random."""
        self._study.enqueue_trial(parameters)
        number, _ = self.draw()
        return number

    def _point(self, parameters: Parameters) -> Point:
        return Point.of({axis.name: _value(axis, parameters[axis.name]) for axis in self._axes})

    def forget(self, number: int) -> None:
        """Learn nothing of a point that was drawn: it is being tried already."""
        from optuna.trial import TrialState

        self._study.tell(self._drawn.pop(number), state=TrialState.FAIL)

    def tell(self, number: int, scores: Scores) -> None:
        """Learn the scores of a point that was drawn."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._study.tell(self._drawn.pop(number), list(scores))


def _optuna() -> Any:
    try:
        import cmaes  # noqa: F401
        import optuna
    except ImportError:
        raise TriosimError(
            "Optuna is not installed", where="--sampler", fix="install it with: pip install 'triosim[optuna]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _sampler(optuna: Any, kind: str, objectives: int, seed: int) -> Any:
    if kind == RANDOM:
        return optuna.samplers.RandomSampler(seed=seed)
    tpe = optuna.samplers.TPESampler(
        seed=seed, multivariate=True, constant_liar=True, n_startup_trials=_AT_RANDOM, warn_independent_sampling=False
    )
    if kind == TPE:
        return tpe
    if objectives > 1:
        raise OptionError(f"'{CMA_ES}' has one objective", where="--sampler", fix=f"give --sampler {TPE}")
    return optuna.samplers.CmaEsSampler(
        seed=seed,
        with_margin=True,
        n_startup_trials=_AT_RANDOM,
        independent_sampler=tpe,  # of what has no order
        warn_independent_sampling=False,
    )


def _suggested(trial: Any, axis: Axis) -> float:
    """Return what Optuna suggests of an axis: a number of its interval, or a place in its list."""
    span = axis.interval
    if span is None:
        places = range(len(axis.values))
        if len(places) > 2 and _is_ordered(axis.values):
            return int(trial.suggest_int(axis.name, 0, places[-1]))
        return int(trial.suggest_categorical(axis.name, [*places]))
    if span.whole:
        return int(trial.suggest_int(axis.name, int(span.low), int(span.high), log=span.logarithmic))
    return float(trial.suggest_float(axis.name, span.low, span.high, log=span.logarithmic))


def _value(axis: Axis, parameter: float) -> Value:
    """Return the value of an axis for what Optuna has of it."""
    if axis.interval is None:
        return axis.values[int(parameter)]
    return checked(axis.name, axis.interval.value(parameter), f"--vary {axis.name}")


def _random_parameter(axis: Axis, random: Random) -> float:
    """Return a value of an axis as Optuna has it."""
    span = axis.interval
    if span is None:
        return random.randrange(len(axis.values))
    return random.randint(int(span.low), int(span.high)) if span.whole else random.uniform(span.low, span.high)


def _is_ordered(values: Sequence[Value]) -> bool:
    """Whether values are numbers, or multiples of one size, that grow."""
    found = [multiple(value) or (value, "") for value in values]
    numbers = [number for number, _ in found if isinstance(number, (int, float)) and not isinstance(number, bool)]
    same = len({size for _, size in found}) == 1
    return same and len(numbers) == len(values) and numbers == sorted(numbers)
