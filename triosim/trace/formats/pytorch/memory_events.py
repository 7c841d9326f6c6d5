"""The storages of a profiled step, from the profiler's memory events and the tracer's annotations of tensors.

The allocator knows bytes and addresses, not tensors, and how much is allocated in all. Annotations of ``triosim.tracer`` name
the addresses of parameters, gradients and optimizer states; the category of other storages follows from the phases of their
birth and death. The tensors come from the execution trace, which has no addresses, so only annotated storages have the number
that tensors give them.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, repeat

from triosim.trace.formats.pytorch.kineto import MemoryEvent, Profile, Span
from triosim.trace.formats.pytorch.profiled_step import CATEGORY_PREFIX, parse_category_annotation
from triosim.trace.trace import Category, Operator, Storage

_ZERO_GRAD = "Optimizer.zero_grad#"


@dataclasses.dataclass(slots=True)
class _Block:
    """A storage from its allocation or annotation on."""

    nbytes: int
    born: int
    operator: int
    address: int
    moment: float = 0.0  # of its birth in the step
    category: Category | None = None
    name: str = ""
    layer: str | None = None
    died: int | None = None
    last_operator: int | None = None
    stated: int = -1  # when an annotation last stated its category
    number: int | None = None  # as tensors name it
    replaced: float | None = None  # when its address was given to another one, without a free


def storages(
    profile: Profile,
    moments: Sequence[tuple[Span, int]],
    operators: Sequence[Operator],
    known: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Storage, ...]:
    """Return the storages of a step by birth; none when the profile has no memory events.

    ``moments`` are the step's calls with the indices of their operators; ``known`` are the tensors' storages by annotation.
    """
    on_gpu = bool(profile.work)
    events = [event for event in profile.memory if event.on_gpu == on_gpu]
    if not events:
        return ()
    numbers = {annotation: deque(found) for annotation, found in (known or {}).items()}
    annotations = (span for span in profile.calls if span.annotation and span.name.startswith(CATEGORY_PREFIX))
    stated = [
        (moment, name, found.popleft() if (found := numbers.get(name)) else None)
        for moment, name in sorted((span.start, span.name) for span in annotations)
    ]
    position = _Positions(moments)
    blocks = _blocks(events, stated, position)
    unseen = _unseen_frees(blocks, [span.end for span in profile.calls if span.name.startswith(_ZERO_GRAD)], events)
    if unseen:
        blocks = _blocks(sorted([*unseen, *events], key=lambda event: event.moment), stated, position)
    blocks = [*_unseen_blocks(events, blocks, operators), *blocks]
    before = [block for block in blocks if block.born < 0]
    for number, block in enumerate(before):
        block.born = number - len(before)
    blocks.sort(key=lambda block: block.born)
    kept = _kept(blocks, operators)
    return tuple(map(_storage, _numbers(blocks, operators), blocks, repeat(operators), repeat(kept)))


def _blocks(
    events: Sequence[MemoryEvent], stated: Sequence[tuple[float, str, int | None]], position: _Positions
) -> list[_Block]:
    """Return the blocks of the step; ``stated`` are moments, annotations, and the number that tensors give the storage."""
    blocks: list[_Block] = []
    live: dict[int, _Block] = {}
    waiting = deque(stated)
    clock = 0
    for event in events:
        while waiting and waiting[0][0] <= event.moment:
            _state(*waiting.popleft()[1:], clock, blocks, live)
        clock += 1
        _take(event, clock, position.at(event.moment), blocks, live)
    for _, annotation, number in waiting:
        _state(annotation, number, clock, blocks, live)
    return blocks


def _unseen_blocks(
    events: Sequence[MemoryEvent], blocks: Sequence[_Block], operators: Sequence[Operator]
) -> Iterator[_Block]:
    """Yield what is allocated before the first event and never freed: parameters and states as far as operators name them.

    The rest is taken for buffers.
    """
    first = events[0]
    if first.total is None:
        return
    left = first.total - first.nbytes - sum(block.nbytes for block in blocks if block.born < 0)
    known = {block.category for block in blocks}
    sizes: dict[Category, dict[int, int]] = {"parameter": {}, "optimizer_state": {}}
    for operator in operators:
        for tensor in (*operator.inputs, *operator.outputs):
            if tensor.category in sizes and tensor.category not in known:
                sizes[tensor.category][tensor.storage] = tensor.nbytes
    for category, found in sizes.items():
        nbytes = min(left, sum(found.values()))
        if nbytes > 0:
            yield _Block(nbytes, -1, -1, -1, category=category)
            left -= nbytes
    if left > 0:
        yield _Block(left, -1, -1, -1, category="buffer")


def _unseen_frees(
    blocks: Sequence[_Block], zeroed: Sequence[float], events: Sequence[MemoryEvent]
) -> list[MemoryEvent]:
    """Return frees of old gradients by ``zero_grad``, which a profile of a host leaves out.

    Each is at the last ``zero_grad`` before its successor's birth, or else before all events.
    """
    births = {block.name: block.moment for block in blocks if block.category == "gradient" and block.born > 0}
    found = []
    for block in blocks:
        if block.category == "gradient" and block.born < 0 and block.died is None and block.stated == 0:
            ends = [one for one in (births.get(block.name), block.replaced) if one is not None]
            moments = [moment for moment in zeroed if not ends or moment <= min(ends)]
            moment = (max(moments) if ends else min(moments)) if moments else events[0].moment
            found.append(MemoryEvent(max(moment, events[0].moment), "", -block.nbytes, block.address, events[0].on_gpu))
    return found


def _numbers(blocks: Sequence[_Block], operators: Sequence[Operator]) -> list[int]:
    """Return the blocks' numbers: those that tensors give them, and new ones for the others."""
    tensors = (tensor for operator in operators for tensor in (*operator.inputs, *operator.outputs))
    stated = {block.number for block in blocks if block.number is not None}
    free = count(1 + max((*stated, *(tensor.storage for tensor in tensors)), default=0))
    found: dict[int, None] = {}
    for block in blocks:
        found[next(free) if block.number is None or block.number in found else block.number] = None
    return list(found)


