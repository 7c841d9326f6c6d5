"""The values of a result, as they stand in ``result.json``: frozen rows, all for one training step.

A rank's step time is its busy compute time plus its exposed communication, in which it may wait for a partner or for its host
to compute, plus its idle time; ``step_parts`` has the parts.
``figures`` and the modules that it calls compute the values; ``triosim/reports/result.schema.json`` describes the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

SCHEMA = "triosim-result/1"

#: What people are shown where an operator or a transfer has no layer.
NO_LAYER = "(no layer)"


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One rank's step, in seconds.

    ``compute_s`` is the sum of its operators' times; ``communication_s`` runs from its arrival at each transfer until
    that is through, ``waiting_s`` of it before the last partner arrived; in ``exposed_communication_s`` of it the rank
    computes nothing, and in ``exposed_waiting_s`` of that all its transfers wait for a partner, in ``exposed_host_s`` its host
    computes on what is offloaded to it; in ``idle_s`` it does none of these. ``finished_s`` is when it had ended, on the clock
    of the step.
    """

    rank: int
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    idle_s: float
    waiting_s: float = 0.0  # files of older versions do not hold this, nor what follows
    finished_s: float = 0.0
    exposed_waiting_s: float = 0.0
    exposed_host_s: float = 0.0


class StepPart(NamedTuple):
    """A part of a step: what legends call it, the heading of its column, a shorter one, its seconds and what a sentence says.

    A part that is ``optional`` is shown where a rank has some of it.
    """

    name: str
    heading: str
    short: str
    seconds: Callable[[RankTimes], float]
    sentence: str
    optional: bool = False


#: In the order in which they are shown.
STEP_PARTS = (
    StepPart("compute", "compute", "comp.", lambda rank: rank.compute_s, "computes for"),
    StepPart(
        "host computation", "host", "host", lambda rank: rank.exposed_host_s, "lets its host compute for", optional=True
    ),
    StepPart(
        "exposed communication",
        "exposed",
        "exp.",
        lambda rank: rank.exposed_communication_s - rank.exposed_waiting_s - rank.exposed_host_s,
        "communicates without computing for",
    ),
    StepPart(
        "waiting for a partner", "waiting", "wait", lambda rank: rank.exposed_waiting_s, "waits for other GPUs for"
    ),
    StepPart("idle", "idle", "idle", lambda rank: rank.idle_s, "is idle for"),
)


def step_parts(ranks: Iterable[RankTimes]) -> tuple[StepPart, ...]:
    """Return the parts that these ranks' steps are shown with."""
    shown = list(ranks)
    return tuple(part for part in STEP_PARTS if not part.optional or any(part.seconds(rank) > 0 for rank in shown))


def step_of(rank: RankTimes) -> float:
    """Return the seconds of a rank's step."""
    return sum(part.seconds(rank) for part in STEP_PARTS)


def mean_of_ranks(ranks: Sequence[RankTimes], row: int) -> RankTimes:
    """Return the mean of the ranks' figures, as a rank of its own."""
    names = [column.name for column in fields(RankTimes)[1:]]
    return RankTimes(row, *(math.fsum(getattr(rank, name) for rank in ranks) / len(ranks) for name in names))


