"""The workspaces that cuBLAS allocates from the caching allocator, and keeps: one for each thread that multiplies matrices.

Source: ``aten/src/ATen/cuda/CublasHandlePool.cpp``: a workspace belongs to a handle and a stream, and a handle to a thread;
PyTorch runs the backward pass in a thread of its own, so a training step has two. The sizes are that file's:
32 MiB on Hopper and Blackwell, 8 MiB and 128 KiB (``:4096:2:16:8``) on other NVIDIA GPUs, 32 MiB on AMD's and 128 MiB on MI300.
``CUBLAS_WORKSPACE_CONFIG`` changes them, and so does PyTorch from 2.15 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from triosim.gpus import Gpu
from triosim.trace import Operator

#: The category of this memory, which traces do not have.
WORKSPACE = "workspace"

#: ``aten::addmm``, ``aten::linear_backward``, and the profiler's ``AddmmBackward0``.
_PRODUCT = re.compile(r"(?:aten::_?)?(?:add|badd)?(?:mm|bmm|mv|mm_activation|matmul|linear)(?:_?backward0?)?", re.I)
_BY_ARCHITECTURE = {"hopper": 32 * 2**20, "blackwell": 32 * 2**20, "cdna2": 32 * 2**20, "cdna3": 128 * 2**20, "x86": 0}
_OTHERWISE = 8 * 2**20 + 128 * 2**10


def workspace_bytes(gpu: Gpu) -> int:
    """Return the bytes of one workspace on a GPU."""
    return _BY_ARCHITECTURE.get(gpu.architecture.lower(), _OTHERWISE)


@cache
def multiplies(name: str) -> bool:
    """Whether an operator of this name is a product of cuBLAS's."""
    return _PRODUCT.fullmatch(name.partition(".")[0]) is not None


def workspaces(operators: Sequence[Operator], gpu: Gpu) -> Iterator[tuple[int, int]]:
    """Yield the bytes of each workspace of a step, and the position of the product that first needs it."""
    size = workspace_bytes(gpu)
    threads: set[tuple[bool, str]] = set()
    for position, operator in enumerate(operators):
        thread = (operator.phase == "backward", operator.stream)
        if size and thread not in threads and multiplies(operator.name):
            threads.add(thread)
            yield size, position
