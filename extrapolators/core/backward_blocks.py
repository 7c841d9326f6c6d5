"""The forward block that each backward block of a stage belongs to."""

from __future__ import annotations

from collections.abc import Iterable

from triosim.errors import TraceError
from triosim.extrapolators.core.program import Stage


def forward_block_of_each_backward(stage: Stage) -> list[int]:
    """Return the index of the forward block to which each backward block of a stage belongs.

    A backward operator belongs where the operator is that it differentiates. One that does not say (the sum of the gradients
    of a tensor that is used twice) goes where its result is read, or else with its layer or the operators around it.
    """
    place_of = {op.id: i for i, block in enumerate(stage.forward) for op in block.operators}
    layers = {block.layer: i for i, block in enumerate(stage.forward)}
    linked = [_first(place_of.get(op.forward) for op in b.operators if op.forward is not None) for b in stage.backward]
    readers: dict[int, int] = {}  # storage: the place of the next operator that reads it
    found: list[int | None] = []
    for block, place in zip(reversed(stage.backward), reversed(linked), strict=True):
        if place is None:
            place = _first(readers.get(tensor.storage) for op in block.operators for tensor in op.outputs)
        if place is None:
            place = layers.get(block.layer)
        if place is not None:
            readers.update((tensor.storage, place) for op in block.operators for tensor in op.inputs)
        found.append(place)
    found.reverse()
    if stage.backward and all(place is None for place in found):
        raise TraceError(
            "the backward operators name neither forward operators nor layers, so they cannot be divided into stages",
            fix="capture the trace with its execution graph, or simulate inference",
        )
    current = _first(found) or 0
    places = []
    for place in found:
        current = current if place is None else place
        places.append(current)
    return places


def _first(places: Iterable[int | None]) -> int | None:
    return next((place for place in places if place is not None), None)
