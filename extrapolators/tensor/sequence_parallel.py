"""Sequence parallelism: each rank has a share of the sequence where tensor parallelism does not shard features.

Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models"), section 4.2.2. Norms, dropouts and
the residual stream between Megatron's pairs of layers treat tokens separately, so that a rank can have 1/N of them. Masks and
tables of angles, which sharded operators read, are computed in full. A parameter that is used for a rank's own tokens has a
partial gradient on each rank; these are reduced once, when the step ends.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from triosim.errors import OptionError, TraceError
from triosim.extrapolators.core.hooks import ReduceOnce
from triosim.extrapolators.core.program import Gradient, HooksFactory, RankHooksFactory, Stage
from triosim.operators.features import base_name, is_attention
from triosim.sharding.dataflow import Dataflow, StoredValue
from triosim.sharding.step_dimensions import StepDimensions
from triosim.trace import Operator, Tensor


def require_divisible(step: StepDimensions, ranks: int, where: str) -> None:
    """Raise ``TraceError`` where the network's input has no sequence, ``OptionError`` where one does not divide."""
    if not step.lengths:
        what = "no input of the network has a sequence dimension that could be divided"
        raise TraceError(what, where=where, fix="use another parallelism")
    for length in step.lengths:
        if length % ranks:
            what = f"a sequence of {length} tokens is not divisible by {ranks}"
            raise OptionError(what, where=where, fix=f"use a sequence of a multiple of {ranks} tokens, or fewer GPUs")


def on_local_tokens(step: StepDimensions, operator: Operator, ranks: int) -> Operator:
    """Return an operator on 1/``ranks`` of the sequence. Parameters and their gradients keep their size."""
    inputs = tuple(local_tokens(step, tensor, ranks) for tensor in operator.inputs)
    outputs = tuple(local_tokens(step, tensor, ranks) for tensor in operator.outputs)
    same = inputs == operator.inputs and outputs == operator.outputs
    return operator if same else operator.with_tensors(inputs, outputs)


def local_tokens(step: StepDimensions, tensor: Tensor, ranks: int) -> Tensor:
    """Return a tensor with 1/``ranks`` of its sequence; parameters, their gradients and states as they are."""
    if tensor.category in ("parameter", "optimizer_state") or tensor.parameter is not None:
        return tensor
    shape = step.local_shape(tensor, "sequence", ranks)
    return tensor if shape == tensor.shape else replace(tensor, shape=shape)


def inputs_mixing_tokens(flow: Dataflow, step: StepDimensions, operator: Operator) -> list[Tensor]:
    """Return the inputs with a sequence of an operator whose outputs have none: a pooling, the first token; no loss."""
    if not any(tensor.numel > 1 for tensor in operator.outputs):
        return []
    if any(step.follows(tensor, "sequence") for tensor in operator.outputs):
        return []
    return [t for value, t in flow.reads[operator.id] if value in flow.differentiable and step.follows(t, "sequence")]


class SequenceRegion:
    """The operators that work on a share of the sequence: those whose features are not sharded (``sharded`` are the others).

    ``is_activation`` says whether a value depends on a parameter and on the network's input. ``mixing_tokens`` are, by id, the
    operators that need all tokens of some inputs, with these.
    """

    def __init__(
        self,
        flow: Dataflow,
        sharded: Container[int],
        step: StepDimensions,
        ranks: int,
        is_activation: Callable[[StoredValue], bool],
    ) -> None:
        require_divisible(step, ranks, "sequence parallel")
        self._flow = flow
        self._sharded = sharded
        self._step = step
        self._ranks = ranks
        self._is_activation = is_activation
        self._computed_in_full = self._constants_of_sharded()
        self.mixing_tokens: Mapping[int, list[Tensor]] = {
            op.id: inputs for op in flow.forward if self.contains(op.id) and (inputs := self._mixed_inputs(op))
        }

    def contains(self, number: int) -> bool:
        """Whether a forward operator, by id, works on a share of the sequence."""
        return number not in self._sharded and number not in self._computed_in_full

    def is_sharded(self, value: StoredValue | None) -> bool:
        """Whether each rank has a share of a value's sequence."""
        return value is not None and self.contains(value.producer)

    def local_operator(self, operator: Operator) -> Operator:
        """Return an operator on a rank's share of the sequence, or in full where the rank needs all tokens."""
        number = operator.id if operator.phase == "forward" else operator.forward
        if number is not None and (not self.contains(number) or number in self.mixing_tokens):
            return operator
        return on_local_tokens(self._step, operator, self._ranks)

    def parameters(self) -> set[int]:
        """Return the storages of the parameters that are used for a rank's own tokens."""
        return {
            tensor.storage
            for operator in self._flow.forward
            if self.contains(operator.id) and operator.id not in self.mixing_tokens
            for tensor in operator.inputs
            if tensor.category == "parameter"
        }

    def _constants_of_sharded(self) -> set[int]:
        """Return the operators that make the masks, tables and targets that operators with sharded features read."""
        found: set[int] = set()
        todo = [operator.id for operator in self._flow.forward if operator.id in self._sharded]
        while todo:
            for value, _ in self._flow.reads[todo.pop()]:
                producer = value.producer
                if not self._is_activation(value) and producer not in self._sharded and producer not in found:
                    found.add(producer)
                    todo.append(producer)
        return found

    def _mixed_inputs(self, operator: Operator) -> list[Tensor]:
        reads = [value for value, _ in self._flow.reads[operator.id]]
        if is_attention(base_name(operator.name)) and any(map(self._is_activation, reads)):
            what = f"the attention of {operator.layer} is not divided among the ranks, so that the sequence cannot be either"
            fix = "leave it out, or use a number of GPUs that divides the heads"
            raise OptionError(what, where="sequence parallel", fix=fix)
        return inputs_mixing_tokens(self._flow, self._step, operator)


def reduced_at_step_end(storages: Container[int]) -> HooksFactory:
    """Return the factory of hooks that all-reduce the partial gradients of parameters of some storages."""

    def make(stage: Stage, gradients: tuple[Gradient, ...]) -> RankHooksFactory:
        nbytes = sum(gradient.nbytes for gradient in gradients if gradient.parameter.storage in storages)
        return lambda context: ReduceOnce(context, nbytes, stream=f"{context.group.name} communication")

    return make
