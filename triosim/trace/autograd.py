"""The names of PyTorch's autograd nodes: ``ConvolutionBackward0`` differentiates ``aten::conv2d``."""

from __future__ import annotations

import re
from collections.abc import Iterable

ENGINE_PREFIX = "autograd::engine::evaluate_function: "
#: The node that adds a gradient to its parameter's, or keeps it where there is none.
ACCUMULATE_GRAD = "torch::autograd::AccumulateGrad"

#: Forward calls by the stem of their backward node, where the names differ in more than their spelling.
_FORWARD: dict[str, tuple[str, ...]] = {
    "Convolution": ("conv2d", "conv1d", "conv3d", "conv_transpose2d", "convolution"),
    "CudnnConvolution": ("conv2d", "conv1d", "conv3d"),
    "Addmm": ("linear", "addmm"),
    "Mm": ("linear", "matmul", "mm"),
    "Bmm": ("matmul", "bmm", "baddbmm"),
    "UnsafeView": ("linear", "matmul", "_unsafe_view"),
    "NativeDropout": ("dropout", "native_dropout"),
    "FusedDropout": ("dropout",),
    "MaxPool2DWithIndices": ("max_pool2d",),
    "MkldnnMaxPool2D": ("max_pool2d",),
    "NllLoss": ("cross_entropy_loss", "nll_loss", "nll_loss_nd"),
    "NllLoss2D": ("cross_entropy_loss", "nll_loss2d", "nll_loss_nd"),
    "LogSoftmax": ("cross_entropy_loss", "log_softmax"),
    "NativeBatchNorm": ("batch_norm", "native_batch_norm"),
    "CudnnBatchNorm": ("batch_norm", "cudnn_batch_norm"),
    "NativeLayerNorm": ("layer_norm", "native_layer_norm"),
    "NativeGroupNorm": ("group_norm",),
    "ScaledDotProductFlashAttention": ("scaled_dot_product_attention",),
    "ScaledDotProductEfficientAttention": ("scaled_dot_product_attention",),
    "ScaledDotProductCudnnAttention": ("scaled_dot_product_attention",),
    "View": ("flatten", "view", "reshape"),
    "ReshapeAlias": ("flatten", "reshape"),
}


def short_name(name: str) -> str:
    """Return the node's own name, ``ConvolutionBackward0``, without the engine's prefix and C++ namespaces."""
    short = name.removeprefix(ENGINE_PREFIX)
    return short.removeprefix("torch::autograd::")


def forward_names(name: str, known: Iterable[str]) -> list[str]:
    """Return those of the ``known`` forward kinds (``conv2d``) that a backward node may differentiate, the likeliest first."""
    match = re.fullmatch(r"(\w+)Backward\d*", name)
    if match is None:
        return []
    kinds = list(known)
    stem = match.group(1)
    spelt = stem.lower()
    found = [kind for kind in _FORWARD.get(stem, ()) if kind in kinds]
    return found or [kind for kind in kinds if kind.replace("_", "").lower() == spelt]
