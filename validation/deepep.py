"""DeepEP's dispatch and combine against aiconfigurator's measurements (Apache-2.0): 1 to 8 nodes of H100, 1 of others.

What is compared is transmit and notify together. Rows are judged by constants that were fitted to all of them, by those of the
nearest other system, and by those that were fitted without the row's shape (hidden size, experts, top-k) or number of nodes.
``python -m validation.deepep`` prints the errors by system; ``--write`` fits what ships with triosim.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from triosim import output_files as output
from triosim.networks.calibration import deepep
from triosim.networks.calibration.deepep import (
    BetweenNodes,
    DeepEPConstants,
    DeepEPSystem,
    LowLatencyKernel,
    NormalKernel,
    kernel_time,
)
from triosim.networks.calibration.fit import deepep_table
from triosim.networks.calibration.fit.deepep_table import MOST_KEPT, STEPS, Step, token_bytes
from triosim.networks.collectives.expert_exchange import Exchange, reached
from triosim.tasks import DeepEP
from validation.report import Row, data

NORMAL, LOW_LATENCY = "collectives/deepep_normal.csv.gz", "collectives/deepep_low_latency.csv.gz"
#: The preset, the bandwidth to the other GPUs of a node, and the GPUs of a node, by the tables' names.
SYSTEMS = {
    "H100-SXM5": ("dgx-h100", 450e9, 8),
    "H200-SXM": ("dgx-h200", 450e9, 8),
    "B200-SXM": ("dgx-b200", 900e9, 8),
    "B300-SXM": ("dgx-b300", 900e9, 8),
    "GB200 (4-GPU tray)": ("gb200-nvl4", 900e9, 4),
    "GB300 (4-GPU tray)": ("gb300-nvl4", 900e9, 4),
}
CARD = 50e9  # bytes per second: the machines of several nodes have a card of 400 Gb/s for each GPU
H800_LINKS = 200e9  # bytes per second: 8 of the H100's 18 NVLinks
LARGEST_DECODE = 256  # tokens; DeepEP recommends fewer for its low-latency kernels
SOURCE = (
    "aiconfigurator's wideep_deepep_normal_perf and wideep_deepep_ll_perf (sglang 0.5.0 to 0.5.12, Apache-2.0); "
    "between nodes from H100s with a card of 400 Gb/s each"
)
Floats = npt.NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A row of a table: the kernel, where it ran, what it moved, and the seconds that it took.

    ``links`` and ``cards`` are what the busiest NVLink and card need at full bandwidth.
    """

    system: str
    shape: tuple[int, int, int]
    kernel: DeepEP
    moved: Exchange
    links: float
    cards: float
    seconds: float

    def predicted(self, system: DeepEPSystem, constants: DeepEPConstants) -> float:
        """Return the seconds that the model says."""
        time = kernel_time(self.kernel, self.moved, self.links, self.cards, system, constants)
        return time.latency + time.moving


