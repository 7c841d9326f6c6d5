"""The features of a convolution on a GPU, and the roofline time whose multiple a Gaussian process predicts.

cuDNN computes a convolution as an implicit product of matrices, or, of 3x3 kernels, after Winograd (Lavin and Gray, CVPR
2016): 2x2 outputs at once in one kernel, with 2.25 times fewer multiplications, or 4x4 at once in several, with 4 times fewer
and the transformed data written to memory. The roofline is the quickest of the three. Tensor cores compute the product alone,
and read tensors with their channels last: others are converted before and after. All features are logarithms of ratios or of
sizes of the call, and none is one of the GPU alone, so that they carry over to other GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from triosim.compute.compute_model import Array, Mask
from triosim.compute.families import FamilyCalls
from triosim.compute.learned.gaussian_process import LABELS, Points
from triosim.gpus import Gpu, energy
from triosim.operators.convolutions import CHANNELS_LAST, Direction, Geometry
from triosim.trace import DTYPE_BYTES

#: The shortest convolution: launch, drain, and the set-up of the filter.
_LEAST_SECONDS = 5e-6
_TILES = ((128, 128), (128, 64), (64, 64), (32, 128), (128, 32))
#: The part of the rate that a tile of so many numbers reaches: small tiles read their factors more often.
_TILE_EFFICIENCY = {128 * 128: 1.0, 128 * 64: 0.9, 64 * 64: 0.75, 128 * 32: 0.7}
#: Half precision on ordinary cores is at most this many times as fast as float32; on tensor cores it is faster.
_PACKED = 2.1
#: The share of the attainable rate of products that is the rate of convolutions, and of the bandwidth that conversions reach.
_SHARE, _CONVERSION_SHARE = 0.85, 0.5
#: The fewest steps along the inner side that a part of a product that is split there has.
_LEAST_SPLIT = 512.0
#: The most channels of an image, for which there are kernels of their own.
_OF_AN_IMAGE = 4
#: The least ratio of the data's pixels to those that the result's, with the stride, would need.
_LEAST_RATIO = 0.01


def arithmetic_dtype(dtype: str, gpu: Gpu) -> str:
    """Return the dtype that a GPU convolves in: without tensor cores for a dtype, cuDNN computes in float32."""
    on_tensor_cores = "tf32" in gpu.flops or gpu.rate("float16") > _PACKED * gpu.rate("float32")
    return dtype if on_tensor_cores and dtype in gpu.flops else "float32"


def rate(gpu: Gpu, dtype: str) -> float:
    """Return the FLOP/s of long convolutions: a share of the peak, or what the board's power allows for long."""
    computed = arithmetic_dtype(dtype, gpu)
    return min(_SHARE * gpu.rate(computed), energy.sustained_rate(gpu, computed))


@dataclass(frozen=True)
class _Sides:
    """A call as ``groups`` products of (m, k) by (k, n), with the bytes of data, weight and result."""

    m: Array
    n: Array
    k: Array
    data: Array
    weight: Array
    out: Array

    @property
    def bytes(self) -> Array:
        return self.data + self.weight + self.out


def convolution_points(calls: FamilyCalls, gpu: Gpu, measured: str = "") -> tuple[Points, Array]:
    """Return the features and labels of calls, and their roofline times in seconds.

    ``measured`` is the GPU among those of a model whose chip the GPU has, if it is not the GPU itself.
    """
    sides, computed = _sides(calls), arithmetic_dtype(calls.dtype, gpu)
    long = rate(gpu, calls.dtype)
    arithmetic = 2.0 * calls["groups"] * sides.m * sides.n * sides.k / long
    memory = sides.bytes / gpu.bandwidth
    roofline = np.maximum(_product(sides, calls["groups"], long, max(gpu.sms, 1)), memory)
    if computed == "float32":
        roofline = np.minimum(roofline, np.min(_winograd(calls, sides, gpu, long), axis=0)) + _LEAST_SECONDS
    else:
        roofline = roofline + _LEAST_SECONDS + _conversions(calls, sides, gpu)
    tiles = calls["groups"] * np.ceil(sides.m / 128) * np.ceil(sides.n / 64) / max(gpu.sms, 1)
    ratios = (arithmetic / memory, tiles, roofline / _LEAST_SECONDS)
    features = np.stack([*(np.log2(one) for one in ratios), *_of_sizes(calls, sides)], axis=1)
    units = f"{'float32' if computed == 'float32' else 'tensor cores'} {DTYPE_BYTES.get(calls.dtype, 4)}"
    labels = np.empty((len(calls), len(LABELS)), dtype="<U64")
    labels[:, :3] = (f"{measured or gpu.name} {units}", f"{gpu.architecture} {units}", units.rpartition(" ")[0])
    for direction, chosen in zip(get_args(Direction), _directions(calls), strict=True):
        labels[chosen, 3] = direction
    sizes = np.stack([calls[name] for name in Geometry._fields], axis=1).astype(np.int64).astype(str)
    labels[:, 4] = [" ".join(row) for row in np.hstack([labels[:, 3:4], sizes])]
    labels[:, 5] = np.where(aligned(calls), "aligned", "odd")
    return Points(features, labels), roofline


