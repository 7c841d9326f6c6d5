"""What a step that triosim writes as a file of other tools says of itself, under keys that other readers skip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_GPU, _MEMORY_BOUND, _TOGETHER = "triosim_gpu", "triosim_memory_bound", "triosim_measured_together"
_SAMPLES, _PARTS, _FREE = "triosim_global_batch_size", "triosim_sample_parts", "triosim_free_launches"

#: The values of attributes.
Fact = bool | int | float | str


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The GPU that a step was timed for, the part of its time in which kernels wait for memory, and whether it was timed whole.

    By them computations and communications slow each other in a step that was read as in the one that was written.
    ``global_batch_size`` and ``sample_parts`` are those of ``TaskStreams``. With ``free_launches`` the host's times mean
    nothing: launches took none. What is not known is None.
    """

    gpu: str = "unknown"
    memory_bound: float | None = None
    measured_together: bool = False
    global_batch_size: int | None = None
    sample_parts: int = 1
    free_launches: bool = False

    @property
    def attributes(self) -> Mapping[str, Fact]:
        """The facts as attributes, without those that are not known or usual."""
        found: dict[str, Fact] = {_GPU: self.gpu}
        if self.memory_bound is not None:
            found[_MEMORY_BOUND] = self.memory_bound
        if self.measured_together:
            found[_TOGETHER] = True
        if self.global_batch_size is not None:
            found[_SAMPLES] = self.global_batch_size
        if self.sample_parts > 1:
            found[_PARTS] = self.sample_parts
        if self.free_launches:
            found[_FREE] = True
        return found

    @staticmethod
    def are_in(attributes: Mapping[str, object]) -> bool:
        """Whether a file is one that triosim wrote."""
        return _GPU in attributes

    @classmethod
    def of(cls, attributes: Mapping[str, object]) -> StepFacts:
        """Return the facts of a file's attributes; of one that others wrote, none."""
        gpu, memory_bound = attributes.get(_GPU), attributes.get(_MEMORY_BOUND)
        known = isinstance(memory_bound, (int, float)) and 0.0 <= memory_bound <= 1.0
        return cls(
            gpu if isinstance(gpu, str) else "unknown",
            float(memory_bound) if known else None,  # type: ignore[arg-type]  # it is a number then
            attributes.get(_TOGETHER) is True,
            _count(attributes.get(_SAMPLES)),
            _count(attributes.get(_PARTS)) or 1,
            attributes.get(_FREE) is True,
        )


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
