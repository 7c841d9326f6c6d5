"""Device memory while a script runs: every storage from its birth to its death, in the exact order of both.

A storage is born when an operator first returns a tensor in it, and dies when PyTorch lets go of it. Its bytes given back by
``resize_`` and taken again, as FSDP does with gathered parameters, are a death and a birth.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from triosim.trace import Category, Phase

#: The CUDA caching allocator gives no fewer bytes than this, and multiples of it.
GRANULE = 512


@dataclass(slots=True)
class Place:
    """Where the script is: what is written down of whatever is born now.

    ``position`` is that of the operator that runs, or, between two, of the one that ran last.
    """

    position: int = -1
    phase: Phase = "forward"
    layer: str = ""
    stream: str = "compute"


@dataclass(slots=True, eq=False)
class Block:
    """A storage: what ``triosim.trace.Storage`` says, with a category only where someone knew it.

    ``owner`` is the parameter's block, of a gradient or an optimizer's state.
    """

    number: int
    nbytes: int
    born: int
    place: Place
    shape: tuple[int, ...]
    dtype: str
    died: int | None = None
    last_position: int | None = None
    category: Category | None = None
    owner: Block | None = None
    recomputed: bool = False


class Blocks:
    """The device's storages: those that live, and, of the step that is recorded, those that lived."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.clock = 0  # births and deaths so far
        self.started = 0  # the clock when the step began
        self.in_use = 0
        self.most_in_use = 0
        self.recomputing = False
        self._live: dict[int, tuple[Block, Any]] = {}  # by PyTorch's address of the storage
        self._dead: list[Block] = []
        self._count = 0

    def begin(self) -> None:
        """A step begins."""
        self.started = self.clock
        self._dead = []

    def of_the_step(self) -> Iterator[Block]:
        """Yield all storages that the step has seen, by birth."""
        yield from sorted((*self._dead, *self.living()), key=lambda block: block.born)

    def living(self) -> list[Block]:
        """Return the storages that are alive."""
        return [block for block, _ in self._live.values()]

    def of(self, tensor: Any) -> Block:
        """Return the storage of a tensor; it is born when it is seen for the first time."""
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        found = self._live.get(key)
        if found is not None:
            return found[0]
        block = self._new(storage.nbytes(), tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        self._live[key] = (block, weakref.ref(storage, lambda _: self._dies(key)))
        return block

    def resized(self, storage: Any) -> None:
        """A storage changed its size: its bytes died, and others were born."""
        key: int = storage._cdata
        found = self._live.get(key)
        if found is None or found[0].nbytes == storage.nbytes():
            return
        block, reference = found
        self._end(block)
        again = self._new(storage.nbytes(), block.shape, block.dtype)
        again.category, again.owner = block.category, block.owner
        self._live[key] = (again, reference)

    def _new(self, nbytes: int, shape: tuple[int, ...], dtype: str) -> Block:
        self._count += 1
        self.clock += 1
        here = self.place
        place = Place(here.position, here.phase, here.layer, here.stream)
        block = Block(self._count, nbytes, self.clock, place, shape, dtype, recomputed=self.recomputing)
        self.in_use += _rounded(nbytes)
        self.most_in_use = max(self.most_in_use, self.in_use)
        return block

    def _dies(self, key: int) -> None:
        block, _ = self._live.pop(key)
        self._end(block)

    def _end(self, block: Block) -> None:
        self.clock += 1
        block.died, block.last_position = self.clock, self.place.position
        self.in_use -= _rounded(block.nbytes)
        self._dead.append(block)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // GRANULE) * GRANULE
