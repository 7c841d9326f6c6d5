"""Context parallelism: every rank has a share of the sequence in all operators, and attention meets the keys of the others.

Ring attention (Liu et al. 2023, "Ring Attention with Blockwise Transformers"): in N rounds each rank multiplies its queries
with one block of keys and values, and hands that block on to the next rank meanwhile. Backward, keys and values go round once
more, for N - 1 hops, and the gradients of each block with them, for N hops, so that they get home. With
``--option cp=all-gather`` (as Llama 3 was trained, Grattafiori et al. 2024, section 3.3.2) keys and values are gathered before
attention, and their gradients reduce-scattered after it.

Causal attention is balanced in zigzags (as Llama 3 and Megatron-LM do it): of 2N pieces of the sequence a rank has number i and
number 2N - 1 - i, so that every round is the same work on every rank: causal attention of its own block, and of every other
block all of its queries by one half of the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

from triosim.compute.pricing.repricing import estimated, reprice
from triosim.config import Option
from triosim.errors import TraceError
from triosim.extrapolators.core.extrapolator import CONTEXT_ORDER, Extrapolator
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Block, BlockItem, Communicate, Program, TransferKey
from triosim.extrapolators.tensor import notes
from triosim.extrapolators.tensor.sequence_parallel import (
    inputs_mixing_tokens,
    local_tokens,
    on_local_tokens,
    require_divisible,
)
from triosim.operators.features import base_name, is_attention, is_free, length_dim
from triosim.operators.products import PRODUCTS
from triosim.sharding.dataflow import Dataflow
from triosim.sharding.step_dimensions import StepDimensions
from triosim.trace import Operator, Tensor


class ContextParallel(Extrapolator):
    """``cp``. Its ranks have the same parameters: gradients are reduced over it and the data axes together."""

    axis = "cp"
    level = "operators"
    identical_ranks = True
    order = CONTEXT_ORDER
    sums_gradients = True
    options = (
        Option(
            "cp",
            "choice",
            "ring",
            "cp: how keys and values are exchanged: in a ring, or all at once.",
            choices=("ring", "all-gather"),
            own_flag=False,
        ),
    )

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program of one rank's share of the sequence, with the exchange of keys and values."""
        gathers = self.config.cp == "all-gather"
        if self.size == 1:
            return program
        step = StepDimensions(program.operators, program.batch_size)
        attentions = _attentions(program, step)
        zigzags = any(_is_causal(operator) for operator in attentions)
        require_divisible(step, self.size * (2 if zigzags else 1), self.axis)
        return _Division(program, step, attentions, self.axis, self.size, gathers).program()


def _is_causal(operator: Operator) -> bool:
    return operator.attributes.get("is_causal") is True


def _attentions(program: Program, step: StepDimensions) -> list[Operator]:
    """The attention of the forward pass. Raises ``TraceError`` where it is not fused, or has no sequence."""
    found = []
    for operator in program.operators:
        if operator.phase != "forward":
            continue
        name = base_name(operator.name)
        if is_attention(name):
            if not all(step.follows(tensor, "sequence") for tensor in operator.inputs[:3]):
                raise TraceError(
                    f"the sequence cannot be followed from the network's input to the attention of {operator.layer}",
                    where="cp",
                    fix="capture a trace with the tensors of every operator",
                )
            found.append(operator)
        elif name in PRODUCTS and any(len(step.follows(tensor, "sequence")) > 1 for tensor in operator.outputs):
            raise TraceError(
                f"the attention of {operator.layer} is written out as products, which cannot go round in blocks",
                where="cp",
                fix="capture the model with fused attention (attn_implementation='sdpa')",
            )
    return found


