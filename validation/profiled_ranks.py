"""Steps written as PyTorch's profiler would have recorded them on every rank, and read again: on the same network, and on one
five times as slow, where only what waited for communication may take longer.

The profiles are our own (``Result.save_kineto``): those of a cluster have stragglers and clocks of their own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import triosim
from validation.report import Row, relative

_GPUS = 4
_PROFILED, _SLOW = 100, 20
_CLAIMED = {_PROFILED: 0.001, _SLOW: 0.001}
#: The options of each step.
STEPS: tuple[dict[str, Any], ...] = (
    {"parallel": "ddp=4"},
    {"parallel": "zero1=4"},
    {"parallel": "fsdp=4"},
    {"parallel": "tp=4", "tp_style": "megatron"},
    {"parallel": "tp=4", "tp_style": "megatron", "sequence_parallel": True},
    {"parallel": "pp=4", "micro_batches": 8, "schedule": "1f1b"},
    {"parallel": "dp=2,pp=2", "micro_batches": 4},
    {"parallel": "pp=2", "micro_batches": 4, "schedule": "interleaved", "virtual_stages": 2},
    {"parallel": "cp=4"},
    {"parallel": "dp=2,tp=2"},
    {"parallel": "dp=2,fsdp=2"},
    {"parallel": "fsdp=4", "offload": "optimizer=host"},
    {"parallel": "fsdp=4", "offload": "parameters=host,optimizer=host"},
    {"parallel": "fsdp=4", "offload": "activations=host"},
    {"parallel": "ddp=4", "offload": "optimizer=host", "micro_batches": 2},
    {"parallel": "zero2=4", "offload": "optimizer=nvme"},
)


def rows() -> list[Row]:
    found = []
    for options in STEPS:
        label = ", ".join(str(value) for value in options.values())
        for (bandwidth, claimed), off in zip(_CLAIMED.items(), errors(options), strict=True):
            found.append(Row(f"gpt2, {label}: step time at {bandwidth} GB/s", "profiles read again", 1, off, claimed))
    return found


def _switch(bandwidth: float) -> dict[str, Any]:
    """Return a host whose GPUs reach each other over a switch, and its memory and drives over PCIe."""
    return {
        "topology": "switch",
        "gpus": _GPUS,
        "bandwidth": f"{bandwidth} GB/s",
        "latency": "1 us",
        "host": {"bandwidth": "25 GB/s"},
        "host_memory": {"capacity": "1 TB", "bandwidth": "200 GB/s"},
        "nvme": {"capacity": "8 TB", "read": "12 GB/s", "write": "6 GB/s"},
    }


def errors(options: dict[str, Any]) -> list[float]:
    """Return by how much the step of the profiles of one network differs from the step itself, there and on a slow one."""
    model = {"layers": 4, "gpu": "A100", **options}
    with tempfile.TemporaryDirectory() as place:
        profiles = str(Path(place) / "profiles")
        triosim.simulate("gpt2", topology=_switch(_PROFILED), timeline=True, **model).save_kineto(profiles)
        found = []
        for bandwidth in (_PROFILED, _SLOW):
            step = triosim.simulate("gpt2", topology=_switch(bandwidth), **model).step_time_s
            again = triosim.simulate(profiles, topology=_switch(bandwidth)).step_time_s
            found.append(relative(again, step))
    return found
