"""The memory footprint that a parallelism declares for a rank when it writes its tasks itself.

It is a share of a training step's: which passes the rank runs, the share of parameters and optimizer state it keeps,
and extra buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from triosim.trace import Category


@dataclass(frozen=True, slots=True)
class MemoryFootprint:
    """By default a training step of the program and no more.

    ``trains`` says whether the rank runs the forward and backward passes, ``updates`` whether it runs the optimizer and keeps
    its states. ``share`` is the part that it keeps of each parameter and, of the states, what the program has of them.
    ``buffers`` are what it holds all the time besides: a name, the category and the bytes of each.
    """

    trains: bool = True
    updates: bool = True
    share: float = 1.0
    buffers: tuple[tuple[str, Category, float], ...] = ()


#: A training step.
WHOLE_STEP = MemoryFootprint()
