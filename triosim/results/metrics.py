"""Computes MFU, HFU, tokens per second, the pipeline bubble, energy, cost, and the traffic along each axis.

The FLOPs are those of matrix products, convolutions and attention, a multiply-add being two, as in Chowdhery et al.,
"PaLM: Scaling Language Modeling with Pathways" (2022, appendix B) and Korthikanti et al., "Reducing Activation Recomputation
in Large Transformer Models" (2022, section 6): the *model's* FLOPs are those that a step needs, the *hardware's* those that
it executes.

Model FLOPs are counted in the trace, not in what the parallelisms make of it: the forward pass, and in training those
operators of the backward pass that differentiate one of its operators. Attention's backward counts twice its forward pass: the
scores that it computes again are the hardware's. Where no operator of a trace says what it differentiates, the backward
pass counts twice the forward pass. Hardware FLOPs are counted in what the ranks ran.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

import numpy as np

from triosim import gpus
from triosim.compute.models.roofline import arithmetic_dtype
from triosim.gpus import Gpu
from triosim.operators import features
from triosim.operators.kinds import Kind, kind_of
from triosim.results.exposure import ExposedSeconds, by_axis
from triosim.results.finished_run import FinishedRun, MetricOptions
from triosim.results.operator_columns import Floats, OperatorColumns, added
from triosim.results.values import AxisTraffic, CollectiveTimes, ExposedShare, Metrics, RankTimes
from triosim.trace import Operator, Tensor, Trace

#: The kinds of operators whose FLOPs count; a recurrent layer is mostly matrix products.
COUNTED: tuple[Kind, ...] = ("product", "convolution", "attention", "recurrent")

#: The share of attention's backward that is no recomputation: four products of five (Dao et al. 2022).
_WITHOUT_SCORES = 0.8
#: Of two counts of FLOPs, by how much one may be below the other by rounding.
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The mean time of ``iterations`` steps in seconds; the ranks' times, operators, and exposed communication."""

    seconds: float
    iterations: int
    ranks: Sequence[RankTimes]
    operators: OperatorColumns
    exposed: Sequence[ExposedShare]


