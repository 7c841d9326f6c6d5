"""Calibrated collectives against measured ones that the fit did not see: sizes held out one at a time, group sizes held out.

The data are NCCL's times on 2, 4 and 8 GPUs of a DGX-A100, DGX-H100 and DGX-H200 (aiconfigurator), and its all-reduce on 2
to 8 GPUs of an A100 and a V100 machine (vTrain). ``python -m validation.collectives --write`` fits what ships with triosim, to
all of them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from triosim import output_files as output
from triosim.networks.calibration import stored
from triosim.networks.calibration.fit import fitting, judging, measured
from triosim.networks.calibration.fit.fitting import MeasuredCollective as Measured
from validation.report import DataAbsent, Row, data

SHIPPED = {"dgx-a100": "a100", "dgx-h100": "h100", "dgx-h200": "h200"}
GPUS_PER_NODE = 8
VTRAIN = "collectives/nccl_all_reduce_a100_v100_nvlink.csv.gz"
LARGE, SMALL = 0.06, 0.15
#: Where NCCL changes its protocol, between 1 and 2 MiB on the A100, a size that is left out leaves a gap over the step.
ACROSS_A_STEP = {
    ("a100", "all_gather"): 0.14,
    ("a100", "reduce_scatter"): 0.13,
    ("a100", "all_to_all"): 0.07,
    ("h100", "all_reduce"): 0.08,
}
NOISE = {("h100", "all_to_all"): 0.17}  # 8 GPUs take 7 or 16 us for the same sizes, as it happens


def switched(gpu: str) -> list[Measured]:
    """Return the rows of one machine with NVSwitch."""
    return measured.read(data(f"collectives/nccl_{gpu}_nvswitch.csv.gz"))


def linked(gpu: str) -> list[Measured]:
    """Return the all-reduces of the A100 or V100 machine, on 2 to 8 GPUs."""
    return measured.read(data(VTRAIN), gpu=gpu)


@dataclass(frozen=True, slots=True)
class Groups:
    """The mean error on group sizes that were not fitted, in percent, and how many rows they have, by number of GPUs."""

    gpu: str
    percent: dict[int, float]
    rows: dict[int, int]


def other_groups(gpu: str, fitted: Sequence[int] = (2, 4, 8)) -> Groups:
    """Fit all-reduces of some group sizes, and judge the others."""
    rows = linked(gpu)
    curves = fitting.fit_kind("all_reduce", [row for row in rows if row.gpus in fitted])
    found: dict[int, float] = {}
    counts: dict[int, int] = {}
    others = [row for row in rows if row.gpus not in fitted]
    for gpus in sorted({row.gpus for row in others}):
        errors = [abs(curves.parts(gpus, row.nbytes).total / row.seconds - 1) for row in others if row.gpus == gpus]
        found[gpus], counts[gpus] = 100.0 * sum(errors) / len(errors), len(errors)
    return Groups(gpu, found, counts)


Curve = Callable[[float], float]


def straight(sizes: Sequence[float], seconds: Sequence[float]) -> Curve:
    """Straight lines from size to size."""
    return lambda nbytes: float(np.interp(nbytes, sizes, seconds))


def straight_in_logs(sizes: Sequence[float], seconds: Sequence[float]) -> Curve:
    """Straight lines of the logarithms."""
    return lambda nbytes: math.exp(np.interp(math.log(nbytes), np.log(sizes), np.log(seconds)))


def monotone(sizes: Sequence[float], seconds: Sequence[float]) -> Curve:
    """The monotone cubic of the logarithms (Fritsch and Carlson 1980)."""
    from scipy.interpolate import PchipInterpolator

    found = PchipInterpolator(np.log(sizes), np.log(seconds))
    return lambda nbytes: math.exp(found(math.log(nbytes)))


#: What draws a line through the rows of one collective and group size, without a model of it.
INTERPOLATIONS = (straight, straight_in_logs, monotone)


@dataclass(frozen=True, slots=True)
class Other:
    """Another way than the fit, in percent: its error on sizes held out, and how far it is from the fit between sizes.

    That is with nothing held out, at the sizes halfway between neighbours, a factor of two from both. Each is the mean of
    sizes from 1 MiB, and of those below.
    """

    off: tuple[float, float]
    apart: tuple[float, float]


def other(gpu: str, way: Callable[[Sequence[float], Sequence[float]], Curve]) -> Other:
    """Judge another way on one machine."""
    off: tuple[list[float], list[float]] = [], []
    apart: tuple[list[float], list[float]] = [], []
    measured_rows = switched(gpu)
    for kind in sorted({row.kind for row in measured_rows}):
        mine = [row for row in measured_rows if row.kind == kind]
        fit = fitting.fit_kind(kind, mine)
        for gpus in sorted({row.gpus for row in mine}):
            times = {row.nbytes: row.seconds for row in sorted(mine, key=lambda row: row.nbytes) if row.gpus == gpus}
            for nbytes in list(times)[1:-1]:
                left = {size: seconds for size, seconds in times.items() if size != nbytes}
                said = way(list(left), list(left.values()))(nbytes)
                off[nbytes < judging.LARGE].append(abs(said / times[nbytes] - 1))
            whole = way(list(times), list(times.values()))
            halfway = [math.sqrt(low * high) for low, high in pairwise(times) if high == 4 * low]
            for nbytes in halfway:
                difference = abs(whole(nbytes) / fit.parts(gpus, nbytes).total - 1)
                apart[nbytes < judging.LARGE].append(difference)
    means = [(100 * float(np.mean(large)), 100 * float(np.mean(small))) for large, small in (off, apart)]
    return Other(*means)


def rows() -> list[Row]:
    found = []
    for gpu in SHIPPED.values():
        left, said = judging.held_out(switched(gpu))
        for kind, one in judging.by_collective(left, said).items():
            assert one.large is not None
            assert one.small is not None
            name = f"{kind} on {gpu.upper()}, sizes left out, mean"
            large = ACROSS_A_STEP.get((gpu, kind), LARGE)
            small = NOISE.get((gpu, kind), SMALL)
            found.append(Row(f"{name}, from 1 MiB", "NCCL", one.large.rows, one.large.mape_percent / 100, large))
            found.append(Row(f"{name}, below", "NCCL", one.small.rows, one.small.mape_percent / 100, small))
    groups = other_groups("a100")
    for gpus, percent in groups.percent.items():
        what = f"all_reduce on {gpus} A100, fitted to 2, 4 and 8, mean"
        found.append(Row(what, "NCCL", groups.rows[gpus], percent / 100, LARGE))
    return found


def write(folder: Path) -> None:
    """Fit what ships, and write it."""
    for preset, gpu in SHIPPED.items():
        together = switched(gpu)
        sources = "NVIDIA aiconfigurator (Apache-2.0)"
        if gpu == "a100":
            together += linked(gpu)
            sources += " and VIA-Research vTrain (MIT)"
        note = f"fitted to {len(together)} NCCL times on {preset}, 2 to 8 GPUs of a node, from {sources}"
        found = fitting.fit(together, GPUS_PER_NODE, note)
        with output.writing_text(folder / f"{preset}.json") as file:
            json.dump(stored.to_mapping(found), file)
            file.write("\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m validation.collectives", description=__doc__)
    parser.add_argument("--write", action="store_true", help="fit again what ships with triosim")
    if parser.parse_args().write:
        write(stored.SHIPPED)
        return
    for row in rows():
        print(f"{row.what:60} {row.cases:4} {100 * row.error:6.2f} % {'' if row.holds else 'misses'}")
    for gpu in ("a100", "v100"):
        print(gpu, {gpus: round(percent, 2) for gpus, percent in other_groups(gpu).percent.items()})
    for gpu in SHIPPED.values():
        for way in INTERPOLATIONS:
            found = other(gpu, way)
            print(
                f"{gpu} {way.__name__:17} off sizes held out by {found.off[0]:5.2f} % from 1 MiB, {found.off[1]:5.2f} % below; "
                f"between sizes apart from the fit by {found.apart[0]:5.2f} %, {found.apart[1]:5.2f} %"
            )


if __name__ == "__main__":
    try:
        main()
    except DataAbsent as absent:
        raise SystemExit(f"{absent}") from None
