"""The shapes in which programs of one structure differ, such as those of ranks whose experts receive other rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from operator import attrgetter

from triosim.extrapolators.core.program import Block, BlockItem, Communicate, Program
from triosim.trace import Operator

_CALL = attrgetter("id", "name", "layer", "stream", "recomputed")
_TENSOR = attrgetter("id", "storage", "dtype", "category", "parameter")


@dataclass(frozen=True, slots=True)
class ShapeDifferences:
    """The operators, and the storages of their tensors, that do not have the same shapes in all programs, by id."""

    operators: frozenset[int] = frozenset()
    storages: frozenset[int] = frozenset()


def shape_differences(programs: Iterable[Program]) -> ShapeDifferences | None:
    """Return in which shapes programs differ; None where they differ in more than these and times.

    All-to-alls may differ in their sizes: what arrives from one is a buffer, which has no storage.
    """
    first, *others = programs
    operators: set[int] = set()
    storages: set[int] = set()
    for other in others:
        if _structure(first) != _structure(other):
            return None
        for one, two in _unlike_items(first, other):
            if isinstance(one, Operator) and isinstance(two, Operator):
                changed = _reshaped(one, two)
                if changed is None:
                    return None
                if changed:
                    operators.add(one.id)
                    storages.update(changed)
            elif not (_is_all_to_all(one) and _is_all_to_all(two)) and one != two:
                return None
    return ShapeDifferences(frozenset(operators), frozenset(storages))


def _structure(program: Program) -> tuple[object, ...]:
    """Return what must be the same in two programs, except the items of their blocks."""
    parts = [[(block.layer, block.phase) for block in blocks] for blocks in _parts(program)]
    return parts, program.schedule, program.kept_until, program.weight_part, program.buffers, program.training


def _parts(program: Program) -> Iterator[tuple[Block, ...]]:
    for stage in program.stages:
        yield from (stage.forward, stage.backward, stage.optimizer)
    yield from program.optimizers


def _unlike_items(first: Program, other: Program) -> Iterator[tuple[BlockItem | None, BlockItem | None]]:
    """Yield the items at one place of two programs that are not one object; None where one of the two has no other item."""
    blocks = zip(chain.from_iterable(_parts(first)), chain.from_iterable(_parts(other)), strict=True)
    for one, two in blocks:
        if one is not two:
            yield from (pair for pair in zip_longest(one.items, two.items) if pair[0] is not pair[1])


def _is_all_to_all(item: BlockItem | None) -> bool:
    return isinstance(item, Communicate) and item.kind == "all_to_all"


def _reshaped(one: Operator, two: Operator) -> list[int] | None:
    """Return the storages of the tensors that have other shapes in a call; None where it differs in more than shapes."""
    if _CALL(one) != _CALL(two) or len(one.inputs) != len(two.inputs) or len(one.outputs) != len(two.outputs):
        return None
    found = []
    for a, b in zip((*one.inputs, *one.outputs), (*two.inputs, *two.outputs), strict=True):
        if a is not b:
            if _TENSOR(a) != _TENSOR(b):
                return None
            if a.shape != b.shape:
                found.append(a.storage)
    return found