def metrics(run: FinishedRun, times: StepTimes, options: MetricOptions) -> Metrics:
    """Return the metrics of a step."""
    plan, step, ranks = run.step, times.seconds, times.ranks
    world = len(ranks)
    rate = plan.global_batch_size / step
    tokens = options.tokens_per_sample or _tokens_of(run)
    kinds = [options.gpu_kinds.get(rank.rank, run.trace.gpu) for rank in ranks]
    catalogue = {kind: gpus.get(kind) for kind in set(kinds)}
    system = [catalogue[kind] for kind in kinds]
    known = [gpu for gpu in system if gpu is not None]
    complete = len(known) == world
    by_dtype = model_flops(plan.work, known[0] if known else None, training=plan.training)
    model = math.fsum(by_dtype.values())
    hardware = hardware_flops(times.operators) / times.iterations if model else 0.0
    dtype = max(by_dtype, key=lambda name: by_dtype[name]) if model else None
    peak = math.fsum(gpu.rate(dtype) for gpu in known) if dtype and complete else None
    idle = math.fsum(rank.idle_s for rank in ranks) / world
    waiting = by_axis(times.exposed).get(plan.pipeline_axis or "", ExposedSeconds()).waiting_s
    watts = [gpu.tdp_watts for gpu in known]
    prices = [gpu.price_per_hour for gpu in known] if options.price_per_gpu_hour is None else None
    price = options.price_per_gpu_hour if prices is None else _mean(prices) if complete else None
    return Metrics(
        samples_per_s_per_gpu=rate / world,
        tokens_per_sample=tokens,
        tokens_per_s=rate * tokens if tokens else None,
        tokens_per_s_per_gpu=rate * tokens / world if tokens else None,
        model_flops=model or None,
        hardware_flops=hardware or None,
        peak_dtype=dtype if peak else None,
        peak_flops=peak,
        mfu=model / (step * peak) if model and peak else None,
        hfu=hardware / (step * peak) if hardware and peak else None,
        bubble_fraction=(idle + waiting) / step if plan.pipeline_axis else None,
        energy_j=step * math.fsum(watts) if complete and all(watts) else None,
        price_per_gpu_hour=price,
        cost=None if price is None else price * world * step / 3600,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if len(known) == len(values) else None


def impossible(found: Metrics) -> Iterable[str]:
    """Yield a note where the GPUs would exceed their peak, or computed less than the model does."""
    if found.hfu is not None and found.hfu > 1.0:
        yield (
            f"HFU is {found.hfu:.0%} of the {found.peak_dtype} peak: the trace's operators ran in another format (tf32), "
            "or its times are too short"
        )
    if found.hfu is not None and found.mfu is not None and found.hfu < found.mfu * (1.0 - _TOLERANCE):
        yield (
            f"HFU ({found.hfu:.1%}) is below MFU ({found.mfu:.1%}): the GPUs computed less than the model's FLOPs, "
            "as where experts drop tokens"
        )


def axis_traffic(collectives: Iterable[CollectiveTimes], exposed: Iterable[ExposedShare]) -> list[AxisTraffic]:
    """Return what is communicated along each axis, the most exposed first."""
    exposures = by_axis(exposed)
    totals: dict[str, list[float]] = {axis: [0.0, 0.0] for axis in exposures}
    for row in collectives:
        entry = totals.setdefault(row.axis, [0.0, 0.0])
        entry[0] += row.bytes * row.count
        entry[1] += row.count
    rows = [
        AxisTraffic(axis, nbytes, count, *exposures.get(axis, ExposedSeconds()))
        for axis, (nbytes, count) in totals.items()
    ]
    return sorted(rows, key=lambda row: (-row.exposed_s, -row.bytes, row.axis))


def _tokens_of(run: FinishedRun) -> float | None:
    """Return the tokens of a sample, with all its parts. Only the ranks of a first stage look tokens up."""
    traces = (run.trace, *(trace for trace, _ in run.step.work if trace is not run.trace))
    tokens = next(filter(None, map(tokens_of, traces)), None)
    return tokens and tokens * run.step.sample_parts


def tokens_of(trace: Trace) -> float | None:
    """Return the tokens of a sample: its indices into an embedding table; None without any.

    A table counts that is given each sample of the step once, in one call or in those of several micro-batches. Its indices
    are integers of the input, or computed of them one by one, as a rank does that has a part of the table's rows.
    """
    fed: dict[str, list[Tensor]] = {}
    computed: set[int] = set()
    for operator in trace.operators:
        if operator.phase != "forward":
            continue
        found = [one for one in operator.inputs if one.shape and _is_index(one, computed)]
        shapes = {one.shape for one in found}
        computed.update(one.id for one in operator.outputs if "int" in one.dtype and one.shape in shapes)
        pooled = features.is_pooled_look_up(operator)  # which adds the rows of a sample up
        if found and kind_of(features.base_name(operator.name)) == "embedding" and not pooled:
            fed.setdefault(operator.layer, []).extend(found)
    each_once = [given for given in fed.values() if sum(one.shape[0] for one in given) == trace.batch_size]
    return max((sum(one.numel for one in given) / trace.batch_size for given in each_once), default=None)


def _is_index(tensor: Tensor, computed: Set[int]) -> bool:
    return "int" in tensor.dtype and (tensor.category == "input" or tensor.id in computed)


def model_flops(work: Iterable[tuple[Trace, float]], gpu: Gpu | None, *, training: bool = True) -> dict[str, float]:
    """Return the FLOPs of a step by their dtype; ``work`` are traces, each with how many times it runs."""
    found: dict[str, float] = {}
    for trace, times in work:
        forwards = {one.id: one for one in trace.operators if one.phase == "forward"}
        linked = any(one.forward in forwards for one in trace.operators if one.phase == "backward")
        backwards = training and any(one.phase == "backward" for one in trace.operators)
        for operator in trace.operators:
            flops = 0.0
            if operator.phase == "forward":
                flops = counted(operator) * (3.0 if backwards and not linked else 1.0)
            elif operator.phase == "backward" and backwards and operator.forward in forwards:
                flops = counted(operator, forwards[operator.forward], again=False)
            if flops:
                dtype = _dtype(operator, gpu)
                found[dtype] = found.get(dtype, 0.0) + times * flops
    return found


def hardware_flops(operators: OperatorColumns) -> float:
    """Return the FLOPs that all ranks have executed in the run."""
    total = 0.0
    flops: Floats = np.full(len(operators.operators), np.nan)
    # Some operators are other objects with the same tensors: slowed down. By id(): shapes are compared more slowly.
    known: dict[tuple[int, int, int], float] = {}
    for one in operators.classes:
        new = np.unique(one.rows[np.isnan(flops[one.rows])]).tolist()
        ran = map(operators.operators.__getitem__, one.rows.tolist() if new else ())
        forwards = {operator.id: operator for operator in ran if operator.phase == "forward"}
        for row in new:
            operator = operators.operators[row]
            key = operator.id, id(operator.inputs), id(operator.outputs)
            if key not in known:
                of = forwards.get(operator.forward) if operator.forward is not None else None
                known[key] = counted(operator, of)
            flops[row] = known[key]
        total = added(flops[one.rows] * one.runs * len(one.ranks), total)
    return total


def counted(operator: Operator, forward: Operator | None = None, *, again: bool = True) -> float:
    """Return an operator's FLOPs if its kind counts; ``again`` includes scores that attention's backward computes again.

    Causal attention counts as if it were not masked. Where ring attention skips a masked block, it counts with the other half.
    """
    name = features.base_name(operator.name)
    kind = kind_of(name)
    if kind not in COUNTED and forward is not None and features.is_autograd_node(name):
        kind = kind_of(features.base_name(forward.name))
    if kind not in COUNTED or operator.phase == "optimizer":
        return 0.0
    if not operator.inputs and not operator.outputs:
        return operator.flops or 0.0
    flops = features.flops(operator, forward) * (2.0 if operator.attributes.get("part_of_causal") else 1.0)
    return flops * _WITHOUT_SCORES if kind == "attention" and operator.phase == "backward" and not again else flops


def _dtype(operator: Operator, gpu: Gpu | None) -> str:
    kind = kind_of(features.base_name(operator.name))
    if gpu is not None:
        return arithmetic_dtype(operator, gpu, kind)
    return next((t.dtype for t in (*operator.inputs, *operator.outputs) if "float" in t.dtype), "float32")
