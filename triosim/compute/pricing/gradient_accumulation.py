"""What adding gradients to those of other micro-batches costs.

PyTorch's autograd engine (``AccumulateGrad``) makes the first gradient of a parameter its ``.grad``. It adds each later one to
it by a kernel that reads both and writes the sum (``additions``).

Megatron-LM's ``gradient_accumulation_fusion``, which Transformer Engine has too (``fuse_wgrad_accumulation``), has no such
kernels (``with_added_gradients``): the product for a weight's gradient reads the sum of the micro-batches before from a buffer,
and writes the new sum there (a product with beta = 1). The buffer is set to zero before a step, so that the first micro-batch
reads it, too. It has the dtype in which gradients are reduced (``grad_reduce_in_fp32``). A gradient that no product makes (of
an embedding or a norm) is added by a kernel of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from triosim.compute.compute_model import ComputeModel
from triosim.compute.pricing.repricing import estimated
from triosim.operators.features import base_name
from triosim.operators.kinds import kind_of
from triosim.operators.products import PRODUCTS
from triosim.trace import Operator, Tensor


@dataclass(frozen=True, slots=True)
class AddedGradient:
    """A gradient that is complete after operator ``ready``: its bytes as it is ``made``, and as its sum is ``kept``."""

    ready: int
    made: float
    kept: float


def with_added_gradients(
    operators: Sequence[Operator], added: Iterable[AddedGradient], model: ComputeModel, gpu: str
) -> dict[int, Operator]:
    """Return the operators that make gradients, by id, each with the time that adding these takes.

    Bytes take as long as in a copy.
    """
    makers = _makers(operators)
    moved: dict[int, float] = {}
    for one in added:
        maker = makers[one.ready]
        moved[maker.id] = moved.get(maker.id, 0.0) + moved_bytes(maker, one)
    sizes = sorted(set(moved.values()))
    seconds = dict(zip(sizes, (one.seconds for one in estimated(list(map(_copy, sizes)), model, gpu)), strict=True))
    return {
        one.id: one.with_times(one.seconds + seconds[moved[one.id]], None, one.flops)
        for one in operators
        if one.id in moved
    }


def additions(added: Sequence[tuple[Tensor, float]], model: ComputeModel, gpu: str) -> list[Operator]:
    """Return the kernel that adds the gradient of each parameter to a sum of so many bytes; none has a layer."""
    made = list(itertools.starmap(_addition, added))
    distinct = list(dict.fromkeys(made))
    priced = dict(zip(distinct, estimated(distinct, model, gpu), strict=True))
    return [priced[one] for one in made]


def moved_bytes(maker: Operator, gradient: AddedGradient) -> float:
    """Return the bytes that are read and written to add a gradient.

    A product reads and writes the buffer instead of writing the gradient; the result of another kernel is read again.
    """
    is_product = base_name(maker.name) in PRODUCTS
    return 2 * gradient.kept + (-gradient.made if is_product else gradient.made)


def _makers(operators: Iterable[Operator]) -> dict[int, Operator]:
    """Return by operator the one that makes its result: of a view, the last before it that writes what it shows."""
    writers: dict[int, Operator] = {}  # by storage
    found = {}
    for one in operators:
        shown = next((writers[t.storage] for t in one.outputs if t.storage in writers), one)
        is_view = kind_of(base_name(one.name)) == "view"
        found[one.id] = shown if is_view else one
        if not is_view:
            writers.update((tensor.storage, one) for tensor in one.outputs)
    return found


def _addition(parameter: Tensor, kept: float) -> Operator:
    """Return the kernel that reads a gradient and a sum, and writes the sum."""
    gradient = Tensor(-1, (parameter.numel,), parameter.dtype, "gradient")
    total = replace(gradient, id=-2, storage=-2, dtype="float32" if kept > parameter.nbytes else parameter.dtype)
    return Operator(-1, "aten::add_", "backward", "", (total, gradient), (total,), 0.0)


def _copy(nbytes: float) -> Operator:
    """Return a copy that reads and writes so many bytes."""
    source = Tensor(-1, (max(1, round(nbytes / 4)),), "bfloat16", "gradient")
    return Operator(
        -1, "aten::clone", "backward", "", (source,), (Tensor(-2, source.shape, "bfloat16", "gradient"),), 0.0
    )
