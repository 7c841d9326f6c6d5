"""Collectives that a parallelism inserts into a program: before, after and in the middle of its operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count

from triosim.extrapolators.core.program import Block, BlockItem, Communicate
from triosim.sharding.layers import split_gradients
from triosim.trace import Operator, Tensor


class Insertions:
    """Collects items by the operator that they are inserted at, and then yields the items of each block.

    A backward operator of a layer may be split into the product for the input's gradient, with an id from ``first_id`` on, and
    that for the outputs that are ``weight_gradients``. Collectives after it that do not block, and items that are inserted
    amid it, come between the two.
    """

    def __init__(self, first_id: int, weight_gradients: Callable[[Operator], Sequence[Tensor]]) -> None:
        self._ids = count(first_id)
        self._weight_gradients = weight_gradients
        self._before: dict[int, list[BlockItem]] = {}
        self._after: dict[int, list[BlockItem]] = {}
        self._amid: dict[int, list[BlockItem]] = {}
        self._split: set[int] = set()

    def before(self, operator: Operator, item: BlockItem) -> None:
        """Insert an item before an operator."""
        self._before.setdefault(operator.id, []).append(item)

    def after(self, operator: Operator, item: BlockItem) -> None:
        """Insert an item after an operator."""
        self._after.setdefault(operator.id, []).append(item)

    def split(self, operator: Operator) -> None:
        """Split a backward operator."""
        self._split.add(operator.id)

    def is_split(self, operator: Operator) -> bool:
        """Whether a backward operator is split."""
        return operator.id in self._split

    def amid(self, operator: Operator, item: BlockItem) -> None:
        """Split a backward operator, and insert an item between the two products."""
        self.split(operator)
        self._amid.setdefault(operator.id, []).append(item)

    def items(self, block: Block) -> Iterator[BlockItem]:
        """Yield a block's items with those that were inserted."""
        for item in block.items:
            if not isinstance(item, Operator):
                yield item
                continue
            yield from self._before.get(item.id, ())
            after = self._after.get(item.id, [])
            if item.id in self._split:
                for_input, for_weights = split_gradients(item, self._weight_gradients(item), next(self._ids))
                between = [one for one in after if isinstance(one, Communicate) and one.key is not None]
                yield from (for_input, *between, *self._amid.get(item.id, ()), for_weights)
                after = [one for one in after if one not in between]
            else:
                yield item
            yield from after
