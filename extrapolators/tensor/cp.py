"""Context parallelism: every rank has a share of the sequence in all operators, and attends to the keys of all ranks.

Keys and values are exchanged in a ring (``triosim.extrapolators.tensor.ring_attention``), or with ``--option cp=all-gather``
gathered before attention, and their gradients reduce-scattered after it.

Causal attention is balanced in zigzags (as Llama 3 and Megatron-LM do it): of 2N pieces of the sequence a rank has number i and
number 2N - 1 - i, so that every round is the same work on every rank: causal attention to its own block, and of every other
block all of its queries by one half of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from triosim.config import Option
from triosim.errors import TraceError
from triosim.extrapolators.core.extrapolator import CONTEXT_ORDER, Extrapolator
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Block, BlockItem, Communicate, Program
from triosim.extrapolators.tensor import notes
from triosim.extrapolators.tensor.added_operators import AddedOperators
from triosim.extrapolators.tensor.gathered_attention import GatheredAttention
from triosim.extrapolators.tensor.ring_attention import RingAttention, is_causal
from triosim.extrapolators.tensor.sequence_parallel import inputs_mixing_tokens, on_local_tokens, require_divisible
from triosim.operators.features import base_name, is_attention, is_free
from triosim.operators.products import PRODUCTS
from triosim.sharding.dataflow import Dataflow
from triosim.sharding.step_dimensions import StepDimensions
from triosim.trace import Operator, Tensor


class ContextParallel(Extrapolator):
    """The parallelism ``cp``: shards the sequence.

    Its ranks have the same parameters: gradients are reduced over it and the data axes together.
    """

    axis = "cp"
    level = "operators"
    identical_ranks = True
    of_operators_alone = True
    order = CONTEXT_ORDER
    sums_gradients = True
    options = (
        Option("cp", "choice", "ring", choices=("ring", "all-gather"),
               help="cp: the exchange of keys and values: in a ring, or by an all-gather."),
    )  # fmt: skip

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program of one rank's share of the sequence, with the exchange of keys and values."""
        if self.size == 1:
            return program
        step = StepDimensions(program.operators, program.batch_size)
        attentions = _fused_attentions(program, step)
        zigzags = any(is_causal(operator) for operator in attentions)
        require_divisible(step, self.size * (2 if zigzags else 1), self.axis)
        sharding = _SequenceSharding(program, step, self.axis, self.size)
        return sharding.gathering(attentions) if self.config.cp == "all-gather" else sharding.in_rings(attentions)


def _fused_attentions(program: Program, step: StepDimensions) -> list[Operator]:
    """Return the attention of the forward pass. Raises ``TraceError`` where it is not fused, or has no sequence."""
    found = []
    for operator in program.operators:
        if operator.phase != "forward":
            continue
        name = base_name(operator.name)
        if is_attention(name):
            if not all(step.follows(tensor, "sequence") for tensor in operator.inputs[:3]):
                what = f"the sequence cannot be followed from the network's input to the attention of {operator.layer}"
                raise TraceError(what, where="cp", fix="capture a trace with the tensors of every operator")
            found.append(operator)
        elif name in PRODUCTS and any(len(step.follows(tensor, "sequence")) > 1 for tensor in operator.outputs):
            what = f"the attention of {operator.layer} is written out as products, which cannot go round in blocks"
            fix = "capture the model with fused attention (attn_implementation='sdpa')"
            raise TraceError(what, where="cp", fix=fix)
    return found


class _SequenceSharding:
    """Shards the sequence of a program, which ``step`` finds, over the ranks of a mesh axis."""

    def __init__(self, program: Program, step: StepDimensions, axis: str, ranks: int) -> None:
        self._program = program
        self._step = step
        self._axis = axis
        self._ranks = ranks
        self._flow = Dataflow(program.operators)
        self._added = AddedOperators(program)
        operators = (operator for operator in program.operators if operator.phase != "optimizer")
        self._local = {op.id: on_local_tokens(step, op, ranks) for op in operators}

    def in_rings(self, attentions: Sequence[Operator]) -> Program:
        """Return the program of a rank in which keys and values go round in a ring."""
        program, replaced = self._on_local_tokens({})
        known = {operator.id: operator for operator in program.operators}
        ring = RingAttention(self._added, self._axis, self._ranks)
        for attention in attentions:
            replaced |= ring.rounds(known[attention.id], [known[one.id] for one in self._backward(attention)])
        return program.rewritten(lambda block: _replaced(block, replaced))

    def gathering(self, attentions: Sequence[Operator]) -> Program:
        """Return the program of a rank in which keys and values are all-gathered."""
        gathered = GatheredAttention(self._added, self._step, self._axis, self._ranks)
        with_all_keys = {
            one.id: gathered.with_all_keys(one, self._local[one.id], attention)
            for attention in attentions
            for one in (attention, *self._backward(attention))
        }
        program, replaced = self._on_local_tokens(with_all_keys)
        known = {operator.id: operator for operator in program.operators}
        for attention in attentions:
            backward = [(one, known[one.id]) for one in self._backward(attention)]
            replaced |= gathered.collectives(attention, known[attention.id], backward)
        return program.rewritten(lambda block: _replaced(block, replaced))

    def _backward(self, attention: Operator) -> list[Operator]:
        return [operator for operator in self._flow.backward.get(attention.id, ()) if not is_free(operator)]

    def _on_local_tokens(self, attention: Mapping[int, Operator]) -> tuple[Program, dict[int, list[BlockItem]]]:
        """Return the program on a rank's tokens, and the all-gathers ahead of the operators that need all tokens.

        ``attention`` are operators in other shapes than those of a rank's tokens, by id.
        """
        mixing = {op.id: inputs for op in self._flow.forward if (inputs := self._mixed_inputs(op))}
        in_full = {
            one.id: one for number in mixing for one in (self._flow.by_id[number], *self._flow.backward.get(number, ()))
        }
        note = f"operator times are predicted for each GPU's share of the sequence ({self._axis} on {self._ranks} GPUs)"
        program = self._program.reshaped({**self._local, **in_full, **attention}, note=note)
        layers = [self._flow.by_id[number].layer for number in mixing]
        replaced: dict[int, list[BlockItem]] = {}
        for number, inputs in mixing.items():
            gathers = [Communicate("all_gather", float(t.nbytes), self._axis, operator=number) for t in inputs]
            replaced[number] = [*gathers, self._flow.by_id[number]]
        return program.noted(*notes.all_tokens(self._axis, layers)), replaced

    def _mixed_inputs(self, operator: Operator) -> list[Tensor]:
        if is_attention(base_name(operator.name)):
            return []
        return inputs_mixing_tokens(self._flow, self._step, operator)


def _replaced(block: Block, replaced: Mapping[int, Sequence[BlockItem]]) -> Iterator[BlockItem]:
    """Yield a block's items, with others in place of some operators."""
    for item in block.items:
        instead = replaced.get(item.id) if isinstance(item, Operator) else None
        yield from (item,) if instead is None else instead
