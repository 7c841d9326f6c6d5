"""Boosted regression trees: the sum of many small trees, evaluated by bit masks with numpy alone.

QuickScorer (Lucchese et al., SIGIR 2015): number a tree's leaves from left to right. A test that fails rules out the leaves
to its left, and of those that no failed test rules out, the leftmost is the one that is reached. A feature's value fails the
tests on it whose thresholds lie below, so what it rules out in all trees at once is one row of a table. A tree has at
most 64 leaves, the bits of a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from triosim.compute.compute_model import Array

MOST_LEAVES = 64
_ROWS_AT_ONCE = 128
#: The arrays of a file that are attributes too.
_STORED = {
    "tree": np.uint16, "feature": np.uint8, "edge": np.uint8, "first": np.uint8, "last": np.uint8, "leaves": np.float32,
}  # fmt: skip


@dataclass(frozen=True)
class BoostedTrees:
    """Trees with at most 64 leaves each.

    One entry per test: ``tree``, ``feature``, ``edge`` (which of the feature's ``edges``; a value above it fails the test),
    and the leaves to its left, from ``first`` up to ``last`` (exclusive). ``leaves`` has a row for each tree.
    """

    edges: tuple[Array, ...]
    tree: npt.NDArray[np.uint16]
    feature: npt.NDArray[np.uint8]
    edge: npt.NDArray[np.uint8]
    first: npt.NDArray[np.uint8]
    last: npt.NDArray[np.uint8]
    leaves: npt.NDArray[np.float32]
    offset: float

    def __post_init__(self) -> None:
        sizes = {len(part) for part in (self.tree, self.feature, self.edge, self.first, self.last)}
        if len(sizes) != 1 or self.leaves.ndim != 2 or self.leaves.shape[1] > MOST_LEAVES:
            raise ValueError("the arrays of the trees do not belong together")

    def predict(self, features: Array) -> Array:
        """Return the sum over all trees, for each row of ``features``."""
        rows, trees = len(features), len(self.leaves)
        found = np.empty(rows)
        masks = self._masks
        start = np.arange(trees) * self.leaves.shape[1]
        flat = self.leaves.ravel()
        ranks = [np.searchsorted(self.edges[f], features[:, f]) for f in masks]
        room = np.empty((2, _ROWS_AT_ONCE, trees), dtype=np.uint64)
        for low in range(0, rows, _ROWS_AT_ONCE):
            part = slice(low, min(low + _ROWS_AT_ONCE, rows))
            reached, left = room[:, : part.stop - low]
            reached.fill(np.uint64(0xFFFFFFFFFFFFFFFF))
            for rank, table in zip(ranks, masks.values(), strict=True):
                np.take(table, rank[part], axis=0, out=left, mode="clip")  # "clip" writes to ``out`` without a copy
                np.bitwise_and(reached, left, out=reached)
            np.negative(reached, out=left)
            lowest = np.bitwise_and(reached, left, out=left)
            leaf = (lowest.astype(np.float64).view(np.int64) >> 52) - 1023  # the exponent of a power of two
            found[part] = flat[leaf + start].sum(axis=1, dtype=np.float64)
        return found + self.offset

    @cached_property
    def _masks(self) -> dict[int, npt.NDArray[np.uint64]]:
        """For each tested feature, the leaves that each tree has left, by how many edges lie below a value."""
        one = np.uint64(1)
        left = ((one << self.last.astype(np.uint64)) - one) & ~((one << self.first.astype(np.uint64)) - one)
        found = {}
        for feature in np.unique(self.feature):
            tests = self.feature == feature
            table = np.full((len(self.edges[feature]) + 1, len(self.leaves)), np.uint64(0xFFFFFFFFFFFFFFFF))
            np.bitwise_and.at(table, (self.edge[tests].astype(np.int64) + 1, self.tree[tests]), ~left[tests])
            found[int(feature)] = np.bitwise_and.accumulate(table, axis=0)
        return found

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays that a file stores, by name behind a prefix."""
        return {
            f"{prefix}.edges": np.concatenate(self.edges),
            f"{prefix}.edge_counts": np.array([len(edges) for edges in self.edges], dtype=np.uint16),
            **{f"{prefix}.{name}": getattr(self, name) for name in _STORED},
            f"{prefix}.leaves": self.leaves.astype(np.float16),  # of some 500 trees, each rounded by 0.05% at most
            f"{prefix}.offset": np.array(self.offset),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[np.generic]], prefix: str) -> BoostedTrees:
        """Return the trees of such arrays."""
        counts = arrays[f"{prefix}.edge_counts"].astype(np.int64)
        edges = np.split(arrays[f"{prefix}.edges"].astype(np.float64), np.cumsum(counts)[:-1])
        stored: dict[str, Any] = {name: arrays[f"{prefix}.{name}"].astype(dtype) for name, dtype in _STORED.items()}
        return cls(tuple(edges), **stored, offset=float(arrays[f"{prefix}.offset"].astype(np.float64)))
