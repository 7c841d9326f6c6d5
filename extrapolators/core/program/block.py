"""A block: consecutive operators and instructions of one layer in one phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from triosim.extrapolators.core.program.instructions import (
    Communicate,
    ExchangeWithRank,
    Instruction,
    ReceiveFromStage,
    SendToStage,
)
from triosim.operators.tensor_uses import TensorUses
from triosim.tasks import Layers
from triosim.trace import Operator, Phase

BlockItem = Operator | Instruction | ReceiveFromStage


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive items of one layer in one phase."""

    layer: str
    phase: Phase
    items: tuple[BlockItem, ...]
    _operators: tuple[Operator, ...] | None = field(default=None, init=False, repr=False, compare=False)
    _operator_ids: frozenset[int] | None = field(default=None, init=False, repr=False, compare=False)
    _tensors: TensorUses | None = field(default=None, init=False, repr=False, compare=False)
    _instructions: tuple[tuple[int, Instruction], ...] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The operators among the items."""
        if self._operators is None:
            found = tuple([item for item in self.items if isinstance(item, Operator)])
            object.__setattr__(self, "_operators", self.items if len(found) == len(self.items) else found)
        assert self._operators is not None
        return self._operators

    @property
    def operator_ids(self) -> frozenset[int]:
        """The ids of the operators, and of those that collectives among the items belong to."""
        if self._operator_ids is None:
            belonging = (item.operator for item in self.items if isinstance(item, Communicate))
            found = (number for number in (*(one.id for one in self.operators), *belonging) if number is not None)
            object.__setattr__(self, "_operator_ids", frozenset(found))
        assert self._operator_ids is not None
        return self._operator_ids

    @property
    def tensors(self) -> TensorUses:
        """The tensors that the operators read and write."""
        if self._tensors is None:
            found = TensorUses.of(self.operators, updates=self.phase == "optimizer")
            object.__setattr__(self, "_tensors", found)
        assert self._tensors is not None
        return self._tensors

    @property
    def instructions(self) -> tuple[tuple[int, Instruction], ...]:
        """The items beside operators, each after so many of these; those that send name the block's layer.

        Receives, which are posted ahead, are left out.
        """
        if self._instructions is None:
            object.__setattr__(self, "_instructions", tuple(self._find_instructions()))
        assert self._instructions is not None
        return self._instructions

    def _find_instructions(self) -> Iterator[tuple[int, Instruction]]:
        count, layers = 0, Layers.of(self.layer)
        for item in self.items:
            if isinstance(item, Operator):
                count += 1
            elif isinstance(item, (Communicate, SendToStage, ExchangeWithRank)) and item.layers is None:
                yield count, replace(item, layers=layers)
            elif not isinstance(item, ReceiveFromStage):
                yield count, item

    def of(self, items: tuple[BlockItem, ...]) -> Block:
        """Return the block with other items: itself where they are equal."""
        return self if items == self.items else Block(self.layer, self.phase, items)

    @property
    def seconds(self) -> float:
        """The time of the operators."""
        return sum(operator.seconds for operator in self.operators)
