"""The caching allocator on allocations whose blocks can be worked out by hand, or were published."""

from __future__ import annotations

import pytest

from triosim.errors import OptionError
from triosim.memory import AllocationFailed, AllocatorSettings, CachingAllocator
from triosim.memory.allocator.blocks import Segment
from triosim.memory.allocator.settings import parse

KIB, MIB = 2**10, 2**20


def sizes(segment: Segment) -> list[tuple[int, bool]]:
    """The blocks of a segment: how large, and whether in use."""
    return [(block.size, block.used) for block in segment.blocks()]


def test_a_published_snapshot_of_a_product() -> None:
    """discuss.pytorch.org/t/178671: y = X @ W + b with W (1000, 10), b (10), X (1000), and cuBLAS's workspace."""
    allocator = CachingAllocator()
    for nbytes in (40_000, 40, 4_000):
        allocator.malloc(nbytes)
    allocator.malloc(8_519_680)  # the workspace, at the first product
    product = allocator.malloc(40)
    allocator.malloc(40)
    allocator.free(product)
    small, large = allocator.segments.values()
    assert small.size == 2_097_152
    assert sizes(small) == [(40_448, True), (512, True), (4_096, True), (512, False), (512, True), (2_051_072, False)]
    assert large.size == 20_971_520
    assert sizes(large) == [(8_519_680, True), (12_451_840, False)]


@pytest.mark.parametrize(
    ("nbytes", "segment", "allocated"),
    [
        (1, 2 * MIB, 512),
        (513, 2 * MIB, 1024),
        (MIB, 2 * MIB, MIB),
        (MIB + 1, 20 * MIB, MIB + 512),
        (10 * MIB - 1, 10 * MIB, 10 * MIB),  # rounded to 512 bytes first
        (10 * MIB - 512, 20 * MIB, 10 * MIB - 512),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # the rest, 1 MiB, is not cut off a large block
        (33 * MIB, 34 * MIB, 34 * MIB),
        (1000 * MIB + 1, 1002 * MIB, 1000 * MIB + 512),
    ],
)
def test_the_first_allocation(nbytes: int, segment: int, allocated: int) -> None:
    allocator = CachingAllocator()
    allocator.malloc(nbytes)
    assert (allocator.reserved, allocator.allocated, allocator.requested) == (segment, allocated, nbytes)


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.malloc(size * MIB) for size in (40, 12, 24)]
    for block in blocks:
        allocator.free(block)
    assert allocator.malloc(20 * MIB).address == blocks[2].address
    assert allocator.reserved == 76 * MIB


def test_freed_neighbours_become_one_block() -> None:
    allocator = CachingAllocator()
    first, second, third = (allocator.malloc(4 * MIB) for _ in range(3))
    allocator.free(first)
    allocator.free(third)
    (segment,) = allocator.segments.values()
    assert sizes(segment) == [(4 * MIB, False), (4 * MIB, True), (12 * MIB, False)]
    allocator.free(second)
    assert sizes(segment) == [(20 * MIB, False)]


def test_a_stream_does_not_get_what_another_stream_freed() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(12 * MIB, "compute"))
    allocator.malloc(12 * MIB, "all-gather")
    assert allocator.reserved == 24 * MIB
    allocator.malloc(12 * MIB, "compute")
    assert allocator.reserved == 24 * MIB


def test_cached_memory_is_given_back_before_the_gpu_is_full() -> None:
    allocator = CachingAllocator(capacity=40 * MIB)
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(30 * MIB)
    assert (allocator.reserved, allocator.retries) == (30 * MIB, 1)


def test_a_segment_of_which_a_piece_is_in_use_cannot_be_given_back() -> None:
    """4 MiB take a segment of 20 MiB; of the 16 MiB behind them, 24 MiB cannot be made, though 36 of 40 MiB are free."""
    allocator = CachingAllocator(capacity=40 * MIB)
    allocator.malloc(4 * MIB)
    with pytest.raises(AllocationFailed) as failed:
        allocator.malloc(24 * MIB)
    assert (failed.value.nbytes, failed.value.free) == (24 * MIB, 20 * MIB)
    assert allocator.allocated == 4 * MIB


