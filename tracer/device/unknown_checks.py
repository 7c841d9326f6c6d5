"""Libraries' own decisions by contents that are not computed: that distributions are valid, and how L-BFGS goes on.

Distributions are assumed to have valid parameters. L-BFGS is assumed not to converge before ``max_iter`` iterations, and a line
search to accept its first step.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any

import torch
from torch.distributions import constraints
from torch.optim import lbfgs

from triosim.tracer.contents import assumed_values
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.recorder.recorder import Recorder

_TOLERANCES = ("tolerance_grad", "tolerance_change")


def install(patches: Patches, recorder: Recorder) -> None:
    """Decide so until the patches are undone."""
    patches.make(_patches(recorder))


def _patches(recorder: Recorder) -> Iterator[Patch]:
    for kind in vars(constraints).values():
        if isinstance(kind, type) and issubclass(kind, constraints.Constraint) and "check" in vars(kind):
            yield Patch(kind, "check", _valid(vars(kind)["check"]))
    yield Patch(torch.optim.LBFGS, "step", _step(recorder))
    yield Patch(lbfgs, "_strong_wolfe", _first_step)


def _valid(check: Any) -> Any:
    """Return a constraint's check that finds unknown parameters valid."""

    def checked(self: Any, value: Any) -> Any:
        found = check(self, value)
        if isinstance(found, torch.Tensor) and not assumed_values.is_known(found):
            assumed_values.assume(found, True)
        return found

    return checked


def _step(recorder: Recorder) -> Any:
    original = torch.optim.LBFGS.step

    @wraps(original)  # PyTorch wraps it once, and notes that on it
    def step(self: Any, closure: Any) -> Any:
        (group,) = self.param_groups
        recorder.note(f"L-BFGS is assumed to need all of its {group['max_iter']} iterations, with one step each")
        given = {name: group[name] for name in _TOLERANCES}
        group.update(dict.fromkeys(_TOLERANCES, -1.0))
        try:
            return original(self, closure)
        finally:
            group.update(given)

    return step


def _first_step(evaluate: Any, x: Any, t: Any, d: Any, f: Any, g: Any, gtd: Any, *_: Any, **__: Any) -> Any:
    """Search along a line: evaluate the first step as PyTorch does, and accept it."""
    d.abs().max()
    loss, gradient = evaluate(x, t, d)
    gradient.dot(d)
    return loss, gradient, t, 1
