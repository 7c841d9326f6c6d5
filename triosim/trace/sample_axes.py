"""Counts the samples of a step of many ranks, by the groups in which ranks share samples or have their own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class SampleAxes:
    """The names of the axes whose ranks reduce gradients (``data_parallel``), so that each has samples of its own, and of those
    whose ranks have parts of the same samples (``context_parallel``)."""

    data_parallel: frozenset[str] = frozenset()
    context_parallel: frozenset[str] = frozenset()

    def joined(self, other: SampleAxes) -> SampleAxes:
        """Return the axes of both."""
        return SampleAxes(self.data_parallel | other.data_parallel, self.context_parallel | other.context_parallel)

    def replicas(self, axes: Mapping[str, Groups]) -> int:
        """Return how many times the samples of a rank are in the global batch; ``axes`` are the groups of all axes.

        Gradients are reduced over the ranks of a sample too, where FSDP shards over both axes.
        """
        parts = _different(axes, self.context_parallel)
        return math.prod(_separate(groups[0], parts) for groups in _different(axes, self.data_parallel))

    def parts(self, axes: Mapping[str, Groups]) -> int:
        """Return in how many parts a sample is."""
        return math.prod(len(groups[0]) for groups in _different(axes, self.context_parallel))


def _different(axes: Mapping[str, Groups], names: frozenset[str]) -> tuple[Groups, ...]:
    return tuple(dict.fromkeys(axes[name] for name in sorted(names) if name in axes))


def _separate(ranks: tuple[int, ...], parts: tuple[Groups, ...]) -> int:
    """Return how many of some ranks have samples of their own."""
    shared = [max(len({*ranks} & {*group}) for group in groups) for groups in parts]
    return len(ranks) // math.prod(max(1, one) for one in shared)
