"""What the recorder knows of compiled code that runs, and of CUDA graphs that are captured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triosim.tracer.recorder.recorded_step import RecordedOperator


@dataclass(frozen=True, slots=True)
class CompiledLayer:
    """The layer of compiled code that runs, and whether that is a backward pass."""

    layer: str
    backward: bool


@dataclass(frozen=True, slots=True)
class GraphCall:
    """An operator in a CUDA graph, with its tensors, which it keeps alive."""

    operator: RecordedOperator
    inputs: list[Any]
    outputs: list[Any]
