"""The number of tokens that each expert receives, drawn at random from a distribution with a seed.

A router sends each token to some experts, and no trace says to which ones on other ranks. ``uniform``: all experts are equally
likely. ``zipf``: the k-th expert is 1/k^skew times as likely as the first (Zipf's law), in random order. ``power-law``:
the likelihoods are drawn from a Pareto distribution of exponent ``skew``. ``balanced``: all experts get the same;
``consecutive``: so they do, and each token's are neighbours, which few ranks have (NeMo AutoModel's ``fake_balanced_gate``).
With a capacity factor (Fedus et al. 2021, "Switch Transformers", section 2.2) an expert takes from each rank at most that many
times the mean; the other tokens are dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from triosim.errors import OptionError

Load = Literal["uniform", "zipf", "power-law", "balanced", "consecutive"]
LOADS: tuple[Load, ...] = ("uniform", "zipf", "power-law", "balanced", "consecutive")


@dataclass(frozen=True, slots=True)
class LoadDistribution:
    """A distribution of tokens over experts. ``capacity`` is the capacity factor, None where experts take all tokens."""

    load: Load = "uniform"
    skew: float = 1.0
    seed: int = 0
    capacity: float | None = None

    @property
    def is_random(self) -> bool:
        """Whether tokens are drawn, anew for each iteration."""
        return self.load not in ("balanced", "consecutive")

    def tokens(
        self, ranks: int, experts: int, rows: int, *, layer: int, iteration: int
    ) -> tuple[npt.NDArray[np.float64], float]:
        """Return the rows that each rank of a group has for each expert (an array: rank, expert), and how many are dropped.

        ``rows`` are those of a rank: its tokens, each as often as it has experts. Layers and iterations are drawn separately.
        """
        if not self.is_random:
            counts = np.full((ranks, experts), rows / experts)
        else:
            random = np.random.default_rng((self.seed, iteration, layer))
            counts = random.multinomial(rows, self.likelihoods(experts, random), size=ranks).astype(np.float64)
        most = math.inf if self.capacity is None else math.ceil(self.capacity * rows / experts)
        kept = np.minimum(counts, most)
        return kept, float(counts.sum() - kept.sum())

    def likelihoods(self, experts: int, random: np.random.Generator) -> npt.NDArray[np.float64]:
        """Draw how likely each expert is; they sum to 1."""
        if self.load == "uniform":
            return np.full(experts, 1.0 / experts)
        if self.load == "zipf":
            weights = random.permutation(np.arange(1, experts + 1, dtype=np.float64) ** -self.skew)
        else:
            weights = 1.0 + random.pareto(self.skew, experts)
        found: npt.NDArray[np.float64] = weights / weights.sum()
        return found


def load_of(text: str, where: str) -> LoadDistribution:
    """Return the distribution that a text such as ``zipf=1.2,seed=3`` describes: a load, its exponent, and a seed.

    Raises ``OptionError`` about the option ``where``.
    """
    fix = "write 'balanced' or 'zipf=1.2,seed=3'"
    first, *others = text.split(",")
    load, _, skew = first.strip().partition("=")
    if load not in LOADS:
        raise OptionError(f"'{load}' is no load of experts: {', '.join(LOADS)}", where=where, fix=fix)
    given = {"skew": skew.strip()} if "=" in first else {}
    for one in others:
        key, _, value = one.partition("=")
        if key.strip() not in ("seed", "skew") or key.strip() in given:
            raise OptionError(f"'{one.strip()}' is neither seed=N nor skew=X, once", where=where, fix=fix)
        given[key.strip()] = value.strip()
    if "skew" in given and load not in ("zipf", "power-law"):
        raise OptionError(f"{load} has no exponent", where=where, fix=f"write '{load}'")
    try:
        exponent, seed = float(given.get("skew", 1.0)), int(given.get("seed", 0))
    except ValueError:
        raise OptionError(f"'{text}' has something that is no number", where=where, fix=fix) from None
    if not (math.isfinite(exponent) and seed >= 0 and (exponent > 0 or (load == "zipf" and exponent == 0))):
        raise OptionError("the exponent is a positive number, the seed 0 or more", where=where, fix=fix)
    return LoadDistribution(load, exponent, seed)


class TokenExchange:
    """The rows of one layer that each rank of a group sends to each in dispatch; ``kept`` rows are sent, ``dropped`` are not.

    ``rows`` are those that each rank has for each expert; the experts are divided among the ranks in order.
    """

    def __init__(self, rows: npt.NDArray[np.float64], dropped: float) -> None:
        ranks = len(rows)
        self.dropped = dropped
        self.kept = float(rows.sum())
        self._sent = rows.reshape(ranks, ranks, -1).sum(axis=2)
        self._received = rows.sum(axis=0).reshape(ranks, -1).sum(axis=1)
        self._shares: dict[tuple[float, bool], tuple[float, ...]] = {}

    def rows(self, coordinate: int | None) -> int:
        """Return the rows that a rank's experts receive, one at least; for None the mean of all ranks of the group."""
        received = self._received.mean() if coordinate is None else self._received[coordinate]
        return max(1, round(float(received)))

    def rows_by_rank(self) -> tuple[float, ...] | None:
        """Return how many rows of each rank go to the experts of each, by the rank of the tokens; None where all are equal."""
        return None if (self._sent == self._sent[0, 0]).all() else tuple(self._sent.ravel().tolist())

    def nbytes(self, row_bytes: float) -> float:
        """Return the bytes that a rank sends, the mean of all."""
        return sum(float(load) / len(self._received) * row_bytes for load in self._received)

    def shares(self, row_bytes: float, *, combine: bool) -> tuple[float, ...] | None:
        """Return the bytes from each rank to each, by sender: in dispatch, or in ``combine``. None where all are equal."""
        if (self._sent == self._sent[0, 0]).all():
            return None
        if (row_bytes, combine) not in self._shares:  # kept, so that the programs of all ranks share one tuple
            sent = self._sent.T if combine else self._sent
            self._shares[row_bytes, combine] = tuple((sent * row_bytes).ravel().tolist())
        return self._shares[row_bytes, combine]
