"""Parameters that are kept outside of the GPU, which ``fsdp`` fetches before it gathers a unit.

FSDP2's ``CPUOffloadPolicy`` copies a rank's share from pinned memory of the host just ahead of its all-gather. ZeRO-Infinity
reads shares from drives into pinned buffers of the host, some units ahead of their copy (Rajbhandari et al. 2021, section 6.2).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from triosim.extrapolators.core.hooks import RankContext
from triosim.extrapolators.offload.optimizer import PARAMETERS
from triosim.tasks import Copy, Handle, Task, TaskStream

#: Units that are read from drives ahead of those that are copied to the GPU: one is read while another is copied.
READ_AHEAD = 2


class ParameterFetcher:
    """Fetches one rank's shares of units from a tier of memory."""

    def __init__(self, context: RankContext, tier: str) -> None:
        self._memory = context.memory
        self._tier = tier
        self._read: dict[str, Handle] = {}  # units that are in the host's buffers, or on their way there

    def read_ahead(self, units: Sequence[str], nbytes: Sequence[float]) -> TaskStream:
        """Begin to read units from drives."""
        if self._tier != "nvme":
            return
        for unit, size in zip(units, nbytes, strict=True):
            if unit not in self._read:
                self._memory.allocate(("staged", unit), size, "communication", unit, tier="host")
                self._read[unit] = yield Copy("nvme", "host", size, stream="parameter reads", label=PARAMETERS)

    def fetch(self, unit: str, nbytes: float) -> Generator[Task, Any, Handle]:
        """Copy a unit to the GPU; return the handle of the copy."""
        yield from self.read_ahead((unit,), (nbytes,))
        after = (self._read.pop(unit),) if unit in self._read else ()
        source = "host" if self._tier == "nvme" else self._tier
        stream = "parameter copies"
        copied: Handle = yield Copy(source, "device", nbytes, stream=stream, label=PARAMETERS, after=after)
        self._memory.free(("staged", unit))
        return copied
