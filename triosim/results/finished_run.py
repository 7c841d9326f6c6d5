"""A run that has ended, as results are computed from it: its recording, trace, step, network and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from triosim.engine import Recording

if TYPE_CHECKING:
    from triosim.memory.world_memory import WorldMemory
    from triosim.networks.base import Network
    from triosim.trace import Trace


class SimulatedStep(Protocol):
    """What a result needs to know of the step that was simulated; a plan is one."""

    @property
    def global_batch_size(self) -> int:
        """Samples in a step."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of the figures should know."""

    @property
    def work(self) -> Sequence[tuple[Trace, float]]:
        """The traces whose operators a step consists of, each with how many times it runs."""

    @property
    def training(self) -> bool:
        """Whether a step has a backward pass."""

    @property
    def pipeline_axis(self) -> str | None:
        """The axis along which pipeline stages follow each other; None without a pipeline."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What the engine recorded, and of what. ``trace`` is the one that the ranks' operators come from."""

    recording: Recording
    trace: Trace
    step: SimulatedStep
    network: Network
    memory: WorldMemory | None = None


@dataclass(frozen=True, slots=True)
class MetricOptions:
    """What the metrics need beside the run. ``gpu_kinds`` are the ranks that have another GPU than the trace's."""

    tokens_per_sample: float | None = None
    price_per_gpu_hour: float | None = None
    gpu_kinds: Mapping[int, str] = field(default_factory=dict)
