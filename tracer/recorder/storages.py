"""Tracks the device memory of a running script: every storage from its birth to its death, in their exact order.

A storage is born when an operator first returns a tensor in it, and dies when PyTorch frees it. Bytes that ``resize_`` frees
and allocates again, as FSDP does with gathered parameters, count as a death and a birth.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from triosim.memory.allocator.allocator import CachingAllocator
from triosim.memory.allocator.blocks import MemoryBlock
from triosim.trace import Category, Phase
from triosim.tracer.recorder.tensor_forms import PlacedTensor, TensorForm, TensorForms

#: The CUDA caching allocator rounds up to multiples of this.
GRANULE = 512


@dataclass(slots=True)
class AllocationContext:
    """The operator that allocates: its ``position`` in the step, or, between two, that of the one that ran last.

    ``recomputing`` says that a forward pass runs again inside of the backward pass.
    """

    position: int = -1
    phase: Phase = "forward"
    layer: str = ""
    stream: str = "compute"
    recomputing: bool = False

    def copy(self) -> AllocationContext:
        """Return the same at this moment."""
        return AllocationContext(self.position, self.phase, self.layer, self.stream, self.recomputing)


@dataclass(slots=True, eq=False)
class RecordedStorage:
    """A storage, with the fields of ``triosim.trace.Storage``; ``category`` is None until it is known.

    ``owner`` is the parameter's storage, of a gradient or an optimizer's state.
    """

    number: int
    nbytes: int
    born: int
    context: AllocationContext
    shape: tuple[int, ...]
    dtype: str
    died: int | None = None
    last_position: int | None = None
    category: Category | None = None
    owner: RecordedStorage | None = None
    block: MemoryBlock | None = None


class StorageTracker:
    """The storages of the device: those that are alive, and those that died in the recorded step.

    With an ``allocator``, each gets a block of it, and bytes in use are that allocator's, with cuBLAS's workspaces of
    ``workspace`` bytes each.
    """

    def __init__(
        self, context: AllocationContext, allocator: CachingAllocator | None = None, workspace: int = 0
    ) -> None:
        self.context = context
        self.forms = TensorForms()
        self.allocator = allocator
        self._workspace = 0 if allocator is None else workspace
        self._workspaces: dict[tuple[bool, str], MemoryBlock] = {}  # by thread and stream
        self.clock = 0  # births and deaths so far
        self.started = 0  # the clock when the step began
        self._in_use = 0  # bytes, as the caching allocator rounds them
        self._peak = 0
        self._live: dict[int, tuple[RecordedStorage, Any]] = {}  # by PyTorch's address of the storage
        self._dead: list[RecordedStorage] = []
        self._in_place: dict[
            int, int
        ] = {}  # by address of a storage: that of the one whose bytes it takes at its birth
        self._count = 0

    @property
    def has_any(self) -> bool:
        """Whether anything was ever allocated."""
        return self._count > 0

    @property
    def in_use(self) -> int:
        """The bytes in use."""
        return self._in_use if self.allocator is None else self.allocator.allocated

    @property
    def peak(self) -> int:
        """The most bytes that were in use."""
        return self._peak if self.allocator is None else self.allocator.peak_allocated

    def multiplies(self) -> None:
        """Allocate the workspace that cuBLAS needs for a product, once for each thread of the process and stream."""
        key = (self.context.phase == "backward", self.context.stream)
        if self._workspace and self.allocator is not None and key not in self._workspaces:
            self._workspaces[key] = self.allocator.malloc(self._workspace, self.context.stream)

    def clear_workspaces(self) -> None:
        """Free what cuBLAS has."""
        while self._workspaces and self.allocator is not None:
            self.allocator.free(self._workspaces.popitem()[1])

    def begin(self) -> None:
        """Begin a step: forget what died before."""
        self.started = self.clock
        self._dead = []

    def of_the_step(self) -> Iterator[RecordedStorage]:
        """Yield all storages that were alive during the step, by birth."""
        yield from sorted((*self._dead, *[one for one, _ in self._live.values()]), key=lambda recorded: recorded.born)

    def reset_peak(self) -> None:
        """Set the peak to the bytes in use now."""
        self._peak = self._in_use
        if self.allocator is not None:
            self.allocator.reset_peaks()

    def of(self, tensor: Any) -> RecordedStorage:
        """Return the storage of a tensor, which is born when it is first asked for."""
        storage = tensor.untyped_storage()
        found = self._live.get(storage._cdata)
        return self.of_form(self.forms.of(tensor, storage), storage) if found is None else found[0]

    def placed(self, tensors: Iterable[Any]) -> list[PlacedTensor]:
        """Return tensors by their forms and storages."""
        storages = [(one, one.untyped_storage()) for one in tensors]
        return [(self.forms.of(one, storage), storage) for one, storage in storages]

    def of_form(self, form: TensorForm, storage: Any) -> RecordedStorage:
        """Return a storage that a tensor of this form is in."""
        key: int = storage._cdata
        found = self._live.get(key)
        if found is not None:
            return found[0]
        block = self._released(self._in_place[key]) if key in self._in_place else None
        recorded = self._new(storage.nbytes(), form.shape, form.name, block)
        self._live[key] = (recorded, weakref.ref(storage, lambda _: self._dies(key)))
        return recorded

    @contextmanager
    def computing_in_place(self, pairs: Iterable[tuple[Any, Any]]) -> Iterator[None]:
        """Let storages born inside take the bytes of others of their size: pairs of the one that dies and the new one."""
        self._in_place = {
            new._cdata: old._cdata
            for old, new in pairs
            if old._cdata in self._live and new._cdata not in self._live and old.nbytes() == new.nbytes()
        }
        try:
            yield
        finally:
            self._in_place = {}

    def resized(self, storage: Any) -> None:
        """Record that a storage changed its size: its bytes died, and others were born."""
        key: int = storage._cdata
        found = self._live.get(key)
        if found is None or found[0].nbytes == storage.nbytes():
            return
        recorded, reference = found
        self._end(recorded)
        again = self._new(storage.nbytes(), recorded.shape, recorded.dtype)
        again.category, again.owner = recorded.category, recorded.owner
        self._live[key] = (again, reference)

    def _new(
        self, nbytes: int, shape: tuple[int, ...], dtype: str, block: MemoryBlock | None = None
    ) -> RecordedStorage:
        if block is None and self.allocator is not None and nbytes:
            block = self.allocator.malloc(nbytes, self.context.stream)
        self._count += 1
        self.clock += 1
        recorded = RecordedStorage(self._count, nbytes, self.clock, self.context.copy(), shape, dtype, block=block)
        self._in_use += _rounded(nbytes)
        self._peak = max(self._peak, self._in_use)
        return recorded

    def _dies(self, key: int) -> None:
        recorded, _ = self._live.pop(key)
        self._end(recorded)

    def _released(self, key: int) -> MemoryBlock | None:
        """End a storage, and return its block for another one."""
        recorded, _ = self._live.pop(key)
        block, recorded.block = recorded.block, None
        self._end(recorded)
        return block

    def _end(self, recorded: RecordedStorage) -> None:
        self.clock += 1
        recorded.died, recorded.last_position = self.clock, self.context.position
        block, recorded.block = recorded.block, None
        self._in_use -= _rounded(recorded.nbytes)
        if self.allocator is not None and block is not None:
            self.allocator.free(block)
        self._dead.append(recorded)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // GRANULE) * GRANULE
