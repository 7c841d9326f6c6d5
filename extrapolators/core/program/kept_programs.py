"""Programs that plans of one trace begin with, and parts of others, kept for later plans of the same process.

Configurations of a search differ in schedule, mesh and hooks more often than in the shards of a rank: its operators are divided
and priced once for all of them. What is kept is known by all that it was made from, so what is found is what would be made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from triosim import gpus
from triosim.extrapolators.core.extrapolator import Extrapolator
from triosim.extrapolators.core.program import Block, Program
from triosim.gpus import Gpu
from triosim.trace import Trace

Made = TypeVar("Made")

#: Operators of all programs that are kept, at most about 250 MB: programs share many.
MOST_KEPT = 300_000


@dataclass(frozen=True, slots=True)
class ProgramSource:
    """All that a program without stages and hooks follows from.

    ``model`` is the identity of the compute model, ``batch_size`` that of a micro-batch. ``steps`` are the parallelisms that
    have been applied, with their options, and the policy of recomputation.
    """

    trace: Trace
    gpu: Gpu | None
    model: Hashable | None
    batch_size: int
    training: bool
    gradient_dtype: str | None
    deduplicate: bool
    steps: tuple[Hashable, ...] = ()

    def after(self, step: Hashable) -> ProgramSource:
        """Return the source of the program that a step makes of this one."""
        return replace(self, steps=(*self.steps, step))

    def __hash__(self) -> int:
        return hash((self.trace, self.model, self.batch_size, self.training, self.steps))


def of_operators_alone(part: Extrapolator) -> bool:
    """Whether a parallelism's program depends on nothing else; each class says so for itself, as a derived one may differ."""
    return bool(vars(type(part)).get("of_operators_alone"))


class Kept(Generic[Made]):
    """What was made of sources, those used last, as long as their weights come to no more than ``most``."""

    def __init__(self, most: int, weight: Callable[[Made], int] = lambda _: 1) -> None:
        self._most, self._weight = most, weight
        self._made: dict[Hashable, Made] = {}
        self._total = 0

    def get(self, source: Hashable, make: Callable[[], Made]) -> Made:
        """Return what is made of a source."""
        if source in self._made:
            found = self._made.pop(source)
        else:
            found = make()
            self._total += self._weight(found)
        self._made[source] = found  # as the one used last
        while self._total > self._most:
            oldest = next(iter(self._made))
            self._total -= self._weight(self._made.pop(oldest))
        return found


class KeptPrograms:
    """Programs by their sources, up to ``most`` operators together."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._programs = Kept[Program](most, lambda program: len(program.operators))

    def get(self, source: ProgramSource, make: Callable[[], Program]) -> Program:
        """Return the program of a source, with a model of its own, which remembers nothing of other plans."""
        if source.model is None:
            return make()
        program = self._programs.get(source, make)
        return replace(program, model=copy(program.model))


#: Those of this process.
KEPT = KeptPrograms()


@dataclass(frozen=True, slots=True)
class BlocksSource:
    """Rows of blocks, and the ``others`` that something follows from, which are compared first.

    Blocks that programs share are the same objects, so that it takes no time to compare them; to hash them all would.
    """

    others: tuple[object, ...]
    blocks: tuple[tuple[Block, ...], ...]

    def __hash__(self) -> int:
        some = [(len(row), *(_digest(row[place]) for place in (0, len(row) // 2, -1))) for row in self.blocks if row]
        return hash((len(self.blocks), *some))


def _digest(block: Block) -> Hashable:
    """Return what equal blocks share, and few others."""
    last = block.operators[-1] if block.operators else None
    return block.layer, len(block.items), last and (last.id, last.seconds)


#: Optimizers of this process: points of a search share them, whatever their schedules and micro-batches.
_OPTIMIZERS = Kept[tuple[Block, ...]](128)


def with_kept_optimizer(
    program: Program, others: tuple[object, ...], note: str, make: Callable[[], Program]
) -> Program:
    """Return what ``make`` does: a program with another optimizer, which follows from that of a program, and ``others``.

    It is made once for all that are equal. ``note`` is what the program with another optimizer is noted with.
    """
    identity = program.model.identity
    if identity is None or len(program.stages) > 1:
        return make()
    (stage,) = program.stages
    source = BlocksSource((*others, program.deduplicate, identity, gpus.get(program.gpu)), (stage.optimizer,))
    optimizer = _OPTIMIZERS.get(source, lambda: make().stages[0].optimizer)
    if optimizer is stage.optimizer:
        return program
    found = replace(program, stages=(stage.with_optimizer(optimizer),))
    return found.noted(note, *found.stand_in_notes())
