"""The memory of a GPU that a PyTorch process can use: what the driver leaves, minus the CUDA context.

Data sheets say 80 GB; PyTorch sees 79.2 GiB of an H100, and the context, with the kernels that are loaded, takes 0.7 GiB of
them. Both figures are from out-of-memory messages that people published in 2023 to 2026: "GPU 0 has a total capacity of ...
Including non-PyTorch memory, this process has ... memory in use. Of the allocated memory ... is allocated by PyTorch, and ...
is reserved by PyTorch but unallocated", where the context is what is left of the memory in use. Messages for one kind of
GPU differ by 0.1 GiB; the figures are their middle.
"""

from __future__ import annotations

from collections.abc import Mapping

from triosim.gpus import Gpu, get

GIB = 2**30

#: The total capacity that PyTorch reports for a GPU, in GiB. Any other GPU is assumed to have what its data sheet says.
_SEEN: Mapping[str, float] = {
    "V100-SXM2-16GB": 15.77,
    "V100-PCIe-16GB": 15.77,
    "V100-SXM2-32GB": 31.73,
    "V100-PCIe-32GB": 31.73,
    "T4": 14.56,
    "A40": 44.42,
    "A100-SXM-40GB": 39.49,
    "A100-PCIe-40GB": 39.49,
    "A100-SXM-80GB": 79.25,
    "A100-PCIe-80GB": 79.25,
    "L4": 22.03,
    "L40S": 44.39,
    "H100-SXM": 79.18,
    "H100-PCIe": 79.18,
    "H100-NVL": 93.1,
    "H200": 139.8,
    "B200": 178.35,
    "RTX-3090": 23.69,
    "RTX-4090": 23.64,
}

#: What the CUDA context takes, in GiB, by architecture.
_CONTEXT: Mapping[str, float] = {
    "volta": 0.38,
    "turing": 0.15,
    "ampere": 0.45,
    "ada": 0.4,
    "hopper": 0.7,
    "blackwell": 0.7,
    "x86": 0.0,
}
_OTHER_CONTEXT = 0.5


def visible(gpu: Gpu) -> int:
    """Return the bytes of a GPU's memory that PyTorch sees."""
    like = get(gpu.like) if gpu.like else None
    if like is not None and like.capacity == gpu.capacity:
        return visible(like)
    seen = _SEEN.get(gpu.name)
    return round(gpu.capacity if seen is None else seen * GIB)


def context(gpu: Gpu | None) -> int:
    """Return the bytes that the CUDA context takes on a GPU, before PyTorch's allocator has any."""
    return round(GIB * (_OTHER_CONTEXT if gpu is None else _CONTEXT.get(gpu.architecture.lower(), _OTHER_CONTEXT)))