def test_expandable_segments_grow_where_others_could_not_be_given_back() -> None:
    allocator = CachingAllocator(40 * MIB, AllocatorSettings(expandable_segments=True))
    allocator.malloc(4 * MIB)
    block = allocator.malloc(24 * MIB)
    (segment,) = allocator.segments.values()
    assert block.address == segment.address + 4 * MIB
    assert allocator.reserved == segment.mapped == 40 * MIB
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved == 20 * MIB  # the page that the 4 MiB are in
    allocator.malloc(24 * MIB)
    assert allocator.reserved == 40 * MIB


def test_an_expandable_segment_maps_pages_of_20_mib_and_splits_to_the_byte() -> None:
    allocator = CachingAllocator(settings=AllocatorSettings(expandable_segments=True))
    allocator.malloc(11 * MIB)
    assert (allocator.allocated, allocator.reserved) == (11 * MIB, 20 * MIB)
    allocator.malloc(100)
    assert allocator.reserved == 22 * MIB


def test_blocks_above_max_split_size_are_kept_whole() -> None:
    allocator = CachingAllocator(settings=parse("max_split_size_mb:64"))
    large = allocator.malloc(100 * MIB)
    allocator.free(large)
    allocator.malloc(30 * MIB)
    assert allocator.reserved == 130 * MIB  # the 100 MiB are not cut
    assert allocator.malloc(90 * MIB).address == large.address  # within 20 MiB of the block, which it gets whole
    assert allocator.allocated == 130 * MIB


def test_oversize_blocks_are_given_back_one_by_one() -> None:
    """With 100 and 80 MiB cached of 200, 120 MiB need both back: no one of them is large enough."""
    allocator = CachingAllocator(200 * MIB, parse("max_split_size_mb:64"))
    for block in [allocator.malloc(100 * MIB), allocator.malloc(80 * MIB)]:
        allocator.free(block)
    allocator.malloc(120 * MIB)
    assert (allocator.reserved, allocator.retries) == (120 * MIB, 0)


def test_garbage_is_collected_above_the_threshold() -> None:
    """Of 100 MiB allowed, 60 may stay reserved: at 90, when more is asked for, the 40 that wait are given back."""
    settings = parse("garbage_collection_threshold:0.6,per_process_memory_fraction:0.5")
    allocator = CachingAllocator(200 * MIB, settings)
    allocator.free(allocator.malloc(40 * MIB))
    allocator.malloc(50 * MIB)
    assert allocator.reserved == 90 * MIB
    allocator.malloc(60 * KIB)
    assert allocator.reserved == 52 * MIB


@pytest.mark.parametrize(
    ("nbytes", "rounded"), [(1200 * KIB, 1280 * KIB), (1024 * KIB, 1024 * KIB), (1800 * KIB, 2048 * KIB), (1200, 1536)]
)
def test_sizes_are_rounded_to_divisions_of_powers_of_two(nbytes: int, rounded: int) -> None:
    """PyTorch's own example: with 4 divisions, 1200 is rounded to 1280; up to 4 times 512 bytes it is as without."""
    assert parse("roundup_power2_divisions:4").rounded(nbytes) == rounded


def test_the_settings_are_pytorchs() -> None:
    assert parse("") == AllocatorSettings()
    assert parse("expandable_segments:True, max_split_size_mb:128") == AllocatorSettings(
        max_split_size=128 * MIB, expandable_segments=True
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("expandable_segment:True", "did you mean 'expandable_segments'?"),
        ("expandable_segments:yes", "give True or False"),
        ("max_split_size_mb:20", "a whole number of MiB above 20"),
        ("max_split_size_mb", "a whole number of MiB above 20"),
        ("roundup_power2_divisions:3", "a power of two"),
        ("garbage_collection_threshold:1.5", "a share between 0 and 1"),
    ],
)
def test_a_wrong_setting_is_said_in_a_line(text: str, said: str) -> None:
    with pytest.raises(OptionError) as error:
        parse(text)
    assert said in str(error.value)
    assert str(error.value).startswith("--allocator: ")
