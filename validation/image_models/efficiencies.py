"""The efficiencies of classes of operators that no table of operators holds, fitted to steps of timm's models.

Training shows the sum of forward and backward passes, inference the forward pass alone, of a PyTorch of the same year.

A step's time is the sum over its operators of the law of ``triosim.compute.models.roofline``; what other models predict may be
quicker by a factor, which is printed. ``python -m validation.image_models.efficiencies --every 4`` fits to every fourth row of
``image_models/timm.csv.gz``, and prints the efficiencies beside the defaults, and the errors of steps in the fit and of
families that were left out. Large errors count little, so that kernels of single models that cuDNN has no good algorithm for
do not spoil the rest.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triosim import gpus
from triosim.compute.compute_model import Array, Mask, Rows
from triosim.compute.models import roofline
from triosim.compute.operator_sequence import OperatorSequence
from triosim.compute.pricing.prediction import with_predicted_times
from validation.image_models.captured import is_shipped, trace
from validation.report import data
from validation.steps import formats
from validation.steps.timm import TimmRow

FITTED = (
    *(
        "convolution on tensor cores",
        "convolution gradient on tensor cores",
        "grouped convolution",
        "grouped gradient",
        "depthwise convolution",
    ),
    *(
        "depthwise convolution gradient",
        "batch norm",
        "row gradient",
        "pooling",
        "pooling gradient",
        "cast",
        "transposition",
        "copy",
    ),
    "optimizer",
)
#: Operators of other classes, by the model that predicts them: the speed that fits best is printed as memory, and not used.
OTHERS = ("forest", "elementwise", "roofline", "others")
#: A priori, the standard deviations of the logarithms of an efficiency and of a step's time over its prediction.
_PRIOR, _NOISE = 0.5, 0.12
_FOLDS, _ROUNDS = 5, 30


@dataclass(frozen=True)
class Steps:
    """Measured steps: of each the family, what it is (phase and layout), the seconds, and those of launches (``fixed``).

    Of their operators: step, class (then ``OTHERS``), and seconds at the peaks of arithmetic, bytes and converted bytes.
    """

    families: list[str]
    kinds: list[str]
    measured: Array
    fixed: Array
    step: Rows
    of: Rows
    ceiling: Array

    def seconds(self, logs: Array) -> tuple[Array, Array]:
        """Return the predicted seconds, and their derivatives by the logarithms of the efficiencies, compute then memory."""
        compute, memory = (np.exp(part)[self.of] for part in logs.reshape(2, -1))
        arithmetic, traffic, converted = self.ceiling
        by_compute = arithmetic / compute > traffic / memory
        of_compute = np.where(by_compute, arithmetic / compute, 0.0)
        of_memory = np.where(by_compute, 0.0, traffic / memory) + converted / memory
        count, size = len(self.measured), len(logs)
        slope = np.zeros((count, size))
        for offset, part in ((0, of_compute), (size // 2, of_memory)):
            slope -= np.bincount(self.step * size + offset + self.of, part, count * size).reshape(count, size)
        return self.fixed - slope.sum(axis=1), slope


def defaults() -> Array:
    """Return the logarithms of the default efficiencies, compute then memory."""
    used, ones = [roofline.DEFAULTS[name] for name in FITTED], [1.0] * len(OTHERS)
    return np.log([one.compute for one in used] + ones + [one.memory for one in used] + ones)


def fit(steps: Steps, rows: Mask) -> Array:
    """Return the logarithms of the efficiencies that fit the steps of some rows."""
    logs = prior = defaults()
    for _ in range(_ROUNDS):
        seconds, slope = steps.seconds(logs)
        off = np.log(seconds / steps.measured)
        weight = rows / _NOISE / np.sqrt(1.0 + np.abs(off) / _NOISE)
        matrix = np.vstack([slope / seconds[:, None] * weight[:, None], np.eye(len(logs)) / _PRIOR])
        change = np.linalg.lstsq(matrix, -np.concatenate([off * weight, (logs - prior) / _PRIOR]), rcond=None)[0]
        logs = logs + np.clip(change, -0.3, 0.3)
    return logs


def left_out(steps: Steps) -> Array:
    """Return the relative errors of steps whose families were left out of the fit."""
    fold = np.array([zlib.crc32(family.encode()) % _FOLDS for family in steps.families])
    found = np.zeros(len(fold))
    for number in range(_FOLDS):
        found[fold == number] = (steps.seconds(fit(steps, fold != number))[0] / steps.measured - 1.0)[fold == number]
    return found


def read(every: int) -> Steps:
    """Return the steps of every so many rows of timm's table, of PyTorch 1 and models whose programs are shipped."""
    _, rows = formats.read(data("image_models/timm.csv.gz"), lambda *_: None)
    cases = [row for row in rows if row.case.step.attention == "products" and is_shipped(row.case.step)][::every]
    parts = [_operators(row.case) for row in cases]
    columns = [np.concatenate([np.full(part[1].shape[1], step) for step, part in enumerate(parts)])]
    columns += list(np.concatenate([part[1] for part in parts], axis=1))
    return Steps(
        [row.model for row in cases],
        [row.framework for row in cases],
        np.array([row.measured / 1e3 for row in cases]),
        np.array([part[0] for part in parts]),
        columns[0],
        columns[1].astype(np.int64),
        np.stack(columns[2:]),
    )


