"""How many tokens go to each expert of a mixture: drawn by chance from a stated distribution, with a seed.

A router sends each token to some experts, and no trace says to which ones on other ranks. ``uniform``: every expert is as
likely. ``zipf``: the expert of place k is 1/k^skew as likely as the first (Zipf's law), places by chance. ``power-law``:
experts are as likely as numbers drawn from a Pareto distribution of exponent ``skew``. ``balanced``: no chance, each has the
same. With a capacity factor (Fedus et al. 2021, "Switch Transformers", section 2.2) an expert takes from each rank at most that
many times the mean; the rest is dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Load = Literal["uniform", "zipf", "power-law", "balanced"]
LOADS: tuple[Load, ...] = ("uniform", "zipf", "power-law", "balanced")


@dataclass(frozen=True, slots=True)
class Routing:
    """What is drawn. ``capacity`` is a factor, None where experts take all that comes."""

    load: Load = "uniform"
    skew: float = 1.0
    seed: int = 0
    capacity: float | None = None

    def tokens(
        self, ranks: int, experts: int, rows: int, *, layer: int, iteration: int
    ) -> tuple[npt.NDArray[np.float64], float]:
        """Return how many rows each rank of a group has for each expert (rows by rank), and how many are dropped in all.

        ``rows`` are those of a rank: its tokens, as often as each has experts. Layers, and iterations, are drawn one by one.
        """
        if self.load == "balanced":
            counts = np.full((ranks, experts), rows / experts)
        else:
            chance = np.random.default_rng((self.seed, iteration, layer))
            counts = chance.multinomial(rows, self._likely(experts, chance), size=ranks).astype(np.float64)
        most = math.inf if self.capacity is None else math.ceil(self.capacity * rows / experts)
        kept = np.minimum(counts, most)
        return kept, float(counts.sum() - kept.sum())

    def _likely(self, experts: int, chance: np.random.Generator) -> npt.NDArray[np.float64]:
        if self.load == "uniform":
            return np.full(experts, 1.0 / experts)
        if self.load == "zipf":
            weights = chance.permutation(np.arange(1, experts + 1, dtype=np.float64) ** -self.skew)
        else:
            weights = 1.0 + chance.pareto(self.skew, experts)
        found: npt.NDArray[np.float64] = weights / weights.sum()
        return found
