"""Finds repeated layers: modules whose operators have equal kinds, shapes and times, and whose tensors are shared alike.

Each tensor of a repeated module is its own, or common to all of them (positions), or shared with the next one alone, in the
same way by each (the residual stream, and its gradient). Then two of the modules differ in numbers and names only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Literal

from triosim.extrapolators.core.program import Block, Program
from triosim.extrapolators.deduplication.renaming import IdMap
from triosim.trace import Operator
from triosim.trace.numbered_modules import ROOT, numbered_module_of

Pass = Literal["forward", "backward"]
PASSES: tuple[Pass, Pass] = ("forward", "backward")
#: What must be equal of two operators, beside their tensors, their layers and what they differentiate.
_CALL = attrgetter(
    *("name", "phase", "seconds", "busy_seconds", "host_seconds", "flops", "kernels", "predicted_by", "relative_error"),
    *("attributes", "stream", "communication", "recomputed"),
)


@dataclass(frozen=True, slots=True)
class RepeatedModule:
    """The blocks of a numbered module: where they are in either pass, and their operators.

    They go from the module's first block to the next module's, so that what stands between two modules belongs to the first.
    ``signature`` has each operator's name and how many tensors it reads and makes.
    """

    name: str
    places: Mapping[Pass, range]
    operators: tuple[Operator, ...]
    signature: tuple[tuple[str, int, int], ...]

    def layer(self, layer: str, other: RepeatedModule) -> str:
        """Return the path of the layer in another module that corresponds to a layer of this one."""
        inside = layer == self.name or layer.startswith(f"{self.name}.")
        return other.name + layer[len(self.name) :] if inside else layer


def longest_repetition(program: Program) -> list[RepeatedModule]:
    """Return the longest sequence of consecutive modules with equal signatures."""
    longest: list[RepeatedModule] = []
    repetition: list[RepeatedModule] = []
    for module in _modules(program):
        repetition = (
            [*repetition, module]
            if repetition and repetition[-1].signature == module.signature and _is_next(repetition[-1], module)
            else [module]
        )
        longest = max(longest, repetition, key=len)
    return longest


def _is_next(module: RepeatedModule, other: RepeatedModule) -> bool:
    """Whether another module follows one in the forward pass, and precedes it in the backward pass."""
    forward, backward = ((module.places[which], other.places[which]) for which in PASSES)
    return forward[0].stop == forward[1].start and backward[0].start == backward[1].stop


def _modules(program: Program) -> Iterator[RepeatedModule]:
    """Yield the numbered modules whose blocks are consecutive in each pass, in the order of the forward pass."""
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
            signature = tuple((one.name, len(one.inputs), len(one.outputs)) for one in operators)
            yield RepeatedModule(name, {"forward": places, "backward": behind}, operators, signature)


def _places(blocks: Sequence[Block]) -> dict[str, range]:
    """Return the blocks of each module; empty where some module's are not consecutive."""
    starts: dict[str, int] = {}
    current = ROOT
    for place, block in enumerate(blocks):
        module = numbered_module_of(block.layer)
        if module in (ROOT, current):
            continue
        if module in starts:
            return {}
        starts[module] = place
        current = module
    ends = pairwise((*starts.values(), len(blocks)))
    return {module: range(*both) for module, both in zip(starts, ends, strict=True)}


def id_map(one: RepeatedModule, other: RepeatedModule) -> IdMap | None:
    """Return the ids of another module by those of one with an equal signature; None where the two are not equal."""
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
    return IdMap(tensors, storages) if is_clear else None


def are_chained(program: Program, repetition: Sequence[RepeatedModule], maps: Sequence[IdMap]) -> bool:
    """Whether tensors that are not common to all modules are shared with the next one alone, and in the same way by each."""
    (stage,) = program.stages
    outside: tuple[set[int], set[int]] = set(), set()
    for which in PASSES:
        blocks: Sequence[Block] = getattr(stage, which)
        inside = {place for module in repetition for place in module.places[which]}
        for place, block in enumerate(blocks):
            for operator in () if place in inside else block.operators:
                for tensor in (*operator.inputs, *operator.outputs):
                    outside[0].add(tensor.id)
                    outside[1].add(tensor.storage)
    return _is_chain([one.tensors for one in maps], outside[0]) and _is_chain(
        [one.storages for one in maps], outside[1]
    )


def _is_chain(maps: Sequence[Mapping[int, int]], outside: Set[int]) -> bool:
    common = {old for old in maps[0] if all(one[old] == old for one in maps)}
    links: list[set[tuple[int, int]]] = []
    older: set[int] = set()
    last: dict[int, int] = {}
    for place, one in enumerate(maps):
        own = {new: old for old, new in one.items() if old not in common}
        if not older.isdisjoint(own) or (0 < place < len(maps) - 1 and not outside.isdisjoint(own)):
            return False
        links.append({(own[new], last[new]) for new in own.keys() & last.keys()})
        older |= last.keys()
        last = own
    return all(link == links[1] for link in links[1:])
