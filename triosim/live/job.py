"""What is to be run: a script with its arguments, as the ranks of a world of GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from triosim.gpus import Gpu
from triosim.tracer.script_runner import Script

#: 2026-01-01T00:00:00Z.
START_TIME = 1767225600.0
#: The exit status of what Ctrl-C ended.
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A script, to be run as the ranks of a ``world``.

    local: the ranks of a machine.
    distributed: whether the script finds the environment of torchrun, as in a world of several ranks.
    steps: after how many steps it is ended; None: when it ends by itself.
    start_time: the time of the day at which it begins, in seconds since 1970.
    files: the folder that what the script writes goes into.
    loader_seconds: what the script waits for each batch of a ``DataLoader``.
    """

    script: Script
    gpu: Gpu
    world: int = 1
    local: int = 1
    distributed: bool = False
    steps: int | None = None
    start_time: float = START_TIME
    loader_seconds: float = 0.0
    files: str | None = None
