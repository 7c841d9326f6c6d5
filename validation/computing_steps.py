"""The computation time of Llama 70B in a step, predicted without a GPU, against steps measured on an H100.

The steps are those of TorchSim's table 20, run in one process whose collectives move nothing, so that what is left is
computation: medians of ten steps in the public log ``outputs/llama3_70b/llama3_70B_fake_pg_1D_64_0.txt`` of
github.com/sanketpurandare/torchtitan, October 2024. No step of them was used in any fit. All layers are alike: 2 and 4 of them
are captured, and the time of 80 is on the line through both. ``python -m validation.computing_steps`` prints every step.
"""

from __future__ import annotations

import importlib.util

from triosim.capture.many_ranks import capture_ranks
from validation.report import DataAbsent, Row, relative
from validation.sharded_memory import CASES, SCRIPT, Case, arguments_of

#: Minutes, with PyTorch: ``python -m validation`` runs this only where it is asked for.
TAKES_LONG = True

#: Milliseconds of a step by its sequence length.
MEASURED = {64: 917.4, 256: 1116.8, 1024: 2498.3, 4096: 4548.5, 8192: 8861.1}

#: The largest error that is claimed.
CLAIM = 0.08

LAYERS, FEW, MORE = 80, 2, 4


def rows() -> list[Row]:
    if importlib.util.find_spec("torch") is None:
        raise DataAbsent("torch is not installed")
    errors = [relative(predicted(case), 1e-3 * MEASURED[case.length]) for case in cases()]
    return [
        Row("computation of a step of Llama 70B, 80 layers", "measured steps, H100", len(errors), max(errors), CLAIM)
    ]


def cases() -> list[Case]:
    """The steps that were measured."""
    return [case for case in CASES if case.table == "20"]


def predicted(case: Case) -> float:
    """Return the seconds of all operators of a step with 80 layers."""
    few, more = (_seconds(case, layers) for layers in (FEW, MORE))
    return more + (more - few) * (LAYERS - MORE) / (MORE - FEW)


def _seconds(case: Case, layers: int) -> float:
    arguments, world = arguments_of(case, layers)
    trace = capture_ranks(SCRIPT, arguments, world=world, ranks=[0], gpu="H100-SXM").streams.traces[0]
    return trace.seconds


def main() -> None:
    for case in cases():
        ours, measured = predicted(case), 1e-3 * MEASURED[case.length]
        print(
            f"batch {case.batch}, sequence {case.length}, {case.checkpoint} checkpoints: measured {measured:.3f} s, "
            f"predicted {ours:.3f} s, {100 * (ours / measured - 1):+.1f}%",
            flush=True,
        )


if __name__ == "__main__":
    main()
