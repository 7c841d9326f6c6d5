"""Captures a step of a script on a fake GPU and predicts its times: ``triosim capture --fake``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from triosim import gpus, tracer
from triosim.compute.compute_model import ComputeModel
from triosim.compute.pricing.prediction import DEFAULT_GPU, with_predicted_times
from triosim.trace import Trace
from triosim.tracer.pytorch_version import require_torch
from triosim.tracer.script_runner import check_script, run_script


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A captured step; ``notes`` say what was done differently from a run on a GPU, one for each line of the script."""

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
) -> CapturedStep:
    """Run a training script on a fake GPU, and return the first step after ``skip``, with predicted times.

    Raises ``OptionError`` for a GPU that is not in the catalogue, ``CaptureError`` when the script has no such step.
    """
    check_script(path)
    target = gpus.find(gpu)
    require_torch()
    with tracer.FakeDevice(target) as device:
        observed = run_script(path, arguments, device, skip=skip, steps=1)
        notes = tuple(device.notes)
    trace = device.traces[0]
    return CapturedStep(
        with_predicted_times(replace(trace, batch_size=batch_size or observed.batch_size or trace.batch_size), model),
        notes,
    )
