"""The figures by which people compare training runs: tokens per second, MFU, HFU, the bubble, energy, cost, traffic by axis.

The FLOPs are those of matrix products, convolutions and attention, a multiply-add being two, as in Chowdhery et al.,
"PaLM: Scaling Language Modeling with Pathways" (2022, appendix B) and Korthikanti et al., "Reducing Activation Recomputation
in Large Transformer Models" (2022, section 6): the *model's* FLOPs are those that a step needs, the *hardware's* those that
it executes. How they are worked out is in :mod:`triosim.results.run_metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Metrics:
    """Figures of one step on all GPUs together; what is not known is None.

    ``mfu`` is ``model_flops`` over what the GPUs could compute in the step's time at the peak of ``peak_dtype``, the dtype of
    most of these FLOPs; ``peak_flops`` is that of all GPUs together, in FLOP/s. ``hfu`` is the same of ``hardware_flops``.
    ``bubble_fraction`` is the part of the step in which a GPU of a pipeline neither computes nor moves data: it is idle,
    or does nothing but wait for another stage; the mean over the GPUs. ``energy_j`` is an estimate: every GPU draws its TDP all
    the time. ``price_per_gpu_hour`` and ``cost`` are in whatever currency the price is.
    """

    samples_per_s_per_gpu: float
    tokens_per_sample: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    model_flops: float | None = None
    hardware_flops: float | None = None
    peak_dtype: str | None = None
    peak_flops: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    bubble_fraction: float | None = None
    energy_j: float | None = None
    price_per_gpu_hour: float | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class AxisTraffic:
    """What a step communicates along one axis ("dp", "tp", "pp").

    ``bytes`` are the sizes of its transfers on all ranks together, as ``CollectiveTimes`` counts them, ``transfers`` how many
    there are. ``exposed_s`` is the mean over all ranks, ``waiting_s`` of it moves no bytes.
    """

    axis: str
    bytes: float
    transfers: float
    exposed_s: float
    waiting_s: float


@dataclass(frozen=True, slots=True)
class MetricOptions:
    """What the metrics need beside the run: what the user said, and which ranks have another GPU than the trace's."""

    tokens_per_sample: float | None = None
    price_per_gpu_hour: float | None = None
    kinds: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlaceMemory:
    """The most bytes of live tensors on each of ``ranks``, which all have as many, in blocks of 512 bytes.

    The others are at that moment: in ``action`` of the schedule ("0F3": stage 0, forward, micro-batch 3; of a captured rank
    the phase), in ``layer``. ``other_bytes`` are buffers, inputs, outputs and cuBLAS's workspaces. ``capacity_bytes`` is what a
    process can have of the GPU's memory beside the CUDA context, ``fits`` whether the tensors do, or, of a captured rank,
    whether the caching allocator finds room for them; both are None where the GPU is not known.
    """

    ranks: str
    peak_bytes: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    activation_bytes: int
    temporary_bytes: int
    communication_bytes: int
    other_bytes: int
    action: str
    layer: str
    capacity_bytes: int | None = None
    fits: bool | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one model predicted: the mean over the ranks.

    ``operators`` is how many ran, ``names`` which, those of the most time first, ``seconds`` their times together, and
    ``relative_error`` the mean absolute error that the model states for them (0.05 is 5%).
    """

    model: str
    operators: float
    names: tuple[str, ...]
    seconds: float
    relative_error: float
