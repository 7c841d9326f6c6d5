"""How much longer products in half precision take whose rows are not on 16-byte boundaries.

Tensor cores are fed 16 bytes at a time (by TMA on Hopper and later, by ``cp.async`` before); where the rows of a factor or of
the result do not begin on such boundaries, libraries run kernels that load less at a time (NVIDIA, "Matrix Multiplication
Background User's Guide", section 4.1). Steps of A100s show both, with cuBLAS 11; tables of products hold aligned ones alone. On
other GPUs it follows from what bounds such kernels.

- One product waits for its loads, of which a multiprocessor issues as many in a clock on an H100 as on an A100: tensor cores
  that do more FLOPs in a clock wait longer in proportion.
- A batch of products runs outside of tensor cores: it takes as many times as long as these are faster, 16 times on an A100.

Libraries choose other kernels from version to version: that is in doubt everywhere, and elsewhere than on A100s also whether
the factor changes as is assumed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from triosim import gpus
from triosim.gpus import Gpu
from triosim.operators import products
from triosim.operators.features import base_name
from triosim.trace import DTYPE_BYTES, Operator

#: One product: with the whole vocabulary of 50,257 that vTrain's GPTs have, whose rows are odd (724 steps on one node).
ONE_PRODUCT = 3.3
#: By what part a factor is expected to be off where it was measured, with one version of cuBLAS. Netflix says that such a
#: product of the vocabulary takes three times as long ("Scaling LLM post-training at Netflix", 2026).
ERROR = 0.15
_BOUNDARY = 16
_HALF = ("float16", "bfloat16")
_MEASURED = "A100-SXM-80GB"


class Slowdown(NamedTuple):
    """The factor of a product's time, and by what part of the time it is expected to be off."""

    factor: float
    relative_error: float


_NONE = Slowdown(1.0, 0.0)


def slowdown(operator: Operator, forward: Operator | None, gpu: Gpu) -> Slowdown:
    """Return what a GPU does with a product; that of a gradient has the rows of its ``forward`` operator."""
    of = forward or operator
    name = base_name(of.name)
    pair = products.factors(name, of.inputs) if name in products.DENSE else None
    if pair is None or pair[0].dtype not in _HALF or (operator.phase == "backward" and forward is None):
        return _NONE
    first, second = pair[0].shape, pair[1].shape
    rows = (first[-1], *second[-2:])
    if all(length * DTYPE_BYTES[pair[0].dtype] % _BOUNDARY == 0 for length in rows):
        return _NONE
    measured = gpus.find(_MEASURED)
    if math.prod(second[:-2]) > 1:
        known, factor = _over_ordinary_cores(measured), max(1.0, _over_ordinary_cores(gpu))
    else:
        known, factor = ONE_PRODUCT, ONE_PRODUCT * max(1.0, _flops_in_a_clock(gpu) / _flops_in_a_clock(measured))
    return Slowdown(factor, ERROR + 1.0 - min(factor, known) / max(factor, known))


def _over_ordinary_cores(gpu: Gpu) -> float:
    return gpu.rate("float16") / gpu.rate("float32")


def _flops_in_a_clock(gpu: Gpu) -> float:
    """Return the FLOPs in half precision of a multiprocessor in a clock; 0 where nothing is known."""
    return gpu.rate("float16") / (gpu.sms * gpu.clock_hz) if gpu.sms and gpu.clock_hz else 0.0
