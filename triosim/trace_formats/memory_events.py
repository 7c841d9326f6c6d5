"""A step's storages, from the profiler's memory events and from what was said of tensors that were there before the step.

The allocator knows bytes and addresses, and nothing of tensors. What parameters, gradients and optimizer states are is told
by annotations that name their addresses (``triosim.tracer``). Everything else is what its birth and death make it.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import deque
from collections.abc import Sequence

from triosim.trace import Category, Operator, Storage
from triosim.trace_formats.kineto import MemoryEvent, Profile, Span
from triosim.trace_formats.pytorch_step import ROLE_PREFIX, said_role


@dataclasses.dataclass(slots=True)
class _Block:
    nbytes: int
    born: int
    operator: int
    category: Category | None = None
    layer: str | None = None
    died: int | None = None
    last_operator: int | None = None
    said: int = -1  # when someone last said what it is


def storages(
    profile: Profile, moments: Sequence[tuple[Span, int]], operators: Sequence[Operator]
) -> tuple[Storage, ...]:
    """Return the storages of a step by birth; none when the profile has no memory events.

    ``moments`` are the step's calls and the positions of their operators in ``operators``.
    """
    on_gpu = bool(profile.work)
    events = [event for event in profile.memory if event.on_gpu == on_gpu]
    if not events:
        return ()
    marks = [(span.start, span.name) for span in profile.calls if span.annotation and span.name.startswith(ROLE_PREFIX)]
    said = deque(sorted(marks))
    position = _Positions(moments)
    blocks: list[_Block] = []
    live: dict[int, _Block] = {}
    clock = 0
    for event in events:
        while said and said[0][0] <= event.moment:
            _say(said.popleft()[1], clock, blocks, live)
        clock += 1
        _take(event, clock, position.at(event.moment), blocks, live)
    for _, annotation in said:
        _say(annotation, clock, blocks, live)
    blocks = [block for block in blocks if not _cleared(block)]
    before = [block for block in blocks if block.born < 0]
    for number, block in enumerate(before):
        block.born = number - len(before)
    blocks.sort(key=lambda block: block.born)
    return tuple(_storage(number, block, operators) for number, block in enumerate(blocks))


def _take(event: MemoryEvent, clock: int, position: int, blocks: list[_Block], live: dict[int, _Block]) -> None:
    if event.nbytes > 0:
        live[event.address] = block = _Block(event.nbytes, clock, position)
        blocks.append(block)
        return
    freed = live.pop(event.address, None)
    if freed is None:  # there before the step, and nobody said what it is
        freed = _Block(-event.nbytes, -1, -1)
        blocks.append(freed)
    freed.died, freed.last_operator = clock, position


def _cleared(block: _Block) -> bool:
    """Whether it is an old gradient that ``zero_grad`` freed first of all: on a host the profiler does not see that."""
    return block.category == "gradient" and block.born < 0 and block.died is None and block.said == 0


def _say(annotation: str, clock: int, blocks: list[_Block], live: dict[int, _Block]) -> None:
    category, address, nbytes, name = said_role(annotation)
    if not nbytes:
        return
    block = live.get(address)
    if block is None:
        live[address] = block = _Block(nbytes, -1, -1)
        blocks.append(block)
    if block.category is None or category != "input":
        block.category, block.layer = category, name.rpartition(".")[0]
    block.said = clock


def _storage(number: int, block: _Block, operators: Sequence[Operator]) -> Storage:
    maker = operators[block.operator] if block.operator >= 0 else None
    category = block.category
    if category is None:
        if maker is None:
            category = "buffer" if block.born < 0 else "input"
        elif block.last_operator == block.operator or maker.phase == "optimizer":
            category = "temporary"
        else:
            category = "gradient" if maker.phase == "backward" else "activation"
    layer = block.layer or (maker.layer if maker is not None else "")
    return Storage(number, block.nbytes, category, layer, block.born, block.died, block.operator, block.last_operator)


class _Positions:
    """The operator that runs at a moment, or ran last before it; -1 before the first."""

    def __init__(self, moments: Sequence[tuple[Span, int]]) -> None:
        ordered = sorted((span.start, position) for span, position in moments)
        self._starts = [start for start, _ in ordered]
        self._positions = [position for _, position in ordered]

    def at(self, moment: float) -> int:
        found = bisect.bisect_right(self._starts, moment) - 1
        return self._positions[found] if found >= 0 else -1
