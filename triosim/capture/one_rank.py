"""Captures a step of a script on a fake GPU and predicts its times: ``triosim capture --fake``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from triosim import gpus, tracer
from triosim.compute.pricing.prediction import with_predicted_times
from triosim.extrapolators.expert.expert_loads import LoadDistribution
from triosim.gpus import DEFAULT_GPU
from triosim.trace import Trace
from triosim.tracer.script_runner import check_script, run_script


def capture_fake(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    gpu: str = DEFAULT_GPU,
    skip: int = 1,
    batch_size: int | None = None,
    routing: LoadDistribution | None = None,
) -> Trace:
    """Run a training script on a fake GPU, and return the first step after ``skip``, with predicted times.

    ``routing`` is how the choice of routers is drawn.
    Raises ``OptionError`` for a GPU that is not in the catalogue, ``CaptureError`` when the script has no such step.
    """
    check_script(path)
    target = gpus.find(gpu)
    with tracer.FakeDevice(target, routing=routing) as device:
        run_script(path, arguments, device, skip=skip, steps=1, batch_size=batch_size)
    return with_predicted_times(device.traces[0])
