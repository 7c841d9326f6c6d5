"""``simulate``: the one place that wires the parts together, from a trace to a result."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any, Literal

from triosim import gpus as catalogue
from triosim import plugins
from triosim.compute.pricing import operator_times as times_from_elsewhere
from triosim.compute.pricing.repricing import on_gpu
from triosim.conditions import Conditions, parse_conditions
from triosim.conditions.checks import check_conditions, condition_notes, notes_without_effect
from triosim.conditions.heterogeneity import Heterogeneity
from triosim.conditions.slow_links import with_slow_links
from triosim.config import RunConfig, unread
from triosim.engine.engine import Engine, Progress
from triosim.engine.options import EngineOptions
from triosim.errors import AsymmetryError, OptionError
from triosim.extrapolators.captured.captured_plan import CapturedPlan
from triosim.extrapolators.core.plan import ParallelPlan, gpus_named_by, plan
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.folding import folded_network as folding
from triosim.garbage_collector import without_collecting
from triosim.memory.extrapolated_memory import memory_of_run
from triosim.networks.base import Network
from triosim.networks.calibration import calibrated_times as calibrated
from triosim.networks.construction import form_note, make_network, recording_note
from triosim.networks.topology import Topology
from triosim.pipeline import captured_run
from triosim.pipeline.inputs import inputs_of
from triosim.results import draws as drawing
from triosim.results.figures import figures
from triosim.results.finished_run import FinishedRun, MetricOptions
from triosim.results.result import Result
from triosim.trace import Trace
from triosim.trace.formats import read
from triosim.trace.task_streams import TaskStreams
from triosim.units import Quantity

TraceLike = Trace | TaskStreams | str | PathLike[str]
TopologyLike = Topology | Mapping[str, Any] | str | PathLike[str]

#: The topology assumed for a GPU when none is given, by the beginning of its name in the catalogue.
ASSUMED_TOPOLOGY = {
    "H100-SXM": "dgx-h100",
    "H200": "dgx-h200",
    "B200": "dgx-b200",
    "A100-SXM": "dgx-a100",
    "A40": "a40-pcie",
    "V100-SXM2": "dgx-1-v100",
}


def simulate(
    trace: TraceLike,
    parallel: str | Mapping[str, int] = "single",
    *,
    trace_format: str | None = None,
    gpus: int | None = None,
    gpu: str | PathLike[str] | None = None,
    topology: TopologyLike | None = None,
    network: str | type = "packet",
    collective: str | type | None = None,
    collective_form: Literal["pipelined", "steps"] = "pipelined",
    batch_size: int | None = None,
    global_batch_size: int | None = None,
    training: bool = True,
    iterations: int = 1,
    micro_batches: int | None = None,
    stages: Sequence[str] | None = None,
    balance_stages: bool = False,
    schedule: str = "gpipe",
    virtual_stages: int | None = None,
    tp_style: Literal["gather", "megatron"] = "gather",
    sequence_parallel: bool = False,
    dp_style: Literal["all-reduce", "replicate"] = "all-reduce",
    bucket_size: Quantity = "25 MiB",
    first_bucket_size: Quantity = "1 MiB",
    gradient_dtype: str | None = None,
    recompute: str = "none",
    copy_input: bool = False,
    operator_times: str | PathLike[str] | None = None,
    compute_model: str | type = "auto",
    host_overhead: Quantity | None = None,
    run_ahead: int | None = None,
    conditions: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    tokens_per_sample: float | str | None = None,
    price: float | str | None = None,
    draws: int = 1,
    fail_on_oom: bool = False,
    fold: bool | None = None,
    timeline: bool = False,
    links: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Predict the time of a training step (or an inference pass) on many GPUs.

    trace: a ``Trace``, or the path of one in any known format; ``trace_format`` names a format, or a plug-in's file. The
        ``TaskStreams`` of a distributed step, or their file, run as they were captured: without ``parallel``.
    parallel: "ddp", "dp=2,tp=4", {"dp": 2, "pp": 4}, or a plug-in ("file.py:Class").
    gpus: how many; without it, the product of the sizes in ``parallel``, or as many as the topology has.
    gpu: another GPU than the trace's, for which times are then predicted: a name of the catalogue ("H100"), or a file.
    topology: a ``Topology``, a mapping, a file, or a name such as "dgx-h100" or "ring(8, bandwidth=50 GB/s)"; without
        it, the usual one for the GPU, which the result's notes state.
    network, collective, compute_model: a name, "module:Class", "file.py:Class" or a class. Without ``collective``, the
        network's own algorithm: "ring" for packet, "auto" for analytical.
    collective_form: "pipelined" (the steady state of a chunked algorithm) or "steps" (each of its transfers).
    batch_size: of each data-parallel replica; ``global_batch_size``: of all of them together; by default the trace's.
    training: False runs the forward pass alone; ``copy_input``: whether each rank copies its input from host memory.
    micro_batches, stages: of a pipeline; by default as many as stages, and balanced by measured time.
    schedule: of a pipeline: "gpipe", "1f1b", "interleaved" (with ``virtual_stages`` a rank, 2 by default), "zero-bubble",
        "dualpipe", or a CSV file (rank, slot, action).
    balance_stages: whether that is the time on the GPUs of each stage, so that slower ones get fewer layers.
    tp_style: of ``tp``; ``sequence_parallel``, of the style "megatron": norms and residuals on a share of the sequence.
    bucket_size, first_bucket_size: of ``ddp``; PyTorch's by default.
    gradient_dtype: what gradients are reduced in, "float32" or "fp32" say; by default each parameter's own.
    recompute: which activations the backward pass computes again: "none", "selective", "full", "checkpoint",
        "save=mm,attention" for all but these, or "modules=mlp" for what these modules need; see docs/extrapolators.md.
    operator_times: a file with times that replace the trace's, by operator or layer.
    host_overhead: what a launch costs the host: seconds or "5 us"; "trace" takes each operator's own.
    run_ahead: how many operators the host is ahead of its GPU at most; by default as many as CUDA's launch queue holds.
    conditions: what is uneven or slow, beside what the topology's file says: {"slow_gpus": {3: 1.5}, "compute_slowdown": 1.2};
        see docs/conditions.md.
    options: what plug-ins ask for by name: a constructor's keywords, as text.
    tokens_per_sample: for tokens per second; by default what the trace feeds into a table of embeddings.
    price: of a GPU for an hour, for what a step costs; by default the catalogue's, if it has one.
    draws: how many times what is left to chance is drawn, each time from seeds that are one higher. The result is that of the
        first; ``Result.data.draws`` holds how the step times of all are spread.
    fail_on_oom: raise ``DoesNotFitError`` where a rank needs more memory than its GPU has; otherwise a note says so.
    fold: simulate ranks that do the same once; by default where there are many. False also works out each layer by itself.
    timeline: keep every task, for ``Result.save_timeline`` and the Gantt chart.
    links: record what each link carries when, for ``Result.links``, ``link_loads`` and ``plot_links``.
    progress: called now and then with the simulated time and the number of finished tasks.

    Returns a ``Result``. Raises ``TriosimError`` for whatever is wrong with the input, in one line.
    """
    given = {name: value for name, value in locals().items() if name not in ("trace", "topology", "progress")}
    config = RunConfig.of(**given)
    again = {**given, "operator_times": None, "gpu": None, "timeline": False, "links": False, "draws": 1}
    files: dict[str, str] = {}
    if isinstance(trace, (Trace, TaskStreams)):
        subject = trace
    else:
        files["trace"] = str(trace)
        subject = read(trace, trace_format)
    if isinstance(subject, TaskStreams):
        defaults = inspect.signature(simulate).parameters
        captured_run.check_options(subject, given, {name: defaults[name].default for name in given})
        given["parallel"], gpus = CapturedPlan.parallel, subject.world
    else:
        captured_run.check_alone(subject)
        gpus = gpus_for(parallel, gpus)
    if operator_times is not None:
        files["operator_times"] = str(operator_times)
        entries = times_from_elsewhere.load(operator_times)
        subject = captured_run.each(subject, lambda one: times_from_elsewhere.apply(entries, one))

    chosen = plugins.Options(options or {})
    model = plugins.make(_found("compute_models", compute_model), options=chosen)
    if gpu is not None:
        if Path(gpu).is_file():
            files["gpu"] = str(gpu)
        target = catalogue.find(gpu)
        reprice = on_gpu if isinstance(subject, Trace) else captured_run.priced
        with plugins.blamed():
            subject = captured_run.each(subject, lambda one: reprice(one, target, model))
    if Path(schedule).is_file():
        files["schedule"] = schedule
    the_trace = captured_run.representative(subject)
    notes: list[str] = []
    if isinstance(topology, (str, PathLike)) and Path(topology).is_file():
        files["topology"] = str(topology)
    system = topology_for(the_trace, topology, gpus, copy_input=copy_input)
    if topology is None and system.links:
        notes.append(f"no topology given: {assumed_topology(the_trace.gpu, gpus)} is assumed")
    circumstances = parse_conditions(conditions or {}, no_condition, system.conditions)
    unslowed = system
    if circumstances.slow_links is not None:
        system = with_slow_links(system, circumstances.slow_links)
    algorithm = None
    if collective is not None:
        algorithm = plugins.make(_found("collective_algorithms", collective), options=chosen)

    def new_network() -> Network:
        return make_network(
            *(network, system), algorithm=algorithm, form=collective_form, record=timeline or links, options=chosen
        )

    the_network = new_network()
    check_conditions(circumstances, the_network)
    the_plan: ParallelPlan | CapturedPlan
    with plugins.blamed():
        heterogeneity = Heterogeneity(circumstances, the_trace, model)
        if isinstance(subject, TaskStreams):
            captured_run.check_times(subject)
            the_plan = CapturedPlan(subject, iterations=iterations)
        else:
            the_plan = plan(
                subject,
                parallel,
                gpus=gpus if gpus is not None else len(system.gpus),
                config=config,
                model=model,
                factor=heterogeneity.slowdown if balance_stages else None,
            )
    chosen.take(the_plan.known_options)
    chosen.refuse_left()
    tokens_are_drawn = isinstance(the_plan, ParallelPlan) and the_plan.draws
    drawing.check(draws, circumstances, tokens=tokens_are_drawn)
    if isinstance(the_plan, ParallelPlan):
        notes.extend(unread(config, the_plan.declared))
    with plugins.blamed():
        memory = memory_of_run(the_plan, the_trace, fail_on_oom=fail_on_oom)
    notes.extend(memory.notes)
    if collective is None and collective_form == "pipelined":
        notes.extend(calibrated.notes(the_network, the_plan.world))
    if links:
        notes.extend(recording_note(the_network))
    notes.extend(form_note(the_network, collective_form))
    if the_plan.world > len(system.gpus):
        raise OptionError(
            f"the topology has {len(system.gpus)} GPUs, {the_plan.world} are asked for",
            where=system.name,
            fix="ask for fewer, or give a larger topology",
        )

    if host_overhead == "trace" and not any(operator.host_seconds for operator in the_trace.operators):
        notes.append("the trace has no host times, so that a launch costs nothing")

    engine_options = EngineOptions(
        host_overhead=None if config.host_overhead == "none" else config.host_overhead,
        call_overhead=_call_overhead(the_trace),
        run_ahead=run_ahead,
        timeline=timeline,
        conditions=circumstances,
    )

    def engine_on(on: Network, symmetry: Symmetry | None = None) -> Engine:
        return Engine(
            on.env,
            on,
            engine_options,
            progress=progress,
            symmetry=symmetry,
        )

    with plugins.blamed():
        notes.extend(condition_notes(circumstances, the_plan.world))
        recording = None
        unlike = _unlike(the_plan.symmetry is not None, timeline, links, circumstances)
        if the_plan.symmetry is not None and not unlike and folding.repays(fold, the_plan.world):
            try:
                recording, the_network = folding.run(the_plan.symmetry, the_plan.tasks, new_network, engine_on)
            except AsymmetryError as found:
                unlike = str(found)
        if fold and unlike and the_plan.world > 1:
            notes.append(f"every rank is simulated: {unlike}")
        if recording is None:
            streams = {rank: the_plan.tasks(rank) for rank in range(the_plan.world)}
            if circumstances.heterogeneous:
                streams = {rank: heterogeneity.stream(rank, stream) for rank, stream in streams.items()}
            recording = engine_on(the_network).run(streams)
    transfer_kinds = {kind for kind, *_ in recording.transfers}
    notes.extend(
        notes_without_effect(
            circumstances,
            the_network.topology,
            world=len(recording.ranks),
            end_s=recording.end,
            transfer_kinds=transfer_kinds,
        )
    )

    given["topology"] = str(topology) if isinstance(topology, (str, PathLike)) else system.name
    with without_collecting():
        run = FinishedRun(recording, the_trace, the_plan, the_network, memory)
        inputs = inputs_of(
            {name: _plain(value) for name, value in given.items()}, files, the_trace, the_network.topology
        )
        data = figures(
            run,
            inputs=inputs,
            notes=notes,
            options=MetricOptions(config.tokens_per_sample, config.price, circumstances.gpu_kinds),
        )
        result = Result(data, recording, the_network.topology, the_network, memory)
    if draws == 1:
        return result
    drawn = [drawing.Draw.of(result)]
    for number in range(1, draws):
        arguments = drawing.reseeded(again, circumstances, number, tokens=tokens_are_drawn)
        drawn.append(drawing.Draw.of(simulate(subject, topology=unslowed, progress=progress, **arguments)))
    return replace(result, data=drawing.spread(result.data, drawn))


