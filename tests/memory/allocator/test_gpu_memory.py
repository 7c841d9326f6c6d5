"""The memory that PyTorch sees of a GPU."""

from __future__ import annotations

from triosim import gpus
from triosim.memory.allocator.gpu_memory import visible


def test_a_board_with_another_power_limit_has_the_memory_that_was_seen_and_one_with_another_capacity_its_own() -> None:
    seen = visible(gpus.find("H100"))
    assert seen != gpus.find("H100").capacity
    assert visible(gpus.find("H100(power=500 W)")) == seen
    assert visible(gpus.find("H100(capacity=96 GB)")) == 96e9
