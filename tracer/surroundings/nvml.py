"""Lets a script that asks NVIDIA's management library by ``pynvml`` see the fake GPUs, as ``nvidia-smi`` does.

What is not simulated, such as power and clocks, is "not supported", as NVML says of a GPU that lacks it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from triosim.tracer.patches import Patch

_NOT_SUPPORTED = 3  # NVML_ERROR_NOT_SUPPORTED
_DRIVER = "580.82.07"


def patches_after_import(module: ModuleType) -> list[Patch]:
    """Return patches by which ``pynvml`` answers for the fake GPUs."""

    def unsupported(*_: Any) -> Any:
        raise module.NVMLError(_NOT_SUPPORTED)

    answers = {**_of_the_machine(module), **_of_a_gpu()}
    return [
        *[Patch(module, name, answer, missing="leave") for name, answer in answers.items()],
        Patch(module, "_nvmlGetFunctionPointer", unsupported),
    ]


def _of_the_machine(module: ModuleType) -> dict[str, Callable[..., Any]]:
    def handle(index: int) -> int:
        if not 0 <= index < torch.cuda.device_count():
            raise module.NVMLError(2)  # NVML_ERROR_INVALID_ARGUMENT
        return index

    return {
        "nvmlInit": lambda: None,
        "nvmlInitWithFlags": lambda flags: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": torch.cuda.device_count,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetHandleByUUID": lambda uuid: handle(int(str(uuid).rpartition("-")[2].strip("'"))),
        "nvmlSystemGetDriverVersion": lambda: _DRIVER,
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
    }


def _of_a_gpu() -> dict[str, Callable[..., Any]]:
    def memory(handle: int, version: Any = None) -> SimpleNamespace:
        free, total = torch.cuda.mem_get_info()
        return SimpleNamespace(total=total, free=free, used=total - free)

    return {
        "nvmlDeviceGetName": lambda handle: torch.cuda.get_device_name(),
        "nvmlDeviceGetUUID": lambda handle: f"GPU-simulated-{handle}",
        "nvmlDeviceGetIndex": lambda handle: handle,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=100, memory=100),
        "nvmlDeviceGetTemperature": lambda handle, sensor=0: torch.cuda.temperature(),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: torch.cuda.get_device_capability(),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [],
    }
