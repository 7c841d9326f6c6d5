"""Divides layers into pipeline stages: whole layers balanced by time, equally many layers each, or where the user says.

Stages are contiguous runs of the forward pass' blocks; a block's backward operators go with it. Units are repeated modules (a
transformer's layers, see ``triosim.trace.numbered_modules``): Megatron-LM gives each stage the same number of them, the first
stage also what precedes them and the last what follows (Narayanan et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from triosim.config import RunConfig
from triosim.errors import OptionError, nearest
from triosim.extrapolators.core.program import Block, Stage
from triosim.extrapolators.core.program.kept_programs import BlocksSource, Kept
from triosim.trace import Operator
from triosim.trace.numbered_modules import ROOT, numbered_module_of

#: Of the stages that were divided last, by their blocks: the forward blocks of the backward ones, and their times.
_FORWARD_BLOCKS = Kept[Sequence[int]](8)
_SECONDS = Kept[Sequence[float]](8)


def forward_blocks_of_backward(stage: Stage) -> Sequence[int]:
    """Return the index of the forward block to which each backward block belongs; see ``Stage``."""
    return _FORWARD_BLOCKS.get(BlocksSource((), (stage.forward, stage.backward)), stage.forward_blocks_of_backward)


def block_seconds(stage: Stage, slowdown: Callable[[Operator], float] | None = None) -> Sequence[float]:
    """Return the time of each forward block together with the backward operators that belong to it.

    ``slowdown`` returns the factor by which an operator takes longer than it says.
    """
    if slowdown is None:
        return _SECONDS.get(BlocksSource((), (stage.forward, stage.backward)), lambda: _block_seconds(stage, None))
    return _block_seconds(stage, slowdown)


def _block_seconds(stage: Stage, slowdown: Callable[[Operator], float] | None) -> Sequence[float]:

    def time(block: Block) -> float:
        if slowdown is None:
            return block.seconds
        return math.fsum(operator.seconds * slowdown(operator) for operator in block.operators)

    seconds = [time(block) for block in stage.forward]
    for block, index in zip(stage.backward, forward_blocks_of_backward(stage), strict=True):
        seconds[index] += time(block)
    return seconds


def stage_starts(
    config: RunConfig, whole: Stage, stages: int, by_stage: Sequence[Sequence[float]] | None = None
) -> list[int]:
    """Return the first block of each stage, by the options ``stages``, ``stage_division`` and ``balance_stages``.

    ``by_stage`` are the seconds of the blocks on the GPUs of each stage, where they are unequal. Raises ``OptionError``.
    """
    division = config.stage_division
    if config.stages is not None:
        if division != "auto":
            raise OptionError(f"--stages and --option stages={division} both say where stages begin", where="stages")
        return named_starts(whole.forward, config.stages, stages)
    if division == "equal":
        if config.balance_stages:
            raise OptionError(
                "--option stages=equal gives each stage equally many layers, however long they take",
                where="--balance-stages",
                fix="leave out one of the two",
            )
        return equal_starts(whole.forward, stages)
    seconds = block_seconds(whole)
    first = _possible_starts(whole.forward, division, stages)
    rows = None if by_stage is None else [_unit_seconds(row, first) for row in by_stage]
    return [first[unit] for unit in balanced_starts(_unit_seconds(seconds, first), stages, rows)]


def _possible_starts(blocks: Sequence[Block], division: str, stages: int) -> list[int]:
    """Return the blocks at which a stage may start: those of whole units, by default where there are enough of them."""
    if division == "whole" or (division == "auto" and any(numbered_module_of(block.layer) for block in blocks)):
        units = whole_units(blocks)
        if division == "whole" or len(units) >= stages:
            return units
    return list(range(len(blocks)))


def _unit_seconds(seconds: Sequence[float], starts: Sequence[int]) -> list[float]:
    """Return the times of units that start at these blocks, from those of the blocks."""
    return [math.fsum(seconds[start:end]) for start, end in zip(starts, (*starts[1:], len(seconds)), strict=True)]


def balanced_starts(
    seconds: Sequence[float], stages: int, by_stage: Sequence[Sequence[float]] | None = None
) -> list[int]:
    """Return the first block of each stage, such that the slowest stage is as fast as can be.

    ``seconds`` are those of the blocks; ``by_stage`` those on the GPUs of each stage, where they are unequal.

    Exact dynamic programming over contiguous partitions: with t stages, the first i blocks take at best the minimum over j
    of max(best of the first j blocks with t - 1 stages, time of blocks j to i). The first grows with j and the second
    falls, so the minimum is where they cross, which a binary search finds.
    """
    count = len(seconds)
    if stages > count:
        raise OptionError(
            f"{stages} pipeline stages are asked for, but the trace has only {count} layers", fix="use fewer stages"
        )
    totals = [np.concatenate(([0.0], np.cumsum(row))) for row in by_stage or [seconds]]
    best = totals[0].copy()  # of the first i blocks, with the stages so far
    choices = []
    for stage in range(1, stages):
        sums = totals[stage % len(totals)]
        ends = np.arange(stage + 1, count + 1)
        crossing = stage + np.searchsorted(best[stage:count] + sums[stage:count], sums[ends])
        above = np.minimum(crossing, ends - 1)
        below = np.maximum(above - 1, stage)
        costs = [np.maximum(best[start], sums[ends] - sums[start]) for start in (below, above)]
        choice = np.zeros(count + 1, dtype=np.int64)
        choice[ends] = np.where(costs[0] <= costs[1], below, above)
        choices.append(choice)
        best = np.concatenate((np.full(stage + 1, np.inf), np.minimum(*costs)))
    starts, end = [], count
    for choice in reversed(choices):
        end = int(choice[end])
        starts.append(end)
    return [0, *reversed(starts)]


def whole_units(blocks: Sequence[Block]) -> list[int]:
    """Return the first block of each unit, of what precedes the first unit and of what follows the last one.

    Raises ``OptionError`` where there are no units.
    """
    units = _unit_starts(blocks)
    last = max(index for index, block in enumerate(blocks) if numbered_module_of(block.layer) != ROOT)
    following = [last + 1] if last + 1 < len(blocks) else []
    return [*([0] if units[0] else []), *units, *following]


def too_many_stages(blocks: Sequence[Block], starts: Sequence[int]) -> str | None:
    """Return a note where there are more stages than units: some begin inside a unit, or have none."""
    if not any(numbered_module_of(block.layer) for block in blocks):
        return None
    if not {*starts} <= {*whole_units(blocks)}:
        what = f"{len(starts)} stages are more than there are whole layers, embedding and loss counted"
        return f"{what}, so some begin inside a layer, which frameworks do not do"
    layers = len(_unit_starts(blocks))
    if len(starts) <= layers:
        return None
    ends = (*starts[1:], len(blocks))
    held = [any(numbered_module_of(one.layer) for one in blocks[a:b]) for a, b in zip(starts, ends, strict=True)]
    without = [index for index, holds in enumerate(held) if not holds]
    which = f"stage {without[0]} has" if len(without) == 1 else f"stages {', '.join(map(str, without))} have"
    return (
        f"{len(starts)} stages are more than the {layers} layers, so {which} no layer, only the embedding or the loss"
    )


def equal_starts(blocks: Sequence[Block], stages: int) -> list[int]:
    """Return the first block of each stage, with equally many units each. Raises ``OptionError`` where that is impossible."""
    units = _unit_starts(blocks)
    if len(units) % stages:
        raise OptionError(
            f"{len(units)} layers do not divide among {stages} stages",
            where="--option stages",
            fix="use a number of stages that divides them, or stages=whole",
        )
    return [0, *units[len(units) // stages :: len(units) // stages]]


def _unit_starts(blocks: Sequence[Block]) -> list[int]:
    starts: dict[str, int] = {}
    for index, block in enumerate(blocks):
        starts.setdefault(numbered_module_of(block.layer), index)
    starts.pop(ROOT, None)
    if not starts:
        raise OptionError(
            "no module has a number in its name (layers.0)",
            where="--option stages",
            fix="leave it out, or give --stages",
        )
    return list(starts.values())


def named_starts(blocks: Sequence[Block], names: Sequence[str], stages: int) -> list[int]:
    """Return the first block of each stage, from the layers (or modules that hold layers) at which new stages start."""
    if len(names) != stages - 1:
        raise OptionError(
            f"{len(names)} layers at which a stage starts are given, but {stages} stages need {stages - 1}",
            where="stages",
        )
    starts = [0]
    for name in names:
        index = next((i for i, block in enumerate(blocks) if f"{block.layer}.".startswith(f"{name}.")), None)
        if index is None:
            known = {block.layer for block in blocks}
            raise OptionError(f"the trace has no layer '{name}'", where="stages", fix=nearest(name, known, most=10))
        if index <= starts[-1]:
            raise OptionError(
                f"a stage cannot start at layer '{name}'",
                where="stages",
                fix="name layers in the order of the forward pass, and not the first",
            )
        starts.append(index)
    return starts
