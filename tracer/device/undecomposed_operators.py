"""Operators that are one kernel on a GPU, and that a PyTorch without CUDA takes apart before anybody sees them.

PyTorch has both for them, a CUDA kernel and a composition of other operators, which stands in where there is no kernel
(``aten/src/ATen/native/native_functions.yaml``; its dispatcher decides, ``aten/src/ATen/core/dispatch/OperatorEntry.cpp``).
A kernel that is registered here makes PyTorch see one. It never runs: the modes answer with a shape before.
"""

from __future__ import annotations

from typing import Any

import torch

from triosim.tracer.patches import Patches

KERNELS = ("silu_backward", "mish_backward", "_fused_rms_norm")


def install(patches: Patches) -> None:
    """Keep these operators whole on the device that is not there, until the patches are undone."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    patches.on_leaving(library._destroy)
    for name in KERNELS:
        if hasattr(torch.ops.aten, name):
            library.impl(name, _absent, "CUDA")


def _absent(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("there is no GPU that could run this kernel")
