"""Operators as compute models see them: what is the same is described, and asked about, once.

A network repeats its layers, so that most operators of a step have the name, shapes and attributes of one before them, and
thus its FLOPs, bytes and predicted time. Several models look at the same operators, and find what the first one found.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, wraps
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from triosim.compute import shapes
from triosim.compute.base import Array, ComputeModel, Estimates
from triosim.operators import features
from triosim.trace import Operator

Places = npt.NDArray[np.int64]
Model = TypeVar("Model", bound=ComputeModel)


class Operators(Sequence[Operator]):
    """A sequence of operators that remembers what was found out about them; without ``once``, of each by itself."""

    def __init__(self, operators: Iterable[Operator], *, once: bool = True) -> None:
        self._all = tuple(operators)
        self._once = once

    @classmethod
    def of(cls, operators: Sequence[Operator]) -> Operators:
        """Return the operators as such a sequence: themselves if they are one."""
        return operators if isinstance(operators, Operators) else cls(operators)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Operator]:
        return iter(self._all)

    @overload
    def __getitem__(self, place: int) -> Operator: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Operator, ...]: ...
    def __getitem__(self, place: int | slice) -> Operator | tuple[Operator, ...]:
        return self._all[place]

    @cached_property
    def forwards(self) -> list[Operator | None]:
        """For each operator the forward operator that it differentiates, where that is among them; None where not."""
        by_id = {operator.id: operator for operator in self._all if operator.phase == "forward"}
        return [None if operator.forward is None else by_id.get(operator.forward) for operator in self._all]

    @cached_property
    def drivers(self) -> Array:
        """FLOPs, bytes read and bytes written (``triosim.operators.features``): a row for each operator."""
        different, places = self.different
        if different is not self:
            return different.drivers[places]
        rows = [
            (features.flops(one, forward), features.input_bytes(one, forward), features.output_bytes(one, forward))
            for one, forward in zip(self._all, self.forwards, strict=True)
        ]
        return np.array(rows, dtype=np.float64).reshape(len(rows), 3)

    @cached_property
    def calls(self) -> list[tuple[Places, shapes.Shapes]]:
        """The calls by family and dtype, each with the places of its operators (``triosim.compute.shapes``)."""
        return shapes.of(self._all)

    @cached_property
    def gradients(self) -> list[tuple[Places, shapes.Shapes]]:
        """The products that the backward of products are: two for most, each with the place of its operator."""
        return shapes.of_gradients(self._all, self.forwards, features.gradients_made)

    @cached_property
    def different(self) -> tuple[Operators, Places]:
        """One operator for all that are the same, and for each operator the place of its own among them."""
        if not self._once:
            return self, np.arange(len(self._all), dtype=np.int64)
        forwards, first = self.forwards, {id(one): row for row, one in enumerate(self._all)}
        seen: dict[Hashable, int] = {}
        sizes: dict[Hashable, int] = {}  # a number for all tensors of one size: to compare numbers takes less time
        places = [-1] * len(self._all)
        ones: list[Operator] = []

        def place(row: int) -> int:
            if places[row] < 0:
                operator, forward = self._all[row], forwards[row]
                of = -1 if forward is None else place(first[id(forward)])
                found = places[row] = seen.setdefault((*_looks(operator, sizes), of), len(ones))
                if found == len(ones):
                    ones.append(operator if of < 0 else replace(operator, forward=ones[of].id))
            return places[row]

        for row in range(len(self._all)):
            place(row)
        found = np.array(places, dtype=np.int64)
        return (self, found) if len(ones) == len(self._all) else (Operators(ones), found)


def each_once(
    estimate: Callable[[Model, Sequence[Operator], str], Estimates],
) -> Callable[[Model, Sequence[Operator], str], Estimates]:
    """Make a model's ``estimate`` answer for operators that are the same by asking about one of them."""

    @wraps(estimate)
    def asked(self: Model, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        different, places = Operators.of(operators).different
        found = estimate(self, different, gpu)
        if len(different) == len(operators):
            return found
        names = [found.model[place] for place in places.tolist()]
        return Estimates(found.seconds[places], found.relative_error[places], names)

    return asked


def _looks(operator: Operator, sizes: dict[Hashable, int]) -> tuple[Hashable, ...]:
    """Return all that an operator's features depend on, but for the operator that it differentiates."""
    given = {tensor.storage for tensor in operator.inputs}
    in_place = given.issuperset([tensor.storage for tensor in operator.outputs])
    attributes = repr(operator.attributes) if operator.attributes else ""
    tensors = (*operator.inputs, *operator.outputs)
    numbers = [sizes.setdefault((tensor.shape, tensor.dtype, tensor.category), len(sizes)) for tensor in tensors]
    return operator.name, operator.phase, attributes, len(operator.inputs), tuple(numbers), in_place
