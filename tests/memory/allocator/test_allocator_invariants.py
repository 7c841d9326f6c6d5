"""What holds for the caching allocator whatever is allocated and freed, in whatever order and setting."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from triosim.memory import AllocationFailed, AllocatorSettings, CachingAllocator
from triosim.memory.allocator.blocks import MemoryBlock

KIB, MIB = 2**10, 2**20

SIZES = st.one_of(st.integers(1, 4 * KIB), st.integers(1, 3 * MIB), st.integers(MIB, 64 * MIB))
STEPS = st.lists(
    st.tuples(st.booleans(), SIZES, st.sampled_from(["compute", "other"]), st.integers(0, 99)), max_size=60
)
SETTINGS = st.builds(
    AllocatorSettings,
    max_split_size=st.sampled_from([float("inf"), 32 * MIB]),
    roundup_power2_divisions=st.sampled_from([0, 4]),
    expandable_segments=st.booleans(),
    garbage_collection_threshold=st.sampled_from([0.0, 0.5]),
    memory_fraction=st.sampled_from([None, 0.75]),
)


def check(allocator: CachingAllocator, live: list[MemoryBlock]) -> None:
    """The blocks tile the segments, free neighbours are one, and the counts are those of the blocks."""
    spans = []
    used = []
    reserved = 0
    for segment in allocator.segments.values():
        blocks = list(segment.blocks())
        assert blocks[0].address == segment.address
        assert sum(block.size for block in blocks) == segment.size
        for block, following in pairwise(blocks):
            assert block.address + block.size == following.address
            assert block.next is following
            assert following.previous is block
            assert block.used or following.used or block.mapped != following.mapped
        mapped = sum(block.size for block in blocks if block.mapped)
        assert mapped == segment.mapped
        assert segment.expandable or mapped == segment.size
        reserved += mapped
        spans.append((segment.address, segment.address + segment.size))
        used += [block for block in blocks if block.used]
    assert all(end <= start for (_, end), (start, _) in pairwise(sorted(spans)))
    assert sorted(map(id, used)) == sorted(map(id, live))
    assert all(block.size >= block.requested > 0 and block.mapped for block in live)
    assert allocator.allocated == sum(block.size for block in live)
    assert allocator.requested == sum(block.requested for block in live)
    assert allocator.reserved == reserved
    assert allocator.requested <= allocator.allocated <= allocator.reserved <= allocator.allowed


@given(STEPS, SETTINGS, st.sampled_from([float("inf"), 256 * MIB]))
def test_blocks_tile_segments_and_nothing_is_lost(
    steps: list[tuple[bool, int, str, int]], settings: AllocatorSettings, capacity: float
) -> None:
    allocator = CachingAllocator(capacity, settings)
    live: list[MemoryBlock] = []
    for birth, nbytes, stream, which in steps:
        if birth or not live:
            with suppress(AllocationFailed):
                live.append(allocator.malloc(nbytes, stream))
        else:
            allocator.free(live.pop(which % len(live)))
        check(allocator, live)
    for block in live:
        allocator.free(block)
    check(allocator, [])
    assert allocator.allocated == allocator.requested == 0
    allocator.empty_cache()
    assert allocator.reserved == 0
    assert not allocator.segments


@given(STEPS, SETTINGS)
def test_what_failed_fits_on_a_gpu_without_an_end(
    steps: list[tuple[bool, int, str, int]], settings: AllocatorSettings
) -> None:
    allocator = CachingAllocator(settings=settings)
    taken = [allocator.malloc(nbytes, stream) for birth, nbytes, stream, _ in steps if birth]
    check(allocator, taken)
    assert allocator.retries == 0


@given(STEPS, SETTINGS)
def test_segments_taken_less_those_given_back_are_what_is_reserved(
    steps: list[tuple[bool, int, str, int]], settings: AllocatorSettings
) -> None:
    allocator = CachingAllocator(256 * MIB, settings)
    live: list[MemoryBlock] = []
    for birth, nbytes, stream, which in steps:
        if birth:
            with suppress(AllocationFailed):
                live.append(allocator.malloc(nbytes, stream))
        elif live:
            allocator.free(live.pop(which % len(live)))
    assert sum(event.nbytes if event.taken else -event.nbytes for event in allocator.events) == allocator.reserved
