"""How many bytes a multiprocessor moves in a clock in batch norm and gradients of pooling, fitted to steps on A100 and V100.

Their efficiencies come from steps on an RTX 3090, which has 6.7 bytes of bandwidth for each clock of a multiprocessor; a V100
has 7.4, an A100 13. ``python -m validation.image_models.multiprocessors`` predicts the image models of NVIDIA's
DeepLearningExamples on one GPU with several limits, and chooses one for each model by the others. Rows are left out where eight
GPUs are seventeen times as fast.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

import numpy as np

from triosim import gpus
from triosim.compute.compute_model import Array
from triosim.compute.models import roofline
from triosim.pipeline.pricing import price
from triosim.pipeline.reading import read
from validation.report import data
from validation.steps import formats
from validation.steps.rows import Row

LIMITS = (5.0, 6.0, 7.0, 7.5, 8.0, 8.5, 9.0, 10.0, 12.0, 14.0)
#: Their lines.
_ODD = (80, 82, 84)


@dataclass(frozen=True)
class Step:
    """A row's model, its seconds as measured, and as predicted: of the operators that are limited, and of all others."""

    model: str
    measured: float
    limited: float
    others: float
    gpu: gpus.Gpu

    def error(self, limit: float) -> float:
        """Return the relative error under a limit."""
        now, then = (self._bandwidth(one) for one in (roofline.MOST_BYTES_IN_A_CLOCK["batch norm"], limit))
        return (self.others + self.limited * now / then) / self.measured - 1.0

    def _bandwidth(self, limit: float) -> float:
        return min(self.gpu.bandwidth, limit * self.gpu.sms * self.gpu.clock_hz)


def step(row: Row) -> Step:
    """Return what a row's step consists of; launches are hidden by operators."""
    run = row.case.run()
    operators = price(read(run.subject, run.config), run.config).subject.trace.operators
    forward = {operator.id: operator for operator in operators}
    seconds = {True: 0.0, False: 0.0}
    for operator in operators:
        kind = roofline.class_of(operator, forward.get(operator.forward))
        seconds[kind in roofline.MOST_BYTES_IN_A_CLOCK] += operator.seconds
    return Step(row.model, row.measured, seconds[True], seconds[False], gpus.find(row.gpu))


def errors(steps: list[Step]) -> Array:
    """Return the absolute error of each step (rows) under each of ``LIMITS``."""
    return np.abs([[one.error(limit) for limit in LIMITS] for one in steps])


def main() -> int:
    """Print the errors under each limit, and those of each model under the limit that is best for the others."""
    _, rows = formats.read(data("steps/deep_learning_examples.csv.gz"), lambda *_: None)
    images = [row for row in rows if re.match(r"(Classification|Detection)/.* on 1 ", row.label)]
    steps = [step(row) for row in images if row.line not in _ODD]
    off = errors(steps)
    for limit, column in zip(LIMITS, off.T, strict=True):
        print(f"{limit:4.1f} bytes in a clock: {100 * column.mean():.1f}% of {len(steps)} steps")
    models, left_out = np.array([one.model for one in steps]), np.zeros(len(steps))
    for model in np.unique(models):
        best = int(off[models != model].mean(axis=0).argmin())
        left_out[models == model] = off[models == model, best]
        print(f"{model:28} left out: {LIMITS[best]:4.1f} bytes, {100 * off[models == model, best].mean():.1f}% off")
    print(f"{'all':28} left out: {100 * left_out.mean():.1f}% off")
    return 0


if __name__ == "__main__":
    sys.exit(main())
