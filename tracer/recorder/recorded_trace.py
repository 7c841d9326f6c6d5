"""How a recorded step becomes a trace: tensors and storages get their category, operators their links."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import replace

from triosim.trace import Category, Operator, Storage, Tensor, Trace
from triosim.tracer.recorder.recorder import Step
from triosim.tracer.recorder.storages import Block, Blocks


def trace_of(
    step: Step, blocks: Blocks, *, batch_size: int, model: str, gpu: str, software: Mapping[str, str]
) -> Trace:
    """Return the trace of a step, without times. Raises ``TraceError`` when the step has no operators."""
    first: dict[int, int] = {}  # the first tensor that was seen in each storage
    for number, raw in enumerate(step.tensors):
        first.setdefault(raw.block.number, number)
    tensors: list[Tensor] = []
    for number, raw in enumerate(step.tensors):
        block = raw.block
        owner = first.get(block.owner.number) if block.owner is not None else None
        tensors.append(Tensor(number, raw.shape, raw.dtype, category_of(block), block.number, owner))
    operators = tuple(
        Operator(
            number,
            raw.name,
            raw.phase,
            raw.layer,
            tuple(tensors[one] for one in raw.inputs),
            tuple(tensors[one] for one in raw.outputs),
            0.0,
            forward=_link(step, raw.forward),
            attributes=raw.attributes,
            stream=raw.stream,
            communication=raw.communication,
        )
        for number, raw in enumerate(step.operators, 1)
    )
    return Trace(
        operators,
        batch_size,
        model,
        gpu,
        times="none",
        software=software,
        marks=tuple(step.marks),
        storages=_settled([_storage(block, blocks.started) for block in blocks.of_the_step()]),
    )


def category_of(block: Block) -> Category:
    """Return what a storage is for: as it was found out, else by what made it."""
    if block.category is not None:
        return block.category
    if block.recomputed:
        return "activation"
    if block.place.phase == "backward":
        return "gradient"
    if block.place.phase == "optimizer":
        return "temporary"
    return "input" if block.place.layer == "input" else "activation"


def _link(step: Step, position: int | None) -> int | None:
    """Return the id of a forward operator; what was computed again in the backward pass is none."""
    if position is None or step.operators[position].phase != "forward":
        return None
    return position + 1


def _storage(block: Block, started: int) -> Storage:
    before = block.born <= started
    return Storage(
        block.number,
        block.nbytes,
        category_of(block),
        block.place.layer,
        block.born - started - (1 if before else 0),
        None if block.died is None else block.died - started,
        -1 if before else block.place.position,
        block.last_position,
        block.place.stream,
        block.shape,
        block.dtype,
    )


def _settled(storages: Sequence[Storage]) -> tuple[Storage, ...]:
    """Return storages, given by birth, of which those that die in a row, with no birth in between, die in that order too.

    PyTorch lets go of some of them, such as autocast's copies of weights, in the order of a hash table's addresses, which no
    two runs have in common.
    """
    births = [storage.born for storage in storages]
    rows: dict[tuple[int, int | None], list[int]] = {}
    for place, storage in enumerate(storages):
        if storage.died is not None:
            rows.setdefault((bisect(births, storage.died), storage.last_operator), []).append(place)
    found = list(storages)
    for places in rows.values():
        for place, died in zip(places, sorted(found[place].died or 0 for place in places), strict=True):
            found[place] = replace(found[place], died=died)
    return tuple(found)
