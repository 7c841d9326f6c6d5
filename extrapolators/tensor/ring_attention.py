"""Ring attention: in N rounds each rank attends to one block of keys and values while the block goes on to the next rank.

Liu et al. 2023 ("Ring Attention with Blockwise Transformers"). In the backward pass keys and values go round once more, for
N - 1 hops, and the gradients of each block with them, for N hops, back to the block's own rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from triosim.errors import TraceError
from triosim.extrapolators.core.program import BlockItem, Communicate, TransferKey
from triosim.extrapolators.tensor.added_operators import AddedOperators
from triosim.operators.features import length_dim
from triosim.trace import Operator, Tensor


def is_causal(attention: Operator) -> bool:
    """Whether attention is known to be causal."""
    return attention.attributes.get("is_causal") is True


class RingAttention:
    """Writes out the rounds of attention on ``ranks`` ranks along a mesh axis."""

    def __init__(self, added: AddedOperators, axis: str, ranks: int) -> None:
        self._added = added
        self._axis = axis
        self._ranks = ranks

    def rounds(self, attention: Operator, backward: Sequence[Operator]) -> dict[int, list[BlockItem]]:
        """Return the items that replace an attention and its backward operator, by their ids.

        Both are a rank's shares already. Raises ``TraceError`` where several operators make up the backward pass.
        """
        if len(backward) > 1:
            what = (
                f"the attention of {attention.layer} is differentiated by {len(backward)} operators, not by one kernel"
            )
            fix = "capture the model with fused attention, or use --option cp=all-gather"
            raise TraceError(what, where=self._axis, fix=fix)
        keys, out = attention.inputs[1:3], attention.outputs[:1]
        used = tuple(self._half(tensor, attention) for tensor in keys) if is_causal(attention) else keys
        slices = [
            self._added.operator("slice", attention, (whole,), (part,))
            for whole, part in zip(keys, used, strict=True)
            if whole is not part
        ]
        other, others_backward = self._of_other_block(attention, backward, used)
        blocks = [attention, *(self._added.copy(other) for _ in range(self._ranks - 1))]
        merges = [self._added.operator("lerp_", attention, (*out, *block.outputs[:1]), out) for block in blocks[1:]]
        hops = [self._hop(block, keys, TransferKey("keys", attention.id, i)) for i, block in enumerate(blocks)]
        found = {attention.id: [*slices, *_forward(blocks, self._added.priced(merges), hops[:-1])]}
        for own in backward:
            of_blocks = [own, *(self._added.copy(others_backward[0], block.id) for block in blocks[1:])]
            sums = [self._sums(own, of_block) for of_block in of_blocks[1:]]
            again = [replace(one, key=TransferKey("keys again", attention.id, i)) for i, one in enumerate(hops[:-1])]
            home = [replace(one, key=TransferKey("gradients of keys", attention.id, i)) for i, one in enumerate(hops)]
            found[own.id] = list(_backward(of_blocks, sums, again, home))
        return found

    def _hop(self, block: Operator, keys: Sequence[Tensor], key: TransferKey) -> Communicate:
        """Return the send of a block of keys and values to the next rank, while attention to it is computed."""
        nbytes = float(sum(tensor.nbytes for tensor in keys))
        read = tuple(tensor.id for tensor in block.inputs[1:3])
        return Communicate("rotate", nbytes, self._axis, key=key, operator=block.id, tensors=read)

    def _sums(self, own: Operator, other: Operator) -> list[Operator]:
        """Return the operators that add the gradients from another block to a rank's own."""
        pairs = zip(own.outputs, other.outputs, strict=True)
        return self._added.priced([self._added.operator("add_", own, pair, pair[:1]) for pair in pairs])

    def _half(self, tensor: Tensor, attention: Operator) -> Tensor:
        """Return half of a block of keys, or of values."""
        shape = list(tensor.shape)
        shape[length_dim(attention)] //= 2
        return replace(tensor, id=self._added.tensor_id(), shape=tuple(shape))

    def _of_other_block(
        self, attention: Operator, backward: Sequence[Operator], used: tuple[Tensor, ...]
    ) -> tuple[Operator, list[Operator]]:
        """Return attention to the keys and values ``used`` of another rank's block, and its backward operators."""
        used_of = {old.id: new for old, new in zip(attention.inputs[1:3], used, strict=True)}
        shape_of = {old.shape: new.shape for old, new in zip(attention.inputs[1:3], used, strict=True)}

        def to_other(operator: Operator, forward: int | None) -> Operator:
            outputs = operator.outputs
            if operator.phase == "backward":  # the gradients of the queries, then of the keys and values
                outputs = (*outputs[:1], *(replace(t, shape=shape_of.get(t.shape, t.shape)) for t in outputs[1:]))
            causal = {"is_causal": False, "part_of_causal": True} if is_causal(operator) else {}
            return replace(
                operator,
                id=self._added.operator_id(),
                forward=forward,
                inputs=tuple(used_of.get(tensor.id, tensor) for tensor in operator.inputs),
                outputs=outputs,
                attributes={**operator.attributes, **causal},
            )

        other = to_other(attention, None)
        others = [to_other(one, other.id) for one in backward]
        first, *rest = self._added.repriced((attention, *backward), (other, *others))
        return first, rest


def _forward(
    blocks: Sequence[Operator], merges: Sequence[Operator], hops: Sequence[Communicate]
) -> Iterator[BlockItem]:
    """Yield the rounds of the forward pass: while a block is used, it is sent on and the next one is received."""
    for number, block in enumerate(blocks):
        hop = hops[number : number + 1]
        yield from hop
        yield block
        if number:
            yield merges[number - 1]
        yield from (one.awaited() for one in hop)


def _backward(
    blocks: Sequence[Operator],
    sums: Sequence[Iterable[Operator]],
    hops: Sequence[Communicate],
    home: Sequence[Communicate],
) -> Iterator[BlockItem]:
    """Yield the rounds of the backward pass: a block's gradients follow it, each rank adds its own, back to its own rank."""
    for number, block in enumerate(blocks):
        hop = hops[number : number + 1]
        yield from hop
        yield block
        if number:
            yield home[number - 1].awaited()
            yield from sums[number - 1]
        yield from (one.awaited() for one in hop)
        yield home[number]
    yield home[-1].awaited()
