"""Expandable segments of the caching allocator: address space for a whole GPU, into which memory is mapped page by page.

Source: note "Expandable Segments" in ``c10/cuda/CUDACachingAllocator.cpp``. There is one for each stream and pool, and it
grows at its end, or where pages were given back before. A free block that ends where unmapped space begins can grow, and
counts as being that large when the best block is looked for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from triosim.memory.allocator.blocks import MemoryBlock, Pool, Segment
from triosim.memory.allocator.settings import SMALL_SEGMENT

if TYPE_CHECKING:
    from triosim.memory.allocator.allocator import CachingAllocator

#: Address space of a segment on a GPU with unlimited memory.
_UNBOUNDED = 2**46


class ExpandableSegments:
    """The expandable segments of an allocator."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        self._segments: dict[tuple[str, bool], list[Segment]] = {}

    def best(self, pool: Pool, size: int, stream: str) -> MemoryBlock | None:
        """Return the free block that serves ``size`` best and loses least room to grow, still in its pool."""
        found: MemoryBlock | None = None
        for block in pool.at_least(size, stream):
            if found is not None and _reach(block) >= _reach(found):
                break
            found = block
        return found

    def expand(self, pool: Pool, size: int, stream: str) -> MemoryBlock | None:
        """Return a free block of ``size`` bytes or more, after mapping what it lacks; None where there is no memory."""
        block = self._room(pool, size, stream)
        if not block.mapped:
            grown = self._map(block, size)
            if grown is None:
                return None
            block = grown
        while block.size < size:
            assert block.next is not None
            grown = self._map(block.next, size - block.size)
            if grown is None:
                return None
            block = grown
        pool.remove(block)
        return block

    def give_back(self, block: MemoryBlock) -> None:
        """Unmap the whole pages in a free block."""
        segment = block.segment
        page = self._page(segment.small)
        begin = segment.address - (segment.address - block.address) // page * page
        end = segment.address + (block.address + block.size - segment.address) // page * page
        if end <= begin:
            return
        self._allocator.pool(segment.small).remove(block)
        if begin > block.address:
            rest = block.split(begin - block.address)
            self._allocator.pool(segment.small).add(block)
            block = rest
        if block.address + block.size > end:
            self._allocator.pool(segment.small).add(block.split(end - block.address))
        block.mapped = False
        segment.mapped -= block.size
        self._allocator.give_back(block.size)
        self._allocator.record(False, block.address, block.size, segment.stream)
        for other in (block.previous, block.next):
            if other is not None and not other.mapped:
                block.absorb(other)
        if not segment.mapped:  # nothing is left of it
            del self._allocator.segments[segment.address]
            self._segments[segment.stream, segment.small].remove(segment)

    def _room(self, pool: Pool, size: int, stream: str) -> MemoryBlock:
        """Return the first block, free or unmapped, from which on ``size`` bytes are not in use."""
        for segment in self._segments.get((stream, pool.small), ()):
            for block in (one for one in segment.blocks() if not one.mapped):
                start = block.previous if block.previous is not None and not block.previous.used else block
                if _free_from(start) >= size:
                    return start
        return self._new_segment(pool, size, stream).first

    def _new_segment(self, pool: Pool, size: int, stream: str) -> Segment:
        page = self._page(pool.small)
        capacity = self._allocator.capacity
        space = _UNBOUNDED if math.isinf(capacity) else max(int(capacity * 9 / 8), size)
        space = -(-space // page) * page
        segment = Segment(self._allocator.addresses(space), space, stream, pool.small, expandable=True)
        self._segments.setdefault((stream, pool.small), []).append(segment)
        return segment

    def _map(self, block: MemoryBlock, size: int) -> MemoryBlock | None:
        """Map memory into the first ``size`` bytes of an unmapped block, in whole pages; return the block that it becomes."""
        segment = block.segment
        page = self._page(segment.small)
        nbytes = min(-(-size // page) * page, block.size)
        if not self._allocator.take(nbytes):
            return None
        if nbytes < block.size:
            block.split(nbytes).mapped = False
        block.mapped = True
        segment.mapped += nbytes
        self._allocator.segments[segment.address] = segment
        self._allocator.record(True, block.address, nbytes, segment.stream)
        self._allocator.cache(block)
        return block

    def _page(self, small: bool) -> int:
        return SMALL_SEGMENT if small else self._allocator.settings.large_segment_size


def _reach(block: MemoryBlock) -> int:
    """Return how large a free block can grow."""
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)


def _free_from(block: MemoryBlock) -> int:
    """Return how many bytes from a block on are not in use."""
    total = 0
    at: MemoryBlock | None = block
    while at is not None and not at.used:
        total += at.size
        at = at.next
    return total
