"""Memory formats of images: what cuDNN's convolutions return, and which operators a trace says have their channels last.

PyTorch gives a convolution's result the format that its library prefers, which a build without CUDA does not know. cuDNN
returns channels last where the data or the weight has them (``aten/src/ATen/native/ConvUtils.h``,
``cudnn_conv_suggest_memory_format``), other than in double precision.
"""

from __future__ import annotations

from typing import Any

import torch

from triosim.tracer.patches import Patch, Patches

#: Operators on images whose kernel depends on the memory format; of gradients, the data is the second tensor.
_ON_IMAGES = ("convolution", "batch_norm", "pool2d", "upsample")


def install(patches: Patches) -> None:
    """Let convolutions return tensors in cuDNN's memory format until the patches are undone."""
    patches.make([Patch(torch._C, "_conv_determine_backend_memory_format", _of_convolution)])


def depends_on_format(name: str) -> bool:
    """Whether an operator's kernel depends on the memory format of its images."""
    return any(word in name for word in _ON_IMAGES)


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether a tensor of images has its channels last, and is not contiguous too, as one of a single channel or pixel is."""
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _of_convolution(data: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
    both = (data, weight)
    if any(tensor.dtype == torch.float64 for tensor in both):
        return torch.contiguous_format
    if any(is_channels_last(tensor) for tensor in both):
        return torch.channels_last
    last_of_3d = torch.channels_last_3d
    if any(one.dim() == 5 and not one.is_contiguous() and one.is_contiguous(memory_format=last_of_3d) for one in both):
        return last_of_3d
    return torch.contiguous_format
