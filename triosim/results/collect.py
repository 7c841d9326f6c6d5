"""How what the engine recorded becomes a result's figures.

A rank's busy time is the union of the intervals in which it computes, its exposed communication the union of its
transfers less what they have in common with that; what is left of the step is idle. Everything is divided by the number
of iterations.
"""

from __future__ import annotations

import hashlib
import math
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import triosim
from triosim.engine.recording import RankRecord, Recording, length, overlap
from triosim.errors import SimulationError
from triosim.operators.features import base_name
from triosim.results.exposure import exposed_shares
from triosim.results.link_loads import busiest_slot, loads
from triosim.results.memory_rows import rows as memory_rows
from triosim.results.metrics import MetricOptions
from triosim.results.rank_ranges import format_ranks
from triosim.results.result import (
    CollectiveTimes,
    LayerShare,
    LayerTimes,
    LinkLoad,
    OperatorTimes,
    RankTimes,
    ResultData,
)
from triosim.results.run_metrics import axis_traffic, doubts, metrics
from triosim.results.uncertainty import interval, predictions
from triosim.trace import PHASES, Operator
from triosim.units import format_time

if TYPE_CHECKING:
    from triosim.memory.world import WorldMemory
    from triosim.networks.base import Network
    from triosim.networks.topology import Topology
    from triosim.trace import Trace


class Inputs(Protocol):
    """What a run was started with: every option, and the paths of the files that were read, by what they were for."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Every option by name, as JSON has it."""

    @property
    def files(self) -> Mapping[str, str]:
        """Paths by what they were read for ("trace", "topology")."""


class Plan(Protocol):
    """What the result wants to know of the plan that was run."""

    @property
    def global_batch_size(self) -> int:
        """Samples in a step."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of the figures should know."""

    @property
    def work(self) -> Sequence[tuple[Trace, float]]:
        """The traces whose operators a step consists of, each with how many times."""

    @property
    def training(self) -> bool:
        """Whether a step has a backward pass."""

    @property
    def pipeline_axis(self) -> str | None:
        """The axis along which stages follow each other; None without a pipeline."""


#: How much of the step floating point may lose before a sum counts as wrong.
_TOLERANCE = 1e-9

#: Products of eight-bit numbers.
_EIGHT_BITS = "scaled_mm"
#: From which part of the step on waiting for launches is worth a note.
_LAUNCH_BOUND = 0.02

#: Ranks that ran the same operators equally often: the ranks, and (operators, runs) for each task that they ran.
RankClass = tuple[list[int], list[tuple[tuple[Operator, ...], int]]]


def collect(
    recording: Recording,
    *,
    trace: Trace,
    plan: Plan,
    topology: Topology,
    network: Network,
    inputs: Inputs,
    notes: Sequence[str] = (),
    options: MetricOptions | None = None,
    memory: WorldMemory | None = None,
) -> ResultData:
    """Return the figures of a run. Raises ``SimulationError`` where nothing was computed, or where they contradict."""
    ends = _iteration_ends(recording)
    steps = len(ends)
    if not math.isfinite(recording.end):
        raise SimulationError(
            f"the run ended at {recording.end} s: a transfer or an operator took no finite time",
            where=type(network).__name__,
            fix="look at the times that its transfer returns, and at --operator-times and --host-overhead",
        )
    if recording.end <= 0 or not any(r.compute_seconds > 0 for r in recording.ranks):
        raise SimulationError(
            "nothing was computed: the operators that were simulated take no time",
            where=trace.source or None,
            fix="use a trace with measured times, or --operator-times",
        )
    step = recording.end / steps
    classes = rank_classes(recording)
    ranks, launch_wait = _all_ranks(recording, steps)
    exposed = tuple(exposed_shares(recording.ranks, steps))
    collectives = tuple(_collectives(recording, steps))
    found = metrics(step, ranks, classes, steps, exposed, trace, plan, options or MetricOptions())
    return ResultData(
        step_time_s=step,
        throughput_samples_per_s=plan.global_batch_size / step,
        global_batch_size=plan.global_batch_size,
        iterations=tuple(ends),
        ranks=ranks,
        layers=tuple(_layers(classes, steps)),
        operators=tuple(_operators(classes, steps)),
        collectives=collectives,
        links=tuple(_links(network, topology, recording.end, steps)),
        notes=tuple(
            dict.fromkeys((*notes, *plan.notes, *_notes(recording, trace, launch_wait / step), *doubts(found)))
        ),
        inputs=describe_inputs(inputs, trace, topology),
        step_time_interval_s=interval(step, classes, {rank.rank: rank for rank in ranks}, launch_wait),
        predictions=tuple(predictions(classes, steps)),
        launch_wait_s=launch_wait,
        network_figures=dict(network.figures()) or None,
        exposed_communication=exposed,
        metrics=found,
        axes=tuple(axis_traffic(collectives, exposed)),
        memory=() if memory is None else memory_rows(memory),
    )


