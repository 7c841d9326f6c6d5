"""Tensors of zeros without memory, which forward-mode differentiation makes (``torch._efficientzerotensor``), are plain zeros.

PyTorch works out the shape of what is computed with one by its rules for tensors on "meta" (``ZeroTensorFallback.cpp`` and
``BinaryOps.cpp`` in ATen), and under ``vmap`` it then loses what makes a tensor fake. They take no operator of their own.
"""

from __future__ import annotations

from typing import Any

import torch

from triosim.tracer.device.dispatch_mode import DeviceMode


def install(mode: DeviceMode) -> None:
    """Make plain zeros instead."""

    def zeros(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        with mode, mode.muted():
            return torch.zeros(*args, **kwargs)

    mode.replace({torch.ops.aten._efficientzerotensor.default: zeros})