def read(table: str) -> list[MeasuredKernel]:
    """Return the rows of a table, a dispatch and a combine of each line."""
    low_latency = table == LOW_LATENCY
    found = []
    with gzip.open(data(table), "rt", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if low_latency and int(line["num_token"]) > LARGEST_DECODE:
                continue
            found += [_measured(line, step, low_latency) for step in STEPS]
    return found


def _measured(line: dict[str, str], step: Step, low_latency: bool) -> MeasuredKernel:
    name, link_bandwidth, per_node = SYSTEMS[line["system"]]
    kernel = deepep_table.kernel_of(line, step)
    hidden, top_k, experts, tokens = int(line["hidden_size"]), kernel.top_k, kernel.experts, kernel.tokens
    nodes = int(line["node_num"])
    ranks = per_node * nodes
    messages: float = tokens * top_k if low_latency else tokens * ranks * reached(experts / ranks, kernel)
    forwards: float = 0.0 if low_latency else tokens * nodes * reached(experts / nodes, kernel)
    near = (messages / nodes if low_latency else messages) * (per_node - 1) / per_node
    far = (messages if low_latency else forwards) * (nodes - 1) / nodes
    return MeasuredKernel(
        name,
        (hidden, experts, top_k),
        kernel,
        Exchange((), (), ranks, nodes, messages, forwards),
        near * kernel.token_bytes / link_bandwidth,
        far * kernel.token_bytes / CARD,
        deepep_table.seconds_of(line, step),
    )


class Columns:
    """The figures of rows as arrays, by name; seconds are in microseconds."""

    def __init__(self, rows: Sequence[MeasuredKernel]) -> None:
        def column(get: Callable[[MeasuredKernel], float]) -> Floats:
            return np.array([get(row) for row in rows], dtype=np.float64)

        self.tokens = column(lambda row: row.kernel.tokens)
        self.nbytes = column(lambda row: row.kernel.token_bytes)
        self.sms = column(lambda row: row.kernel.sms)
        self.messages = column(lambda row: row.moved.messages)
        self.forwards = column(lambda row: row.moved.forwards)
        self.local_experts = column(lambda row: row.kernel.experts / row.moved.ranks)
        self.nodes = column(lambda row: row.moved.nodes)
        self.links = column(lambda row: row.links * 1e6)
        self.cards = column(lambda row: row.cards * 1e6)
        self.measured = column(lambda row: row.seconds * 1e6)


def fitted(
    predicted: Callable[[Floats], Floats],
    measured: Floats,
    start: Sequence[float],
    least: Sequence[float],
    most: Sequence[float],
) -> Floats:
    """Return the parameters, positive and between bounds, that fit the logarithms of times best."""

    def errors(logarithms: Floats) -> Floats:
        found: Floats = np.log(predicted(np.exp(logarithms)) / measured)
        return found

    bounds = (np.log(least), np.log(most))
    found: Floats = np.exp(least_squares(errors, np.log(start), loss="soft_l1", f_scale=0.1, bounds=bounds).x)
    return found


def norm(*limits: Floats) -> Floats:
    found: Floats = sum(one**deepep.SHARPNESS for one in limits) ** (1.0 / deepep.SHARPNESS)
    return found


def normal_work(p: Floats, c: Columns) -> Floats:
    """Return the microseconds times multiprocessors of a kernel for training inside a node."""
    work: Floats = c.messages * (p[3] + c.nbytes * p[4]) + c.tokens * (p[5] + c.nbytes * p[6])
    return work


def normal_launch(p: Floats, c: Columns) -> Floats:
    launch: Floats = p[0] + p[1] * c.nbytes + p[2] * c.tokens / (c.tokens + deepep.FILLED)
    return launch


def fit_normal(rows: Sequence[MeasuredKernel]) -> NormalKernel:
    """Fit a kernel for training to the rows of one node of one system."""
    c = Columns(rows)

    def predicted(p: Floats) -> Floats:
        return normal_launch(p, c) + norm(normal_work(p, c) / c.sms, c.links / p[7])

    # In us and bytes: launch, launch_byte, fill, message, message_byte, token, token_byte, link_efficiency.
    start = (25, 1e-3, 10, 0.05, 3e-5, 0.05, 2e-5, 0.7)
    least, most = (1, 1e-8, 0.1, 1e-6, 1e-8, 1e-6, 1e-8, 0.1), (1e3, 1, 1e3, 10, 1e-2, 10, 1e-2, 1)
    return NormalKernel(*in_seconds(fitted(predicted, c.measured, start, least, most), 7))


def fit_low_latency(rows: Sequence[MeasuredKernel]) -> LowLatencyKernel:
    """Fit a kernel for decoding to the rows of one node of one system."""
    c = Columns(rows)

    def predicted(p: Floats) -> Floats:
        found: Floats = p[0] + p[1] * c.nbytes + p[2] * c.local_experts + c.messages * (p[3] + c.nbytes * p[4])
        return found

    start, least, most = (10, 1e-4, 0.05, 1e-3, 3e-6), (1, 1e-8, 1e-6, 1e-7, 1e-8), (1e3, 1, 10, 1, 1e-2)
    return LowLatencyKernel(*in_seconds(fitted(predicted, c.measured, start, least, most), 5))


def fit_between(rows: Sequence[MeasuredKernel], system: DeepEPSystem, step: Step) -> BetweenNodes:
    """Fit what several nodes add to a kernel: to the rows of several nodes of one system."""
    c = Columns(rows)
    low_latency = rows[0].kernel.low_latency
    numbers = sorted({int(nodes) for nodes in c.nodes})
    # Over up to four nodes one efficiency: those of two are limited by multiprocessors.
    first = max((nodes for nodes in numbers if nodes <= MOST_KEPT), default=numbers[0])
    known = [first, *(nodes for nodes in numbers if nodes > first)]
    one = system.low_latency[step] if low_latency else system.normal[step]
    inner = np.array([*asdict(one).values()]) * np.array([1e6] * 5 if low_latency else [1e6] * 7 + [1])

    def predicted(p: Floats) -> Floats:
        hops = p[0] * np.log2(c.nodes)
        cards = c.cards / np.interp(np.log2(c.nodes), np.log2(known), p[2:])
        if low_latency:
            launch = inner[0] + inner[1] * c.nbytes + inner[2] * c.local_experts
            found: Floats = launch + hops + norm(c.messages * (inner[3] + c.nbytes * inner[4]), cards)
            return found
        work = (normal_work(inner, c) + c.forwards * c.nbytes * p[1]) / c.sms
        return normal_launch(inner, c) + hops + norm(work, c.links / inner[7], cards)

    start = [20, 5e-5, *([0.9] * len(known))]
    least, most = [0.1, 1e-9, *([0.05] * len(known))], [1e3, 1e-2, *([1.0] * len(known))]
    found = fitted(predicted, c.measured, start, least, most)
    shares = tuple((nodes, _rounded(share)) for nodes, share in zip(known, found[2:].tolist(), strict=True))
    forward = 0.0 if low_latency else _rounded(float(found[1]) * 1e-6)
    return BetweenNodes(_rounded(float(found[0]) * 1e-6), forward, shares)


def in_seconds(figures: Floats, times: int) -> list[float]:
    """Return figures of which the first ones are in microseconds in seconds, rounded."""
    return [_rounded(one * 1e-6 if place < times else one) for place, one in enumerate(figures.tolist())]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def fit(rows: Sequence[MeasuredKernel]) -> DeepEPConstants:
    """Fit everything to rows of both tables."""
    systems = []
    for name, bandwidth, _ in SYSTEMS.values():
        one_node = [row for row in rows if row.system == name and row.moved.nodes == 1]
        if one_node:
            normal, low = ([row for row in one_node if row.kernel.low_latency == kind] for kind in (False, True))
            systems.append(
                DeepEPSystem(
                    name,
                    bandwidth,
                    {step: fit_normal(_of(normal, step)) for step in STEPS},
                    {step: fit_low_latency(_of(low, step)) for step in STEPS},
                )
            )
    return DeepEPConstants(
        SOURCE, tuple(systems), _between(rows, systems, low_latency=False), _between(rows, systems, low_latency=True)
    )


def _between(
    rows: Sequence[MeasuredKernel], systems: Sequence[DeepEPSystem], *, low_latency: bool
) -> dict[str, BetweenNodes]:
    # The tables have the same figures of several nodes for H100 and H200.
    system = next(one for one in systems if one.name in ("dgx-h100", "dgx-h200"))
    wide = [
        row
        for row in rows
        if row.system == system.name and row.moved.nodes > 1 and row.kernel.low_latency == low_latency
    ]
    return {step: fit_between(_of(wide, step), system, step) for step in STEPS}


def _of(rows: Iterable[MeasuredKernel], step: Step) -> list[MeasuredKernel]:
    return [row for row in rows if row.kernel.step == step]


def written(constants: DeepEPConstants) -> dict[str, Any]:
    """Return constants as the file has them."""

    def between(kernels: dict[str, BetweenNodes]) -> dict[str, Any]:
        return {step: asdict(one) | {"card_efficiency": dict(one.card_efficiency)} for step, one in kernels.items()}

    return {
        "source": constants.source,
        "systems": {
            one.name: {
                "link_bandwidth": one.link_bandwidth,
                "normal": {step: asdict(kernel) for step, kernel in one.normal.items()},
                "low_latency": {step: asdict(kernel) for step, kernel in one.low_latency.items()},
            }
            for one in constants.systems
        },
        "between_nodes": {"normal": between(constants.normal), "low_latency": between(constants.low_latency)},
    }


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of rows, in order."""

    rows: Sequence[MeasuredKernel]
    errors: Sequence[float]

    def mean(self, chosen: Callable[[MeasuredKernel], bool] = lambda _: True) -> float:
        """Return the mean of some rows' errors; NaN without any."""
        found = [error for row, error in zip(self.rows, self.errors, strict=True) if chosen(row)]
        return math.fsum(found) / len(found) if found else math.nan


def judged(
    rows: Sequence[MeasuredKernel],
    constants: DeepEPConstants,
    known: Callable[[str, DeepEPSystem], bool] = lambda name, one: one.name == name,
) -> Errors:
    """Judge rows by the nearest of the systems that are ``known`` for a row's system: by default, that itself."""
    errors = []
    for row in rows:
        bandwidth = link_bandwidth(row.system)
        near = [one for one in constants.systems if known(row.system, one)]
        system = min(near, key=lambda one: abs(math.log(one.link_bandwidth / bandwidth)))
        errors += judged_by([row], constants, system).errors
    return Errors(rows, errors)


def judged_by(rows: Sequence[MeasuredKernel], constants: DeepEPConstants, system: DeepEPSystem) -> Errors:
    """Judge rows by one system."""
    return Errors(rows, [abs(row.predicted(system, constants) / row.seconds - 1) for row in rows])


def link_bandwidth(system: str) -> float:
    """Return the bandwidth of a system's GPUs to the others of a node, in bytes per second."""
    return next(bandwidth for name, bandwidth, _ in SYSTEMS.values() if name == system)


def another(name: str, one: DeepEPSystem) -> bool:
    """Whether a system is another than the one of a name."""
    return one.name != name


def of_another_generation(name: str, one: DeepEPSystem) -> bool:
    """Whether a system's GPUs have other NVLinks than those of the one of a name: Hopper for Blackwell."""
    return one.link_bandwidth != link_bandwidth(name)


def other_shapes(rows: Sequence[MeasuredKernel], constants: DeepEPConstants) -> Errors:
    """Judge the rows of each shape, inside a node, by a fit to the others of the same system."""
    found: list[MeasuredKernel] = []
    errors: list[float] = []
    for system in constants.systems:
        own = [row for row in rows if row.system == system.name and row.moved.nodes == 1 and not row.kernel.low_latency]
        for shape in sorted({row.shape for row in own}):
            left_out = [row for row in own if row.shape == shape]
            rest = [row for row in own if row.shape != shape]
            kernels = {step: fit_normal(_of(rest, step)) for step in STEPS}
            without = DeepEPSystem(system.name, system.link_bandwidth, kernels, system.low_latency)
            found += left_out
            errors += [abs(row.predicted(without, constants) / row.seconds - 1) for row in left_out]
    return Errors(found, errors)


def other_nodes(rows: Sequence[MeasuredKernel], constants: DeepEPConstants, left_out: int) -> Errors:
    """Judge the H100's rows of a number of nodes, for training, by a fit to the others."""
    system = constants.nearest(450e9, "dgx-h100")
    wide = [row for row in rows if row.system == "dgx-h100" and row.moved.nodes > 1 and not row.kernel.low_latency]
    rest = [row for row in wide if row.moved.nodes != left_out]
    between = {step: fit_between(_of(rest, step), system, step) for step in STEPS}
    without = DeepEPConstants(SOURCE, (system,), between, constants.low_latency)
    return judged([row for row in wide if row.moved.nodes == left_out], without)


def more_tokens_never_faster(constants: DeepEPConstants) -> bool:
    """Whether a dispatch of more tokens never takes less time, on each system, over 1 to 8 nodes."""
    for system in constants.systems:
        for nodes in (1, 2, 4, 8):
            rows = [
                _measured(
                    {"system": table, "hidden_size": "7168", "num_token": str(2**power), "num_topk": "8", "num_experts": "256",
                     "node_num": str(nodes), "dispatch_sms": "20", "dispatch_transmit_us": "1", "dispatch_notify_us": "0"},
                    "dispatch", False,
                )
                for table, (name, _, _) in SYSTEMS.items() if name == system.name for power in range(18)
            ]  # fmt: skip
            times = [row.predicted(system, constants) for row in rows]
            if any(after < before for before, after in pairwise(times)):
                return False
    return True


def published() -> list[Row]:
    """Compare with the figures for H800s in DeepEP's docs/legacy.md, on which nothing was fitted, but for eight nodes.

    They are logical bandwidths in GB/s of 4,096 tokens by 24 multiprocessors: in a node of the bytes that a GPU receives, over
    several of a token's bytes once for each node, with a GPU's or node's own. For eight nodes they say 51 and 50; the rows that
    were fitted reach a third of that.
    """
    constants = deepep.constants()
    system = constants.nearest(450e9, "dgx-h100")
    found = []
    for nodes, figures in ((1, (153, 158)), (2, (43, 43)), (4, (58, 57))):
        for step, figure in zip(STEPS, figures, strict=True):
            kernel = DeepEP(step, 4096, token_bytes(step, 7168), 8, 256, nodes, min(nodes, MOST_KEPT), sms=24)
            ranks = 8 * nodes
            messages = 4096 * ranks * reached(256 / ranks, kernel)
            forwards = 4096 * nodes * reached(256 / nodes, kernel)
            links = messages * 7 / 8 * kernel.token_bytes / H800_LINKS
            cards = forwards * (nodes - 1) / nodes * kernel.token_bytes / CARD
            moved = Exchange((), (), ranks, nodes, messages, forwards)
            time = kernel_time(kernel, moved, links, cards, system, constants)
            counted = messages if nodes == 1 else forwards
            rate = counted * kernel.token_bytes / (time.latency + time.moving)
            what = f"DeepEP's {step}, {nodes} x 8 H800, not fitted"
            found.append(Row(what, "DeepEP's docs", 1, abs(rate / (figure * 1e9) - 1), 0.15))
    return found


def rows() -> list[Row]:
    """Return the comparisons, with what is claimed of them."""
    measured = [*read(NORMAL), *read(LOW_LATENCY)]
    normal = [row for row in measured if not row.kernel.low_latency]
    low = [row for row in measured if row.kernel.low_latency]
    constants = deepep.constants()
    one, wide = ([row for row in normal if (row.moved.nodes > 1) == several] for several in (False, True))
    shapes = other_shapes(normal, constants)
    return [
        Row("DeepEP for training, one node", "measured", len(one), judged(one, constants).mean(), 0.06),
        Row("DeepEP for training, 2 to 8 nodes", "measured", len(wide), judged(wide, constants).mean(), 0.08),
        Row("DeepEP for decoding, 1 to 8 nodes", "measured", len(low), judged(low, constants).mean(), 0.08),
        Row("DeepEP, shapes that were not fitted", "measured", len(shapes.rows), shapes.mean(), 0.08),
        Row("DeepEP, systems that were not fitted", "measured", len(one), judged(one, constants, another).mean(), 0.1),
        Row(
            "DeepEP, generations not fitted",
            "measured",
            len(one),
            judged(one, constants, of_another_generation).mean(),
            0.2,
        ),
        *published(),
    ]


def table(name: str, errors: Errors) -> None:
    """Print the mean errors of rows by system and number of nodes."""
    groups = sorted({(row.system, row.moved.nodes) for row in errors.rows})
    print(f"\n{name}\n\n| system | nodes | rows | dispatch | combine | up to 256 tokens | more | at 20 SMs |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: |")
    for group in groups:
        mine = Errors(*zip(*((r, e) for r, e in zip(errors.rows, errors.errors, strict=True)
                             if (r.system, r.moved.nodes) == group), strict=True))  # fmt: skip
        figures = (
            mine.mean(lambda row: row.kernel.step == "dispatch"),
            mine.mean(lambda row: row.kernel.step == "combine"),
            mine.mean(lambda row: row.kernel.tokens <= LARGEST_DECODE),
            mine.mean(lambda row: row.kernel.tokens > LARGEST_DECODE),
            mine.mean(lambda row: row.kernel.sms == 20),
        )
        shown = " | ".join("" if math.isnan(one) else f"{100 * one:.1f} %" for one in figures)
        print(f"| {group[0]} | {group[1]} | {len(mine.rows)} | {shown} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m validation.deepep", description=__doc__)
    parser.add_argument("--write", action="store_true", help="fit the constants that ship with triosim")
    options = parser.parse_args()
    measured = [*read(NORMAL), *read(LOW_LATENCY)]
    if options.write:
        found = written(fit(measured))
        with output.writing_text(deepep.FILES["deepep"]) as file:
            file.write(json.dumps(found, indent=1) + "\n")
        deepep.constants.cache_clear()
    constants = deepep.constants()
    normal = [row for row in measured if not row.kernel.low_latency]
    table("For training, fitted to all rows", judged(normal, constants))
    table("For decoding, fitted to all rows", judged([r for r in measured if r.kernel.low_latency], constants))
    one_node = [row for row in normal if row.moved.nodes == 1]
    table("For training, by the nearest other system", judged(one_node, constants, another))
    table("For training, by another generation of GPUs", judged(one_node, constants, of_another_generation))
    table("For training, shapes left out one at a time", other_shapes(normal, constants))
    for nodes in (2, 4, 8):
        table(f"For training, {nodes} nodes left out", other_nodes(normal, constants, nodes))
    print(f"\nmore tokens never take less time: {more_tokens_never_faster(constants)}")


if __name__ == "__main__":
    main()
