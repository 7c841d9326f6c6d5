"""A tape of operators: records a step as a capture would, and differentiates it as PyTorch's autograd does.

A model is a function that calls operators of ``triosim.models.operators`` on values; the tape keeps them in
order with their shapes, storages and layers. The backward pass goes through the forward operators from the last to the first,
which is the engine's order (a node's priority is its sequence number), adds up the gradients of what was used more than once
as they arrive, and reduces those of what was broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, Concatenate, ParamSpec, TypeVar

from triosim.config.stacks import ProductKind
from triosim.input_files.limits import ELEMENTS, FORWARD_OPERATORS
from triosim.models.operators.layout import Shape, Strides, contiguous
from triosim.trace import Category, Operator, Phase, Tensor, Trace

_P = ParamSpec("_P")
_Result = TypeVar("_Result")

#: From the gradients of an operator's outputs (None where nothing came) to those of its inputs.
Backward = Callable[..., "Sequence[Value | None]"]


class Value:
    """A tensor of the step: a view of a storage. ``node`` is the operator that made it, if it has a gradient."""

    __slots__ = ("dtype", "node", "number", "offset", "output", "shape", "storage", "strides", "tape")

    def __init__(
        self, tape: Tape, shape: Shape, dtype: str, storage: int, strides: Strides | None = None, offset: int = 0
    ) -> None:
        self.tape = tape
        self.shape = shape
        self.dtype = dtype
        self.storage = storage
        self.strides = contiguous(shape) if strides is None else strides
        self.offset = offset
        self.node: AutogradNode | None = None
        self.output = 0
        self.number = -1

    @property
    def is_floating(self) -> bool:
        """Whether its elements are real numbers."""
        return self.dtype.startswith(("float", "bfloat"))

    def alias(
        self, shape: Shape | None = None, strides: Strides | None = None, offset: int = 0, dtype: str | None = None
    ) -> Value:
        """Return a value in the same memory, without a gradient. ``offset`` is in elements, from where this one starts."""
        if shape is None:
            shape, strides = self.shape, self.strides
        return Value(self.tape, shape, dtype or self.dtype, self.storage, strides, self.offset + offset)


def module(
    name: str, function: Callable[Concatenate[Value, _P], _Result], x: Value, *args: _P.args, **kwargs: _P.kwargs
) -> _Result:
    """Return what a function records for ``x`` in the module ``name`` of the open one."""
    with x.tape.at(name):
        return function(x, *args, **kwargs)


class AutogradNode:
    """A node of the autograd graph: how an operator is differentiated, or where a parameter's gradients are added up."""

    __slots__ = ("backward", "gradients", "inputs", "layer", "operator")

    def __init__(
        self, operator: int, layer: str, inputs: Sequence[Value | None], backward: Backward | None, outputs: int
    ) -> None:
        self.operator = operator
        self.layer = layer
        self.inputs = inputs
        self.backward = backward
        self.gradients: list[Value | None] = [None] * outputs


@dataclass(slots=True)
class _Recorded:
    name: str
    phase: Phase
    layer: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    forward: int | None
    attributes: dict[str, Any]


