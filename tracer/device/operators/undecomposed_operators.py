"""Operators that have one kernel on a GPU, and that a build of PyTorch without CUDA decomposes before they are recorded.

PyTorch has a CUDA kernel for each, and a composition of other operators for devices without a kernel
(``aten/src/ATen/native/native_functions.yaml``; its dispatcher decides, ``aten/src/ATen/core/dispatch/OperatorEntry.cpp``).
Registering a kernel here keeps the operator whole. The kernel never runs: the dispatch modes compute the shape before.
"""

from __future__ import annotations

from typing import Any

from triosim.tracer.patches import Patches

KERNELS = ("silu_backward", "mish_backward", "_fused_rms_norm")


def install(patches: Patches) -> None:
    """Keep these operators whole on the fake device, until the patches are undone."""
    patches.register_kernels(dict.fromkeys(KERNELS, _absent), ("CUDA",))


def _absent(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("there is no GPU that could run this kernel")
