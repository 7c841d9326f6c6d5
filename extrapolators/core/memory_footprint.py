"""The memory footprint that a parallelism declares for a rank when it writes its tasks itself."""

from __future__ import annotations

from dataclasses import dataclass

from triosim.trace import Category


@dataclass(frozen=True, slots=True)
class MemoryFootprint:
    """A rank's memory in terms of a training step: by default, the whole step and no more.

    ``trains`` says whether the rank runs the forward and backward passes, ``updates`` whether it runs the optimizer and keeps
    its states. ``share`` is the part that it keeps of each parameter and of the program's optimizer states. ``buffers`` are
    what it holds all the time besides: a name, the category and the bytes of each.
    """

    trains: bool = True
    updates: bool = True
    share: float = 1.0
    buffers: tuple[tuple[str, Category, float], ...] = ()
