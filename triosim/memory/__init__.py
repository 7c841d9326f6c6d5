"""The memory of a training step: live bytes by category and module, what the allocator reserves, and whether it fits."""

from triosim.memory.allocator.allocator import AllocationFailed, CachingAllocator
from triosim.memory.allocator.settings import AllocatorSettings
from triosim.memory.liveness.lifetimes import Lifetime, Lifetimes, lifetimes
from triosim.memory.liveness.usage import ModuleBytes, Peak, Usage, by_module, usage
from triosim.memory.memory_report import MemoryReport, analyse
from triosim.memory.replay import OutOfMemory, Replay, replay

__all__ = [
    "AllocationFailed",
    "AllocatorSettings",
    "CachingAllocator",
    "Lifetime",
    "Lifetimes",
    "MemoryReport",
    "ModuleBytes",
    "OutOfMemory",
    "Peak",
    "Replay",
    "Usage",
    "analyse",
    "by_module",
    "lifetimes",
    "replay",
    "usage",
]
