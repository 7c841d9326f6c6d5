"""Finds profiles that hold a part of a step: without the forward pass of what is differentiated, or without kernels.

A profiler that is started or stopped within a step, or stopped before the GPU is through, leaves such files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from triosim.errors import TraceError
from triosim.trace.autograd import ACCUMULATE_GRAD
from triosim.trace.formats.pytorch.joined_calls import last_step
from triosim.trace.formats.pytorch.kineto import Profile
from triosim.trace.formats.pytorch.profiled_step import OPTIMIZER_STEP, ProfiledStep
from triosim.trace.formats.unclassified import UnclassifiedOperator
from triosim.trace.trace import SIMULATED

#: The part of the launches that may have no kernel, and of the products that may differentiate nothing.
_LOST, _UNKNOWN = 0.1, 0.25
_PRODUCTS = re.compile("mm|conv|attention|linear", re.IGNORECASE)
_FIX = "profile whole steps, from before the forward pass to behind the optimizer's step"


def check_step(step: ProfiledStep, found: Sequence[UnclassifiedOperator], where: str) -> Iterator[str]:
    """Yield notes of what a step has not. Raises ``TraceError`` where it is a part of one whose figures would mean nothing."""
    _check_kernels(step.profile, where)
    if not found:
        return
    forward = [one for one in found if one.phase == "forward" and (one.inputs or one.outputs)]
    backward = [one for one in found if one.phase == "backward"]
    if not forward:
        raise TraceError("has no forward pass", where=where, fix=_FIX)
    unknown = _without_forward(step)
    if unknown > _UNKNOWN:
        what = f"does not have the forward pass of {unknown:.0%} of its backward pass"
        raise TraceError(what, where=where, fix=_FIX)
    optimizes = any(one.phase == "optimizer" for one in found)
    if not backward and any(node.sequence >= 0 for call in step.calls for node in call.node.walk()):
        yield "the profile has no backward pass: its step is taken for inference" + (
            ", although there is an optimizer" if optimizes else ""
        )
    if backward and not optimizes and not _optimizes_elsewhere(step.profile):
        yield "the profile has no optimizer's step: none is in the step"
    yield from _several(step.profile)


def _optimizes_elsewhere(profile: Profile) -> bool:
    """Whether a step has an optimizer that runs nothing on the GPU; what triosim wrote is a whole step."""
    return profile.times == SIMULATED or any(call.name.startswith(OPTIMIZER_STEP) for call in profile.calls)


def _without_forward(step: ProfiledStep) -> float:
    """Return the part of the products right before gradients are accumulated that differentiate no call of the forward pass.

    Sums of gradients, copies by hooks and FSDP, and what is recomputed differentiate none in whole steps either.
    """
    forward: set[int] = set()
    products: list[set[int]] = []
    last: set[int] | None = None
    for call in step.calls:
        operator = step.by_call.get(call.node.number)
        found = {node.sequence for node in call.node.walk() if node.sequence >= 0}
        if operator is not None and operator.phase == "forward":
            forward |= found
        elif call.node.name.endswith(ACCUMULATE_GRAD):
            products += [] if last is None else [last]
            last = None
        elif operator is not None and operator.phase == "backward" and _PRODUCTS.search(call.node.name):
            last = found
    return sum(not one & forward for one in products) / len(products) if products else 0.0


def _check_kernels(profile: Profile, where: str) -> None:
    step = last_step(profile)
    begin, end = (step.start, step.end) if step is not None else (float("-inf"), float("inf"))
    lost = sum(begin <= moment <= end for moment in profile.lost)
    ran = sum(begin <= one.launched <= end for one in profile.work if one.thread is not None)
    if lost > _LOST * (lost + ran):
        what = f"has no kernels of {lost} of {lost + ran} launches: it ended before the GPU was through"
        raise TraceError(what, where=where, fix="call torch.cuda.synchronize() before the profiler stops")


def _several(profile: Profile) -> Iterator[str]:
    if profile.steps:
        return
    counts = Counter(call.name for call in profile.calls if call.name.startswith(OPTIMIZER_STEP))
    count = max(counts.values(), default=0)
    if count > 1:
        yield (
            f"the profile marks no steps, and an optimizer steps {count} times in it: all of it is taken for one step; "
            "call profiler.step() after each"
        )