def _unlike(known: bool, timeline: bool, links: bool, circumstances: Conditions) -> str:
    """Return why no rank can stand for another one; empty where one may."""
    if not known:
        return "nobody knows which ranks of these tasks do the same"
    if timeline or links:
        return "the links of each are recorded" if links else "each is on the timeline"
    return "" if circumstances == Conditions() else "GPUs or links are not alike, or do not stay so"


def gpus_for(parallel: str | Mapping[str, int], gpus: int | None) -> int | None:
    """Return how many GPUs are asked for: the option, or the product of the sizes; None leaves it open."""
    if gpus is not None:
        if parallel == "single" and gpus > 1:
            raise OptionError(f"'single' is one GPU, not {gpus}", where="--gpus", fix="give --parallel too, ddp say")
        return gpus
    return gpus_named_by(parallel)


def topology_for(trace: Trace, topology: TopologyLike | None, gpus: int | None, *, copy_input: bool) -> Topology:
    """Return the system that is asked for, or the one that is assumed where none is."""
    if topology is not None:
        return _with_gpus(_loaded(topology, gpus))
    if gpus == 1 and not copy_input:  # there is nothing to send, unless it comes from the host
        return Topology.from_dict({"nodes": ["gpu0"], "links": [], "name": "one GPU"})
    return Topology.load(assumed_topology(trace.gpu, gpus), gpus=gpus)


