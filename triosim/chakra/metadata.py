"""What a step that triosim writes says of itself: attributes of the first message of each file, which other readers skip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triosim.chakra.nodes import Value

_GPU, _MEMORY_BOUND, _TOGETHER = "triosim_gpu", "triosim_memory_bound", "triosim_measured_together"


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The GPU that a step was timed for, the part of its time in which kernels wait for memory, and whether it was timed whole.

    By them computations and communications slow each other in a step that was read as in the one that was written.
    """

    gpu: str = "unknown"
    memory_bound: float | None = None
    measured_together: bool = False

    @property
    def attributes(self) -> Mapping[str, Value]:
        """The facts as attributes."""
        found: dict[str, Value] = {_GPU: self.gpu}
        if self.memory_bound is not None:
            found[_MEMORY_BOUND] = self.memory_bound
        return {**found, _TOGETHER: True} if self.measured_together else found

    @classmethod
    def of(cls, attributes: Mapping[str, Value | None]) -> StepFacts:
        """Return the facts of a file's attributes; of one that others wrote, none."""
        gpu, memory_bound = attributes.get(_GPU), attributes.get(_MEMORY_BOUND)
        return cls(
            gpu if isinstance(gpu, str) else "unknown",
            memory_bound if isinstance(memory_bound, float) else None,
            attributes.get(_TOGETHER) is True,
        )
