"""A step as it is recorded: its operators, marks and tensors, in the order in which the host issued them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from triosim.trace import Communication, Mark, Phase
from triosim.tracer.recorder.storages import RecordedStorage
from triosim.tracer.recorder.tensor_forms import TensorForm


@dataclass(slots=True, eq=False)
class RecordedOperator:
    """An operator as it was issued; tensors are indices of the step's ``tensors``, ``forward`` is the position of an operator.

    ``outside`` says that it ran outside of modules, autograd and optimizer. ``call`` is one object for calls whose operator,
    attributes and forms of tensors are equal, None where that is not known.
    """

    name: str
    phase: Phase
    layer: str
    attributes: Mapping[str, Any]
    stream: str
    forward: int | None = None
    outside: bool = False
    communication: Communication | None = None
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    call: object = None


@dataclass(slots=True, eq=False)
class RecordedTensor:
    """A tensor: a shape and a dtype in a storage."""

    storage: RecordedStorage
    shape: tuple[int, ...]
    dtype: str


@dataclass(slots=True)
class RecordedStep:
    """The operators, marks and tensors of one step, in order."""

    operators: list[RecordedOperator] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    tensors: list[RecordedTensor] = field(default_factory=list)
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)  # of tensors, by storage and view

    def number(self, storage: RecordedStorage, form: TensorForm) -> int:
        """Return the index of a tensor of this form in a storage."""
        key = (storage.number, form.view)
        found = self._numbers.get(key)
        if found is None:
            self._numbers[key] = found = len(self.tensors)
            self.tensors.append(RecordedTensor(storage, form.shape, form.name))
        return found


class Listener(Protocol):
    """An object that learns of each operator and mark of a step as soon as it is recorded."""

    def operator(self, operator: RecordedOperator, step: RecordedStep) -> None:
        """An operator was added to a step."""
        ...

    def mark(self, mark: Mark) -> None:
        """A mark was added."""
        ...
