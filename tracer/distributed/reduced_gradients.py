"""Over which axes a script reduces the gradients of its whole model by itself, as by ``dist.all_reduce(parameter.grad)``.

Ranks that do so have samples of their own, as those of DDP. Of the ranks of a tensor-parallel group, or of the two ends of a
pipeline that share an embedding, only some gradients are reduced.
"""

from __future__ import annotations

import torch

from triosim.tracer.recorder.recorded_step import RecordedOperator, RecordedStep

_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")


def axes_of_reduced_gradients(step: RecordedStep) -> set[str]:
    """Return the axes over which a step reduces at least as many elements of gradients as it has."""
    owners = {tensor.storage.owner for tensor in step.tensors if tensor.storage.category == "gradient"}
    elements = sum(owner.nbytes / _itemsize(owner.dtype) for owner in owners if owner is not None)
    reduced: dict[str, float] = {}
    for operator in step.operators:
        asked = operator.communication
        if asked is not None and asked.kind in _REDUCTIONS and _is_of_gradients(operator, step):
            counted = asked.nbytes / _itemsize(step.tensors[operator.inputs[0]].dtype)
            reduced[asked.group] = reduced.get(asked.group, 0.0) + counted
    return {axis for axis, counted in reduced.items() if counted >= elements > 0}


def _is_of_gradients(operator: RecordedOperator, step: RecordedStep) -> bool:
    """Whether an operator reduces gradients, or, after the backward pass, buffers that were made of them."""
    buffers = (operator.phase, operator.layer) == ("backward", "communication")
    return buffers or any(step.tensors[number].storage.category == "gradient" for number in operator.inputs)


def _itemsize(dtype: str) -> int:
    found: torch.dtype = getattr(torch, dtype)
    return found.itemsize