def _iteration_ends(recording: Recording) -> list[float]:
    """Return when each iteration ended on its last rank; a run without marks is one iteration."""
    marks = [record.iterations for record in recording.ranks]
    count = min((len(times) for times in marks), default=0)
    return [max(times[index] for times in marks) for index in range(count)] or [recording.end]


def _all_ranks(recording: Recording, steps: int) -> tuple[tuple[RankTimes, ...], float]:
    """Return every rank's times, and for how long they wait for launches on average; records that are shared are read once."""
    found: dict[int, tuple[RankTimes, float]] = {}
    ranks, waits = [], []
    for record in recording.ranks:
        key = id(record.compute)
        if key not in found:
            found[key] = _rank_times(record, recording.end, steps), record.launch_wait()
        times, wait = found[key]
        ranks.append(replace(times, rank=record.rank))
        waits.append(wait)
    return tuple(ranks), math.fsum(waits) / len(ranks) / steps


def _rank_times(record: RankRecord, end: float, steps: int) -> RankTimes:
    compute, communication = record.compute.merged(), record.communication.merged()
    busy, total = length(compute), length(communication)
    exposed = max(0.0, total - overlap(compute, communication))
    idle = end - busy - exposed
    if idle < -_TOLERANCE * end:
        raise SimulationError(f"rank {record.rank} was busy for {busy + exposed:.9g} s of a run of {end:.9g} s")
    if abs(idle) <= _TOLERANCE * end:
        idle = 0.0
    return RankTimes(
        record.rank,
        record.compute_seconds / steps,
        total / steps,
        exposed / steps,
        idle / steps,
        record.waiting_seconds / steps,
    )


def rank_classes(recording: Recording) -> list[RankClass]:
    """Return the ranks grouped by what they ran, so that a thousand equal ranks are summed once."""
    tasks: dict[int, tuple[tuple[Operator, ...], Counter[int]]] = {}
    for task, runs in recording.computed.values():
        tasks.setdefault(id(task.operators), (task.operators, Counter()))[1].update(runs)
    ran: dict[int, list[tuple[int, int]]] = {}
    for key, (_, counter) in tasks.items():
        for rank, count in counter.items():
            ran.setdefault(rank, []).append((key, count))
    classes: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for rank in sorted(ran):
        stands_for = (rank,) if recording.stands_for is None else recording.stands_for[rank]
        classes.setdefault(tuple(ran[rank]), []).extend(stands_for)
    return [
        (sorted(ranks), [(tasks[key][0], count) for key, count in ran_by_all]) for ran_by_all, ranks in classes.items()
    ]


def _layers(classes: list[RankClass], steps: int) -> Iterable[LayerTimes]:
    """Yield each layer in order of its first operator, with the mean over its ranks and what each of them spends."""
    shares: dict[str, dict[tuple[float, ...], list[list[int]]]] = {}
    shown: dict[tuple[int, ...], str] = {}  # by the classes: few, each of which may have thousands of ranks
    for ranks, tasks in classes:
        sums: dict[str, list[float]] = {}
        for operators, runs in tasks:
            for operator in operators:
                row = sums.setdefault(operator.layer, [0.0, 0.0, 0.0, 0])
                row[PHASES.index(operator.phase)] += runs * operator.seconds
                row[3] += runs
        for layer, row in sums.items():
            shares.setdefault(layer, {}).setdefault(tuple(value / steps for value in row), []).append(ranks)
    for layer, rows in shares.items():
        counts = [sum(map(len, some)) for some in rows.values()]
        mean = [math.fsum(one[i] * n for one, n in zip(rows, counts, strict=True)) / sum(counts) for i in range(4)]
        per_rank = []
        for seconds, some in rows.items():
            key = tuple(map(id, some))
            if key not in shown:
                shown[key] = format_ranks(chain.from_iterable(some))
            per_rank.append(LayerShare(shown[key], **_layer_row(seconds)))
        yield LayerTimes(layer, **_layer_row(mean), per_rank=tuple(per_rank))


def _layer_row(row: Sequence[float]) -> dict[str, float]:
    forward, backward, optimizer, operators = row
    total = math.fsum((forward, backward, optimizer))
    return {
        "forward_s": forward,
        "backward_s": backward,
        "optimizer_s": optimizer,
        "total_s": total,
        "operators": _count(operators),
    }


