"""The operators that the ranks of a run executed, as columns, which figures add up by layer, by name or by model.

Sums are added in the order in which the operators ran, so that they are the same to the last bit however they are grouped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from triosim.results.finished_run import RankClass
from triosim.trace import Operator, Phase

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Key = TypeVar("Key", bound=Hashable)
Tasks = Sequence[tuple[tuple[Operator, ...], int]]


class OperatorKind(NamedTuple):
    """What figures tell operators apart by; ``model`` is what predicted their times, None where they were measured."""

    name: str
    layer: str
    phase: Phase
    model: str | None


_Kind = tuple[str, str, Phase, str | None]  # quicker to make, millions of times
_KIND: Callable[[Operator], _Kind] = attrgetter("name", "layer", "phase", "predicted_by")


@dataclass(frozen=True, slots=True)
class ClassColumns:
    """The operators of ranks that ran the same ones: how often each ran, its seconds and the number of its kind.

    ``rows`` are those of the operators in ``OperatorColumns.operators``. ``errors`` are the relative errors that are expected
    of the seconds, NaN where they are not known. ``launches`` are the seconds that launching each costs the host.
    """

    ranks: Sequence[int]
    rows: Integers
    runs: Integers
    seconds: Floats
    errors: Floats
    kinds: Integers
    launches: Floats

    @property
    def launching(self) -> float:
        """The seconds that the host of a rank launches operators in the run."""
        return float(self.runs @ self.launches)

    @property
    def spent(self) -> Floats:
        """The seconds that a rank spends on each operator in the run."""
        return self.runs * self.seconds


class OperatorColumns:
    """The operators of all ranks, by classes of ranks; ``kinds`` in the order in which they first ran.

    Classes share most of the ``operators``: the columns of each are read once.
    """

    def __init__(self, classes: Iterable[RankClass]) -> None:
        different = _DifferentOperators()
        ran = [(ranks, different.rows(tasks), _runs(tasks)) for ranks, tasks in classes]
        self.operators: Sequence[Operator] = different.operators
        numbers: dict[_Kind, int] = {}
        kinds = np.array([numbers.setdefault(_KIND(one), len(numbers)) for one in self.operators], dtype=np.int64)
        seconds = np.array([one.seconds for one in self.operators], dtype=np.float64)
        errors = np.array([one.relative_error for one in self.operators], dtype=np.float64)  # None becomes NaN
        launches = np.array([one.host_seconds or 0.0 for one in self.operators], dtype=np.float64)
        self.classes = [
            ClassColumns(ranks, rows, runs, seconds[rows], errors[rows], kinds[rows], launches[rows])
            for ranks, rows, runs in ran
        ]
        self.kinds = tuple(OperatorKind(*kind) for kind in numbers)

    @property
    def world(self) -> int:
        """The number of ranks."""
        return sum(len(one.ranks) for one in self.classes)

    def groups(self, key: Callable[[OperatorKind], Key]) -> tuple[list[Key], Integers]:
        """Return the different keys of the kinds, and which of them each kind has."""
        found: dict[Key, int] = {}
        of = [found.setdefault(key(kind), len(found)) for kind in self.kinds]
        return list(found), np.array(of, dtype=np.int64)


def sums(groups: Integers, values: npt.NDArray[np.generic], count: int) -> Floats:
    """Return the sum of the values of each of ``count`` groups, added one after the other."""
    return np.bincount(groups, weights=values, minlength=count).astype(np.float64, copy=False)


def added(values: Floats, begun: float = 0.0) -> float:
    """Return ``begun`` and the values, added one after the other."""
    return float(np.add.accumulate(np.concatenate([[begun], values]))[-1])


def in_order(groups: Integers) -> list[int]:
    """Return the groups that occur, in order."""
    found, first = np.unique(groups, return_index=True)
    ordered: list[int] = found[np.argsort(first)].tolist()
    return ordered


class _DifferentOperators:
    """Different operators, in the order in which they first ran."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self._rows: dict[int, int] = {}  # by id(): to hash an operator would cost more than to read its columns

    def rows(self, tasks: Tasks) -> Integers:
        """Return the row of each operator of some tasks."""
        operators = list(chain.from_iterable(some for some, _ in tasks))
        keys = list(map(id, operators))
        for key, operator in zip(keys, operators, strict=True):
            if key not in self._rows:
                self._rows[key] = len(self.operators)
                self.operators.append(operator)
        return np.array(list(map(self._rows.__getitem__, keys)), dtype=np.int64)


def _runs(tasks: Tasks) -> Integers:
    """Return how often each operator of some tasks ran."""
    return np.repeat(np.array([runs for _, runs in tasks], np.int64), [len(some) for some, _ in tasks])
