"""The time of an operator in other shapes or on another GPU: its known time, times the ratio of two predictions.

TrioSim 4.4: a measured time is used untouched, to the last bit, where nothing changed; elsewhere it is scaled by
predicted(new shapes) / predicted(old shapes), never by the plain ratio of sizes. Ratios chain: an operator that was priced can
be reshaped and priced again. A trace of one GPU becomes that of another by the ratio of the two GPUs' predictions. Predicted
operators name their model and its expected error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from triosim import gpus
from triosim.compute.compute_model import ComputeModel, Estimates, checked
from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.operator_sequence import OperatorSequence
from triosim.trace import Operator, Trace
from triosim.trace.trace import SIMULATED

#: The shortest time of a kernel that was not measured.
FLOOR_SECONDS = 1e-6


def reprice(
    before: Sequence[Operator],
    after: Sequence[Operator],
    model: ComputeModel,
    gpu: str = "",
    *,
    deduplicate: bool = True,
) -> list[Operator]:
    """Return ``after`` with times: ``before`` are the same operators, one for one, in the shapes that their times hold for.

    A backward operator counts as changed when the forward operator that it differentiates has changed; give both. With
    ``deduplicate``, models are asked once for equal operators.
    """
    old_forward = {operator.id: operator for operator in before if operator.phase == "forward"}
    changed = {new.id for old, new in zip(before, after, strict=True) if not same_shapes(old, new)}
    changed |= {new.id for new in after if new.forward in changed and new.forward in old_forward}
    if not changed:
        return list(after)
    asked = changed | {new.forward for new in after if new.id in changed}
    rows = [row for row, new in enumerate(after) if new.id in asked]
    old_ones, new_ones = (_selected(some, rows, deduplicate=deduplicate) for some in (before, after))
    priced = {one.id: one for one in reshaped(old_ones, new_ones, model, gpu) if one.id in changed}
    return [priced.get(new.id, new) for new in after]


def reshaped(
    before: Sequence[Operator], after: Sequence[Operator], model: ComputeModel, gpu: str = ""
) -> Iterator[Operator]:
    """Yield ``after`` with the times of ``before``, scaled by the ratios of their predictions; all have other shapes."""
    found, _ = answers(model, after, lambda asked: asked.ratios(before, after, gpu, gpu))
    for row, (old, new) in enumerate(zip(before, after, strict=True)):
        yield with_prediction(scaled(new, float(found.seconds[row]), old), found, row, old)


def _selected(operators: Sequence[Operator], rows: Sequence[int], *, deduplicate: bool) -> OperatorSequence:
    """Return some operators; all of a sequence as it is, with the features that it keeps."""
    if isinstance(operators, OperatorSequence) and len(rows) == len(operators):
        return operators
    return OperatorSequence([operators[row] for row in rows], deduplicate=deduplicate)


def on_gpu(trace: Trace, target: gpus.Gpu, model: ComputeModel) -> Trace:
    """Return the trace as it would be on another GPU; the same trace if that is its own.

    Measured times are scaled by predicted(target) / predicted(trace's GPU). Where nothing was measured, or on a GPU that the
    catalogue does not have, the prediction replaces them. Host times do not change.
    """
    source = gpus.get(trace.gpu)
    if source == target:
        return trace
    measured = trace.times.startswith(("measured", SIMULATED))
    if source is not None and measured:
        model.fit(trace)
        same = trace.operators
        found, known = answers(model, same, lambda asked: asked.ratios(same, same, trace.gpu, target.name), trace)
        operators = [
            with_prediction(scaled(operator, float(found.seconds[row])), found, row, operator)
            for row, operator in enumerate(same)
        ]
        times = f"predicted for {target.name} from those {trace.times} on {trace.gpu}"
    else:
        found, known = answers(model, trace.operators, lambda asked: asked.estimate(trace.operators, target.name))
        untimed = not any(operator.seconds for operator in trace.operators)
        operators = [
            _with_estimate(operator, found, row) if untimed or operator.seconds else operator
            for row, operator in enumerate(trace.operators)
        ]
        times = f"predicted for {target.name}"
        if measured:
            times += f" without those measured on '{trace.gpu}', which is not in the GPU catalogue"
    if not known:
        times += f" by auto, because {type(model).__name__.lower()} estimates no operator on another GPU"
    return replace(trace, operators=tuple(operators), gpu=target.name, times=times, step_seconds=None)


def estimated(operators: Sequence[Operator], model: ComputeModel, gpu: str) -> list[Operator]:
    """Return operators that are in no trace (copies that a parallelism adds) with the times of a model, or of ``auto``."""
    found, _ = answers(model, operators, lambda asked: asked.estimate(operators, gpu))
    return [_with_estimate(operator, found, row) for row, operator in enumerate(operators)]


def scaled(operator: Operator, ratio: float, measured: Operator | None = None) -> Operator:
    """Return an operator with ``ratio`` times the seconds of ``measured`` (it in its old shapes), not below the floor."""
    flops = operator.flops if measured is None else None  # what the profiler counted held for the shapes that it saw
    measured = measured or operator
    seconds = max(measured.seconds * ratio, min(measured.seconds, FLOOR_SECONDS))
    factor = seconds / measured.seconds if measured.seconds > 0.0 else 1.0
    busy = None if measured.busy_seconds is None else measured.busy_seconds * factor
    return operator.with_times(seconds, busy, flops)


def with_prediction(operator: Operator, found: Estimates, row: int, old: Operator | None = None) -> Operator:
    """Return an operator with the name of the model that its time comes from, and its expected relative error.

    A time that was predicted before by another model has both errors, as independent ones; a chain of ratios of one model is
    one ratio, and has the larger of its errors.
    """
    if operator.seconds == 0.0:
        return operator  # it takes no time on any GPU and in any shape
    name = found.model[row] or "unnamed"
    error = float(found.relative_error[row])
    if old is not None and old.predicted_by is not None:
        before = math.nan if old.relative_error is None else old.relative_error
        error = float(np.maximum(error, before)) if old.predicted_by == name else math.hypot(error, before)
        if old.predicted_by != name:
            name = f"{old.predicted_by}, {name}"
    return operator.predicted(name, None if math.isnan(error) else error)


def same_shapes(first: Operator, second: Operator) -> bool:
    """Whether the tensors of two operators have the same shapes."""
    return first is second or (
        [tensor.shape for tensor in first.inputs] == [tensor.shape for tensor in second.inputs]
        and [tensor.shape for tensor in first.outputs] == [tensor.shape for tensor in second.outputs]
    )


def _with_estimate(operator: Operator, found: Estimates, row: int) -> Operator:
    return with_prediction(operator.with_times(float(found.seconds[row]), None, operator.flops), found, row)


def answers(
    model: ComputeModel,
    operators: Sequence[Operator],
    ask: Callable[[ComputeModel], Estimates],
    trace: Trace | None = None,
) -> tuple[Estimates, bool]:
    """Return a model's answers, and whether it knows any operator; ``auto``, fitted to ``trace``, answers for the others."""
    found = checked(ask(model), operators, model)
    known = np.isfinite(found.seconds)
    if known.all():
        return found, True
    auto = AutoComputeModel()
    if trace is not None:
        auto.fit(trace)
    other = ask(auto)
    both = Estimates(
        np.where(known, found.seconds, other.seconds),
        np.where(known, found.relative_error, other.relative_error),
        [mine if is_known else its for mine, its, is_known in zip(found.model, other.model, known, strict=True)],
    )
    return both, bool(known.any())
