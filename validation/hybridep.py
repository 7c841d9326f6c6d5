"""HybridEP's dispatch and combine against the bandwidths that it publishes: 8 to 36 GPUs of a rack, 2 to 8 nodes of H100.

They are of 4,096 tokens of 7,168 values, each for eight experts, of which a GPU has eight (DeepEP, branch hybrid-ep,
Hybrid-EP_Implementation.md; PyTorch's interface, which copies tokens out of the buffers, as a permutation does in training). A
bandwidth is of the bytes that a GPU receives, over nodes of those that a node sends to each node, with its own. Dispatch in
fp8 is fitted on 32 multiprocessors alone: on 16 its scales slow it down with the number of GPUs, to a third over 36.
``python -m validation.hybridep`` prints errors in the fit, and by fits that the same number of GPUs was left out of;
``--write`` fits what ships with triosim.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from triosim import output_files as output
from triosim.networks.calibration import deepep
from triosim.networks.calibration.deepep import DeepEPConstants, DeepEPSystem, NormalKernel
from triosim.networks.calibration.fit.deepep_table import STEPS, Step, token_bytes
from triosim.networks.collectives.expert_exchange import Exchange, reached
from triosim.tasks import DeepEP
from validation.deepep import (
    CARD,
    Columns,
    Errors,
    Floats,
    MeasuredKernel,
    fit_between,
    fitted,
    in_seconds,
    judged_by,
    norm,
    written,
)
from validation.report import Row

_TOKENS, _WIDTH, _TOP_K, _LOCAL_EXPERTS = 4096, 7168, 8, 8
_RACK, _NODE = 900e9, 450e9  # bytes per second that a GPU sends to others over NVLink: Blackwell, H100
#: Us at least: a launch of DeepEP's on these GPUs. One number of tokens does not tell it from what it sends.
_LAUNCH = 25.0
SOURCE = "DeepEP's Hybrid-EP_Implementation.md (branch hybrid-ep): GB200 and B200; between nodes H100s with cards of 400 Gb/s"
#: Dispatch in fp8, in bf16, and combine in GB/s, by GPUs and multiprocessors.
_IN_A_RACK = {
    (8, 16): (421.67, 550.10, 538.44), (8, 32): (455.35, 545.71, 568.94),
    (16, 16): (397.33, 472.84, 474.48), (16, 32): (444.67, 523.48, 521.55),
    (24, 16): (281.73, 441.89, 444.40), (24, 32): (403.20, 507.32, 483.76),
    (32, 16): (236.33, 485.50, 423.19), (32, 32): (392.70, 484.22, 464.54),
    (36, 16): (215.36, 469.96, 418.27), (36, 32): (361.13, 479.02, 447.89),
}  # fmt: skip
_B200 = {(8, 16): (409.71, 535.94, 530.86)}
_OVER_NODES = {
    (16, 4): (28.09, 37.08, 42.47), (16, 8): (44.87, 57.74, 56.96), (16, 16): (48.26, 54.47, 53.35),
    (32, 4): (32.58, 44.88, 43.60), (32, 8): (41.23, 46.54, 50.68), (32, 16): (42.10, 47.36, 52.53),
    (64, 4): (30.42, 40.63, 41.00), (64, 8): (35.71, 41.46, 47.68), (64, 16): (35.01, 41.24, 46.57),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Published:
    """A kernel of the tables; ``fp8``: whether it dispatches in fp8."""

    measured: MeasuredKernel
    fp8: bool

    @property
    def steady(self) -> bool:
        """Whether it is fitted: no dispatch in fp8 on few multiprocessors."""
        return not self.fp8 or self.measured.kernel.sms == 32


def kernels() -> list[Published]:
    """Return the kernels of all tables."""
    rack = [*_table(_IN_A_RACK, "gb200-nvl72", 1), *_table(_B200, "dgx-b200", 1)]
    return [*rack, *_table(_OVER_NODES, "dgx-h100", 8)]


def _table(figures: dict[tuple[int, int], tuple[float, ...]], system: str, per_node: int) -> Iterator[Published]:
    """Yield the kernels of a table; ``per_node`` GPUs are a node, or 1: all of them."""
    steps: tuple[tuple[Step, bool], ...] = (("dispatch", True), ("dispatch", False), ("combine", False))
    for (ranks, sms), row in figures.items():
        for (step, fp8), figure in zip(steps, row, strict=True):
            nbytes = token_bytes("dispatch" if fp8 else "combine", _WIDTH)
            kernel = DeepEP(step, _TOKENS, nbytes, _TOP_K, _LOCAL_EXPERTS * ranks, sms=sms, library="hybridep")
            nodes = ranks // per_node if per_node > 1 else 1
            messages = _TOKENS * ranks * reached(_LOCAL_EXPERTS, kernel)
            forwards = _TOKENS * nodes * reached(_LOCAL_EXPERTS * ranks / nodes, kernel)
            counted, peers = (messages, ranks) if nodes == 1 else (forwards, per_node)
            moved = Exchange((), (), ranks, nodes, messages, forwards if nodes > 1 else 0.0)
            links = messages * (peers - 1) / peers * nbytes / (_RACK if nodes == 1 else _NODE)
            cards = forwards * (nodes - 1) / nodes * nbytes / CARD
            shape = (_WIDTH, kernel.experts, _TOP_K)
            seconds = counted * nbytes / (figure * 1e9)
            yield Published(MeasuredKernel(system, shape, kernel, moved, links, cards, seconds), fp8)


def fit(rows: Sequence[Published]) -> DeepEPConstants:
    """Fit a rack, and what several nodes add to it."""
    used = [one.measured for one in rows if one.steady]
    inside = [row for row in used if row.moved.nodes == 1]
    system = DeepEPSystem("gb200-nvl72", _RACK, {step: _kernel(_of(inside, step)) for step in STEPS}, {})
    wide = [row for row in used if row.moved.nodes > 1]
    return DeepEPConstants(SOURCE, (system,), {step: fit_between(_of(wide, step), system, step) for step in STEPS}, {})


def _kernel(rows: Sequence[MeasuredKernel]) -> NormalKernel:
    c = Columns(rows)

    def predicted(p: Floats) -> Floats:
        return p[0] + norm(c.messages * (p[1] + c.nbytes * p[2]) / c.sms, c.links / p[3])

    # In us and bytes: launch, message, message_byte, link_efficiency.
    found = fitted(predicted, c.measured, (80, 0.05, 3e-5, 0.6), (_LAUNCH, 1e-6, 1e-8, 0.1), (1e3, 10, 1e-2, 1))
    launch, message, message_byte = in_seconds(found, 3)[:3]
    return NormalKernel(launch, 0.0, 0.0, message, message_byte, 0.0, 0.0, in_seconds(found, 3)[3])


def _of(rows: Sequence[MeasuredKernel], step: Step) -> list[MeasuredKernel]:
    return [row for row in rows if row.kernel.step == step]


def left_out(rows: Sequence[Published]) -> Errors:
    """Judge the rows of each number of GPUs by a fit to the others."""
    found: list[MeasuredKernel] = []
    errors: list[float] = []
    for ranks in sorted({(one.measured.moved.ranks, one.measured.moved.nodes > 1) for one in rows}):
        own = [(one.measured.moved.ranks, one.measured.moved.nodes > 1) == ranks for one in rows]
        without = fit([one for one, is_own in zip(rows, own, strict=True) if not is_own])
        judged = _judged([one for one, is_own in zip(rows, own, strict=True) if is_own], without)
        found += judged.rows
        errors += judged.errors
    return Errors(found, errors)


def _judged(rows: Sequence[Published], constants: DeepEPConstants) -> Errors:
    return judged_by([one.measured for one in rows], constants, constants.systems[0])


def rows() -> list[Row]:
    """Return the comparisons, with what is claimed of them."""
    every = kernels()
    steady, constants = [one for one in every if one.steady], deepep.constants("hybridep")
    few = [one for one in every if not one.steady and one.measured.moved.nodes == 1]
    source = "DeepEP's docs"
    return [
        Row("HybridEP", source, len(steady), _judged(steady, constants).mean(), 0.06),
        Row("HybridEP, numbers of GPUs not fitted", source, len(steady), left_out(steady).mean(), 0.1),
        Row("HybridEP in fp8 on 16 multiprocessors, not fitted", source, len(few), _judged(few, constants).mean(), 0.5),
    ]


def main(write: bool) -> None:
    every = kernels()
    if write:
        with output.writing_text(deepep.FILES["hybridep"]) as file:
            file.write(json.dumps(written(fit(every)), indent=1) + "\n")
        deepep.constants.cache_clear()
    steady = [one for one in every if one.steady]
    known, unknown = _judged(steady, deepep.constants("hybridep")), left_out(steady)
    print("| GPUs | nodes | rows | error | left out |\n| --: | --: | --: | --: | --: |")
    for ranks, nodes in sorted({(row.moved.ranks, row.moved.nodes) for row in known.rows}):

        def mine(row: MeasuredKernel, ranks: int = ranks, nodes: int = nodes) -> bool:
            return (row.moved.ranks, row.moved.nodes) == (ranks, nodes)

        count = sum(map(mine, known.rows))
        print(f"| {ranks} | {nodes} | {count} | {100 * known.mean(mine):.1f} % | {100 * unknown.mean(mine):.1f} % |")
    print(
        f"all: {100 * known.mean():.1f} %, left out {100 * unknown.mean():.1f} %, worst {100 * np.max(known.errors):.0f} %"
    )


if __name__ == "__main__":
    main("--write" in sys.argv[1:])
