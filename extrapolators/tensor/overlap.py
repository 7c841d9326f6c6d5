"""Asynchronous tensor parallelism: products overlap with the all-gather ahead of them, or the reduce-scatter after, in a ring.

Wang et al. 2023 ("Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning Models"). Each of N
ranks has one chunk of the sequence. In N rounds a rank multiplies one chunk, its own first, while it sends the chunk to the
next rank and receives another. In a reduce-scatter partial sums go round: a rank adds its part to one chunk's sum, and sends
the sum on while it computes the next. The product of a chunk is priced in its own shapes: N of them take longer than one of
all chunks. They are launched by one call (Transformer Engine's userbuffers, PyTorch's ``fused_all_gather_matmul``), which costs
the host what the whole product does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from triosim.extrapolators.core.program import Block, BlockItem, Communicate, Program, TransferKey
from triosim.extrapolators.tensor.added_operators import AddedOperators
from triosim.operators.features import base_name
from triosim.operators.kinds import kind_of
from triosim.sharding.step_dimensions import StepDimensions
from triosim.trace import Operator, Tensor


def overlapped(program: Program, axis: str, ranks: int, step: StepDimensions) -> Program:
    """Return the program whose products overlap with the all-gathers before and the reduce-scatters after them.

    ``step`` are the dimensions of the step; a product whose tokens are not divisible by ``ranks`` stays as it is.
    """
    return program.rewritten(_Overlap(program, axis, ranks, step).items)


class _Overlap:
    def __init__(self, program: Program, axis: str, ranks: int, step: StepDimensions) -> None:
        self._axis = axis
        self._ranks = ranks
        self._step = step
        self._by_id = {operator.id: operator for operator in program.operators}
        self._added = AddedOperators(program)

    def items(self, block: Block) -> Iterator[BlockItem]:
        """Yield a block's items, with rings in place of a collective and a product next to it."""
        waiting: list[BlockItem] = list(block.items)
        while waiting:
            item = waiting.pop(0)
            ring = self._ring(item, waiting[0]) if waiting else None
            if ring is None:
                yield item
            else:
                waiting.pop(0)
                yield from ring

    def _ring(self, item: BlockItem, after: BlockItem) -> list[BlockItem] | None:
        """Return the ring that replaces two items; None where these are no collective and product that can overlap."""
        if self._is_blocking(item, "all_gather") and isinstance(after, Operator):
            chunks = self._chunks(after)
            return None if chunks is None else self._gathering_ring(item, after, chunks)
        if isinstance(item, Operator) and self._is_blocking(after, "reduce_scatter"):
            chunks = self._chunks(item)
            return None if chunks is None else self._scattering_ring(item, after, chunks)
        return None

    def _is_blocking(self, item: BlockItem, kind: str) -> TypeGuard[Communicate]:
        return isinstance(item, Communicate) and (item.kind, item.axis, item.key) == (kind, self._axis, None)

    def _gathering_ring(self, gather: Communicate, product: Operator, chunks: list[Operator]) -> list[BlockItem]:
        found: list[BlockItem] = []
        for number, chunk in enumerate(chunks[:-1]):
            hop = self._hop(gather, product, number)
            found += [hop, chunk, hop.awaited()]
        return [*found, chunks[-1]]

    def _scattering_ring(self, product: Operator, scatter: Communicate, chunks: list[Operator]) -> list[BlockItem]:
        (output, *_) = chunks[0].outputs
        found: list[BlockItem] = [chunks[0]]
        for number, chunk in enumerate(chunks[1:]):
            hop = self._hop(scatter, product, number)
            add = self._added.operator("add_", product, (output, output), (output,))
            found += [hop, chunk, hop.awaited(), *self._added.priced([add])]
        return found

    def _hop(self, collective: Communicate, product: Operator, number: int) -> Communicate:
        """Return the send of one chunk to the next rank, instead of a collective of all chunks."""
        key = TransferKey(collective.kind, product.id, number)
        return replace(collective, kind="rotate", nbytes=collective.nbytes / self._ranks, key=key, operator=product.id)

    def _chunks(self, product: Operator) -> list[Operator] | None:
        """Return one product for each chunk; the last has the id of the whole, since the output is complete after it."""
        if kind_of(base_name(product.name)) != "product":
            return None
        chunk = self._chunk(product)
        if chunk is None:
            return None
        forward = self._by_id.get(product.forward) if product.forward is not None else None
        around = () if forward is None else (forward,)
        (*_, priced) = self._added.repriced((*around, product), (*around, chunk))
        if priced.host_seconds is not None:
            priced = priced.with_host_seconds(priced.host_seconds / self._ranks)
        return [*(replace(priced, id=self._added.operator_id()) for _ in range(self._ranks - 1)), priced]

    def _chunk(self, product: Operator) -> Operator | None:
        """Return a product on one chunk of the sequence; None where it has no sequence, or one that does not divide."""
        tensors = (*product.inputs, *product.outputs)
        dims = {tensor.id: dim for tensor in tensors if (dim := self._sequence_dim(tensor)) is not None}
        if any(tensor.shape[dims[tensor.id]] % self._ranks for tensor in tensors if tensor.id in dims):
            return None

        def chunk(tensor: Tensor) -> Tensor:
            if tensor.id not in dims:
                return tensor
            shape = list(tensor.shape)
            shape[dims[tensor.id]] //= self._ranks
            return replace(tensor, shape=tuple(shape))

        found = replace(product, inputs=tuple(map(chunk, product.inputs)), outputs=tuple(map(chunk, product.outputs)))
        return None if found.inputs == product.inputs else found

    def _sequence_dim(self, tensor: Tensor) -> int | None:
        """Return the first dimension of a tensor that is the sequence; None of parameters and their gradients."""
        if tensor.category == "parameter" or tensor.parameter is not None:
            return None
        return next(iter(self._step.follows(tensor, "sequence")), None)
