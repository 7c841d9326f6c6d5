"""The memory of a training step: live bytes by category and module, what the allocator reserves, and whether it fits."""

from triosim.memory.allocator.allocator import AllocationFailed, CachingAllocator
from triosim.memory.allocator.settings import AllocatorSettings
from triosim.memory.liveness.lifetimes import lifetimes
from triosim.memory.liveness.usage import ModuleBytes, by_module, usage
from triosim.memory.memory_report import MemoryReport, analyse
from triosim.memory.replay import OutOfMemory, replay

__all__ = [
    "AllocationFailed",
    "AllocatorSettings",
    "CachingAllocator",
    "MemoryReport",
    "ModuleBytes",
    "OutOfMemory",
    "analyse",
    "by_module",
    "lifetimes",
    "replay",
    "usage",
]
