"""Layer deduplication: transforms a program with a few of its repeated layers, and copies the outcome to the others.

A transformer repeats its layers, and what a parallelism does to one does not depend on how many there are. Of the repeated
layers (``triosim.extrapolators.deduplication.repeated_layers``), the short program keeps the first three and the last two. The
outcome of the third is copied to those that were left out, once it is checked that its neighbours have an equal outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from triosim.extrapolators.core.program import Block, Program, Stage
from triosim.extrapolators.deduplication.renaming import IdMap, Renaming
from triosim.extrapolators.deduplication.repeated_layers import (
    PASSES,
    Pass,
    RepeatedModule,
    are_chained,
    id_map,
    longest_repetition,
)
from triosim.trace import Operator, Tensor
from triosim.trace.numbered_modules import numbered_module_of

#: How many layers are kept at the beginning of a repetition (the last of them is the template) and at its end.
_FIRST, _LAST = 3, 2


class UnequalLayersError(Exception):
    """Raised when layers that were equal turn out to differ in the transformed program; all layers are then transformed."""


class LayerDeduplication:
    """A program whose repeated layers are transformed once. Without a ``repetition``, nothing is left out.

    ``short`` is the program without most of the repeated layers, and without its optimizer. ``maps`` are the ids of each
    repeated layer by those of the template.
    """

    def __init__(self, program: Program, repetition: Sequence[RepeatedModule] = (), maps: Sequence[IdMap] = ()) -> None:
        self._whole = program
        self._repetition = repetition
        self._maps = maps
        self._layers = {operator.layer for operator in self._template.operators} if repetition else set()
        self.short = self._shortened()
        self._known = {operator.id for operator in self.short.operators}

    @classmethod
    def of(cls, program: Program) -> LayerDeduplication | None:
        """Return the deduplication of a program's longest repetition of equal layers; None where that leaves none out."""
        repetition = longest_repetition(program)
        while len(repetition) > _FIRST + _LAST:
            maps = [id_map(repetition[_FIRST - 1], module) for module in repetition]
            other = [place for place, one in enumerate(maps) if one is None]
            if not other:
                known = [one for one in maps if one is not None]
                return cls(program, repetition, known) if are_chained(program, repetition, known) else None
            behind = [place for place in other if place >= _FIRST]
            repetition = repetition[: behind[0]] if behind else repetition[1:]
        return None

    def layers(self, names: Sequence[str]) -> list[str]:
        """Return paths of layers of the short program; behind those of the template come those of the layers left out."""
        own = [name for name in names if self._repetition and numbered_module_of(name) == self._template.name]
        if not own:
            return list(names)
        behind = max(place for place, name in enumerate(names) if name in own) + 1
        others = [self._template.layer(name, module) for module in self._repetition[_FIRST:-_LAST] for name in own]
        return [*names[:behind], *others, *names[behind:]]

    def storages(self, numbers: Iterable[int]) -> set[int]:
        """Return storages of the short program, and the corresponding ones of the layers left out."""
        found = set(numbers)
        return found | {ids.storages[one] for ids in self._left_out for one in found if one in ids.storages}

    def tensors(self, tensor: Tensor) -> Iterator[Tensor]:
        """Yield a tensor of the short program, and the corresponding ones of the layers left out."""
        yield tensor
        for ids in self._left_out:
            if tensor.id in ids.tensors:
                yield Renaming(ids).tensor(tensor)

    def restored(self, after: Program) -> Program:
        """Return the transformed short program with the layers that were left out, and with the whole optimizer.

        Operators that were added are numbered anew, in their order. Raises ``UnequalLayersError`` where layers differ.
        """
        if self._repetition and not self._is_restorable(after):
            raise UnequalLayersError
        fresh = count(max(operator.id for operator in self._whole.operators) + 1)
        passes: dict[Pass, list[Block]] = {}
        for which in PASSES:  # the forward pass first: numbers count up
            blocks: Sequence[Block] = getattr(after.stages[0], which)
            begin, end = self._inner(which)
            inner = range(1, len(self._repetition) - 1)
            found = [self._numbered(block, fresh) for block in blocks[:begin]]
            for place in inner if which == "forward" else reversed(inner):
                renaming = self._renaming_to(place, fresh)
                found += [renaming.block(block) for block in self._blocks(after, which, _FIRST - 1)]
            passes[which] = found + [self._numbered(block, fresh) for block in blocks[end:]]
        whole = Stage(tuple(passes["forward"]), tuple(passes["backward"]), self._whole.stages[0].optimizer)
        return replace(after, stages=(whole,))

    # ---- the short program ---------------------------------------------------------------------------------------

    @property
    def _template(self) -> RepeatedModule:
        """The layer whose outcome is copied to those left out."""
        return self._repetition[_FIRST - 1]

    @property
    def _left_out(self) -> Sequence[IdMap]:
        return self._maps[_FIRST:-_LAST]

    @property
    def _kept(self) -> list[int]:
        """The positions in the repetition of the layers of the short program."""
        return [*range(_FIRST), *range(len(self._repetition) - _LAST, len(self._repetition))]

    def _shortened(self) -> Program:
        """Return the program without the middle of the repetition; the second last layer then follows the third one."""
        (stage,) = self._whole.stages
        blocks = {which: list[Block](getattr(stage, which)) for which in PASSES}
        if self._repetition:
            last = self._repetition[-_LAST]
            bridge = Renaming(self._junction_map(), {operator.id: operator.id for operator in last.operators})
            for which, found in blocks.items():
                for place in last.places[which]:
                    found[place] = bridge.block(found[place])
                first, final = self._ends(which, _FIRST, -_LAST - 1)
                del found[first.start : final.stop]
        return replace(self._whole, stages=(Stage(tuple(blocks["forward"]), tuple(blocks["backward"])),))

    def _junction_map(self) -> IdMap:
        """Return the ids of what the second last layer shares with the one before it, by those of the third one for it."""
        ahead, last = self._maps[-_LAST - 1], self._maps[-_LAST]
        pairs = ((ahead.tensors, set(last.tensors.values())), (ahead.storages, set(last.storages.values())))
        return IdMap(*({new: old for old, new in one.items() if new in common} for one, common in pairs))

    # ---- and back ------------------------------------------------------------------------------------------------

    def _is_restorable(self, after: Program) -> bool:
        """Whether the second, the third and the second last layer have equal outcomes."""
        bridge = self._junction_map()
        back = IdMap(*({old: new for new, old in one.items()} for one in (bridge.tensors, bridge.storages)))
        for kept, names in ((1, IdMap({}, {})), (_FIRST, back)):
            place = self._kept[kept]
            numbers = self._numbers(kept, place)
            itself, expected = Renaming(names, numbers), self._renaming_to(place)
            for which in PASSES:
                pairs = zip(self._blocks(after, which, kept), self._blocks(after, which, _FIRST - 1), strict=True)
                if any(itself.block(one) != expected.block(other) for one, other in pairs):
                    return False
        return True

    def _renaming_to(self, place: int, fresh: Iterator[int] | None = None) -> Renaming:
        """Return the renaming from the template to the layer at a position of the repetition."""
        module = self._repetition[place]
        return Renaming(
            self._maps[place],
            self._numbers(_FIRST - 1, place),
            fresh,
            {layer: self._template.layer(layer, module) for layer in self._layers},
        )

    def _numbers(self, kept: int, place: int) -> dict[int, int]:
        """Return the numbers of operators around a position of the repetition, by those around a layer of the short program."""
        return {
            old.id: new.id
            for step in (-1, 0, 1)
            for old, new in zip(
                self._repetition[self._kept[kept + step]].operators,
                self._repetition[place + step].operators,
                strict=True,
            )
        }

    def _blocks(self, after: Program, which: Pass, kept: int) -> Sequence[Block]:
        """Return the blocks of a layer of the short program in the transformed one."""
        place = self._kept[kept]
        own = self._repetition[place].places[which]
        is_behind = place >= _FIRST if which == "forward" else place < _FIRST
        ahead = self._missing(which) if is_behind else 0
        blocks: Sequence[Block] = getattr(after.stages[0], which)
        return blocks[own.start - ahead : own.stop - ahead]

    def _missing(self, which: Pass) -> int:
        return sum(len(module.places[which]) for module in self._repetition[_FIRST:-_LAST])

    def _inner(self, which: Pass) -> tuple[int, int]:
        """Return where the blocks between the first and the last repeated layer of the short program begin and end."""
        if not self._repetition:
            return 0, 0
        first, final = self._ends(which, 1, -2)
        return first.start, final.stop - self._missing(which)

    def _ends(self, which: Pass, one: int, other: int) -> tuple[range, range]:
        """Return the blocks of two layers, in the order of the pass."""
        first, final = (self._repetition[place].places[which] for place in (one, other))
        return (first, final) if which == "forward" else (final, first)

    def _numbered(self, block: Block, fresh: Iterator[int]) -> Block:
        """Return a block outside of the repetition, with fresh numbers for operators that were added."""
        if all(operator.id in self._known for operator in block.operators):
            return block
        items = (
            replace(item, id=next(fresh)) if isinstance(item, Operator) and item.id not in self._known else item
            for item in block.items
        )
        return replace(block, items=tuple(items))