@dataclass(frozen=True, slots=True)
class LayerShare:
    """The time of a layer in a step on each of ``ranks``, which all take the same time ("0-3,8" is 0, 1, 2, 3 and 8)."""

    ranks: str
    forward_s: float
    backward_s: float
    optimizer_s: float
    total_s: float
    operators: float


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """The time of a layer in a step, the mean over the ranks that run it. ``operators`` is how many it runs."""

    layer: str
    forward_s: float
    backward_s: float
    optimizer_s: float
    total_s: float
    operators: float
    per_rank: tuple[LayerShare, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """All calls of one operator in one phase of a layer in a step: the mean over the ranks that run it."""

    name: str
    layer: str
    phase: str
    count: float
    total_s: float


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """All transfers of one kind and size in a step, sends and copies among them.

    ``bytes`` is the size of one, ``count`` how many there are on all ranks (a collective counts once, not once a rank),
    ``total_s`` the sum of their times from the last arrival to the end; ``axis`` is what they belong to ("dp", "tp").
    """

    kind: str
    group_size: int
    bytes: float
    count: float
    total_s: float
    axis: str


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """One direction of a link in a step. ``utilisation`` is its bytes over what it could carry in the step's time.

    The others are known where the loads were recorded, and of links that carried anything: ``peak`` is the largest part of
    the bandwidth that was taken at any time, ``busy_s`` how long it carried anything, and between ``busiest_from_s`` and
    ``busiest_to_s``, a fiftieth of the run, most of it was taken.
    """

    name: str
    bytes: float
    utilisation: float
    peak: float | None = None
    busy_s: float | None = None
    busiest_from_s: float | None = None
    busiest_to_s: float | None = None


@dataclass(frozen=True, slots=True)
class ExposedShare:
    """The exposed communication of one axis and layer in a step, the mean over all ranks.

    In ``waiting_s`` of it no bytes move, in ``host_s`` the host computes. ``layer`` is whose tensors are on their way, empty
    where the task does not say.
    """

    axis: str
    layer: str
    exposed_s: float
    waiting_s: float
    host_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The step with one part of the system ``factor`` times as fast: ``links`` counts the links in it (0 for GPUs).

    ``saved_s`` is how much less a step takes, ``speed_up`` how many times as fast it is.
    """

    what: str
    links: int
    factor: float
    step_time_s: float
    saved_s: float
    speed_up: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """Figures of one step on all GPUs together; unknown ones are None.

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
    """The communication of a step along one axis ("dp", "tp", "pp").

    ``bytes`` are the sizes of its transfers on all ranks together, as ``CollectiveTimes`` counts them, ``transfers`` how many
    there are. ``exposed_s`` is the mean over all ranks; in ``waiting_s`` of it no bytes move, in ``host_s`` the host computes.
    """

    axis: str
    bytes: float
    transfers: float
    exposed_s: float
    waiting_s: float
    host_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """The peak of live tensors on each of ``ranks``, whose peaks are equal, in bytes, in blocks of 512.

    The others are at that moment: in ``action`` of the schedule ("0F3": stage 0, forward, micro-batch 3; "start" before
    the first; of a captured rank the phase), in ``layer``. ``other_bytes`` are buffers, inputs, outputs and cuBLAS's
    workspaces. ``capacity_bytes`` is what a process can have of the GPU's memory next to the CUDA context, ``fits`` whether
    the tensors do, or, of a captured rank, whether the caching allocator finds room for them; both are None where the GPU is
    not known. The last ones are what each rank holds in memories outside of its GPU, in each at most.
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
    host_bytes: int = 0
    nvme_bytes: int = 0
    expansion_bytes: int = 0
    pool_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predictions of one model: the mean over the ranks.

    ``operators`` is how many ran, ``names`` which, those of the most time first, ``seconds`` their times together, and
    ``relative_error`` the mean absolute error that the model states for them (0.05 is 5%).
    """

    model: str
    operators: float
    names: tuple[str, ...]
    seconds: float
    relative_error: float


@dataclass(frozen=True, slots=True)
class Doubt:
    """What one source contributes to the doubt about the step time.

    ``error_s`` is by how many seconds the step is expected to be off because of it, ``share`` its part of the sum of squares,
    and ``measurement`` what would narrow it.
    """

    source: str
    error_s: float
    share: float
    measurement: str


@dataclass(frozen=True, slots=True)
class Draws:
    """The step times of several draws, in seconds, in the order of their seeds, and their distribution."""

    step_times_s: tuple[float, ...]
    mean_s: float
    deviation_s: float
    min_s: float
    p5_s: float
    p50_s: float
    p95_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """A step of a script that ran live: when it began, on the simulated clock, how long it took, and its tokens.

    It begins where the step before it ended, the first one with the script. ``tokens`` are those of all ranks, None where their
    number is not known.
    """

    index: int
    began_s: float
    seconds: float
    tokens: float | None


@dataclass(frozen=True, slots=True)
class ResultData:
    """The plain values of a result, as they stand in ``result.json``.

    iterations: the times at which each iteration ended on its last rank.
    step_time_interval_s: the 90% interval of the step time, from its ``doubts``; None where nothing was predicted.
    doubts: what the interval comes from, the largest source first.
    launch_wait_s: the part of the step in which a GPU waits for the host to launch, the mean over the ranks.
    launches_s: how long the busiest host launches operators in a step, whether or not its GPU waits for it.
    network_figures: other figures that the network counts over the whole run, by name; None where it counts none.
    exposed_communication: by axis and layer, the largest first; it adds up to the mean over the ranks.
    what_if: the steps of faster systems, where they were asked for.
    axes: the axes along which anything is sent.
    memory: a row for the ranks that have the same: at one position of the pipeline, or represented by one captured rank.
    draws: the distribution of the step time, where several draws were asked for; all other values are of the first.
    steps: those of a script that ran live; all other values are of one of them.
    recorded: the timeline, the loads of links and the memory over time, where they were kept (``--record``).
    """

    step_time_s: float
    throughput_samples_per_s: float
    global_batch_size: int
    iterations: tuple[float, ...]
    ranks: tuple[RankTimes, ...]
    layers: tuple[LayerTimes, ...]
    operators: tuple[OperatorTimes, ...]
    collectives: tuple[CollectiveTimes, ...]
    links: tuple[LinkLoad, ...]
    notes: tuple[str, ...]
    inputs: Mapping[str, Any]
    step_time_interval_s: tuple[float, float] | None = None
    doubts: tuple[Doubt, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    launch_wait_s: float = 0.0
    launches_s: float = 0.0
    network_figures: Mapping[str, Any] | None = None
    exposed_communication: tuple[ExposedShare, ...] = ()
    what_if: tuple[WhatIf, ...] = ()
    metrics: Metrics | None = None
    axes: tuple[AxisTraffic, ...] = ()
    memory: tuple[MemoryRow, ...] = ()
    draws: Draws | None = None
    steps: tuple[ScriptStep, ...] = ()
    recorded: Mapping[str, Any] | None = None
    schema: str = SCHEMA


#: The rows of each list of ``result.json``.
ROWS: Mapping[str, type] = {
    "ranks": RankTimes,
    "layers": LayerTimes,
    "operators": OperatorTimes,
    "collectives": CollectiveTimes,
    "links": LinkLoad,
    "per_rank": LayerShare,
    "doubts": Doubt,
    "predictions": Prediction,
    "exposed_communication": ExposedShare,
    "what_if": WhatIf,
    "steps": ScriptStep,
    "axes": AxisTraffic,
    "memory": MemoryRow,
}