@dataclass(slots=True)
class Tape:
    """The operators recorded so far. ``dtype`` is that of parameters; ``autocast`` that of products, if it differs;
    ``products`` says in which format linear layers multiply; ``keeps_narrow`` that the optimizer writes their weights in it;
    ``channels_last`` that convolutions find images with their channels last.

    ``categories`` and ``owners`` give, by storage, its category and the parameter whose gradient or state it is.
    """

    dtype: str = "float32"
    autocast: str | None = None
    products: ProductKind = "plain"
    keeps_narrow: bool = False
    channels_last: bool = False
    operators: list[_Recorded] = field(default_factory=list)
    parameters: dict[str, Value] = field(default_factory=dict)
    copies: dict[int, Value] = field(default_factory=dict)
    narrow: dict[tuple[int, Shape], Any] = field(default_factory=dict)  # copies of ``float8.Narrow``
    categories: dict[int, Category] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    phase: Phase = "forward"
    layer: str = ""
    differentiates: int | None = None
    _nodes: list[AutogradNode] = field(default_factory=list)
    _tensors: list[tuple[int, Shape, str]] = field(default_factory=list)
    _numbers: dict[tuple[int, str, Shape, Strides, int], int] = field(default_factory=dict)
    _storages: int = 0

    # ---- values -------------------------------------------------------------------------------------------------

    def new(self, shape: Shape, dtype: str, strides: Strides | None = None, category: Category | None = None) -> Value:
        """Return a value in new memory."""
        if (elements := prod(shape)) > ELEMENTS.most:
            ELEMENTS.check(elements, self.layer or "the model")
        self._storages += 1
        self.categories[self._storages] = category or _CATEGORIES[self.phase]
        return Value(self, shape, dtype, self._storages, strides)

    def parameter(self, name: str, shape: Shape, dtype: str | None = None) -> Value:
        """Return the parameter ``name`` of the open module, always the same one."""
        return self.shared_parameter(f"{self.layer}.{name}", shape, dtype)

    def shared_parameter(self, path: str, shape: Shape, dtype: str | None = None) -> Value:
        """Return the parameter with a full name, which several modules may use."""
        found = self.parameters.get(path)
        if found is None:
            found = self.new(shape, dtype or self.dtype, category="parameter")
            found.node = AutogradNode(-1, self.layer, (), None, 1)
            self.parameters[path] = found
        return found

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Operators inside belong to the module ``name`` of the open one."""
        before = self.layer
        self.layer = f"{before}.{name}" if before else name
        try:
            yield
        finally:
            self.layer = before

    @contextmanager
    def within(self, layer: str) -> Iterator[None]:
        """Operators inside belong to a layer with a full name."""
        before, self.layer = self.layer, layer
        try:
            yield
        finally:
            self.layer = before

    # ---- operators ----------------------------------------------------------------------------------------------

    def record(self, name: str, inputs: Sequence[Value], outputs: Sequence[Value], **attributes: Any) -> int:
        """Record an operator, of ATen unless its name has another namespace, and return its id."""
        given = tuple([self._number(value) for value in inputs])
        made = tuple([self._number(value) for value in outputs])
        full = name if "::" in name else f"aten::{name}"
        if self.phase == "forward" and len(self.operators) >= FORWARD_OPERATORS.most:
            FORWARD_OPERATORS.check(len(self.operators) + 1, "the model")
        self.operators.append(_Recorded(full, self.phase, self.layer, given, made, self.differentiates, attributes))
        return len(self.operators)

    def result(self, name: str, inputs: Sequence[Value], shape: Shape, dtype: str, /, **attributes: Any) -> Value:
        """Record an operator with one result, in new memory, and return that."""
        out = self.new(shape, dtype)
        self.record(name, inputs, (out,), **attributes)
        return out

    def kernel(
        self,
        name: str,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        *,
        of: Sequence[Value],
        saved: Sequence[Value],
        backward: str = "",
        **attributes: Any,
    ) -> Value:
        """Record an operator that one kernel, ``backward``, differentiates, and return its first output.

        The kernel reads the gradient of that and what is ``saved``, and computes the gradients of the inputs ``of``. By default
        it is called as the operator, with ``_backward``; it has the same attributes.
        """
        self.record(name, inputs, outputs, **attributes)

        def gradients(g: Value, *_: Value | None) -> list[Value]:
            made = [self.new(value.shape, value.dtype) for value in of]
            self.record(backward or f"{name}_backward", (g, *saved), made, **attributes)
            return made

        return self.differentiate(outputs, of, gradients)

    def differentiate(self, outputs: Sequence[Value], inputs: Sequence[Value | None], backward: Backward) -> Value:
        """Give the gradient of the operator that was recorded last, and return its first output.

        ``backward`` takes one gradient an output.
        """
        if self.phase != "forward" or all(value is None or value.node is None for value in inputs):
            return outputs[0]
        node = AutogradNode(len(self.operators), self.layer, inputs, backward, len(outputs))
        self._nodes.append(node)
        for number, value in enumerate(outputs):
            value.node, value.output = node, number
        return outputs[0]

    def _number(self, value: Value) -> int:
        if value.number < 0:
            key = (value.storage, value.dtype, value.shape, value.strides, value.offset)
            found = self._numbers.get(key)
            if found is None:
                self._numbers[key] = found = len(self._tensors)
                self._tensors.append((value.storage, value.shape, value.dtype))
            value.number = found
        return value.number

    # ---- the backward pass --------------------------------------------------------------------------------------

    def backward(
        self, loss: Value, add: Callable[[Value, Value], Value], sum_to: Callable[[Value, Value], Value]
    ) -> None:
        """Differentiate ``loss``. ``add`` adds two gradients, ``sum_to`` sums one to the shape of its value."""
        assert loss.node is not None
        self.categories[loss.storage] = "output"
        self.phase = "backward"
        self.layer = "loss"
        first = self.new((), loss.dtype)
        self.record("ones_like", (loss,), (first,))
        loss.node.gradients[loss.output] = first
        while self._nodes:
            node = self._nodes.pop()
            if node.backward is None or all(gradient is None for gradient in node.gradients):
                continue
            self.differentiates, self.layer = node.operator, node.layer
            made = node.backward(*node.gradients)
            # All gradients are reduced before the first is added up.
            wanted = [
                (value, value.node, sum_to(gradient, value))
                for value, gradient in zip(node.inputs, made, strict=True)
                if value is not None and value.node is not None and gradient is not None
            ]
            for value, source, gradient in wanted:
                before = source.gradients[value.output]
                source.gradients[value.output] = gradient if before is None else add(before, gradient)
            node.gradients = []
        self.differentiates = None

    def gradients(self) -> list[tuple[Value, Value]]:
        """Return the parameters that have a gradient, each with its gradient."""
        found = []
        for parameter in self.parameters.values():
            gradient = parameter.node.gradients[0] if parameter.node is not None else None
            if gradient is not None:
                self.owners[gradient.storage] = self._number(parameter)
                found.append((parameter, gradient))
        return found

    # ---- the trace ----------------------------------------------------------------------------------------------

    def trace(self, *, batch_size: int, model: str, gpu: str, software: Mapping[str, str]) -> Trace:
        """Return the recorded operators as a trace without times."""
        tensors = [
            Tensor(number, shape, dtype, self.categories[storage], storage, self.owners.get(storage))
            for number, (storage, shape, dtype) in enumerate(self._tensors)
        ]
        operators = tuple(
            Operator(
                number,
                raw.name,
                raw.phase,
                raw.layer,
                tuple([tensors[one] for one in raw.inputs]),
                tuple([tensors[one] for one in raw.outputs]),
                0.0,
                forward=raw.forward,
                attributes=raw.attributes,
            )
            for number, raw in enumerate(self.operators, 1)
        )
        return Trace(operators, batch_size, model, gpu, times="none", software=software)


_CATEGORIES: dict[Phase, Category] = {"forward": "activation", "backward": "gradient", "optimizer": "temporary"}