def _sides(calls: FamilyCalls) -> _Sides:
    batch, groups, stride = calls["batch"], calls["groups"], calls["stride"]
    into, out_of = calls["in_channels"] / groups, calls["out_channels"] / groups
    window = calls["kernel_height"] * calls["kernel_width"]
    pixels, out_pixels = batch * calls["height"] * calls["width"], batch * calls["out_height"] * calls["out_width"]
    m = np.select(_directions(calls), (out_pixels, pixels, into * window))
    n = np.select(_directions(calls), (out_of, into, out_of))
    k = np.select(_directions(calls), (into * window, out_of * window / stride**2, out_pixels))
    size = DTYPE_BYTES.get(calls.dtype, 4)
    parts = (pixels * into * groups, out_of * into * groups * window, out_pixels * out_of * groups)
    return _Sides(m, n, np.maximum(k, 1.0), *(size * part for part in parts))


def _directions(calls: FamilyCalls) -> list[Mask]:
    assert calls.kinds is not None, "convolutions have a direction"
    return [np.char.startswith(calls.kinds, name) for name in ("forward", "data", "weight")]


def aligned(calls: FamilyCalls) -> Mask:
    """Return which calls have channels in multiples of 8 (of TF32, of 4), or the few of an image: kernels differ for others."""
    into, out_of, whole = calls["in_channels"], calls["out_channels"], 4 if calls.dtype == "tf32" else 8
    found: Mask = ((into % whole == 0) | (into <= _OF_AN_IMAGE)) & (out_of % whole == 0)
    return found


def _conversions(calls: FamilyCalls, sides: _Sides, gpu: Gpu) -> Array:
    """Return the seconds of reading and writing data and result again, where their channels are not last.

    Kernels of one pixel need none: on a V100 and a T4, their forward times are within 15% of one multiple of the product's.
    """
    assert calls.kinds is not None
    moved = 2.0 * (sides.data + sides.out) / (_CONVERSION_SHARE * gpu.bandwidth)
    one_pixel = (calls["kernel_height"] == 1) & (calls["kernel_width"] == 1)
    found: Array = np.where(one_pixel | np.char.endswith(calls.kinds, CHANNELS_LAST), 0.0, moved)
    return found


def _product(sides: _Sides, batch: Array, rate: float, sms: int) -> Array:
    """Return the seconds of products in the best of some tiles, in whole waves over the multiprocessors.

    Where there are fewer tiles than multiprocessors, a long inner side is split.
    """
    best = np.full(len(sides.m), np.inf)
    for rows, wide in _TILES:
        tiles = batch * np.ceil(sides.m / rows) * np.ceil(sides.n / wide)
        split = np.clip(np.floor(sms / tiles), 1.0, np.maximum(np.floor(sides.k / _LEAST_SPLIT), 1.0))
        work = np.ceil(tiles * split / sms) * sms / split
        best = np.minimum(
            best, 2.0 * work * rows * wide * np.maximum(sides.k, 8.0) / rate / _TILE_EFFICIENCY[rows * wide]
        )
    return best


def _winograd(calls: FamilyCalls, sides: _Sides, gpu: Gpu, rate: float) -> list[Array]:
    """Return the seconds in one kernel and in several, infinite where Winograd cannot be used."""
    usable = (calls["kernel_height"] == 3) & (calls["kernel_width"] == 3) & (calls["groups"] == 1)
    usable &= (calls["stride"] == 1) & (calls["dilation"] == 1)
    into, out_of = calls["in_channels"], calls["out_channels"]
    of_2, of_4 = (
        calls["batch"] * np.ceil(calls["out_height"] / side) * np.ceil(calls["out_width"] / side) for side in (2, 4)
    )
    fused = 2.0 * 16 * np.ceil(of_2 / 32) * 32 * into * np.ceil(out_of / 32) * 32 / rate
    one_kernel = np.maximum(fused, sides.bytes / gpu.bandwidth)
    transformed = _Sides(of_4, out_of, into, sides.data, sides.weight, sides.out)
    size = DTYPE_BYTES.get(calls.dtype, 4)
    moved = size * (2.0 * 36 * of_4 * (into + out_of) + 45 * into * out_of) + sides.data + sides.out
    several = _product(transformed, np.full(len(of_4), 36.0), rate, max(gpu.sms, 1)) + moved / gpu.bandwidth
    return [np.where(usable, time, np.inf) for time in (one_kernel, several)]


def _of_sizes(calls: FamilyCalls, sides: _Sides) -> list[Array]:
    """Return the features of a call's sizes, and of how much of tiles and vectors is empty."""
    names = ("batch", "in_channels", "out_channels", "height", "width", "out_height", "out_width", "stride")
    batch, into, out_of, height, width, out_height, out_width, stride = (calls[name] for name in names)
    out_pixels, window = out_height * out_width, calls["kernel_height"] * calls["kernel_width"]
    padding = height * width / (out_pixels * stride**2)
    sizes = (batch, into, out_of, out_pixels, window, np.sqrt(width / height), np.maximum(padding, _LEAST_RATIO))
    empty = [
        np.ceil(side / whole) * whole / side for side, whole in ((into, 8), (out_of, 8), (sides.n, 64), (sides.m, 64))
    ]
    empty.append(np.ceil(out_width / 4) * 4 * np.ceil(out_height / 4) * 4 / out_pixels)
    return [*(np.log2(one) for one in (*sizes, *empty)), stride - 1.0, (into % 4 != 0).astype(np.float64)]
