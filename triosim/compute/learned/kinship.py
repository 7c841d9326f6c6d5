"""Which measured GPU another one behaves like: one whose tensor cores take the same instructions, fed at about the same rate.

Libraries choose kernels by these. Ampere, Ada and the Blackwell of workstations are programmed by ``mma.sync``, Hopper by
``wgmma``, the Blackwell of servers by ``tcgen05``. An RTX PRO 6000 therefore behaves like an L40S and not like a B200.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from triosim import gpus
from triosim.gpus import Gpu

#: GPUs further apart than this, as ``distance`` measures it, are no relatives: an H20 has the instructions of an H100, a
#: quarter of its FLOPs and twice its bandwidth.
_FAR: Final = 1.5
#: FLOPs that a multiprocessor's tensor cores do in a cycle, in half precision, from which they are those of servers.
_OF_SERVERS: Final = 4096
_MMA: Final = "mma.sync"
_PROGRAMMED_BY_MMA: Final = ("ampere", "ada")


def nearest(gpu: Gpu, names: Iterable[str], dtype: str) -> Gpu | None:
    """Return the nearest relative of a GPU among those of some names, for arithmetic on tensor cores in a dtype; or None.

    Outside tensor cores there is none: of eight GPUs' float32 products, trees of all other GPUs together came nearer.
    """
    if dtype == "float32":
        return None
    found = [other for other in map(gpus.get, names) if other is not None]
    found = [other for other in found if _instructions(other) == _instructions(gpu)]
    near = min(found, key=lambda other: distance(gpu, other, dtype), default=None)
    return near if near is not None and distance(gpu, near, dtype) < _FAR else None


def _instructions(gpu: Gpu) -> str:
    """Return the instructions of a GPU's tensor cores."""
    if gpu.architecture == "blackwell" and _in_a_cycle(gpu, "float16") < _OF_SERVERS:
        return _MMA
    return _MMA if gpu.architecture in _PROGRAMMED_BY_MMA else gpu.architecture


def distance(one: Gpu, other: Gpu, dtype: str) -> float:
    """Return how far apart two GPUs are: logarithms of FLOPs in a cycle and bytes in a second, of a multiprocessor."""
    rates = _in_a_cycle(one, dtype) / _in_a_cycle(other, dtype)
    bandwidths = one.bandwidth / max(one.sms, 1) / (other.bandwidth / max(other.sms, 1))
    return abs(math.log(rates)) + abs(math.log(bandwidths))


def _in_a_cycle(gpu: Gpu, dtype: str) -> float:
    return gpu.rate(dtype) / (max(gpu.sms, 1) * (gpu.clock_hz or 1e9))
