"""Changes the batch size of a step: the same operators, ids and times in other shapes.

Which dimensions scale is found by propagating logical axes (``triosim.sharding.step_dimensions``), not by comparing sizes: a
dimension that merely equals the batch size, as the 128 channels of VGG in a trace of batch 128, stays. Where a trace's dataflow
is broken, so that the batch does not reach the end of the forward pass, sizes have to do: the first dimension of what depends
on the network's input, where it is the batch size or a multiple of it, and never one of a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from triosim.errors import OptionError, TraceError
from triosim.input_files.limits import ELEMENTS
from triosim.operators.features import base_name
from triosim.sharding.dimensions import AxisKind
from triosim.sharding.step_dimensions import StepDimensions
from triosim.trace import Operator, Tensor

_FIXED = frozenset(("parameter", "buffer", "optimizer_state"))
_BROKEN = (
    "the trace's dataflow is broken: the batch cannot be followed from the network's input to its output, so every first "
    "dimension of the batch's size is assumed to be the batch"
)


@dataclass(frozen=True, slots=True)
class RescaledOperators:
    """Operators in other shapes, and notes for the user."""

    operators: list[Operator]
    notes: tuple[str, ...] = ()


def rescaled(operators: Sequence[Operator], old: int, new: int) -> RescaledOperators:
    """Return the operators of batch size ``old`` in the shapes of batch size ``new``.

    Raises ``OptionError`` for a batch of none, ``TraceError`` where nothing that the network is fed has the batch size.
    """
    if new < 1:
        raise OptionError(f"a batch of {new} samples", fix="use a batch size of at least 1")
    if new == old:
        return RescaledOperators(list(operators))
    dimensions = StepDimensions(operators, old)
    if not dimensions.is_connected:
        return RescaledOperators(_RescalingBySizes(operators, old, new).operators(), (_BROKEN,))
    return RescaledOperators(resized(dimensions, "batch", old, new))


def resized(dimensions: StepDimensions, kind: AxisKind, old: int, new: int) -> list[Operator]:
    """Return the operators of a step whose batch (or sequence) is ``new`` instead of ``old``."""
    sized: dict[int, Tensor] = {}

    def of(tensor: Tensor) -> Tensor:
        found = sized.get(tensor.id)
        if found is None:
            shape = dimensions.resized(tensor, kind, old, new)
            if (elements := prod(shape)) > ELEMENTS.most:
                ELEMENTS.check(elements, f"a {kind} of {new}")
            found = sized[tensor.id] = tensor if shape == tensor.shape else replace(tensor, shape=shape)
        return found

    changed = []
    for operator in dimensions.operators:
        if operator.phase != "optimizer":
            inputs, outputs = tuple(map(of, operator.inputs)), tuple(map(of, operator.outputs))
            if inputs != operator.inputs or outputs != operator.outputs:
                operator = replace(operator, inputs=inputs, outputs=outputs)
        changed.append(operator)
    return changed


class _RescalingBySizes:
    """Scales what depends on the network's input, by sizes alone, in one pass over the step."""

    def __init__(self, operators: Sequence[Operator], old: int, new: int) -> None:
        self._all = operators
        self._old = old
        self._new = new
        self._by_id = {operator.id: operator for operator in operators}
        self._dependent: set[int] = set()  # storages of what depends on the network's input
        self._layouts: dict[int, tuple[int, ...]] = {}  # by storage: the first shape in which it was seen to scale

    def operators(self) -> list[Operator]:
        found = {
            tensor.id: tensor for operator in self._all for tensor in operator.inputs if tensor.category == "input"
        }
        if not any(self._divides(tensor, 0) for tensor in found.values()):
            raise TraceError(
                f"no input of the network has the batch size {self._old} as its first dimension, so it cannot be changed",
                fix="use the batch size of the trace, or capture one whose inputs are (batch, ...)",
            )
        self._dependent.update(tensor.storage for tensor in found.values())
        return [self._rescale(operator) for operator in self._all]

    def _rescale(self, operator: Operator) -> Operator:
        if operator.phase == "optimizer":
            return operator
        if operator.phase == "forward" and any(tensor.storage in self._dependent for tensor in operator.inputs):
            self._dependent.update(
                tensor.storage for tensor in operator.outputs if self._is_of_samples(operator, tensor)
            )
        inputs = tuple(self._resize(operator, tensor) for tensor in operator.inputs)
        outputs = tuple(self._resize(operator, tensor) for tensor in operator.outputs)
        if inputs == operator.inputs and outputs == operator.outputs:
            return operator
        return replace(operator, inputs=inputs, outputs=outputs)

    def _resize(self, operator: Operator, tensor: Tensor) -> Tensor:
        if operator.phase == "forward":
            scales = tensor.storage in self._dependent
        else:
            scales = self._is_of_samples(operator, tensor)
        if not scales:
            return tensor
        dimension = self._batch_dimension(tensor)
        if dimension is None:
            return tensor
        shape = list(tensor.shape)
        shape[dimension] = shape[dimension] // self._old * self._new
        return replace(tensor, shape=tuple(shape))

    def _batch_dimension(self, tensor: Tensor) -> int | None:
        """The first dimension, or the last where the tensor is the transpose of one that was seen to scale."""
        layout = self._layouts.get(tensor.storage)
        if layout is not None and len(layout) == 2 and tensor.shape == layout[::-1] != layout:
            return 1
        if not self._divides(tensor, 0):
            return None
        self._layouts[tensor.storage] = tensor.shape
        return 0

    def _is_of_samples(self, operator: Operator, tensor: Tensor) -> bool:
        """Whether a tensor of the forward or backward pass holds samples, and is no parameter nor its gradient."""
        if tensor.category in _FIXED or tensor.parameter is not None:
            return False
        source = self._by_id.get(operator.forward, operator) if operator.forward is not None else operator
        if operator.phase == "backward" and tensor.category == "gradient" and _is_parameter_gradient(source, tensor):
            return False
        # The statistics that a batch norm saves have one entry a channel, as its parameters have.
        return not ("norm" in base_name(source.name).lower() and _is_of_channels(source, tensor))

    def _divides(self, tensor: Tensor, dimension: int) -> bool:
        return bool(tensor.shape) and tensor.shape[dimension] > 0 and tensor.shape[dimension] % self._old == 0


def _is_parameter_gradient(forward: Operator, tensor: Tensor) -> bool:
    """Whether an unlinked gradient has the shape of a parameter, or its transpose, and not that of an activation."""
    activations = {t.shape for t in (*forward.inputs, *forward.outputs) if t.category not in _FIXED}
    parameters = {t.shape for t in forward.inputs if t.category == "parameter"}
    parameters |= {shape[::-1] for shape in parameters if len(shape) == 2}
    return tensor.shape in parameters and tensor.shape not in activations


def _is_of_channels(operator: Operator, tensor: Tensor) -> bool:
    return len(tensor.shape) == 1 and any(
        other.shape == tensor.shape for other in operator.inputs if other.category in _FIXED
    )
