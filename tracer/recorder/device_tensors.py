"""Which of a script's tensors are on the fake device, of distributed ones their local parts."""

from __future__ import annotations

from typing import Any


def on_device(value: Any) -> bool:
    """Whether something is a tensor on the fake device."""
    device = getattr(value, "fake_device", None)
    return device is not None and device.type == "cuda"


def local_tensors(value: Any) -> list[Any]:
    """Return the tensors on the device that a tensor consists of: itself, or the local part of a distributed one."""
    if value is None:
        return []
    if on_device(value):
        return [value]
    parts = getattr(value, "__tensor_flatten__", None)
    if parts is None:
        return []
    return [found for name in parts()[0] for found in local_tensors(getattr(value, name))]
