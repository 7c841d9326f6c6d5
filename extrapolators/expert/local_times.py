"""The times of experts' operators for any number of rows that a rank receives: equal calls of all layers are priced once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from triosim.compute.compute_model import ComputeModel
from triosim.compute.operator_sequence import OperatorNumbers, OperatorSequence
from triosim.compute.pricing.repricing import estimated, reshaped, same_shapes
from triosim.extrapolators.expert.local_operators import LocalCall
from triosim.trace import Operator

_TIMES = attrgetter("seconds", "busy_seconds", "flops", "predicted_by", "relative_error")
_Key = tuple[int, int]  # the number of a distinct call, and the rows


class LocalTimes:
    """The times of the calls of some layers, each of which has the forward operators that its calls differentiate.

    Without ``deduplicate``, equal calls count as distinct.
    """

    def __init__(
        self, layers: Sequence[Sequence[LocalCall]], model: ComputeModel, gpu: str, *, deduplicate: bool
    ) -> None:
        self._model, self._gpu = model, gpu
        calls = [call for layer in layers for call in layer]
        identities = _identities(calls) if deduplicate else range(len(calls))
        numbers: dict[Hashable, int] = {}
        self._calls: list[LocalCall] = []  # the distinct ones
        for identity, call in zip(identities, calls, strict=True):
            if identity not in numbers:
                numbers[identity] = len(self._calls)
                self._calls.append(call)
        of = {call.operator.id: numbers[identity] for identity, call in zip(identities, calls, strict=True)}
        self._layers = [[of[call.operator.id] for call in layer] for layer in layers]
        forwards = [call.operator.forward for call in self._calls]
        self._forwards = [None if forward is None else of.get(forward) for forward in forwards]
        ids = [None if forward is None else self._calls[forward].operator.id for forward in self._forwards]
        known = (replace(call.operator, forward=one) for call, one in zip(self._calls, ids, strict=True))
        self._known = OperatorSequence(known, deduplicate=False)
        self._times: dict[_Key, Operator] = {}

    def of(self, layer: int, rows: int) -> list[Operator]:
        """Return operators that take the times of a layer's calls with so many rows, once these were found."""
        return [self._times[number, rows] for number in self._layers[layer]]

    def know(self, needed: Iterable[tuple[int, int]]) -> bool:
        """Whether the times of layers with numbers of rows were found."""
        return all((number, rows) in self._times for layer, rows in needed for number in self._layers[layer])

    def find(self, needed: Iterable[tuple[int, int]]) -> None:
        """Find the times of layers with numbers of rows, all at once."""
        new: dict[_Key, Operator] = {}
        for layer, rows in needed:
            for number in self._layers[layer]:
                if (number, rows) not in self._times:
                    self._add(number, rows, new)
        for is_added, times_of in ((True, self._predicted), (False, self._scaled)):
            keys = [key for key in new if self._calls[key[0]].added == is_added]
            if keys:
                self._times.update(zip(keys, times_of(keys, new), strict=True))

    def _add(self, number: int, rows: int, new: dict[_Key, Operator]) -> int:
        """Add a call with a number of rows and the forward call that it differentiates, and return its id among these."""
        if (number, rows) not in new:
            forward = self._forwards[number]
            of = None if forward is None else self._add(forward, rows, new)
            new[number, rows] = self._calls[number].of(rows, len(new), of)
        return new[number, rows].id

    def _predicted(self, keys: Sequence[_Key], new: Mapping[_Key, Operator]) -> Iterable[Operator]:
        return estimated(OperatorSequence(map(new.__getitem__, keys), deduplicate=False), self._model, self._gpu)

    def _scaled(self, keys: Sequence[_Key], new: Mapping[_Key, Operator]) -> Iterable[Operator]:
        """Yield calls with the times that they have in other shapes, scaled; they are as they were in the same shapes."""
        before = OperatorSequence.repeating(self._known, [number for number, _ in keys])
        after = OperatorSequence(map(new.__getitem__, keys), deduplicate=False)
        for key, one in zip(keys, reshaped(before, after, self._model, self._gpu), strict=True):
            yield one if self._is_reshaped(*key, new) else self._calls[key[0]].operator

    def _is_reshaped(self, number: int, rows: int, new: Mapping[_Key, Operator]) -> bool:
        """Whether a call, or the one that it differentiates, has other shapes with so many rows than those of its time."""
        forward = self._forwards[number]
        own = not same_shapes(self._calls[number].operator, new[number, rows])
        return own or (forward is not None and self._is_reshaped(forward, rows, new))


def _identities(calls: Sequence[LocalCall]) -> list[Hashable]:
    """Return what equal calls have in common: features and times as they are, and features for any number of rows."""
    far = 1 + max(size for one in calls for tensor in (*one.inputs, *one.outputs) for size in tensor.tensor.shape)
    before = OperatorNumbers().of(OperatorSequence(call.operator for call in calls))
    # With more rows than any dimension has, sizes are equal where they are with any number of rows.
    after = OperatorNumbers().of(
        OperatorSequence(call.of(far, call.operator.id, call.operator.forward) for call in calls)
    )
    times = [(call.added, *_TIMES(call.operator)) for call in calls]
    return list(zip(before, after, times, strict=True))
