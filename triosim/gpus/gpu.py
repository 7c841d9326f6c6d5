"""The data sheet of a GPU: its rates, memory, links and power.

Rates are dense peaks in FLOP/s, by dtype; ``float32`` is that of the ordinary cores and ``tf32`` that of float32 matrix
products on tensor cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: The dtype that a GPU without arithmetic of a dtype computes in. Half precision without tensor cores is emulated in float32.
_INSTEAD: Mapping[str, str] = {
    "float4_e2m1fn": "float4_e2m1fn_x2",
    "float4_e2m1fn_x2": "float8_e4m3fn",
    "float8_e4m3fn_block": "float8_e4m3fn",
    "float8_e5m2": "float8_e4m3fn",
    "float8_e4m3fn": "float16",
    "bfloat16": "float32",
    "float16": "float32",
    "tf32": "float32",
    "complex64": "float32",
    "complex128": "float64",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: ``flops`` in FLOP/s by dtype, bandwidths in bytes per second and one direction, sizes in bytes.

    ``nvlink_bandwidth`` is that of all links to other GPUs together (NVLink, Infinity Fabric), 0 without any; ``sms`` is how
    many multiprocessors (compute units, cores) it has; ``exponentials`` is how many of them special function units compute a
    second, where that is not 16 a clock of a multiprocessor; ``joules_per_flop`` is the whole board's energy for a FLOP of a
    long product, by dtype, where it is not that of the architecture (``triosim.gpus.energy``). 0 means unknown. ``like`` is the
    GPU of the catalogue that it differs from.
    """

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    capacity: float
    aliases: tuple[str, ...] = ()
    architecture: str = ""
    l2_bytes: float = 0.0
    sms: int = 0
    clock_hz: float = 0.0
    nvlink_bandwidth: float = 0.0
    pcie_bandwidth: float = 0.0
    tdp_watts: float = 0.0
    exponentials: float = 0.0
    joules_per_flop: Mapping[str, float] = field(default_factory=dict)
    price_per_hour: float | None = None
    source: str = ""
    like: str = ""

    def rate(self, dtype: str) -> float:
        """Return the peak FLOP/s of a dtype (``tf32`` is one here), or of the dtype that this GPU computes it in."""
        while dtype not in self.flops:
            dtype = _INSTEAD.get(dtype, "float32")
        return self.flops[dtype]
