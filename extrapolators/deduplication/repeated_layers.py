"""Finds repeated layers: modules whose operators have equal kinds, shapes and times, and share tensors in the same pattern.

Each tensor of a repeated module is its own, or common to all of them (positions), or shared with the next one alone, in the
same pattern by each (the residual stream, and its gradient). Then two of the modules differ in numbers and names only.
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
#: What equal operators have in common, apart from tensors, layers and what they differentiate.
_CALL = attrgetter(
    *("name", "phase", "seconds", "busy_seconds", "host_seconds", "flops", "kernels", "predicted_by", "relative_error"),
    *("attributes", "stream", "communication", "recomputed"),
)


@dataclass(frozen=True, slots=True)
class RepeatedModule:
    """A numbered module: the indices of its ``blocks`` in each pass, and their operators.

    The blocks go from the module's first one to the next module's, so that those between two modules belong to the first.
    ``signature`` has each operator's name and how many tensors it reads and makes.
    """

    name: str
    blocks: Mapping[Pass, range]
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
    forward, backward = ((module.blocks[which], other.blocks[which]) for which in PASSES)
    return forward[0].stop == forward[1].start and backward[0].start == backward[1].stop


def _modules(program: Program) -> Iterator[RepeatedModule]:
    """Yield the numbered modules whose blocks are consecutive in each pass, in the order of the forward pass."""
    if len(program.stages) != 1:
        return
    (stage,) = program.stages
    forward, backward = _blocks_of_modules(stage.forward), _blocks_of_modules(stage.backward)
    for name, own in forward.items():
        if name not in backward and stage.backward:
            continue
        own_backward = backward.get(name, range(0))
        blocks = [*(stage.forward[index] for index in own), *(stage.backward[index] for index in own_backward)]
        items = [item for block in blocks for item in block.items]
        operators = tuple(item for item in items if isinstance(item, Operator))
        if len(operators) == len(items):
            signature = tuple((one.name, len(one.inputs), len(one.outputs)) for one in operators)
            yield RepeatedModule(name, {"forward": own, "backward": own_backward}, operators, signature)


def _blocks_of_modules(blocks: Sequence[Block]) -> dict[str, range]:
    """Return the indices of each module's blocks; empty where those of some module are not consecutive."""
    starts: dict[str, int] = {}
    current = ROOT
    for index, block in enumerate(blocks):
        module = numbered_module_of(block.layer)
        if module in (ROOT, current):
            continue
        if module in starts:
            return {}
        starts[module] = index
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
    """Whether tensors that are not common to all modules are shared with the next one alone, in the same pattern by each."""
    (stage,) = program.stages
    tensors: set[int] = set()  # outside of the repetition
    storages: set[int] = set()
    for which in PASSES:
        blocks: Sequence[Block] = getattr(stage, which)
        inside = {index for module in repetition for index in module.blocks[which]}
        for index, block in enumerate(blocks):
            for operator in () if index in inside else block.operators:
                tensors.update(tensor.id for tensor in (*operator.inputs, *operator.outputs))
                storages.update(tensor.storage for tensor in (*operator.inputs, *operator.outputs))
    return _is_chain([ids.tensors for ids in maps], tensors) and _is_chain([ids.storages for ids in maps], storages)


def _is_chain(maps: Sequence[Mapping[int, int]], outside: Set[int]) -> bool:
    common = {old for old in maps[0] if all(one[old] == old for one in maps)}
    links: list[set[tuple[int, int]]] = []
    older: set[int] = set()
    last: dict[int, int] = {}
    for index, one in enumerate(maps):
        own = {new: old for old, new in one.items() if old not in common}
        if not older.isdisjoint(own) or (0 < index < len(maps) - 1 and not outside.isdisjoint(own)):
            return False
        links.append({(own[new], last[new]) for new in own.keys() & last.keys()})
        older |= last.keys()
        last = own
    return all(link == links[1] for link in links[1:])
