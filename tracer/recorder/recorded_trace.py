"""Makes a trace of a recorded step: gives tensors and storages their category, and operators their forward operator."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import replace

from triosim.trace import Category, Operator, Storage, Tensor, Trace
from triosim.tracer.recorder.recorded_step import RecordedStep
from triosim.tracer.recorder.storages import RecordedStorage, StorageTracker


def trace_of(
    step: RecordedStep, tracker: StorageTracker, *, batch_size: int, model: str, gpu: str, software: Mapping[str, str]
) -> Trace:
    """Return the trace of a step, without times. Raises ``TraceError`` when the step has no operators."""
    first: dict[int, int] = {}  # the first tensor that was seen in each storage
    for number, recorded in enumerate(step.tensors):
        first.setdefault(recorded.storage.number, number)
    tensors: list[Tensor] = []
    for number, recorded in enumerate(step.tensors):
        storage = recorded.storage
        owner = first.get(storage.owner.number) if storage.owner is not None else None
        tensors.append(Tensor(number, recorded.shape, recorded.dtype, category_of(storage), storage.number, owner))
    operators = tuple(
        Operator(
            number,
            recorded.name,
            recorded.phase,
            recorded.layer,
            tuple(tensors[one] for one in recorded.inputs),
            tuple(tensors[one] for one in recorded.outputs),
            0.0,
            forward=_link(step, recorded.forward),
            attributes=recorded.attributes,
            stream=recorded.stream,
            communication=recorded.communication,
        )
        for number, recorded in enumerate(step.operators, 1)
    )
    return Trace(
        operators,
        batch_size,
        model,
        gpu,
        times="none",
        software=software,
        marks=tuple(step.marks),
        storages=_in_stable_order([_storage(storage, tracker.started) for storage in tracker.of_the_step()]),
    )


def category_of(storage: RecordedStorage) -> Category:
    """Return what a storage is for: the recorded category, else one by the phase in which it was made."""
    if storage.category is not None:
        return storage.category
    if storage.context.recomputing:
        return "activation"
    if storage.context.phase == "backward":
        return "gradient"
    if storage.context.phase == "optimizer":
        return "temporary"
    return "input" if storage.context.layer == "input" else "activation"


def _link(step: RecordedStep, position: int | None) -> int | None:
    """Return the id of a forward operator; recomputed operators of the backward pass are none."""
    if position is None or step.operators[position].phase != "forward":
        return None
    return position + 1


def _storage(storage: RecordedStorage, started: int) -> Storage:
    before = storage.born <= started
    return Storage(
        storage.number,
        storage.nbytes,
        category_of(storage),
        storage.context.layer,
        storage.born - started - (1 if before else 0),
        None if storage.died is None else storage.died - started,
        -1 if before else storage.context.position,
        storage.last_position,
        storage.context.stream,
        storage.shape,
        storage.dtype,
    )


def _in_stable_order(storages: Sequence[Storage]) -> tuple[Storage, ...]:
    """Return storages, given by birth, with consecutive deaths reordered by birth.

    PyTorch frees some of them, such as autocast's copies of weights, in the order of a hash table's addresses, which differs
    between runs.
    """
    births = [storage.born for storage in storages]
    rows: dict[tuple[int, int | None], list[int]] = {}
    for index, storage in enumerate(storages):
        if storage.died is not None:
            rows.setdefault((bisect(births, storage.died), storage.last_operator), []).append(index)
    found = list(storages)
    for indices in rows.values():
        for index, died in zip(indices, sorted(found[index].died or 0 for index in indices), strict=True):
            found[index] = replace(found[index], died=died)
    return tuple(found)
