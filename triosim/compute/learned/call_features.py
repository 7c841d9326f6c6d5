"""The features of an operator call on a GPU that learned models read, and the roofline time whose multiple they learn.

Ratios that carry over from one GPU to another: arithmetic intensity against that of the GPU, working sets against its L2
cache, tiles over its multiprocessors (waves, and how full the last one is), and sizes against the tiles'. NeuSight (Lee et
al., ASPLOS 2025) and TorchSim (appendix E) predict utilisation from such features. Where the traffic of a product's tiles
comes from is Hong and Kung (1981): each tile reads its rows and columns again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from triosim.compute.compute_model import Array
from triosim.compute.families import FamilyCalls
from triosim.gpus import Gpu
from triosim.operators import number_formats
from triosim.trace import DTYPE_BYTES

#: No kernel is shorter: launch and drain, as the smallest products of every table show.
KERNEL_SECONDS = 2.4e-6
#: The shortest attention call is several kernels long, or one with several phases.
ATTENTION_SECONDS = 9e-6
_TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128))


@dataclass(frozen=True)
class CallFeatures:
    """The features of calls, a row for each, and their seconds on the roofline, of which models learn a multiple."""

    features: Array
    roofline: Array


def call_features(calls: FamilyCalls, gpu: Gpu, rate: float) -> CallFeatures:
    """Return features and roofline of calls, but for convolutions, on a GPU that attains ``rate`` FLOP/s."""
    if calls.family == "product":
        return _product(calls, gpu, rate)
    if calls.family == "attention":
        return _attention(calls, gpu, rate)
    return _rows(calls, gpu)


def specifications(gpu: Gpu, rate: float) -> list[float]:
    """Return the features of the GPU itself, by which trees distinguish the GPUs that were measured."""
    return [np.log(rate), np.log(gpu.bandwidth), np.log(rate / gpu.bandwidth), float(gpu.l2_bytes), float(gpu.sms)]


def _product(calls: FamilyCalls, gpu: Gpu, rate: float) -> CallFeatures:
    b, m, n, k = (calls[name] for name in "bmnk")
    size, sms, l2 = number_formats.bytes_of_factor(calls.dtype), max(gpu.sms, 1), gpu.l2_bytes or 4e6
    nbytes = b * (size * (m * k + k * n) + number_formats.bytes_of_result(calls.dtype) * m * n)
    compute, memory = 2.0 * b * m * n * k / rate, nbytes / gpu.bandwidth
    columns = [
        *(np.log2(b), np.log2(m), np.log2(n), np.log2(k)),
        *(np.log(compute), np.log(memory), np.log(compute / memory), np.log(nbytes / l2)),
        *(np.log(size * m * k / l2), np.log(size * k * n / l2), np.log(size * m * n / l2)),
        *(np.log2(m / n), np.log2(k) - 0.5 * np.log2(m * n)),
        *(m % 2, m % 8, m % 16, m % 64, m % 128, n % 4, n % 64, k % 16, k % 64),
    ]
    for rows, wide in _TILES:
        down, across = np.ceil(m / rows), np.ceil(n / wide)
        waves = b * down * across / sms
        columns += [np.log2(waves), np.ceil(waves) / waves, np.log2(down * rows * across * wide / (m * n))]
    for side in (64, 128):
        traffic = size * b * (m * k * np.ceil(n / side) + k * n * np.ceil(m / side))
        columns.append(np.log(traffic / gpu.bandwidth / compute))
    return CallFeatures(np.stack(columns, axis=1), _overlap(compute, memory) + KERNEL_SECONDS)


def _attention(calls: FamilyCalls, gpu: Gpu, rate: float) -> CallFeatures:
    b, s, h, kv, d = (calls[name] for name in ("batch", "sequence", "heads", "kv_heads", "head_dim"))
    size, sms, l2 = DTYPE_BYTES[calls.dtype], max(gpu.sms, 1), gpu.l2_bytes or 4e6
    compute = 2.0 * b * h * s * s * d / (0.6 * rate)  # half of the scores are masked, two products
    memory = size * b * s * d * 2.0 * (h + kv) / gpu.bandwidth
    columns = [
        *(np.log2(b), np.log2(s), np.log2(h), np.log2(kv), d),
        *(np.log(compute), np.log(memory), np.log2(b * h), np.log2(b * kv), np.log2(h / kv), np.log2(b * s)),
        *(np.log(2 * size * b * s * d * kv / l2), np.log2(b * s * d * h)),
        *(np.log2(b * s * d * kv), np.log2(s * s * b * h)),
    ]
    for side in (64, 128, 192, 256):
        for waves in (b * h * np.ceil(s / side) / sms, b * kv * np.ceil(s * h / kv / side) / sms):
            columns += [np.log2(waves), np.ceil(waves) / waves]
    return CallFeatures(np.stack(columns, axis=1), _overlap(compute, memory) + ATTENTION_SECONDS)


def _rows(calls: FamilyCalls, gpu: Gpu) -> CallFeatures:
    rows, width = calls["rows"], calls["columns"]
    size, l2 = DTYPE_BYTES[calls.dtype], gpu.l2_bytes or 4e6
    nbytes = 2.0 * size * rows * width
    columns = [
        *(np.log2(width * size), np.log2(rows / max(gpu.sms, 1)), np.log2(nbytes / gpu.bandwidth)),
        *(np.log2(nbytes / l2), (width * size) % 4096, np.log2(width)),
        # The rows in flight: does a second pass over them read the cache?
        np.log2(max(gpu.sms, 1) * width * size / l2),
    ]
    return CallFeatures(np.stack(columns, axis=1), nbytes / gpu.bandwidth + KERNEL_SECONDS)


def _overlap(compute: Array, memory: Array) -> Array:
    """Return the longer time and a part of the shorter one: they overlap, but not completely."""
    longer: Array = np.maximum(compute, memory) + 0.3 * np.minimum(compute, memory)
    return longer
