"""Draws the experts of each token, as ``--routing`` says, in the place of what a router computes from scores that nobody knows.

How likely each expert is differs by layer and call, and is the same on all ranks; which tokens go to it each rank draws for
itself. A token's experts are different ones: each is drawn from those that the token does not have yet, in proportion to how
likely they are (Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir").
"""

from __future__ import annotations

import zlib
from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from triosim.extrapolators.expert.expert_loads import LoadDistribution

Experts = npt.NDArray[np.int64]
#: Whether a token cannot have an expert: token, expert.
Taken = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Routed:
    """What a router is asked for: so many experts of all for each token, in a layer."""

    layer: str
    tokens: int
    experts: int
    chosen: int


@dataclass(slots=True)
class _Calls:
    """How often a layer's router has chosen, and which of its choices a backward pass may run again.

    A choice is known by its number and by that of the first one of the same tokens: these are of one call.
    """

    number: int = 0
    first: int = 0
    trained: deque[tuple[int, int]] = field(default_factory=deque)


class DrawnExperts:
    """The experts of all tokens of a run."""

    def __init__(self, load: LoadDistribution) -> None:
        self._load = load
        self._calls: defaultdict[Routed, _Calls] = defaultdict(_Calls)

    @property
    def exist(self) -> bool:
        """Whether any were drawn."""
        return bool(self._calls)

    def draw(self, asked: Routed, rank: int, *, trains: bool, again: bool, without: Taken | None = None) -> Experts:
        """Return the experts of each token (an array: token, choice) on a rank, ``without`` those that it cannot have.

        A call that ``trains`` may be run ``again`` in the backward pass, in the same order, and then draws the same.
        """
        calls = self._calls[asked]
        if again and calls.trained:
            return self._drawn(asked, rank, calls.trained.popleft(), without)
        calls.number += 1
        if without is None:
            calls.first = calls.number
        choice = (calls.number, calls.first)
        if trains and not again:
            calls.trained.append(choice)
        return self._drawn(asked, rank, choice, without)

    def step_ends(self) -> None:
        """Take no call of before as one that a backward pass runs again."""
        for calls in self._calls.values():
            calls.trained.clear()

    def _drawn(self, asked: Routed, rank: int, choice: tuple[int, int], without: Taken | None) -> Experts:
        load = self._load
        if not load.is_random:
            return _even(asked, without, apart=load.load == "balanced")
        number, first = choice
        layer = zlib.crc32(asked.layer.encode())
        likelihoods = load.likelihoods(asked.experts, np.random.default_rng((load.seed, first, layer)))
        random = np.random.default_rng((load.seed, number, layer, rank + 1))
        times = random.standard_exponential((asked.tokens, asked.experts), dtype=np.float32)
        times /= likelihoods.astype(np.float32)
        if without is not None:
            times[without] = np.inf
        if asked.chosen == 1:
            return times.argmin(axis=1)[:, None]
        return np.argpartition(times, asked.chosen - 1, axis=1)[:, : asked.chosen]


def _even(asked: Routed, without: Taken | None, *, apart: bool) -> Experts:
    """Return experts in turn, ``without`` some: those of a token lie ``apart``, or next to each other."""
    tokens, choices = np.arange(asked.tokens)[:, None], np.arange(asked.chosen)[None]
    if without is None:
        if apart:
            return (tokens + choices * (asked.experts // asked.chosen)) % asked.experts
        return (tokens * asked.chosen + choices) % asked.experts
    had = int(without.sum(1).max(initial=0))
    distance = max(asked.experts // (asked.chosen + had), 1) if apart else 1
    behind = (np.arange(asked.experts)[None] - tokens * (1 if apart else asked.chosen)) % asked.experts
    order = np.where(behind % distance == 0, behind // distance, asked.experts + behind)
    return np.where(without, 2 * asked.experts, order).argsort(1, kind="stable")[:, : asked.chosen]