def _take(event: MemoryEvent, clock: int, position: int, blocks: list[_Block], live: dict[int, _Block]) -> None:
    if event.nbytes > 0:
        if event.address in live:
            live[event.address].replaced = event.moment
        live[event.address] = block = _Block(event.nbytes, clock, position, event.address, event.moment)
        blocks.append(block)
        return
    freed = live.pop(event.address, None)
    if freed is None:  # there before the step, and not annotated
        freed = _Block(-event.nbytes, -1, -1, event.address)
        blocks.append(freed)
    freed.died, freed.last_operator = clock, position


def _state(annotation: str, number: int | None, clock: int, blocks: list[_Block], live: dict[int, _Block]) -> None:
    category, address, nbytes, name = parse_category_annotation(annotation)
    if not nbytes:
        return
    block = live.get(address)
    if block is None:
        live[address] = block = _Block(nbytes, -1, -1, address)
        blocks.append(block)
    if block.category is None or category != "input":
        block.category, block.name, block.layer = category, name, name.rpartition(".")[0]
    if block.number is None:
        block.number = number
    block.stated = clock


def _kept(blocks: Sequence[_Block], operators: Sequence[Operator]) -> Category:
    """Return the category of a storage of the backward pass that has no annotation and no free.

    Where gradients are named and collectives run, it is a collective's buffer: the process group's thread may free it last,
    and the profiler does not see that.
    """
    named = any(block.category == "gradient" for block in blocks)
    return "communication" if named and any(one.name.startswith("c10d::") for one in operators) else "gradient"


def _storage(number: int, block: _Block, operators: Sequence[Operator], kept: Category) -> Storage:
    maker = operators[block.operator] if block.operator >= 0 else None
    category = block.category
    if category is None:
        if maker is None:
            category = "buffer" if block.born < 0 else "input"
        elif block.last_operator == block.operator or maker.phase == "optimizer":
            category = "temporary"
        elif maker.phase == "backward":
            category = kept if block.died is None else "gradient"
        else:
            category = "activation"
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
