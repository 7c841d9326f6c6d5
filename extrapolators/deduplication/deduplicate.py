"""Layers that are alike: work on a few of them, and give the others what came out, under their own names.

A transformer repeats its layers, and what a parallelism does to one does not depend on how many there are. Of a run of units
that are alike (``triosim.extrapolators.deduplication.repeated_layers``), a short program has the first three and the last
two. What comes out for the third is what would come out for those that were left out; that it is also what came out for its
neighbours is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from triosim.extrapolators.core.program import Block, Program, Stage
from triosim.extrapolators.deduplication.renaming import Names, Renaming
from triosim.extrapolators.deduplication.repeated_layers import PASSES, Pass, Unit, are_chained, longest_run, matched
from triosim.trace import Operator, Tensor
from triosim.trace.numbered_modules import numbered_module_of

#: Of a run, the units that are kept at its begin, the last of which stands for those that are left out, and at its end.
_FIRST, _LAST = 3, 2


class UnequalLayersError(Exception):
    """What has become of layers that were alike is not."""


class Repeats:
    """A program and a run of its units that are alike; of none, where it is not given.

    ``short`` is the program without most of them, and without its optimizer. ``names`` are those of each unit by those of the
    one that stands for what is left out.
    """

    def __init__(self, program: Program, run: Sequence[Unit] = (), names: Sequence[Names] = ()) -> None:
        self._whole = program
        self._run = run
        self._names = names
        self._layers = {operator.layer for operator in self._model.operators} if run else set()
        self.short = self._shortened()
        self._known = {operator.id for operator in self.short.operators}

    @classmethod
    def of(cls, program: Program) -> Repeats | None:
        """Return a program with its longest run of units that are alike, if that leaves any out."""
        run = longest_run(program)
        while len(run) > _FIRST + _LAST:
            names = [matched(run[_FIRST - 1], unit) for unit in run]
            other = [place for place, one in enumerate(names) if one is None]
            if not other:
                known = [one for one in names if one is not None]
                return cls(program, run, known) if are_chained(program, run, known) else None
            behind = [place for place in other if place >= _FIRST]
            run = run[: behind[0]] if behind else run[1:]
        return None

    def layers(self, names: Sequence[str]) -> list[str]:
        """Return names of layers of the short program, and behind those that stand for others, these."""
        own = [name for name in names if self._run and numbered_module_of(name) == self._model.name]
        if not own:
            return list(names)
        behind = max(place for place, name in enumerate(names) if name in own) + 1
        others = [self._model.layer(name, unit) for unit in self._run[_FIRST:-_LAST] for name in own]
        return [*names[:behind], *others, *names[behind:]]

    def storages(self, numbers: Iterable[int]) -> set[int]:
        """Return storages of the short program with those that they stand for."""
        found = set(numbers)
        return found | {names.storages[one] for names in self._left_out for one in found if one in names.storages}

    def tensors(self, tensor: Tensor) -> Iterator[Tensor]:
        """Yield a tensor of the short program, and those that it stands for."""
        yield tensor
        for names in self._left_out:
            if tensor.id in names.tensors:
                yield Renaming(names).tensor(tensor)

    def restored(self, after: Program) -> Program:
        """Return what has become of the short program, with what was left out, and with the whole optimizer.

        Operators that were added are numbered anew, in their order. Raises ``UnequalLayersError`` if units do not come out
        alike.
        """
        if self._run and not self._come_out_alike(after):
            raise UnequalLayersError
        fresh = count(max(operator.id for operator in self._whole.operators) + 1)
        passes: dict[Pass, list[Block]] = {}
        for which in PASSES:  # the forward pass first: numbers count up
            blocks: Sequence[Block] = getattr(after.stages[0], which)
            begin, end = self._inner(which)
            inner = range(1, len(self._run) - 1)
            found = [self._numbered(block, fresh) for block in blocks[:begin]]
            for place in inner if which == "forward" else reversed(inner):
                renaming = self._standing_for(place, fresh)
                found += [renaming.block(block) for block in self._blocks(after, which, _FIRST - 1)]
            passes[which] = found + [self._numbered(block, fresh) for block in blocks[end:]]
        whole = Stage(tuple(passes["forward"]), tuple(passes["backward"]), self._whole.stages[0].optimizer)
        return replace(after, stages=(whole,))

    # ---- the short program ---------------------------------------------------------------------------------------

    @property
    def _model(self) -> Unit:
        """The unit that stands for those that are left out."""
        return self._run[_FIRST - 1]

    @property
    def _left_out(self) -> Sequence[Names]:
        return self._names[_FIRST:-_LAST]

    @property
    def _kept(self) -> list[int]:
        """The places in the run of the units of the short program."""
        return [*range(_FIRST), *range(len(self._run) - _LAST, len(self._run))]

    def _shortened(self) -> Program:
        """What the second last unit reads of the one ahead of it, and makes for it, is the third's from then on."""
        (stage,) = self._whole.stages
        blocks = {which: list[Block](getattr(stage, which)) for which in PASSES}
        if self._run:
            last = self._run[-_LAST]
            bridge = Renaming(self._bridge(), {operator.id: operator.id for operator in last.operators})
            for which, found in blocks.items():
                for place in last.places[which]:
                    found[place] = bridge.block(found[place])
                first, final = self._ends(which, _FIRST, -_LAST - 1)
                del found[first.start : final.stop]
        return replace(self._whole, stages=(Stage(tuple(blocks["forward"]), tuple(blocks["backward"])),))

    def _bridge(self) -> Names:
        """What the second last unit has in common with the one ahead of it, by that one's names in the short program."""
        ahead, last = self._names[-_LAST - 1], self._names[-_LAST]
        pairs = ((ahead.tensors, set(last.tensors.values())), (ahead.storages, set(last.storages.values())))
        return Names(*({new: old for old, new in one.items() if new in common} for one, common in pairs))

    # ---- and back ------------------------------------------------------------------------------------------------

    def _come_out_alike(self, after: Program) -> bool:
        """Whether the second, the third and the second last unit are still the same."""
        bridge = self._bridge()
        back = Names(*({old: new for new, old in one.items()} for one in (bridge.tensors, bridge.storages)))
        for kept, names in ((1, Names({}, {})), (_FIRST, back)):
            place = self._kept[kept]
            numbers = self._numbers(kept, place)
            itself, expected = Renaming(names, numbers), self._standing_for(place)
            for which in PASSES:
                pairs = zip(self._blocks(after, which, kept), self._blocks(after, which, _FIRST - 1), strict=True)
                if any(itself.block(one) != expected.block(other) for one, other in pairs):
                    return False
        return True

    def _standing_for(self, place: int, fresh: Iterator[int] | None = None) -> Renaming:
        """From the unit that stands for others to the one at a place of the run."""
        unit = self._run[place]
        return Renaming(
            self._names[place],
            self._numbers(_FIRST - 1, place),
            fresh,
            {layer: self._model.layer(layer, unit) for layer in self._layers},
        )

    def _numbers(self, kept: int, place: int) -> dict[int, int]:
        """The operators of a unit of the short program and of its neighbours there, as those around a place of the run."""
        return {
            old.id: new.id
            for step in (-1, 0, 1)
            for old, new in zip(
                self._run[self._kept[kept + step]].operators, self._run[place + step].operators, strict=True
            )
        }

    def _blocks(self, after: Program, which: Pass, kept: int) -> Sequence[Block]:
        """The blocks of a unit of the short program in what has become of it."""
        place = self._kept[kept]
        own = self._run[place].places[which]
        is_behind = place >= _FIRST if which == "forward" else place < _FIRST
        ahead = self._missing(which) if is_behind else 0
        blocks: Sequence[Block] = getattr(after.stages[0], which)
        return blocks[own.start - ahead : own.stop - ahead]

    def _missing(self, which: Pass) -> int:
        return sum(len(unit.places[which]) for unit in self._run[_FIRST:-_LAST])

    def _inner(self, which: Pass) -> tuple[int, int]:
        """The places of the units of the short program but for the first and the last: where they begin and end."""
        if not self._run:
            return 0, 0
        first, final = self._ends(which, 1, -2)
        return first.start, final.stop - self._missing(which)

    def _ends(self, which: Pass, one: int, other: int) -> tuple[range, range]:
        """The blocks of two units, in their order."""
        first, final = (self._run[place].places[which] for place in (one, other))
        return (first, final) if which == "forward" else (final, first)

    def _numbered(self, block: Block, fresh: Iterator[int]) -> Block:
        """A block that is no unit's in which operators that were added have other numbers."""
        if all(operator.id in self._known for operator in block.operators):
            return block
        items = (
            replace(item, id=next(fresh)) if isinstance(item, Operator) and item.id not in self._known else item
            for item in block.items
        )
        return replace(block, items=tuple(items))