def assumed_topology(gpu: str, gpus: int | None) -> str:
    """Return the topology that a GPU usually comes in; for one without a preset, a switch that its links reach."""
    known = catalogue.get(gpu)
    if known is None:
        return "dgx-h100"
    for beginning, preset in ASSUMED_TOPOLOGY.items():
        if known.name.startswith(beginning):
            return preset
    bandwidth = known.nvlink_bandwidth or known.pcie_bandwidth
    if not bandwidth:
        return "dgx-h100"
    return f"switch({gpus or 8}, bandwidth={bandwidth / 1e9:g} GB/s, latency=1 us)"


def _loaded(topology: TopologyLike, gpus: int | None) -> Topology:
    if isinstance(topology, Topology):
        return topology
    if isinstance(topology, Mapping):
        return Topology.from_dict(topology, gpus=gpus)
    return Topology.load(str(topology), gpus=gpus)


def _with_gpus(system: Topology) -> Topology:
    if not system.gpus:
        fix = "nodes are GPUs if their names begin with gpu or they say 'kind: gpu'"
        raise OptionError("the topology has no GPUs", where=system.name, fix=fix)
    return system


def no_condition(path: tuple[str | int, ...], what: str, fix: str | None) -> OptionError:
    """Return the error for a condition that cannot be."""
    option = "event" if path[0] == "events" else str(path[0]).replace("_", "-")
    return OptionError(what, where=f"--{option}", fix=fix)


def _found(group: plugins.Group, part: str | type) -> Any:
    return plugins.load(group, part) if isinstance(part, str) else part


def _call_overhead(trace: Trace) -> float:
    """Return what a call that communicates costs the host, which no trace of one GPU says: as much as a usual operator's."""
    costs = [operator.host_seconds for operator in trace.operators if operator.host_seconds and operator.seconds]
    return median(costs) if costs else 0.0


def _plain(value: Any) -> Any:
    """Return an option as JSON can hold it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, type):
        return f"{value.__module__}:{value.__qualname__}"
    return str(value)
