"""Which units of a program are alike: the same calls in the same shapes and times, with the same things in common.

A unit's tensors are its own, or common to all units, or shared with the next unit alone, each with its next in the same way
(the residual stream, and its gradient). Then nothing but numbers and names tells one from another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Literal

from triosim.extrapolators.core.program import Block, Program
from triosim.extrapolators.deduplication.renaming import Names
from triosim.trace import Operator
from triosim.trace.numbered_modules import ROOT, numbered_module_of

Pass = Literal["forward", "backward"]
PASSES: tuple[Pass, Pass] = ("forward", "backward")
#: What must be the same of two operators, beside their tensors, their layers and what they differentiate.
_CALL = attrgetter(
    *("name", "phase", "seconds", "busy_seconds", "host_seconds", "flops", "kernels", "predicted_by", "relative_error"),
    *("attributes", "stream", "communication", "recomputed"),
)


@dataclass(frozen=True, slots=True)
class Unit:
    """The blocks from the first of a repeated module to the next module's: their places in either pass, their operators."""

    name: str
    places: Mapping[Pass, range]
    operators: tuple[Operator, ...]
    looks: tuple[tuple[str, int, int], ...]

    def layer(self, layer: str, other: Unit) -> str:
        """Return the name that a layer of this unit has in another one."""
        inside = layer == self.name or layer.startswith(f"{self.name}.")
        return other.name + layer[len(self.name) :] if inside else layer


def longest_run(program: Program) -> list[Unit]:
    """The most units one behind the other that look the same: in their calls, and in how many tensors these have."""
    longest: list[Unit] = []
    run: list[Unit] = []
    for unit in _units(program):
        run = [*run, unit] if run and run[-1].looks == unit.looks and _is_next(run[-1], unit) else [unit]
        longest = max(longest, run, key=len)
    return longest


def _is_next(unit: Unit, other: Unit) -> bool:
    """Whether another unit is behind one in the forward pass, and ahead of it in the backward pass."""
    forward, backward = ((unit.places[which], other.places[which]) for which in PASSES)
    return forward[0].stop == forward[1].start and backward[0].start == backward[1].stop


def _units(program: Program) -> Iterator[Unit]:
    """Yield the modules that repeat and have one place in each pass, in the order of the forward pass."""
    if len(program.stages) != 1:
        return
    (stage,) = program.stages
    forward, backward = _places(stage.forward), _places(stage.backward)
    for name, places in forward.items():
        if name not in backward and stage.backward:
            continue
        behind = backward.get(name, range(0))
        items = [
            item
            for blocks in (stage.forward[places.start : places.stop], stage.backward[behind.start : behind.stop])
            for block in blocks
            for item in block.items
        ]
        operators = tuple(item for item in items if isinstance(item, Operator))
        if len(operators) == len(items):
            looks = tuple((one.name, len(one.inputs), len(one.outputs)) for one in operators)
            yield Unit(name, {"forward": places, "backward": behind}, operators, looks)


def _places(blocks: Sequence[Block]) -> dict[str, range]:
    """The blocks from the first of each unit to the next one's; none where a unit comes twice."""
    starts: dict[str, int] = {}
    current = ROOT
    for place, block in enumerate(blocks):
        unit = numbered_module_of(block.layer)
        if unit in (ROOT, current):
            continue
        if unit in starts:
            return {}
        starts[unit] = place
        current = unit
    ends = pairwise((*starts.values(), len(blocks)))
    return {unit: range(*both) for unit, both in zip(starts, ends, strict=True)}


def matched(one: Unit, other: Unit) -> Names | None:
    """The ids of another unit by those of one that looks the same; None where the two are not alike."""
    tensors: dict[int, int] = {}
    storages: dict[int, int] = {}
    layers: dict[str, str] = {}
    numbers = {a.id: b.id for a, b in zip(one.operators, other.operators, strict=True)}
    for a, b in zip(one.operators, other.operators, strict=True):
        forward = None if a.forward is None else numbers.get(a.forward, -1)
        if forward != b.forward or layers.setdefault(a.layer, b.layer) != b.layer or _CALL(a) != _CALL(b):
            return None
        for t, u in zip((*a.inputs, *a.outputs), (*b.inputs, *b.outputs), strict=True):
            if t.shape != u.shape or t.dtype != u.dtype or t.category != u.category:
                return None
            if tensors.setdefault(t.id, u.id) != u.id or storages.setdefault(t.storage, u.storage) != u.storage:
                return None
            if t.parameter is None or u.parameter is None:
                if t.parameter is not u.parameter:
                    return None
            elif tensors.setdefault(t.parameter, u.parameter) != u.parameter:
                return None
    if any(one.layer(layer, other) != its for layer, its in layers.items()):
        return None
    is_clear = all(len(set(ids.values())) == len(ids) for ids in (tensors, storages))
    return Names(tensors, storages) if is_clear else None


def are_chained(program: Program, run: Sequence[Unit], names: Sequence[Names]) -> bool:
    """Whether what is not common to all units is shared with the next one alone, and the same with each."""
    (stage,) = program.stages
    outside: tuple[set[int], set[int]] = set(), set()
    for which in PASSES:
        blocks: Sequence[Block] = getattr(stage, which)
        inside = {place for unit in run for place in unit.places[which]}
        for place, block in enumerate(blocks):
            for operator in () if place in inside else block.operators:
                for tensor in (*operator.inputs, *operator.outputs):
                    outside[0].add(tensor.id)
                    outside[1].add(tensor.storage)
    return _is_chain([one.tensors for one in names], outside[0]) and _is_chain(
        [one.storages for one in names], outside[1]
    )


def _is_chain(names: Sequence[Mapping[int, int]], outside: Set[int]) -> bool:
    common = {old for old in names[0] if all(one[old] == old for one in names)}
    links: list[set[tuple[int, int]]] = []
    older: set[int] = set()
    last: dict[int, int] = {}
    for place, one in enumerate(names):
        own = {new: old for old, new in one.items() if old not in common}
        if not older.isdisjoint(own) or (0 < place < len(names) - 1 and not outside.isdisjoint(own)):
            return False
        links.append({(own[new], last[new]) for new in own.keys() & last.keys()})
        older |= last.keys()
        last = own
    return all(link == links[1] for link in links[1:])
