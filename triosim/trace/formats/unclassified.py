"""Operators and tensors before their categories are known, as readers of foreign formats first build them.

PyTorch's execution trace reuses the ids of tensors and storages after a free, and does not show the free. So identity follows
from the order of calls: a call's output is new, unless it is one of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from triosim.trace.trace import Category, Phase


class RawTensor(NamedTuple):
    """A tensor as a file describes it, with the file's ids; ``layout`` is offset and strides, as far as the file has them."""

    number: int
    storage: int
    shape: tuple[int, ...]
    dtype: str
    layout: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class UnclassifiedTensor:
    """A tensor with ids that no other tensor or storage of the step has."""

    id: int
    storage: int
    shape: tuple[int, ...]
    dtype: str
    layout: tuple[int, ...]


@dataclass(slots=True, eq=False)
class UnclassifiedOperator:
    """An operator before its tensors have categories.

    ``lists`` are the arguments that go together position by position (a for-each optimizer's parameters, gradients and
    states; one tensor each for an ordinary call). ``returned`` is what the call itself gave back, without what it saved.
    """

    name: str
    phase: Phase
    layer: str
    inputs: list[UnclassifiedTensor]
    outputs: list[UnclassifiedTensor]
    seconds: float = 0.0
    busy_seconds: float | None = None
    host_seconds: float | None = None
    forward: UnclassifiedOperator | None = None
    kernels: tuple[str, ...] = ()
    lists: list[list[UnclassifiedTensor]] = field(default_factory=list)
    returned: list[UnclassifiedTensor] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)


class TensorIdentities:
    """Gives each tensor and each storage an id of its own, in the order of calls."""

    def __init__(self) -> None:
        self._tensors: dict[int, UnclassifiedTensor] = {}  # by the file's id: the one that has it now
        self._storages: dict[int, tuple[int, str]] = {}  # by the file's id: ours, and the dtype that it was seen with
        self._by_layout: dict[tuple[object, ...], UnclassifiedTensor] = {}
        self._storage_count = 0
        self._count = 0

    def read(self, raw: RawTensor) -> UnclassifiedTensor:
        """Return an input of a call, or an output that a call inside of it has made."""
        storage = self._storages.get(raw.storage)
        if storage is None:
            storage = self._new_storage(raw)
        known = self._tensors.get(raw.number)
        if known is not None and (known.storage, known.shape, known.dtype, known.layout) == (storage[0], *raw[2:]):
            return known
        if storage[1] != raw.dtype:  # not the one of that id which we know
            storage = self._new_storage(raw)
        # A saved tensor comes back under a new id: it is the tensor of the same bytes and shape.
        alias = self._by_layout.get((storage[0], raw.shape, raw.dtype, raw.layout))
        if alias is None:
            return self._new(raw, storage[0])
        self._tensors[raw.number] = alias
        return alias

    def write(self, raw: RawTensor, given: Iterable[RawTensor]) -> UnclassifiedTensor:
        """Return an output of a call: one of the ``given`` inputs, a view of one, or a new tensor."""
        storages = set()
        for other in given:
            storages.add(other.storage)
            if other.number == raw.number and other.storage == raw.storage and other.shape == raw.shape:
                return self.read(raw)
        storage = self._storages.get(raw.storage) if raw.storage in storages else None
        return self._new(raw, (storage or self._new_storage(raw))[0])

    def alias(self, raw: RawTensor, of: RawTensor) -> UnclassifiedTensor:
        """Return the output of a call that only gives ``of`` another id (``aten::detach``)."""
        self._tensors[raw.number] = found = self.read(of)
        return found

    def _new_storage(self, raw: RawTensor) -> tuple[int, str]:
        self._storage_count += 1
        self._storages[raw.storage] = found = (self._storage_count, raw.dtype)
        return found

    def _new(self, raw: RawTensor, storage: int) -> UnclassifiedTensor:
        self._count += 1
        found = UnclassifiedTensor(self._count, storage, raw.shape, raw.dtype, raw.layout)
        self._tensors[raw.number] = found
        self._by_layout.setdefault((storage, raw.shape, raw.dtype, raw.layout), found)
        return found


@dataclass(slots=True)
class CategoryHints:
    """A reader's knowledge of storages before their categories are derived."""

    parameters: set[int] = field(default_factory=set)
    buffers: set[int] = field(default_factory=set)
    inputs: set[int] = field(default_factory=set)
    batch_size: int | None = None  # where it was stated
    known: Categories = field(default_factory=dict)  # storages whose category was stated
    annotated: dict[str, list[int]] = field(default_factory=dict)  # storages by annotation, as often as it was stated


#: Category and parameter of each storage.
Categories = dict[int, tuple[Category, int | None]]
