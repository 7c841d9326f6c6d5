"""The operators of a step that were predicted: by shape, those that the step's doubt leans on most first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from triosim.compute.fit.operator_table import MeasuredOperator
from triosim.compute.learned.kind_regression import call_of
from triosim.operators import features
from triosim.operators.kinds import kind_of
from triosim.results.finished_run import RankClass
from triosim.results.uncertainty import expected_error
from triosim.trace import Operator


@dataclass(slots=True)
class UnmeasuredOperator:
    """An operator whose time was predicted, in one shape; ``forward`` is what it differentiates.

    ``count`` is how often it runs in a step, ``seconds`` how long that takes, ``error_s`` by how much this is expected to be
    off: the mean over the ranks.
    """

    operator: Operator
    forward: Operator | None
    count: float = 0.0
    seconds: float = 0.0
    error_s: float = 0.0


def unmeasured(classes: Sequence[RankClass], steps: int, measured: Collection[str] = ()) -> list[UnmeasuredOperator]:
    """Return the predicted operators of a run of several steps, but for those whose call was ``measured`` on this GPU.

    ``classes`` are its ranks by what they ran.
    """
    found: dict[str, UnmeasuredOperator] = {}
    world = sum(len(ranks) for ranks, _ in classes)
    for ranks, tasks in classes:
        forwards = {one.id: one for operators, _ in tasks for one in operators if one.phase == "forward"}
        for operators, runs in tasks:
            weight = runs * len(ranks) / world / steps
            for one in operators:
                if one.predicted_by is None or not one.seconds:
                    continue
                call = call_of(one)
                if call in measured:
                    continue
                forward = None if one.forward is None else forwards.get(one.forward)
                row = found.setdefault(call, UnmeasuredOperator(one, forward))
                row.count += weight
                row.seconds += weight * one.seconds
                row.error_s += weight * one.seconds * expected_error(one)
    return sorted(found.values(), key=lambda row: -row.error_s)


def as_plan(rows: Sequence[UnmeasuredOperator], gpu: str) -> list[MeasuredOperator]:
    """Return what ``triosim calibrate measure --plan`` is to measure on a GPU.

    Of nodes of the autograd graph, and of the backward passes of attention and norms, it runs the forward operator and
    differentiates that. A table has no tensors without elements: outputs are left out, and operators that read one.
    """
    planned = (_planned(row, gpu) for row in rows)
    return [one for one in planned if all(tensor.numel for tensor in one.operator.inputs)]


def _planned(row: UnmeasuredOperator, gpu: str) -> MeasuredOperator:
    outputs = tuple(tensor for tensor in row.operator.outputs if tensor.numel)
    one, forward, call = replace(row.operator, seconds=0.0, outputs=outputs), row.forward, call_of(row.operator)
    bare = features.base_name(one.name)
    differentiated = features.is_autograd_node(bare) or kind_of(bare) in ("attention", "norm")
    if forward is None or one.phase != "backward" or not differentiated:
        return MeasuredOperator(one, gpu, call=call)
    one = replace(one, inputs=(forward.outputs[0], *forward.inputs), attributes=forward.attributes)
    return MeasuredOperator(one, gpu, forward=forward.name, call=call)
