"""Captures traces from PyTorch: of a block of code (``capture``), a function or a script, on a real device or a fake one.

The names are loaded when they are asked for (PEP 562), because they import PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from triosim.tracer.pytorch_version import require_torch

if TYPE_CHECKING:
    from triosim.tracer.fake_device import FakeDevice as FakeDevice
    from triosim.tracer.fake_device import fake_capture as fake_capture
    from triosim.tracer.profiler.device_capture import capture as capture
    from triosim.tracer.profiler.device_capture import capture_script as capture_script
    from triosim.tracer.profiler.device_capture import capture_step as capture_step

__all__ = ["FakeDevice", "capture", "capture_script", "capture_step", "fake_capture"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'triosim.tracer' has no attribute '{name}'")
    require_torch()
    module = "fake_device" if name in ("FakeDevice", "fake_capture") else "profiler.device_capture"
    return getattr(import_module(f"triosim.tracer.{module}"), name)