class _Division:
    """Divides a program by sequence. ``gathers`` says how attention gets the keys and values of the other ranks."""

    def __init__(
        self,
        program: Program,
        step: StepDimensions,
        attentions: Sequence[Operator],
        axis: str,
        ranks: int,
        gathers: bool,
    ) -> None:
        self._program = program
        self._step = step
        self._attentions = attentions
        self._axis = axis
        self._ranks = ranks
        self._gathers = gathers
        tensors = {t.id: t for operator in program.operators for t in (*operator.inputs, *operator.outputs)}
        self._operators = count(max(operator.id for operator in program.operators) + 1)
        self._tensors = count(max(max(tensors), *(tensor.storage for tensor in tensors.values())) + 1)
        self._instead: dict[int, list[BlockItem]] = {}  # of an operator
        self._all_tokens: dict[int, Tensor] = {}  # by what a rank has a share of

    def program(self) -> Program:
        """Return the program of a rank."""
        flow = Dataflow(self._program.operators)
        operators = self._program.operators
        shapes = {op.id: on_local_tokens(self._step, op, self._ranks) for op in operators if op.phase != "optimizer"}
        names = []
        for operator in flow.forward:
            lost = [] if is_attention(base_name(operator.name)) else inputs_mixing_tokens(flow, self._step, operator)
            if lost:  # it and what differentiates it see all tokens
                shapes |= {one.id: one for one in (operator, *flow.backward.get(operator.id, ()))}
                gathers = [Communicate("all_gather", float(t.nbytes), self._axis, operator=operator.id) for t in lost]
                self._instead[operator.id] = [*gathers, operator]
                names.append(operator.layer)
        backward = {number: [op for op in ops if not is_free(op)] for number, ops in flow.backward.items()}
        if self._gathers:
            for attention in self._attentions:
                for one in (attention, *backward.get(attention.id, ())):
                    shapes[one.id] = self._with_all_keys(one, shapes[one.id], attention)
        note = f"operator times are predicted for each GPU's share of the sequence ({self._axis} on {self._ranks} GPUs)"
        program = self._program.reshaped(shapes, note=note)
        program = program.noted(*notes.all_tokens(self._axis, names))
        known = {operator.id: operator for operator in program.operators}
        for attention in self._attentions:
            olds = backward.get(attention.id, []) if program.training else []
            news = [known[one.id] for one in olds]
            if self._gathers:
                self._gather(attention, known[attention.id], list(zip(olds, news, strict=True)))
            else:
                self._ring(known[attention.id], news)
        return program.rewritten(self._items)

    def _items(self, block: Block) -> Iterable[BlockItem]:
        for item in block.items:
            instead = self._instead.get(item.id) if isinstance(item, Operator) else None
            yield from (item,) if instead is None else instead

    # ---- all-gather ---------------------------------------------------------------------------------------------

    def _with_all_keys(self, whole: Operator, share: Operator, attention: Operator) -> Operator:
        """A rank's share of an attention operator, with the keys and values, or their gradients, of all tokens."""
        keys = attention.inputs[1:3]
        shapes = {tensor.shape for tensor in keys}

        def inputs() -> Iterable[Tensor]:
            for old, new in zip(whole.inputs, share.inputs, strict=True):
                yield self._gathered(old) if old in keys else new

        def outputs() -> Iterable[Tensor]:
            for place, (old, new) in enumerate(zip(whole.outputs, share.outputs, strict=True)):
                is_gradient = whole.phase == "backward" and place > 0 and old.shape in shapes
                yield self._gathered(old) if is_gradient else new

        return replace(share, inputs=tuple(inputs()), outputs=tuple(outputs()))

    def _gathered(self, tensor: Tensor) -> Tensor:
        """What a rank has of all tokens, where it has a share of its own."""
        found = self._all_tokens.get(tensor.id)
        if found is None:
            number = next(self._tensors)
            found = self._all_tokens[tensor.id] = replace(tensor, id=number, storage=number)
        return found

    def _gather(self, whole: Operator, attention: Operator, backward: Sequence[tuple[Operator, Operator]]) -> None:
        """Gather keys and values, and put them in order by a copy; scatter their gradients."""
        own = [local_tokens(self._step, tensor, self._ranks) for tensor in whole.inputs[1:3]]
        every = attention.inputs[1:3]
        copies = [self._added("repeat", attention, (o,), (e,)) for o, e in zip(own, every, strict=True)]
        nbytes = float(sum(tensor.nbytes for tensor in every))
        gather = Communicate("all_gather", nbytes, self._axis, operator=attention.id, tensors=_numbers(every))
        self._instead[attention.id] = [gather, *self._priced(copies), attention]
        if backward:
            old, last = backward[-1]
            kept = [
                self._added("slice", last, (self._all_tokens[t.id],), (local_tokens(self._step, t, self._ranks),))
                for t in old.outputs
                if t.id in self._all_tokens
            ]
            self._instead[last.id] = [last, replace(gather, kind="reduce_scatter"), *kept]

    # ---- ring ---------------------------------------------------------------------------------------------------

    def _ring(self, attention: Operator, backward: Sequence[Operator]) -> None:
        """Write out the rounds of an attention, and of the operator that differentiates it."""
        if len(backward) > 1:
            raise TraceError(
                f"the attention of {attention.layer} is differentiated by {len(backward)} operators, not by one kernel",
                where=self._axis,
                fix="capture the model with fused attention, or use --option cp=all-gather",
            )
        keys, out = attention.inputs[1:3], attention.outputs[:1]
        split_gradients = tuple(self._half(tensor, attention) for tensor in keys) if _is_causal(attention) else keys
        slices = [
            self._added("slice", attention, (t,), (h,))
            for t, h in zip(keys, split_gradients, strict=True)
            if t is not h
        ]
        other, others = self._other_blocks(attention, backward, split_gradients)
        blocks = [attention, *(self._again(other) for _ in range(self._ranks - 1))]
        merges = [self._added("lerp_", attention, (*out, *block.outputs[:1]), out) for block in blocks[1:]]
        rotate = Communicate("rotate", float(sum(t.nbytes for t in keys)), self._axis)
        rounds = [
            replace(rotate, key=TransferKey("keys", attention.id, i), operator=b.id, tensors=_numbers(b.inputs[1:3]))
            for i, b in enumerate(blocks)
        ]
        self._instead[attention.id] = [*slices, *_forward(blocks, self._priced(merges), rounds[:-1])]
        if backward:
            made = backward[0]
            differentiating = [made, *(self._again(others[0], block.id) for block in blocks[1:])]
            sums = [
                self._priced([self._added("add_", made, p, p[:1]) for p in zip(made.outputs, b.outputs, strict=True)])
                for b in differentiating[1:]
            ]
            back = [replace(one, key=_renamed(one, "keys again")) for one in rounds[:-1]]
            home = [replace(one, key=_renamed(one, "gradients of keys")) for one in rounds]
            self._instead[made.id] = list(_backward(differentiating, sums, back, home))

    def _half(self, tensor: Tensor, attention: Operator) -> Tensor:
        """Half of the keys of a block, or of the values."""
        shape = list(tensor.shape)
        shape[length_dim(attention)] //= 2
        return replace(tensor, id=next(self._tensors), shape=tuple(shape))

    def _other_blocks(
        self, attention: Operator, backward: Sequence[Operator], split_gradients: tuple[Tensor, ...]
    ) -> tuple[Operator, list[Operator]]:
        """Attention to another rank's block, and what differentiates it, with their times."""
        half_of = {old.id: new for old, new in zip(attention.inputs[1:3], split_gradients, strict=True)}
        shape_of = {old.shape: new.shape for old, new in zip(attention.inputs[1:3], split_gradients, strict=True)}

        def seen(operator: Operator, forward: int | None) -> Operator:
            outputs = operator.outputs
            if operator.phase == "backward":  # the gradients of the queries, then of the keys and values
                outputs = (*outputs[:1], *(replace(t, shape=shape_of.get(t.shape, t.shape)) for t in outputs[1:]))
            causal = {"is_causal": False} if _is_causal(operator) else {}
            return replace(
                operator,
                id=next(self._operators),
                forward=forward,
                inputs=tuple(half_of.get(tensor.id, tensor) for tensor in operator.inputs),
                outputs=outputs,
                attributes={**operator.attributes, **causal},
            )

        other = seen(attention, None)
        others = [seen(one, other.id) for one in backward]
        program = self._program
        priced = reprice((attention, *backward), (other, *others), program.model, program.gpu)
        return priced[0], priced[1:]

    def _again(self, operator: Operator, forward: int | None = None) -> Operator:
        """One more such operator, with results of its own."""
        numbers = [next(self._tensors) for _ in operator.outputs]
        outputs = (replace(t, id=n, storage=n) for t, n in zip(operator.outputs, numbers, strict=True))
        return replace(operator, id=next(self._operators), outputs=tuple(outputs), forward=forward)

    def _added(self, name: str, beside: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Operator:
        """An operator that the trace does not have."""
        number = next(self._operators)
        return Operator(number, f"aten::{name}", beside.phase, beside.layer, tuple(inputs), tuple(outputs), 0.0)

    def _priced(self, operators: Sequence[Operator]) -> list[Operator]:
        return estimated(operators, self._program.model, self._program.gpu) if operators else []


def _numbers(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    return tuple(tensor.id for tensor in tensors)


def _forward(
    blocks: Sequence[Operator], merges: Sequence[Operator], rounds: Sequence[Communicate]
) -> Iterable[BlockItem]:
    """The rounds of ring attention: while a block is used, it goes on and the next one comes."""
    for place, block in enumerate(blocks):
        coming = rounds[place] if place < len(rounds) else None
        if coming is not None:
            yield coming
        yield block
        if place:
            yield merges[place - 1]
        if coming is not None:
            yield coming.awaited()


def _backward(
    blocks: Sequence[Operator],
    sums: Sequence[Sequence[Operator]],
    rounds: Sequence[Communicate],
    home: Sequence[Communicate],
) -> Iterable[BlockItem]:
    """The rounds backward: the gradients of a block follow it, each rank adding its own, until they are home."""
    for place, block in enumerate(blocks):
        coming = rounds[place] if place < len(rounds) else None
        if coming is not None:
            yield coming
        yield block
        if place:
            yield home[place - 1].awaited()
            yield from sums[place - 1]
        if coming is not None:
            yield coming.awaited()
        yield home[place]
    yield home[-1].awaited()


def _renamed(one: Communicate, what: str) -> TransferKey:
    assert one.key is not None
    return one.key._replace(what=what)
