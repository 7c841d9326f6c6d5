"""Computes the figures of a result from the engine's recording.

A rank's busy time is the union of the intervals in which it computes; its exposed communication is the union of its
transfers outside of those, waiting for partners and the host's computation among them; the rest of the step is idle.
Everything is divided by the number of iterations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from triosim.engine import Recording
from triosim.engine.intervals import length, overlap
from triosim.engine.recording import RankRecord
from triosim.errors import SimulationError
from triosim.networks.base import Network
from triosim.networks.extensions import FigureReporter, LinkCounter, LinkRecorder
from triosim.results.exposure import Causes, causes_by_rank, exposed_shares, host_seconds, waiting_seconds
from triosim.results.finished_run import FinishedRun, MetricOptions, rank_classes
from triosim.results.link_loads import busiest_slot, loads
from triosim.results.memory_rows import rows as memory_rows
from triosim.results.metrics import StepTimes, axis_traffic, impossible, metrics
from triosim.results.operator_columns import OperatorColumns, in_order, sums
from triosim.results.uncertainty import Waits, communication_error, doubts, interval, predictions
from triosim.results.values import (
    CollectiveTimes,
    LayerShare,
    LayerTimes,
    LinkLoad,
    OperatorTimes,
    RankTimes,
    ResultData,
)
from triosim.tasks import HOST_STREAM
from triosim.trace import PHASES, Trace
from triosim.units import format_ranks, format_time

#: How much of the step floating point may lose before a sum counts as wrong.
_TOLERANCE = 1e-9

#: The share of the step from which on waiting for launches is worth a note.
LAUNCH_BOUND = 0.02


def figures(
    run: FinishedRun, *, inputs: Mapping[str, Any], notes: Sequence[str] = (), options: MetricOptions | None = None
) -> ResultData:
    """Return the figures of a run. Raises ``SimulationError`` where nothing was computed or a figure contradicts another."""
    recording, trace, network = run.recording, run.trace, run.network
    _check(run)
    ends = _iteration_ends(recording)
    steps = len(ends)
    step = recording.end / steps
    operators = OperatorColumns(rank_classes(recording))
    causes = causes_by_rank(recording.ranks)
    ranks, launch_wait = _all_ranks(recording, causes, steps)
    exposed = tuple(exposed_shares(causes, steps))
    collectives = tuple(_collectives(recording, steps))
    times = StepTimes(step, steps, ranks, operators, exposed)
    slowed = math.fsum(record.slowed_seconds for record in recording.ranks) / len(ranks) / steps
    launches = max((one.launching for one in operators.classes), default=0.0) / steps if run.launches_cost else 0.0
    waits = Waits(launch_wait, 0.0 if run.stated_slowdowns else slowed, launches)
    doubted = doubts(times, trace, communication_error(collectives, exposed, network), waits)
    found = metrics(run, times, options or MetricOptions())
    run_notes = _notes(recording, trace, slowed, launch_wait / step)
    return ResultData(
        step_time_s=step,
        throughput_samples_per_s=run.step.global_batch_size / step,
        global_batch_size=run.step.global_batch_size,
        iterations=tuple(ends),
        ranks=ranks,
        layers=tuple(_layers(operators, steps)),
        operators=tuple(_operators(operators, steps)),
        collectives=collectives,
        links=tuple(_links(network, recording.end, steps)),
        notes=tuple(dict.fromkeys((*notes, *run.step.notes, *run_notes, *impossible(found)))),
        inputs=inputs,
        step_time_interval_s=interval(step, doubted),
        doubts=doubted,
        predictions=tuple(predictions(operators, steps)),
        launch_wait_s=launch_wait,
        launches_s=launches,
        network_figures=dict(network.figures()) or None if isinstance(network, FigureReporter) else None,
        exposed_communication=exposed,
        metrics=found,
        axes=tuple(axis_traffic(collectives, exposed)),
        memory=() if run.memory is None else memory_rows(run.memory),
    )


def _check(run: FinishedRun) -> None:
    """Refuse a run in which nothing was done, by the GPU or beside it, or one without an end."""
    if not math.isfinite(run.recording.end):
        raise SimulationError(
            f"the run ended at {run.recording.end} s: a transfer or an operator took no finite time",
            where=type(run.network).__name__,
            fix="check the network's transfer method, --operator-times and --host-overhead",
        )
    computes = any(rank.compute_seconds > 0 for rank in run.recording.ranks)
    others = any(one.communication is not None or one.stream.startswith(HOST_STREAM) for one in run.trace.operators)
    if run.recording.end <= 0 or not (computes or others):
        raise SimulationError(
            "nothing was computed: the operators that were simulated take no time",
            where=run.trace.source or None,
            fix="use a trace with measured times, or --operator-times",
        )


def _iteration_ends(recording: Recording) -> list[float]:
    """Return when each iteration ended on its last rank; a run without marks is one iteration."""
    marks = [record.iterations for record in recording.ranks]
    count = min((len(times) for times in marks), default=0)
    return [max(times[index] for times in marks) for index in range(count)] or [recording.end]


def _all_ranks(recording: Recording, causes: Sequence[Causes], steps: int) -> tuple[tuple[RankTimes, ...], float]:
    """Return every rank's times, and the mean time that they wait for launches."""
    found: dict[int, tuple[RankTimes, float]] = {}  # by id(): ranks that were simulated once share the very record
    ranks, waits = [], []
    for record, by_cause in zip(recording.ranks, causes, strict=True):
        key = id(record.compute)
        if key not in found:
            apart = waiting_seconds(by_cause), host_seconds(by_cause)
            found[key] = _rank_times(record, *apart, recording.end, steps), record.idle_launch_wait()
        times, wait = found[key]
        ranks.append(replace(times, rank=record.rank))
        waits.append(wait)
    return tuple(ranks), math.fsum(waits) / len(ranks) / steps


