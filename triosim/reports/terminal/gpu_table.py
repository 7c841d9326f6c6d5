"""The GPU catalogue as a table and as JSON, which is also a GPU file that a user can change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import RenderableType

from triosim.gpus import Gpu, energy
from triosim.reports.terminal.tables import facts_table, table
from triosim.units import format_bandwidth, format_bytes


def render(gpus: Sequence[Gpu]) -> RenderableType:
    """Return a row for each GPU."""
    rows = []
    for gpu in gpus:
        rates = (gpu.flops.get(dtype) for dtype in ("float32", "tf32", "bfloat16", "float8_e4m3fn"))
        links = gpu.nvlink_bandwidth or gpu.pcie_bandwidth
        memory = format_bytes(gpu.capacity), format_bandwidth(gpu.bandwidth)
        flops = ("" if rate is None else _rate(rate) for rate in rates)
        rows.append((gpu.name, *flops, *memory, format_bandwidth(links) if links else ""))
    return table(
        "GPU catalogue",
        *("name", "fp32", "tf32", "bf16", "fp8", "memory", "bandwidth", "links"),
        rows=rows,
        main=("bf16", "memory"),
        legend="fp32 to fp8: dense peaks in TFLOP/s; bandwidth: the memory's; links: NVLink or Infinity Fabric, else PCIe, "
        "in one direction",
    )


def render_one(gpu: Gpu) -> RenderableType:
    """Return everything that is known of a GPU."""
    facts = [
        ("name", gpu.name),
        ("also called", ", ".join(gpu.aliases)),
        ("architecture", gpu.architecture),
        ("peak TFLOP/s", ", ".join(f"{dtype} {_rate(rate)}" for dtype, rate in gpu.flops.items())),
        ("memory", f"{format_bytes(gpu.capacity)}, {format_bandwidth(gpu.bandwidth)}"),
        ("L2 cache", format_bytes(gpu.l2_bytes) if gpu.l2_bytes else ""),
        ("processors", f"{gpu.sms}" + (f" at {gpu.clock_hz / 1e9:g} GHz" if gpu.clock_hz else "") if gpu.sms else ""),
        ("NVLink", f"{format_bandwidth(gpu.nvlink_bandwidth)} in one direction" if gpu.nvlink_bandwidth else ""),
        ("PCIe", f"{format_bandwidth(gpu.pcie_bandwidth)} in one direction" if gpu.pcie_bandwidth else ""),
        ("power", f"{gpu.tdp_watts:g} W" if gpu.tdp_watts else ""),
        ("energy", _energies(gpu)),
        ("sustained", _sustained(gpu)),
        ("price", f"{gpu.price_per_hour:g} an hour" if gpu.price_per_hour is not None else ""),
        ("source", gpu.source),
    ]
    return facts_table((name, value) for name, value in facts if value)


def _energies(gpu: Gpu) -> str:
    """Return the energy of a FLOP by dtype, and what it rests on."""
    found = ", ".join(f"{dtype} {1e12 * joules:.3g} pJ" for dtype in gpu.flops if (joules := energy.joules(gpu, dtype)))
    known = energy.of_architecture(gpu)
    return f"{found} a FLOP ({'given' if gpu.joules_per_flop else known.source if known else ''})" if found else ""


def _sustained(gpu: Gpu) -> str:
    """Return at which rate and clock the board's power lets long products run, of the dtypes that it limits."""
    limits = {
        dtype: energy.sustained_rate(gpu, dtype)
        for dtype, rate in gpu.flops.items()
        if energy.sustained_rate(gpu, dtype) < rate
    }
    return ", ".join(
        f"{dtype} {_rate(rate)} TFLOP/s at {energy.sustained_clock(gpu, dtype) / 1e9:.2f} GHz"
        for dtype, rate in limits.items()
    )


def as_json(gpus: Sequence[Gpu] | Gpu) -> str:
    """Return one GPU as an object, several as a list; each is also a GPU file, since JSON is YAML."""
    return json.dumps(asdict(gpus) if isinstance(gpus, Gpu) else [asdict(gpu) for gpu in gpus], indent=2) + "\n"


def _rate(rate: float) -> str:
    return f"{rate / 1e12:.4g}"
