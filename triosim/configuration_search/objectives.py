"""What a search looks for: objectives, the bounds that follow from a step's, and which points others dominate.

An objective gives a point a *score*, of which less is better: its value, or one over it where more is better, so that "1%
worse" means the same of all. A point's scores are bounded by those of a step that takes no longer than its bound; the memory
headroom is known before anything is timed, and what does not follow from the step's time excludes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from triosim.configuration_search.outcome import Figures, Memory, Outcome
from triosim.errors import OptionError, nearest

Scores = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of objective; ``value`` is None where it cannot be said, for the reason that ``unknown`` gives.

    One with a ``target`` is written ``NAME=NUMBER``, and ``target`` says what of. ``better`` says what a point is that is
    better by it, where scores grow as steps take longer.
    """

    title: str
    value: Callable[[Figures, Memory | None, float], float | None]
    is_larger_better: bool = False
    target: str = ""
    unknown: tuple[str, str] = ("", "")
    better: str | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective by its name, with its target where its kind has one."""

    name: str
    target: float = 0.0

    @property
    def title(self) -> str:
        """What the objective's values are, with their unit."""
        return KINDS[self.name].title

    @property
    def is_larger_better(self) -> bool:
        """Whether more of it is better."""
        return KINDS[self.name].is_larger_better

    @property
    def better(self) -> str | None:
        """What a point is that is better by it: faster, cheaper; None where that does not follow from the step's time."""
        return KINDS[self.name].better

    def value(self, figures: Figures, memory: Memory | None) -> float | None:
        """Return a point's value, in the unit of the title; None where it is not known."""
        return KINDS[self.name].value(figures, memory, self.target)

    def score(self, figures: Figures, memory: Memory | None) -> float:
        """Return the score of a simulated step. Raises ``OptionError`` where its value is not known."""
        value = self.value(figures, memory)
        if value is None:
            what, fix = KINDS[self.name].unknown
            raise OptionError(what, where=f"--objective {self.name}", fix=fix)
        return self._scored(value)

    def bound(self, at_bound: Figures | None, memory: Memory | None) -> float:
        """Return the least score of a step that takes no less than ``at_bound``'s time; 0 where no time is known.

        Raises ``OptionError`` where the objective is not known, which no simulation finds out either.
        """
        return 0.0 if at_bound is None else self.score(at_bound, memory)

    def _scored(self, value: float) -> float:
        if not self.is_larger_better:
            return value
        return 1.0 / value if value > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Objectives:
    """One objective or several; of several, a point that another is as good as in all, and better than in one, is dominated.

    ``within`` (0.01: 1%) is by how much a point must be worse to be excluded.
    """

    all: tuple[Objective, ...]
    within: float = 0.0

    @classmethod
    def read(cls, text: str, within: float = 0.0) -> Objectives:
        """Return the objectives of ``step-time,memory-headroom``. Raises ``OptionError`` for any other text."""
        return cls(tuple(_read(one.strip()) for one in text.split(",")), within)

    def scores(self, outcome: Outcome) -> Scores:
        """Return the scores of a simulated point. Raises ``OptionError`` for one that is not known."""
        assert outcome.figures is not None
        return tuple(one.score(outcome.figures, outcome.memory) for one in self.all)

    def bounds(self, outcome: Outcome) -> Scores:
        """Return what the scores of a point are at least, by its figures ``at_bound``."""
        return tuple(one.bound(outcome.at_bound, outcome.memory) for one in self.all)

    def excludes(self, scores: Scores, bounds: Scores) -> bool:
        """Whether a simulated point excludes one with these bounds: with a single objective, where its bound is higher."""
        reached = [score * (1.0 + self.within) for score in scores]
        pairs = list(zip(reached, bounds, strict=True))
        return all(score <= bound for score, bound in pairs) and any(score < bound for score, bound in pairs)

    def front(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Return the simulated points that no other dominates, the best by the first objective first."""
        scored = self._scored(outcomes)
        exact = Objectives(self.all)
        found: list[tuple[Scores, Outcome]] = []
        # Of equal first scores the best comes first, so that none is dominated by a later one.
        for scores, outcome in scored:
            if not any(exact.excludes(other, scores) for other, _ in found):
                found.append((scores, outcome))
        return [outcome for _, outcome in found]

    def ranked(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Return the simulated points: the front, then the others, each the best by the first objective first."""
        every = [outcome for _, outcome in self._scored(outcomes)]
        first = {outcome.key for outcome in self.front(every)} if len(self.all) > 1 else set()
        return sorted(every, key=lambda outcome: outcome.key not in first)

    def _scored(self, outcomes: Iterable[Outcome]) -> list[tuple[Scores, Outcome]]:
        """Return the simulated points that reach what is asked by their scores; of equal ones, the fastest first."""
        scored = [(self.scores(one), one) for one in outcomes if one.figures is not None]
        reached = [(scores, one) for scores, one in scored if math.inf not in scores]
        return sorted(reached, key=lambda pair: (pair[0], pair[1].figures and pair[1].figures.step_time_s, pair[1].key))


def _read(text: str) -> Objective:
    name, has_target, said = (part.strip() for part in text.partition("="))
    kind = KINDS.get(name)
    if kind is None:
        raise OptionError(f"'{name}' is no objective", where="--objective", fix=nearest(name, KINDS))
    if not kind.target:
        if has_target:
            raise OptionError(f"'{name}' takes no number", where="--objective", fix=f"write {name}")
        return Objective(name)
    try:
        target = float(said)
    except ValueError:
        target = 0.0
    if not 0 < target < math.inf:
        fix = f"write {name}=NUMBER: {kind.target}"
        raise OptionError(f"'{text}' has no number above 0", where="--objective", fix=fix)
    return Objective(name, target)


def _throughput(figures: Figures) -> float:
    """Return tokens per second, or samples where a sample has none."""
    return figures.samples_per_s if figures.tokens_per_s is None else figures.tokens_per_s


def _cost_of(figures: Figures, tokens: float) -> float | None:
    """Return what it costs to train on so many tokens, or samples where a sample has none."""
    return None if figures.cost is None else figures.cost * tokens / (_throughput(figures) * figures.step_time_s)


def _energy(figures: Figures) -> float | None:
    """Return the energy of a token in joules, or of a sample."""
    joules = figures.energy_j
    return None if joules is None else joules / (_throughput(figures) * figures.step_time_s)


def _fewest_gpus(figures: Figures, _: Memory | None, target: float) -> float:
    return figures.gpus if _throughput(figures) >= target else math.inf


_NO_PRICE = (
    "no price is known of these GPUs",
    "give --price, of a GPU and hour, or price_per_hour in a file for each kind: --gpu a.yaml,b.yaml",
)

#: The kinds of objectives by name.
KINDS: Mapping[str, _Kind] = {
    "step-time": _Kind("step time, s", lambda figures, *_: figures.step_time_s, better="faster"),
    "p90-step-time": _Kind(
        "step time, upper end of the 90% interval, s",
        lambda figures, *_: figures.interval[1] if figures.interval else figures.step_time_s,
        better="faster",
    ),
    "tokens-per-second": _Kind(
        "tokens/s",
        lambda figures, *_: figures.tokens_per_s,
        is_larger_better=True,
        unknown=("a sample of this model has no tokens", "give --tokens-per-sample, or choose step-time"),
        better="faster",
    ),
    "cost": _Kind(
        "cost of a million tokens", lambda figures, *_: _cost_of(figures, 1e6), unknown=_NO_PRICE, better="cheaper"
    ),
    "run-cost": _Kind(
        "cost of the run",
        lambda figures, _, tokens: _cost_of(figures, tokens),
        target="the tokens of the run",
        unknown=_NO_PRICE,
        better="cheaper",
    ),
    "energy": _Kind(
        "energy of a token, J",
        lambda figures, *_: _energy(figures),
        unknown=("the power of these GPUs is not known", "give --gpu with one that 'triosim gpus' shows with its TDP"),
        better="more economical",
    ),
    "memory-headroom": _Kind(
        "memory headroom, bytes",
        lambda _, memory, __: None if memory is None else memory.headroom_bytes,
        is_larger_better=True,
        unknown=("the memory of these GPUs is not known", "give --gpu, or its capacity"),
    ),
    "network-price": _Kind(
        "price of the network",
        lambda figures, *_: figures.network_price,
        unknown=("the price of the network is not known", "write what links cost under 'price' in the topology's file"),
    ),
    "fewest-gpus": _Kind("GPUs", _fewest_gpus, target="the tokens per second to reach"),
}


def names() -> Sequence[str]:
    """Return the names of objectives as a user writes them."""
    return [f"{name}=NUMBER" if kind.target else name for name, kind in KINDS.items()]
