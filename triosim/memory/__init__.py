"""The memory of a training step: live bytes by category and module, the caching allocator on top, and whether it fits."""

from triosim.memory.allocator import AllocationFailed, CachingAllocator
from triosim.memory.analysis import MemoryReport, analyse
from triosim.memory.lifetimes import Lifetime, Lifetimes, lifetimes
from triosim.memory.replay import OutOfMemory, Replay, replay
from triosim.memory.settings import AllocatorSettings
from triosim.memory.usage import ModuleBytes, Peak, Usage, by_module, usage

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
