"""Sequence parallelism: where tensor parallelism leaves features whole, each rank has a share of the sequence.

Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models"), section 4.2.2. Norms, dropouts and
the residual stream between Megatron's pairs of layers treat tokens separately, so that a rank can have 1/N of them. What all
tokens need whole (masks, tables of angles) is computed in full. A parameter that is used for a rank's own tokens has a part
of its gradient on each rank; these are added up once, when the step ends.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from triosim.errors import OptionError, TraceError
from triosim.extrapolators.core.hooks import RankContext, TrainingHooks
from triosim.extrapolators.core.program import Gradient, Stage
from triosim.operators.features import base_name, is_attention
from triosim.sharding.dataflow import Dataflow, Value
from triosim.sharding.step_dimensions import StepDimensions
from triosim.tasks import AllReduce, TaskStream, Wait
from triosim.trace import Operator, Tensor


def require_divisible(step: StepDimensions, ranks: int, where: str) -> None:
    """Raise ``TraceError`` where the network is fed no sequence, ``OptionError`` where one does not divide by ``ranks``."""
    if not step.lengths:
        raise TraceError(
            "nothing that the network is fed has a sequence, which could be divided", where=where, fix="use another way"
        )
    for length in step.lengths:
        if length % ranks:
            raise OptionError(
                f"a sequence of {length} tokens does not divide by {ranks}",
                where=where,
                fix=f"use a sequence of a multiple of {ranks} tokens, or fewer GPUs",
            )


def share_of_sequence(step: StepDimensions, operator: Operator, ranks: int) -> Operator:
    """Return an operator on 1/``ranks`` of the sequence. Parameters and their gradients are whole."""

    inputs = tuple(share_of_tensor(step, tensor, ranks) for tensor in operator.inputs)
    outputs = tuple(share_of_tensor(step, tensor, ranks) for tensor in operator.outputs)
    same = inputs == operator.inputs and outputs == operator.outputs
    return operator if same else operator.with_tensors(inputs, outputs)


def share_of_tensor(step: StepDimensions, tensor: Tensor, ranks: int) -> Tensor:
    """Return a tensor with 1/``ranks`` of the sequence, if it has one and is no parameter nor about one."""
    if tensor.category in ("parameter", "optimizer_state") or tensor.parameter is not None:
        return tensor
    shape = step.local_shape(tensor, "sequence", ranks)
    return tensor if shape == tensor.shape else replace(tensor, shape=shape)


def tokens_mixed(flow: Dataflow, step: StepDimensions, operator: Operator) -> list[Tensor]:
    """Return what an operator reads with all its tokens, to make of it something that has none (but a loss, which is a sum)."""
    if not any(tensor.numel > 1 for tensor in operator.outputs):
        return []
    if any(step.follows(tensor, "sequence") for tensor in operator.outputs):
        return []
    return [t for value, t in flow.reads[operator.id] if value in flow.differentiable and step.follows(t, "sequence")]


class Region:
    """The operators that work on a share of the sequence: those of which tensor parallelism divides nothing (``taken``).

    ``is_of_samples`` says of data whether they depend on a parameter and on what the network is fed. ``mixing`` are operators
    that need all tokens of their inputs (a pooling, the first token) and make what has none, with these inputs.
    """

    def __init__(
        self,
        flow: Dataflow,
        taken: Container[int],
        step: StepDimensions,
        ranks: int,
        is_of_samples: Callable[[Value], bool],
    ) -> None:
        require_divisible(step, ranks, "sequence parallel")
        self._flow = flow
        self._taken = taken
        self._step = step
        self._ranks = ranks
        self._is_of_samples = is_of_samples
        self._whole = self._needed_whole()
        self.mixing: Mapping[int, list[Tensor]] = {
            operator.id: lost for operator in flow.forward if self.has(operator.id) and (lost := self._mixed(operator))
        }

    def has(self, number: int) -> bool:
        """Whether a forward operator works on a share of the sequence."""
        return number not in self._taken and number not in self._whole

    def is_divided(self, value: Value | None) -> bool:
        """Whether each rank has a share of some data."""
        return value is not None and self.has(value.producer)

    def share(self, operator: Operator) -> Operator:
        """Return what a rank does of an operator."""
        number = operator.id if operator.phase == "forward" else operator.forward
        if number is not None and (not self.has(number) or number in self.mixing):
            return operator
        return share_of_sequence(self._step, operator, self._ranks)

    def parameters(self) -> set[int]:
        """Return the storages of the parameters that are used for a rank's own tokens."""
        return {
            tensor.storage
            for operator in self._flow.forward
            if self.has(operator.id) and operator.id not in self.mixing
            for tensor in operator.inputs
            if tensor.category == "parameter"
        }

    def _needed_whole(self) -> set[int]:
        """What makes the masks, tables and targets that the operators of tensor parallelism read."""
        found: set[int] = set()
        todo = [operator.id for operator in self._flow.forward if operator.id in self._taken]
        while todo:
            for value, _ in self._flow.reads[todo.pop()]:
                maker = value.producer
                if not self._is_of_samples(value) and maker not in self._taken and maker not in found:
                    found.add(maker)
                    todo.append(maker)
        return found

    def _mixed(self, operator: Operator) -> list[Tensor]:
        reads = [value for value, _ in self._flow.reads[operator.id]]
        if is_attention(base_name(operator.name)) and any(map(self._is_of_samples, reads)):
            raise OptionError(
                f"the attention of {operator.layer} is not divided among the ranks, so that the sequence cannot be either",
                where="sequence parallel",
                fix="leave it out, or use a number of GPUs that divides the heads",
            )
        return tokens_mixed(self._flow, self._step, operator)


class SumAtTheEnd(TrainingHooks):
    """All-reduces the gradients of parameters of which each rank knows a part, once, when the backward pass is over."""

    def __init__(self, context: RankContext, nbytes: float) -> None:
        super().__init__(context)
        self._nbytes = nbytes

    def before_optimizer(self) -> TaskStream:
        """Add up."""
        if not self.alone and self._nbytes:
            summed = yield AllReduce(self._nbytes, self.group, stream=f"{self.group.name} communication")
            yield Wait((summed,))


def summing(
    storages: Container[int],
) -> Callable[[Stage, tuple[Gradient, ...]], Callable[[RankContext], TrainingHooks]]:
    """Return what makes the reactions of a stage's ranks, which add up the gradients of some parameters."""

    def make(stage: Stage, gradients: tuple[Gradient, ...]) -> Callable[[RankContext], TrainingHooks]:
        nbytes = sum(gradient.nbytes for gradient in gradients if gradient.parameter.storage in storages)
        return lambda context: SumAtTheEnd(context, nbytes)

    return make
