"""Layer deduplication: transforms a program with a few of its repeated layers, and copies the result to the others.

A transformer repeats its layers, and what a parallelism does to one does not depend on how many there are. Of the repeated
layers (``triosim.extrapolators.deduplication.repeated_layers``), the short program keeps the first three and the last two. The
transformed third layer is copied to those that were left out, once it is checked that its neighbours were transformed equally.
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
    """A program whose repeated layers are transformed once. Without a ``repetition``, no layer is left out.

    ``short`` is the ``whole`` program without most of the repeated layers, and without its optimizer. ``maps`` are the ids of
    each repeated layer by those of the template.
    """

    def __init__(self, program: Program, repetition: Sequence[RepeatedModule] = (), maps: Sequence[IdMap] = ()) -> None:
        self.whole = program
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
            unequal = [index for index, ids in enumerate(maps) if ids is None]
            if not unequal:
                known = [ids for ids in maps if ids is not None]
                return cls(program, repetition, known) if are_chained(program, repetition, known) else None
            following = [index for index in unequal if index >= _FIRST]
            repetition = repetition[: following[0]] if following else repetition[1:]
        return None

    def layers(self, names: Sequence[str]) -> list[str]:
        """Return paths of layers of the short program; those of the template are followed by those of the layers left out."""
        own = [name for name in names if self._repetition and numbered_module_of(name) == self._template.name]
        if not own:
            return list(names)
        end = max(index for index, name in enumerate(names) if name in own) + 1
        others = [self._template.layer(name, module) for module in self._repetition[_FIRST:-_LAST] for name in own]
        return [*names[:end], *others, *names[end:]]

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
        fresh = count(max(operator.id for operator in self.whole.operators) + 1)
        passes: dict[Pass, list[Block]] = {}
        for which in PASSES:  # the forward pass first: numbers count up
            blocks: Sequence[Block] = getattr(after.stages[0], which)
            begin, end = self._inner(which)
            inner = range(1, len(self._repetition) - 1)
            found = [self._numbered(block, fresh) for block in blocks[:begin]]
            for index in inner if which == "forward" else reversed(inner):
                renaming = self._renaming_to(index, fresh)
                found += [renaming.block(block) for block in self._blocks(after, which, _FIRST - 1)]
            passes[which] = found + [self._numbered(block, fresh) for block in blocks[end:]]
        whole = Stage(tuple(passes["forward"]), tuple(passes["backward"]), self.whole.stages[0].optimizer)
        return replace(after, stages=(whole,))

    # ---- the short program ---------------------------------------------------------------------------------------

    @property
    def _template(self) -> RepeatedModule:
        """The layer that is copied to those left out."""
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
        (stage,) = self.whole.stages
        blocks = {which: list[Block](getattr(stage, which)) for which in PASSES}
        if self._repetition:
            last = self._repetition[-_LAST]
            bridge = Renaming(self._junction_map(), {operator.id: operator.id for operator in last.operators})
            for which, found in blocks.items():
                for index in last.blocks[which]:
                    found[index] = bridge.block(found[index])
                first, final = self._ends(which, _FIRST, -_LAST - 1)
                del found[first.start : final.stop]
        return replace(self.whole, stages=(Stage(tuple(blocks["forward"]), tuple(blocks["backward"])),))

    def _junction_map(self) -> IdMap:
        """Return, by ids of the third layer, the ids that the second last layer shares with the layer before it."""
        before, last = self._maps[-_LAST - 1], self._maps[-_LAST]
        pairs = ((before.tensors, set(last.tensors.values())), (before.storages, set(last.storages.values())))
        return IdMap(*({new: old for old, new in one.items() if new in common} for one, common in pairs))

    # ---- the restored program ------------------------------------------------------------------------------------

    def _is_restorable(self, after: Program) -> bool:
        """Whether the second, the third and the second last layer were transformed equally."""
        bridge = self._junction_map()
        back = IdMap(*({old: new for new, old in one.items()} for one in (bridge.tensors, bridge.storages)))
        for kept, names in ((1, IdMap({}, {})), (_FIRST, back)):
            index = self._kept[kept]
            itself, expected = Renaming(names, self._numbers(kept, index)), self._renaming_to(index)
            for which in PASSES:
                pairs = zip(self._blocks(after, which, kept), self._blocks(after, which, _FIRST - 1), strict=True)
                if any(itself.block(one) != expected.block(other) for one, other in pairs):
                    return False
        return True

    def _renaming_to(self, index: int, fresh: Iterator[int] | None = None) -> Renaming:
        """Return the renaming from the template to a layer of the repetition."""
        module = self._repetition[index]
        return Renaming(
            self._maps[index],
            self._numbers(_FIRST - 1, index),
            fresh,
            {layer: self._template.layer(layer, module) for layer in self._layers},
        )

    def _numbers(self, kept: int, index: int) -> dict[int, int]:
        """Return the ids of operators in a layer and its neighbours, by those of a kept layer and its neighbours."""
        return {
            old.id: new.id
            for step in (-1, 0, 1)
            for old, new in zip(
                self._repetition[self._kept[kept + step]].operators,
                self._repetition[index + step].operators,
                strict=True,
            )
        }

    def _blocks(self, after: Program, which: Pass, kept: int) -> Sequence[Block]:
        """Return the blocks of a kept layer in the transformed short program."""
        index = self._kept[kept]
        own = self._repetition[index].blocks[which]
        follows = index >= _FIRST if which == "forward" else index < _FIRST
        missing = self._missing(which) if follows else 0
        blocks: Sequence[Block] = getattr(after.stages[0], which)
        return blocks[own.start - missing : own.stop - missing]

    def _missing(self, which: Pass) -> int:
        return sum(len(module.blocks[which]) for module in self._repetition[_FIRST:-_LAST])

    def _inner(self, which: Pass) -> tuple[int, int]:
        """Return where the blocks between the first and the last repeated layer of the short program begin and end."""
        if not self._repetition:
            return 0, 0
        first, final = self._ends(which, 1, -2)
        return first.start, final.stop - self._missing(which)

    def _ends(self, which: Pass, one: int, other: int) -> tuple[range, range]:
        """Return the blocks of two layers, in the order of the pass."""
        first, final = (self._repetition[index].blocks[which] for index in (one, other))
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
