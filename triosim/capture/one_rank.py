"""A captured step with predicted times: what ``triosim capture --fake`` writes.

The tracer records what a step does on a GPU that is not there; the compute models say how long it takes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from triosim import gpus, tracer
from triosim.compute.compute_model import ComputeModel
from triosim.compute.pricing.prediction import DEFAULT_GPU, with_predicted_times
from triosim.trace import Trace
from triosim.tracer.script_runner import check_script, run_script


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
    check_script(path)
    with tracer.FakeDevice(gpus.find(gpu)) as device:
        seen = run_script(path, arguments, device, skip=skip, steps=1)
        notes = tuple(device.notes)
    trace = device.traces[0]
    return Captured(
        with_predicted_times(replace(trace, batch_size=batch_size or seen.batch_size or trace.batch_size), model), notes
    )
