"""Asynchronous tensor parallelism: a product and the gather ahead of it, or the scatter after it, go chunk by chunk in a ring.

Wang et al. 2023 ("Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning Models"). Of N
ranks each has one chunk of the sequence. In N rounds a rank multiplies one chunk, its own first, while that goes on to the next
rank and another comes. After a product it is the sums that go round: a rank adds its part to one chunk's, and hands it on while
it computes the next. The product of a chunk is priced as what it is: N of them take longer than the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count

from triosim.compute.pricing.repricing import estimated, reprice
from triosim.extrapolators.core.program import Block, BlockItem, Communicate, Program, TransferKey
from triosim.operators.features import base_name
from triosim.operators.kinds import kind_of
from triosim.sharding.step_dimensions import StepDimensions
from triosim.trace import Operator, Tensor


def overlapped(program: Program, axis: str, ranks: int, step: StepDimensions) -> Program:
    """Return the program whose products overlap with the gathers and scatters of ``axis`` beside them.

    ``step`` are the dimensions of the step; a product whose tokens do not divide by ``ranks`` stays as it is.
    """
    chunks = _Chunks(program, axis, ranks, step)
    return program.rewritten(lambda block: chunks.items(block))


class _Chunks:
    def __init__(self, program: Program, axis: str, ranks: int, step: StepDimensions) -> None:
        self._program = program
        self._axis = axis
        self._ranks = ranks
        self._step = step
        self._by_id = {operator.id: operator for operator in program.operators}
        self._fresh = count(max(self._by_id) + 1)

    def items(self, block: Block) -> Iterator[BlockItem]:
        """Yield a block's items, with rings in place of a collective and a product that stand side by side."""
        waiting: list[BlockItem] = list(block.items)
        while waiting:
            item = waiting.pop(0)
            after = waiting[0] if waiting else None
            ring: list[BlockItem] | None = None
            if self._is(item, "all_gather") and isinstance(after, Operator):
                ring = self._gathering(item, after)
            elif isinstance(item, Operator) and self._is(after, "reduce_scatter"):
                ring = self._scattering(item, after)
            if ring is None:
                yield item
            else:
                waiting.pop(0)
                yield from ring

    def _is(self, item: BlockItem | None, kind: str) -> bool:
        return isinstance(item, Communicate) and (item.kind, item.axis, item.key) == (kind, self._axis, None)

    def _gathering(self, gather: BlockItem, product: Operator) -> list[BlockItem] | None:
        chunks = self._chunks(product)
        if chunks is None or not isinstance(gather, Communicate):
            return None
        found: list[BlockItem] = []
        for place, chunk in enumerate(chunks):
            if place < self._ranks - 1:
                coming = self._hop(gather, product, place)
                found += [coming, chunk, coming.awaited()]
            else:
                found.append(chunk)
        return found

    def _scattering(self, product: Operator, scatter: BlockItem | None) -> list[BlockItem] | None:
        chunks = self._chunks(product)
        if chunks is None or not isinstance(scatter, Communicate):
            return None
        made = chunks[0].outputs[0]
        found: list[BlockItem] = [chunks[0]]
        for place, chunk in enumerate(chunks[1:]):
            going = self._hop(scatter, product, place)
            found += [going, chunk, going.awaited(), *self._sum(product, made)]
        return found

    def _hop(self, whole: Communicate, product: Operator, place: int) -> Communicate:
        key = TransferKey(whole.kind, product.id, place)
        return replace(whole, kind="rotate", nbytes=whole.nbytes / self._ranks, key=key, operator=product.id)

    def _sum(self, product: Operator, made: Tensor) -> list[Operator]:
        added = Operator(next(self._fresh), "aten::add_", product.phase, product.layer, (made, made), (made,), 0.0)
        return estimated([added], self._program.model, self._program.gpu)

    def _chunks(self, product: Operator) -> list[Operator] | None:
        """A product as one of each chunk; the last has its number, since what it makes is complete then."""
        if kind_of(base_name(product.name)) != "product":
            return None
        chunk = self._share(product)
        if chunk is None:
            return None
        forward = self._by_id.get(product.forward) if product.forward is not None else None
        around = () if forward is None else (forward,)
        (*_, priced) = reprice((*around, product), (*around, chunk), self._program.model, self._program.gpu)
        return [*(replace(priced, id=next(self._fresh)) for _ in range(self._ranks - 1)), priced]

    def _share(self, product: Operator) -> Operator | None:
        """One chunk of the sequence; None where that cannot be."""
        uneven = False

        def share(tensor: Tensor) -> Tensor:
            nonlocal uneven
            about = tensor.category == "parameter" or tensor.parameter is not None
            places = [] if about else self._step.follows(tensor, "sequence")
            if not places:
                return tensor
            shape = list(tensor.shape)
            uneven |= shape[places[0]] % self._ranks > 0
            shape[places[0]] //= self._ranks
            return replace(tensor, shape=tuple(shape))

        def all_of(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
            return tuple(map(share, tensors))

        chunk = replace(product, inputs=all_of(product.inputs), outputs=all_of(product.outputs))
        return None if uneven or chunk.inputs == product.inputs else chunk