def _rank_times(record: RankRecord, exposed_waiting: float, on_host: float, end: float, steps: int) -> RankTimes:
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
        max(0.0, end / steps - (end - record.finished)),
        min(exposed_waiting, exposed) / steps,
        min(on_host, exposed) / steps,
    )


def _layers(operators: OperatorColumns, steps: int) -> Iterable[LayerTimes]:
    """Yield each layer in order of its first operator, with the mean over its ranks and what each of them spends."""
    layers, layer_of = operators.groups(lambda kind: kind.layer)
    phase_of = np.array([PHASES.index(kind.phase) for kind in operators.kinds], dtype=np.int64)
    shares: dict[str, dict[tuple[float, ...], list[Sequence[int]]]] = {layer: {} for layer in layers}
    shown: dict[tuple[int, ...], str] = {}  # by the classes: few, each of which may have thousands of ranks
    for one in operators.classes:
        groups = layer_of[one.kinds]
        cells = groups * len(PHASES) + phase_of[one.kinds]
        by_phase = sums(cells, one.spent, len(layers) * len(PHASES)).reshape(len(layers), len(PHASES))
        table = np.column_stack([by_phase, sums(groups, one.runs, len(layers))]) / steps
        for number in in_order(groups):
            shares[layers[number]].setdefault(tuple(table[number].tolist()), []).append(one.ranks)
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


def _operators(operators: OperatorColumns, steps: int) -> Iterable[OperatorTimes]:
    """Yield each operator of each phase of each layer, in order of first use: the mean over the ranks that ran it."""
    keys, key_of = operators.groups(lambda kind: (kind.name, kind.layer, kind.phase))
    totals = np.zeros((3, len(keys)))  # seconds, calls and ranks
    for one in operators.classes:
        groups = key_of[one.kinds]
        calls = sums(groups, one.runs, len(keys))
        totals += np.array([sums(groups, one.spent, len(keys)), calls, calls > 0]) * len(one.ranks)
    for (name, layer, phase), (seconds, calls, members) in zip(keys, totals.T.tolist(), strict=True):
        yield OperatorTimes(name, layer, phase, _count(calls / members / steps), seconds / members / steps)


def _collectives(recording: Recording, steps: int) -> list[CollectiveTimes]:
    rows = [
        CollectiveTimes(kind, size, _count(nbytes), _count(found.count / steps), found.seconds / steps, axis)
        for (kind, axis, size, nbytes), found in recording.transfers.items()
    ]
    return sorted(rows, key=lambda row: (-row.total_s, row.kind, row.axis, row.group_size, row.bytes))


def _links(network: Network, end: float, steps: int) -> Iterable[LinkLoad]:
    """Yield every link of the topology with what it carried in a step; none where the network counts no bytes."""
    carried = network.bytes_by_link() if isinstance(network, LinkCounter) else {}
    if not carried:
        return
    recorded = loads(network.rates, end) if isinstance(network, LinkRecorder) else {}
    for name, link in network.topology.links.items():
        nbytes = carried.get(name, 0.0)
        made = LinkLoad(name, _count(nbytes / steps), nbytes / (link.bandwidth * end))
        load = recorded.get(name)
        if load is not None:
            since, until = busiest_slot(load, end)
            made = replace(made, peak=load.peak, busy_s=load.busy_s / steps, busiest_from_s=since, busiest_to_s=until)
        yield made


def _notes(recording: Recording, trace: Trace, slowed: float, launch_bound: float) -> Iterable[str]:
    if trace.times != "measured":
        yield (
            f"operator times {'of the described step' if 'described' in trace.software else 'in this trace'} are predictions, "
            "not measurements"
            if trace.times == "predicted"
            else f"operator times in this trace are not measured: {trace.times}"
        )
    if len(recording.ranks) > 1 and not any(count.count for count in recording.transfers.values()):
        yield f"nothing was communicated between the {len(recording.ranks)} GPUs"
    if slowed > 0:
        yield (
            f"transfers that run beside computation, and faults, slow it by {format_time(slowed)} a step on the average GPU; "
            "the times of layers and operators are without that"
        )
    if launch_bound >= LAUNCH_BOUND:
        yield (
            f"the step is launch-bound: hosts launch operators more slowly than GPUs run them during {launch_bound:.0%} of it; "
            "smaller batches save little"
        )


def _count(value: float) -> float:
    """Return a whole number as an int, which is how it is written."""
    return int(value) if float(value).is_integer() else value
