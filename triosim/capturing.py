"""A captured step with predicted times: what ``triosim capture --fake`` writes.

The tracer records what a step does on a GPU that is not there; the compute models say how long it takes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from triosim import gpus
from triosim.compute.auto import Auto
from triosim.compute.base import ComputeModel, checked
from triosim.compute.features import is_free
from triosim.compute.pricing import predicted as taken_from
from triosim.trace import Operator, Trace

#: The GPU that is assumed where nobody names one.
DEFAULT_GPU = "H100-SXM"


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured step, and what went otherwise than on a GPU, a line of the script each."""

    trace: Trace
    notes: tuple[str, ...]


def capture_fake(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    gpu: str = DEFAULT_GPU,
    skip: int = 1,
    batch_size: int | None = None,
    model: ComputeModel | None = None,
) -> Captured:
    """Run a training script on a GPU that is not there, and return the first step after ``skip``, with predicted times.

    Raises ``OptionError`` for a GPU that is not in the catalogue, ``CaptureError`` when the script has no such step.
    """
    from triosim.tracer.fake_device import FakeDevice
    from triosim.tracer.script import check_script, run_script

    check_script(path)
    with FakeDevice(gpus.find(gpu)) as device:
        seen = run_script(path, arguments, device, skip=skip, steps=1)
        notes = tuple(device.notes)
    trace = device.traces[0]
    return Captured(
        predicted(replace(trace, batch_size=batch_size or seen.batch_size or trace.batch_size), model), notes
    )


def predicted(trace: Trace, model: ComputeModel | None = None) -> Trace:
    """Return a trace without times with those that a compute model expects on its GPU; by default the best of ours.

    What only makes a view takes none, and what communicates takes what the network says. Raises ``OptionError`` for a GPU
    that is not in the catalogue.
    """
    target = gpus.find(trace.gpu)
    model = model or Auto()
    working = [operator for operator in trace.operators if _works(operator)]
    found = checked(model.estimate(working, target.name), working, model)
    priced = {
        operator.id: taken_from(replace(operator, seconds=float(found.seconds[row])), found, row)
        for row, operator in enumerate(working)
    }
    operators = tuple(priced.get(operator.id) or replace(operator, seconds=0.0) for operator in trace.operators)
    return replace(trace, operators=operators, times="predicted", step_seconds=None)


def _works(operator: Operator) -> bool:
    return operator.communication is None and not is_free(operator)
