"""The time of an operator in other shapes: its time so far, times the ratio of two predictions.

TrioSim 4.4: a measured time is used untouched, to the last bit, where nothing changed; elsewhere it is scaled by
predicted(new shapes) / predicted(old shapes), never by the plain ratio of sizes. Ratios chain: what was priced can be
reshaped and priced again, and so can a piece that was given a share of an operator's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from triosim.compute.base import ComputeModel, checked_seconds
from triosim.errors import PluginError
from triosim.trace import Operator
from triosim.units import format_time

#: No kernel is shorter than this, unless it was measured so.
FLOOR_SECONDS = 1e-6


def reprice(
    before: Sequence[Operator], after: Sequence[Operator], model: ComputeModel, gpu: str = ""
) -> list[Operator]:
    """Return ``after`` with times: ``before`` are the same operators, one for one, in the shapes that their times hold for.

    A backward operator is taken to have changed when the forward operator that it differentiates has; give both.
    """
    old_forward = {operator.id: operator for operator in before if operator.phase == "forward"}
    changed = {new.id for old, new in zip(before, after, strict=True) if not _same_shapes(old, new)}
    changed |= {new.id for new in after if new.forward in changed and new.forward in old_forward}
    if not changed:
        return list(after)
    old_seconds = checked_seconds(model, before, gpu)
    new_seconds = checked_seconds(model, after, gpu)
    priced = []
    for row, (old, new) in enumerate(zip(before, after, strict=True)):
        if new.id not in changed:
            priced.append(new)
            continue
        if old.seconds > 0.0 and not old_seconds[row] > 0.0:
            raise PluginError(
                f"estimates no time for {old.name}, which took {format_time(old.seconds)}", where=type(model).__name__
            )
        ratio = float(new_seconds[row] / old_seconds[row]) if old_seconds[row] > 0.0 else 1.0
        priced.append(scaled(new, ratio, old))
    return priced


def scaled(operator: Operator, ratio: float, measured: Operator | None = None) -> Operator:
    """Return an operator with ``ratio`` times the seconds of ``measured`` (by default its own), not below the floor."""
    measured = measured or operator
    seconds = max(measured.seconds * ratio, min(measured.seconds, FLOOR_SECONDS))
    factor = seconds / measured.seconds if measured.seconds > 0.0 else 1.0
    return replace(
        operator,
        seconds=seconds,
        busy_seconds=None if measured.busy_seconds is None else measured.busy_seconds * factor,
        flops=None,  # what the profiler counted held for the shapes that it saw
    )


def _same_shapes(first: Operator, second: Operator) -> bool:
    return first is second or (
        [tensor.shape for tensor in first.inputs] == [tensor.shape for tensor in second.inputs]
        and [tensor.shape for tensor in first.outputs] == [tensor.shape for tensor in second.outputs]
    )
