"""The operators of a captured step without its batch size: a step of any batch size is made of them.

A model is captured at a batch of ``BATCH``, a prime that divides no other size in it: a dimension that is a multiple of it
changes with the batch, and is stored as minus that multiple. Layers and memory are left out; operators, their order, shapes
and attributes are those of a capture at that batch, and so is the time of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from triosim.trace import Operator, Tensor, Trace

BATCH = 1009
#: The operators of dropout, of numbers and of whole branches.
_OF_TRAINING = ("aten::native_dropout", "aten::bernoulli_")


class TensorForm(NamedTuple):
    """A tensor of a call: its shape with minus the multiples of the batch, dtype and category.

    ``same`` is, for an output, the input in whose storage it lies, and -1 where it has its own.
    """

    shape: tuple[int, ...]
    dtype: str
    category: Any
    same: int = -1


class Call(NamedTuple):
    """What equal operators of a program have in common; attributes in the order of their names."""

    name: str
    phase: Any
    attributes: tuple[tuple[str, Any], ...]
    inputs: tuple[TensorForm, ...]
    outputs: tuple[TensorForm, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """The calls of a step in order, and for each the position of the call that it differentiates, None where it does not."""

    calls: tuple[Call, ...]
    forward: tuple[int | None, ...]

    def trace(self, batch_size: int, gpu: str, model: str, *, channels_last: bool = True) -> Trace:
        """Return the step at a batch size, without times; images may instead lie with their channels first."""
        numbers, operators = count(), []
        for position, (call, forward) in enumerate(zip(self.calls, self.forward, strict=True), 1):
            inputs = tuple(_tensor(one, next(numbers), batch_size, ()) for one in call.inputs)
            outputs = tuple(_tensor(one, next(numbers), batch_size, inputs) for one in call.outputs)
            attributes = {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in call.attributes
                if channels_last or name != "channels_last"
            }
            link = None if forward is None else forward + 1
            operators.append(
                Operator(position, call.name, call.phase, "", inputs, outputs, 0.0, forward=link, attributes=attributes)
            )
        return Trace(tuple(operators), batch_size, model, gpu, times="none")

    @property
    def attends(self) -> bool:
        """Whether the step has attention, as products and a softmax."""
        return any(call.name == "aten::_softmax" for call in self.calls)

    def inference(self) -> Program:
        """Return the forward pass of a step of training alone: up to the images' labels, and without dropout."""
        names = [call.name for call in self.calls]
        end = names.index("aten::random_") if "aten::random_" in names else len(names)
        calls = [_inferring(one) for one in self.calls[:end] if one.phase == "forward" and one.name not in _OF_TRAINING]
        return Program(tuple(calls), (None,) * len(calls))


def program_of(trace: Trace) -> Program:
    """Return the program of a step that was captured at a batch of ``BATCH``."""
    positions = {operator.id: position for position, operator in enumerate(trace.operators)}
    known: dict[Call, Call] = {}
    calls = (_call(operator) for operator in trace.operators)
    forward = (None if one.forward is None else positions[one.forward] for one in trace.operators)
    return Program(tuple(known.setdefault(call, call) for call in calls), tuple(forward))


def _inferring(call: Call) -> Call:
    """Return a call whose norm does not measure its images."""
    attributes = tuple((name, False if name == "training" else value) for name, value in call.attributes)
    return call._replace(attributes=attributes)


def _call(operator: Operator) -> Call:
    storages = [tensor.storage for tensor in operator.inputs]
    inputs = tuple(_form(tensor, ()) for tensor in operator.inputs)
    outputs = tuple(_form(tensor, storages) for tensor in operator.outputs)
    return Call(operator.name, operator.phase, frozen(operator.attributes), inputs, outputs)


def frozen(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return attributes as a tuple in the order of their names."""
    return tuple((name, tuple(one) if isinstance(one, list) else one) for name, one in sorted(attributes.items()))


def _form(tensor: Tensor, storages: Any) -> TensorForm:
    shape = tuple(-(size // BATCH) if size and size % BATCH == 0 else size for size in tensor.shape)
    same = storages.index(tensor.storage) if tensor.storage in storages else -1
    return TensorForm(shape, tensor.dtype, tensor.category, same)


def _tensor(form: TensorForm, number: int, batch_size: int, inputs: tuple[Tensor, ...]) -> Tensor:
    shape = tuple(-size * batch_size if size < 0 else size for size in form.shape)
    storage = inputs[form.same].storage if form.same >= 0 else -1
    return Tensor(number, shape, form.dtype, form.category, storage)