def _operators(case: TimmRow) -> tuple[float, Array]:
    """Return the seconds of launches, and a column for each distinct operator: class, and seconds at the peaks."""
    step = with_predicted_times(trace(case.step, case.batch_size, case.gpu))
    distinct, rows = OperatorSequence([one for one in step.operators if one.seconds]).distinct
    found = roofline.ceilings(distinct, gpus.find(case.gpu))
    calls = np.bincount(rows, minlength=len(distinct))
    launches, columns = 0.0, []
    for row, (operator, key) in enumerate(zip(distinct, found.classes, strict=True)):
        used = roofline.default(key)
        name = next(name for name, one in roofline.DEFAULTS.items() if one is used)
        if name in FITTED:
            launches += calls[row] * used.launch
            ceiling = (found.arithmetic[row], found.traffic[row], found.converted[row])
            columns.append([FITTED.index(name), *(calls[row] * one for one in ceiling)])
        else:
            by = operator.predicted_by if operator.predicted_by in OTHERS else OTHERS[-1]
            columns.append([len(FITTED) + OTHERS.index(by), 0.0, calls[row] * operator.seconds, 0.0])
    return launches, np.array(columns).T


def main(given: Sequence[str] | None = None) -> int:
    """Fit and print."""
    parser = argparse.ArgumentParser(prog="python -m validation.image_models.efficiencies", description=__doc__)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth row of the table (1)")
    steps = read(parser.parse_args(given).every)
    logs = fit(steps, np.ones(len(steps.measured), dtype=bool))
    both = (np.exp(one).reshape(2, -1).T for one in (logs, defaults()))
    for name, new, old in zip((*FITTED, *OTHERS), *both, strict=True):
        print(f"{name:28} compute {new[0]:.3f} (now {old[0]:.3f})  memory {new[1]:.3f} (now {old[1]:.3f})")
    kinds = np.array(steps.kinds)
    for what, off in (
        ("defaults", steps.seconds(defaults())[0] / steps.measured - 1.0),
        ("in the fit", steps.seconds(logs)[0] / steps.measured - 1.0),
        ("families left out", left_out(steps)),
    ):
        for kind in np.unique(kinds):
            some = off[kinds == kind]
            within = (abs(some) < 0.25).mean()
            print(f"{what:18} {kind} {len(some)} steps: {100 * abs(some).mean():.1f}%, {100 * within:.0f}% within 25%")
    return 0


if __name__ == "__main__":
    sys.exit(main())
