"""Blocks, segments and pools of the caching allocator: segments are cut into blocks, pools hold the free ones.

A segment is what one cudaMalloc gave. Its blocks follow each other without a gap; a block that is freed joins its free
neighbours. A pool keeps free blocks by stream and size, and gives the smallest that is large enough, the one at the lowest
address among equals.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field


class MemoryBlock:
    """A piece of a segment: in use, free, or, in an expandable segment, address space without memory."""

    __slots__ = ("address", "age", "mapped", "next", "owner", "previous", "requested", "segment", "size", "used")

    def __init__(self, segment: Segment, address: int, size: int) -> None:
        self.segment = segment
        self.address = address
        self.size = size
        self.requested = 0
        self.used = False
        self.mapped = True
        self.previous: MemoryBlock | None = None
        self.next: MemoryBlock | None = None
        self.age = 0  # how often the pool was asked before the block came into it
        self.owner = -1  # what the memory is for: a number of the caller's

    @property
    def whole(self) -> bool:
        """Whether the block is all of its segment."""
        return self.previous is None and self.next is None

    def use(self, nbytes: int, owner: int) -> None:
        """Mark the block as in use for ``nbytes``."""
        self.used, self.requested, self.owner = True, nbytes, owner

    def release(self) -> None:
        """Mark the block as free."""
        self.used, self.requested, self.owner = False, 0, -1

    def split(self, size: int) -> MemoryBlock:
        """Keep the first ``size`` bytes, and return the rest as the block that follows."""
        rest = MemoryBlock(self.segment, self.address + size, self.size - size)
        rest.previous, rest.next = self, self.next
        if self.next is not None:
            self.next.previous = rest
        self.next = rest
        self.size = size
        return rest

    def absorb(self, other: MemoryBlock) -> None:
        """Take a neighbour's bytes; the neighbour is no more."""
        if other.next is self:
            self.address = other.address
            self.previous = other.previous
            if self.previous is not None:
                self.previous.next = self
            else:
                self.segment.first = self
        else:
            self.next = other.next
            if self.next is not None:
                self.next.previous = self
        self.size += other.size


@dataclass(eq=False, slots=True)
class Segment:
    """Memory of one cudaMalloc; an expandable one is address space, of which ``mapped`` bytes have memory."""

    address: int
    size: int
    stream: str
    small: bool
    expandable: bool = False
    first: MemoryBlock = field(init=False)
    mapped: int = field(init=False)

    def __post_init__(self) -> None:
        self.first = MemoryBlock(self, self.address, self.size)
        self.first.mapped = not self.expandable
        self.mapped = 0 if self.expandable else self.size

    def blocks(self) -> Iterator[MemoryBlock]:
        """Yield the blocks by address."""
        block: MemoryBlock | None = self.first
        while block is not None:
            yield block
            block = block.next


class Pool:
    """The free blocks of one kind (small or large), by stream."""

    def __init__(self, small: bool) -> None:
        self.small = small
        self.asked = 0
        self._sizes: dict[str, list[tuple[int, int, MemoryBlock]]] = {}

    def add(self, block: MemoryBlock) -> None:
        """Take a free block in."""
        block.age = self.asked
        insort(self._sizes.setdefault(block.segment.stream, []), (block.size, block.address, block))

    def remove(self, block: MemoryBlock) -> None:
        """Take a free block out."""
        blocks = self._sizes[block.segment.stream]
        del blocks[bisect_left(blocks, (block.size, block.address))]

    def at_least(self, size: int, stream: str) -> Iterator[MemoryBlock]:
        """Yield the free blocks of a stream that have ``size`` bytes or more, the smallest first."""
        blocks = self._sizes.get(stream, [])
        for index in range(bisect_left(blocks, (size, -1)), len(blocks)):
            yield blocks[index][2]

    def below(self, size: int, stream: str) -> Iterator[MemoryBlock]:
        """Yield the free blocks of a stream that have fewer bytes, the largest first."""
        blocks = self._sizes.get(stream, [])
        for _, _, block in reversed(blocks[: bisect_left(blocks, (size, -1))]):
            yield block

    def all(self) -> list[MemoryBlock]:
        """Return all free blocks, by stream and size."""
        return [block for stream in sorted(self._sizes) for _, _, block in self._sizes[stream]]
