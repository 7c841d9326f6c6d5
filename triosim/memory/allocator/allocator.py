"""PyTorch's caching allocator for CUDA, simulated: which bytes an allocation gets, what is reserved, and when it fails.

It follows the description at the head of ``c10/cuda/CUDACachingAllocator.cpp`` and Z. DeVito's "A guide to PyTorch's CUDA
Caching Allocator" (2022): sizes are rounded, small and large allocations have pools of their own, a pool gives the smallest
free block of the stream that is large enough and splits it, a freed block joins its free neighbours, and cudaMalloc is asked
only when no block is large enough. When cudaMalloc fails, cached segments are given back and it is asked again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from triosim.memory.allocator.blocks import MemoryBlock, Pool, Segment
from triosim.memory.allocator.expandable import ExpandableSegments
from triosim.memory.allocator.settings import LARGEST_SMALL, SMALLEST_BLOCK, AllocatorSettings

#: The address of the first segment: larger than any size, so that sizes and addresses are not confused.
_FIRST_ADDRESS = 0x7F00_0000_0000


@dataclass(frozen=True, slots=True)
class SegmentEvent:
    """A segment, or ``nbytes`` of an expandable one, that was taken (or given back) before the ``when``-th allocation."""

    taken: bool
    address: int
    nbytes: int
    stream: str
    when: int


class AllocationFailed(Exception):  # the replay turns it into an error that names the operator
    """Raised when an allocation of ``nbytes`` cannot be served; ``free`` bytes are left on the GPU."""

    def __init__(self, nbytes: int, free: float) -> None:
        super().__init__(nbytes, free)
        self.nbytes = nbytes
        self.free = free


class CachingAllocator:
    """The allocator of one GPU, with ``capacity`` bytes that cudaMalloc can give.

    ``allocated`` are the bytes of the blocks in use (``torch.cuda.memory_allocated``), ``reserved`` those of all segments
    (``torch.cuda.memory_reserved``), each with its peak; ``requested`` is what was asked for, before rounding.
    """

    def __init__(self, capacity: float = math.inf, settings: AllocatorSettings | None = None) -> None:
        self.settings = AllocatorSettings() if settings is None else settings
        self.capacity = capacity
        self.segments: dict[int, Segment] = {}
        self.events: list[SegmentEvent] = []
        self.allocated = self.reserved = self.requested = 0
        self.peak_allocated = self.peak_reserved = 0
        self.retries = 0
        self.count = 0
        self._next_address = _FIRST_ADDRESS
        self._pools = {small: Pool(small) for small in (True, False)}
        self._expandable = ExpandableSegments(self)

    @property
    def allowed(self) -> float:
        """How many bytes may be reserved."""
        return self.capacity * (1.0 if self.settings.memory_fraction is None else self.settings.memory_fraction)

    def pool(self, small: bool) -> Pool:
        """Return the pool of small or of large blocks."""
        return self._pools[small]

    def malloc(self, nbytes: int, stream: str = "compute", owner: int = -1) -> MemoryBlock:
        """Return a block for ``nbytes``. Raises ``AllocationFailed``; what was cached is then given back."""
        size = self.settings.rounded(nbytes)
        pool = self.pool(size <= LARGEST_SMALL)
        pool.asked += 1
        self.count += 1
        block = self._cached(pool, size, stream)
        if block is None:
            self._collect_garbage()
            block = self._new(pool, size, stream)
        if block is None:
            raise AllocationFailed(nbytes, self.capacity - self.reserved)
        if self._splits(block, size):
            pool.add(block.split(size))
        block.use(nbytes, owner)
        self.allocated += block.size
        self.requested += nbytes
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: MemoryBlock) -> None:
        """Take a block back: it joins its free neighbours and waits in its pool."""
        self.allocated -= block.size
        self.requested -= block.requested
        block.release()
        self.cache(block)

    def cache(self, block: MemoryBlock) -> None:
        """Join a free block to its free neighbours, and put it into its pool."""
        pool = self.pool(block.segment.small)
        for other in (block.previous, block.next):
            if other is not None and not other.used and other.mapped:
                pool.remove(other)
                block.absorb(other)
        pool.add(block)

    def empty_cache(self) -> None:
        """Give back all segments, and pages of expandable ones, in which nothing is in use (``torch.cuda.empty_cache``)."""
        for small in (False, True):
            for block in self.pool(small).all():
                if block.segment.expandable:
                    self._expandable.give_back(block)
                elif block.whole:
                    self._release(block)

    def reset_peaks(self) -> None:
        """Begin the peaks anew (``torch.cuda.reset_peak_memory_stats``)."""
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def take(self, nbytes: int) -> bool:
        """Count bytes of the GPU as reserved; return whether there are so many."""
        if self.reserved + nbytes > self.allowed:
            return False
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return True

    def give_back(self, nbytes: int) -> None:
        """Count bytes of the GPU as reserved no more."""
        self.reserved -= nbytes

    def addresses(self, nbytes: int) -> int:
        """Reserve address space of this size, and return where it begins."""
        found = self._next_address
        self._next_address += nbytes
        return found

    def record(self, taken: bool, address: int, nbytes: int, stream: str) -> None:
        """Note that memory was taken from the GPU or given back to it."""
        self.events.append(SegmentEvent(taken, address, nbytes, stream, self.count))

    def _cached(self, pool: Pool, size: int, stream: str) -> MemoryBlock | None:
        """Take the best free block out of its pool."""
        if self.settings.expandable_segments:
            block = self._expandable.best(pool, size, stream)
        else:
            block = next(pool.at_least(size, stream), None)
        if block is None:
            return None
        if size < self.settings.max_split_size <= block.size:  # an oversize block is kept for large allocations
            return None
        if size >= self.settings.max_split_size and block.size >= size + self.settings.max_non_split_rounding:
            return None
        pool.remove(block)
        return block

    def _splits(self, block: MemoryBlock, size: int) -> bool:
        rest = block.size - size
        if block.segment.small or self.settings.expandable_segments:
            return rest >= SMALLEST_BLOCK
        return size < self.settings.max_split_size and rest > LARGEST_SMALL

    def _new(self, pool: Pool, size: int, stream: str) -> MemoryBlock | None:
        """Ask cudaMalloc; when it has no memory, again after one oversize block, and then all cached ones, were given back."""
        block = self._segment(pool, size, stream)
        if block is None and self._release_oversize(pool, size, stream):
            block = self._segment(pool, size, stream)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._segment(pool, size, stream)
        return block

    def _segment(self, pool: Pool, size: int, stream: str) -> MemoryBlock | None:
        if self.settings.expandable_segments:
            return self._expandable.expand(pool, size, stream)
        nbytes = self.settings.segment(size)
        if not self.take(nbytes):
            return None
        segment = Segment(self.addresses(nbytes), nbytes, stream, pool.small)
        self.segments[segment.address] = segment
        self.record(True, segment.address, nbytes, stream)
        return segment.first

    def _release(self, block: MemoryBlock) -> None:
        """Give the segment of a free block back to the GPU."""
        segment = block.segment
        self.pool(segment.small).remove(block)
        del self.segments[segment.address]
        self.give_back(segment.size)
        self.record(False, segment.address, segment.size, segment.stream)

    def _release_oversize(self, pool: Pool, size: int, stream: str) -> bool:
        """Give back oversize blocks until there is room: one that is large enough, or the largest smaller ones."""
        if math.isinf(self.settings.max_split_size):
            return False
        least = max(size, int(self.settings.max_split_size))
        enough = next((block for block in pool.at_least(least, stream) if block.whole), None)
        if enough is not None:
            self._release(enough)
            return True
        released = 0
        for block in pool.below(least, stream):
            if released >= least or block.size < self.settings.max_split_size:
                break
            if block.whole:
                released += block.size
                self._release(block)
        return released >= least

    def _collect_garbage(self) -> None:
        """Give back the whole large blocks that were not used for longest, until the threshold is kept."""
        settings = self.settings
        if settings.memory_fraction is None or not settings.garbage_collection_threshold:
            return
        excess = self.reserved - settings.garbage_collection_threshold * self.allowed
        pool = self.pool(False)
        idle = [block for block in pool.all() if block.whole and not block.segment.expandable]
        ages = {block: pool.asked - block.age for block in idle}
        total = sum(ages.values())
        released_one = True
        while excess > 0 and idle and released_one:
            oldest = total / len(idle)
            released_one = False
            for block in list(idle):
                if excess > 0 and ages[block] >= oldest:
                    excess -= block.size
                    total -= ages[block]
                    idle.remove(block)
                    self._release(block)
                    released_one = True
