"""What a step that triosim writes as a file of other tools says of itself, under keys that other readers skip."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

_GPU, _MEMORY_BOUND, _TOGETHER = "triosim_gpu", "triosim_memory_bound", "triosim_measured_together"
_DOUBTS = "triosim_doubts"
_SAMPLES, _PARTS, _FREE = "triosim_global_batch_size", "triosim_sample_parts", "triosim_free_launches"

#: A doubt is no more than so many times the step.
_MOST_DOUBT = 100.0
#: The key under which a trace's ``software`` has the doubts of the step that it was written of.
DOUBTS = "doubts"
#: The values of attributes.
Fact = bool | int | float | str


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The GPU that a step was timed for, the part of its time in which kernels wait for memory, and whether it was timed whole.

    By them computations and communications slow each other in a step that was read as in the one that was written.
    ``global_batch_size`` and ``sample_parts`` are those of ``TaskStreams``. With ``free_launches`` the host's times mean
    nothing: launches took none. ``doubts`` are by what part of the step its times are expected to be off, by what that comes
    from. What is not known is None.
    """

    gpu: str = "unknown"
    memory_bound: float | None = None
    measured_together: bool = False
    global_batch_size: int | None = None
    sample_parts: int = 1
    free_launches: bool = False
    doubts: Mapping[str, float] = field(default_factory=dict, hash=False)

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
        if self.doubts:
            found[_DOUBTS] = json.dumps(dict(self.doubts))
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
            doubts_of(attributes.get(_DOUBTS)),
        )


def doubts_of(value: object) -> Mapping[str, float]:
    """Return the doubts of an attribute, by what they come from; none where it is not theirs."""
    try:
        found = json.loads(value) if isinstance(value, str) else {}
    except ValueError:
        return {}
    known = isinstance(found, dict) and all(type(one) is float and 0.0 <= one <= _MOST_DOUBT for one in found.values())
    return found if known else {}


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
