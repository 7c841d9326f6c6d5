"""Ratios of operator times that a model was asked for before: ranks whose programs differ in some shapes ask for many again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy

import numpy as np

from triosim.compute.compute_model import Estimates
from triosim.compute.operator_sequence import OperatorNumbers, OperatorSequence


class RememberedRatios:
    """The ratios of pairs of operators. Equal pairs, of operators that took equally long, have one ratio."""

    def __init__(self) -> None:
        self._numbers = OperatorNumbers()
        self._before: tuple[OperatorSequence, list[int]] | None = None  # those of the last question, with their numbers
        self._known: dict[Hashable, int] = {}  # the place of each pair in the lists
        self._seconds: list[float] = []
        self._errors: list[float] = []
        self._models: list[str] = []

    def __copy__(self) -> RememberedRatios:
        """Return what is remembered so far; what either is asked from now on the other does not know."""
        other = RememberedRatios()
        other._numbers, other._before = copy(self._numbers), self._before
        other._known, other._models = dict(self._known), list(self._models)
        other._seconds, other._errors = list(self._seconds), list(self._errors)
        return other

    def of(
        self,
        before: OperatorSequence,
        after: OperatorSequence,
        ask: Callable[[OperatorSequence, OperatorSequence], Estimates],
    ) -> Estimates:
        """Return the ratio of each pair; ``ask`` is called for those that are not known, and their forward operators."""
        if self._before is None or self._before[0] is not before:
            self._before = before, self._numbers.of(before)
        seconds = [operator.seconds for operator in before]
        pairs = list(zip(self._before[1], self._numbers.of(after), seconds, strict=True))
        new = {pair: row for row, pair in enumerate(pairs) if pair not in self._known}
        if new:
            rows = {
                *new.values(),
                *(row for row in map(after.forward_rows.__getitem__, new.values()) if row is not None),
            }
            asked = sorted(rows)
            found = ask(*(OperatorSequence(map(some.__getitem__, asked)) for some in (before, after)))
            for row, *one in zip(
                asked, found.seconds.tolist(), found.relative_error.tolist(), found.model, strict=True
            ):
                self._add(pairs[row], *one)
        places = [self._known[pair] for pair in pairs]
        return Estimates(
            np.array(self._seconds)[places], np.array(self._errors)[places], [self._models[place] for place in places]
        )

    def _add(self, pair: Hashable, seconds: float, error: float, model: str) -> None:
        if pair not in self._known:
            self._known[pair] = len(self._seconds)
            self._seconds.append(seconds)
            self._errors.append(error)
            self._models.append(model)
