"""A stage: the layers that a GPU runs together, their parameters, and when the gradients of these are ready."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from triosim.errors import TraceError
from triosim.extrapolators.core.program.block import Block
from triosim.operators.tensor_uses import distinct
from triosim.trace import DTYPE_BYTES, Tensor


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of a parameter: complete after operator ``ready`` of the backward pass.

    ``layer`` is the first that uses the parameter.
    """

    parameter: Tensor
    nbytes: float
    ready: int
    layer: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers that a GPU runs together: ``forward`` and ``backward`` for each micro-batch, ``optimizer`` once a step."""

    forward: tuple[Block, ...]
    backward: tuple[Block, ...] = ()
    optimizer: tuple[Block, ...] = ()
    _parameters: tuple[Tensor, ...] | None = field(default=None, init=False, repr=False, compare=False)
    _gradients: dict[str | None, tuple[Gradient, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, forward first."""
        return (*self.forward, *self.backward, *self.optimizer)

    def with_optimizer(self, optimizer: tuple[Block, ...]) -> Stage:
        """Return the stage with another optimizer: what is known of its passes stays known."""
        found = replace(self, optimizer=optimizer)
        object.__setattr__(found, "_parameters", self.parameters)
        object.__setattr__(found, "_gradients", self._gradients)
        return found

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The network's inputs that this stage uses."""
        return distinct(
            t for block in self.forward for op in block.operators for t in op.inputs if t.category == "input"
        )

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters that the forward pass uses, as this rank has them, each storage once."""
        found = self._find_parameters() if self._parameters is None else self._parameters
        object.__setattr__(self, "_parameters", found)
        return found

    def _find_parameters(self) -> tuple[Tensor, ...]:
        repeated = frozenset[int]().union(*(block.tensors.repeated for block in self.forward))
        used = (use.tensor for block in self.forward for use in block.tensors.uses)
        return distinct(tensor for tensor in used if tensor.id not in repeated)

    def gradients(self, dtype: str | None = None) -> tuple[Gradient, ...]:
        """Return the gradients in the order in which they become ready, in bytes of ``dtype`` or of the parameter's.

        The operator that completes a gradient is the last that writes it, or else, in a trace that does not link gradients
        to parameters, the last that differentiates a user of the parameter. A parameter without either is frozen.
        """
        found = self._gradients[dtype] = self._gradients.get(dtype) or self._find_gradients(dtype)
        return found

    def _find_gradients(self, dtype: str | None) -> tuple[Gradient, ...]:
        storage_of: dict[int, int] = {}  # of each id that a parameter goes by (its transposed view is another)
        users: dict[int, list[int]] = {}  # forward operator: storages of its parameters
        layers: dict[int, str] = {}  # of each storage
        for block in self.forward:
            for operator, layer, tensor in block.tensors.uses:
                storage_of[tensor.id] = tensor.storage
                users.setdefault(operator, []).append(tensor.storage)
                layers.setdefault(tensor.storage, layer)
        written: dict[int, tuple[int, int]] = {}
        linked: dict[int, tuple[int, int]] = {}
        before = 1
        for block in self.backward:
            for position, operator, parameter in block.tensors.written:
                if parameter in storage_of:
                    written[storage_of[parameter]] = (before + position, operator)
            for position, operator, forward in block.tensors.differentiated:
                for storage in users.get(forward, ()):
                    linked[storage] = (before + position, operator)
            before += len(block.operators)
        found = []
        for tensor in self.parameters:
            ready = written.get(tensor.storage) or linked.get(tensor.storage)
            if ready is not None:
                nbytes = tensor.numel * DTYPE_BYTES[dtype or tensor.dtype]
                found.append((ready[0], Gradient(tensor, float(nbytes), ready[1], layers[tensor.storage])))
        # What one operator completes is ready in the reverse of its inputs' order: the bias before the weight.
        found.reverse()
        found.sort(key=lambda entry: entry[0])
        return tuple(gradient for _, gradient in found)

    def forward_blocks_of_backward(self) -> list[int]:
        """Return the index of the forward block to which each backward block belongs.

        A backward operator belongs to the block of the operator that it differentiates. One that does not say (the sum of the
        gradients of a tensor that is used twice) goes where its result is read, or else with its layer or the operators around
        it. Raises ``TraceError`` where neither forward operators nor layers are known.
        """
        block_of = {op.id: i for i, block in enumerate(self.forward) for op in block.operators}
        layers = {block.layer: i for i, block in enumerate(self.forward)}
        readers: dict[int, int] = {}  # storage: the block of the next operator that reads it
        found: list[int | None] = []
        for block in reversed(self.backward):
            index = _first(block_of.get(op.forward) for op in block.operators if op.forward is not None)
            if index is None:
                index = _first(readers.get(tensor.storage) for op in block.operators for tensor in op.outputs)
            if index is None:
                index = layers.get(block.layer)
            if index is not None:
                readers.update((tensor.storage, index) for op in block.operators for tensor in op.inputs)
            found.append(index)
        found.reverse()
        current = _first(found)
        if current is None:
            if not found:
                return []
            raise TraceError(
                "the backward operators name neither forward operators nor layers, so they cannot be divided into stages",
                fix="capture the trace with its execution graph, or simulate inference",
            )
        return [current := current if index is None else index for index in found]


def _first(indices: Iterable[int | None]) -> int | None:
    return next((index for index in indices if index is not None), None)