def _operators(classes: list[RankClass], steps: int) -> Iterable[OperatorTimes]:
    """Yield each operator of each phase of each layer, in order of first use: the mean over the ranks that ran it."""
    found: dict[tuple[str, str, str], list[float]] = {}  # seconds, calls and ranks
    for ranks, tasks in classes:
        mine: dict[tuple[str, str, str], list[float]] = {}
        for operators, runs in tasks:
            for operator in operators:
                row = mine.setdefault((operator.name, operator.layer, operator.phase), [0.0, 0])
                row[0] += runs * operator.seconds
                row[1] += runs
        for key, (seconds, calls) in mine.items():
            total = found.setdefault(key, [0.0, 0, 0])
            total[0] += seconds * len(ranks)
            total[1] += calls * len(ranks)
            total[2] += len(ranks)
    for (name, layer, phase), (seconds, calls, members) in found.items():
        yield OperatorTimes(name, layer, phase, _count(calls / members / steps), seconds / members / steps)


def _collectives(recording: Recording, steps: int) -> list[CollectiveTimes]:
    """Return all transfers by kind and size, those that took longest first."""
    rows = [
        CollectiveTimes(kind, size, _count(nbytes), _count(found.count / steps), found.seconds / steps, axis)
        for (kind, axis, size, nbytes), found in recording.transfers.items()
    ]
    return sorted(rows, key=lambda row: (-row.total_s, row.kind, row.axis, row.group_size, row.bytes))


def _links(network: Network, topology: Topology, end: float, steps: int) -> Iterable[LinkLoad]:
    """Yield every link of the topology with what it carried in a step; none where the network counts no bytes."""
    carried = network.bytes_by_link()
    if not carried:
        return
    recorded = loads(network.rates, end)
    for name, link in topology.links.items():
        nbytes = carried.get(name, 0.0)
        made = LinkLoad(name, _count(nbytes / steps), nbytes / (link.bandwidth * end))
        load = recorded.get(name)
        if load is not None:
            since, until = busiest_slot(load, end)
            made = replace(made, peak=load.peak, busy_s=load.busy_s / steps, busiest_from_s=since, busiest_to_s=until)
        yield made


def _notes(recording: Recording, trace: Trace, launch_bound: float) -> Iterable[str]:
    if trace.times != "measured":
        yield f"the trace's operator times are not measured: {trace.times}"
        if any(base_name(operator.name) == _EIGHT_BITS for operator in trace.operators):
            yield "products in eight bits (fp8): a roofline estimate, not validated"
    if len(recording.ranks) > 1 and not any(count.count for count in recording.transfers.values()):
        yield f"nothing was communicated between the {len(recording.ranks)} GPUs"
    slowed = math.fsum(record.slowed_seconds for record in recording.ranks) / len(recording.ranks)
    if slowed > 0:
        yield (
            f"computation took {format_time(slowed)} longer in all on the average GPU because of what else went on or "
            "happened; the times of layers and operators are without that"
        )
    if launch_bound >= _LAUNCH_BOUND:
        yield (
            f"the step is launch-bound: for {launch_bound:.0%} of it the GPUs wait for their hosts to launch; "
            "smaller batches save little"
        )


def _count(value: float) -> float:
    """Return a whole number as an int, which is how it is written."""
    return int(value) if float(value).is_integer() else value


def describe_inputs(inputs: Inputs, trace: Trace, topology: Topology) -> dict[str, Any]:
    """Return everything needed to run it again: versions, options, hashes of the files, and what trace and topology were."""
    return {
        "versions": versions(),
        "options": dict(inputs.options),
        "files": {name: {"path": path, "sha256": sha256(Path(path))} for name, path in inputs.files.items()},
        "trace": {
            "model": trace.model,
            "gpu": trace.gpu,
            "batch_size": trace.batch_size,
            "times": trace.times,
            "operators": len(trace.operators),
        },
        "topology": {"name": topology.name, "gpus": len(topology.gpus), "links": len(topology.links)},
    }


def versions() -> dict[str, str]:
    """Return the versions of triosim, of Python and of what the figures depend on."""
    from importlib.metadata import version  # importing numpy to ask it would cost 80 ms

    return {
        "triosim": triosim.__version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "simpy": version("simpy"),
    }


def sha256(path: Path) -> str | dict[str, str]:
    """Return a file's SHA-256, or that of each file of a folder by name."""
    if path.is_dir():
        return {file.name: _sha256(file) for file in sorted(path.iterdir()) if file.is_file()}
    return _sha256(path)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
