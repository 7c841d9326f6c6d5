"""Chooses the attention kernel that ``scaled_dot_product_attention`` would run on a GPU, without one.

The order is PyTorch's own for CUDA (``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``): FlashAttention for half
precision without a mask and heads of up to 256, which are padded to a multiple of 8, from Ampere on; the memory-efficient
kernel where keys have as many heads as queries; else the plain products, also for groups of heads in single precision
(``enable_gqa``), which no other kernel takes. Each can be switched off, as ``torch.backends.cuda`` and ``sdpa_kernel`` do.
FlashAttention also stands for cuDNN's kernel, which PyTorch prefers on Hopper with a recent cuDNN: the shapes are the same.
Flex attention is recorded as one operator, as its compiled kernel is, and its backward pass as another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import TracingContext
from torch.nn.attention import flex_attention

from triosim.tracer.device.operators.dtype_checks import one_dtype
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.pytorch_version import required

if TYPE_CHECKING:
    from triosim.tracer.device.dispatch_mode import DeviceMode

_FLASH_FROM = (8, 0)
_ALIGNMENT = 16  # bytes that tensor cores load at once
_LARGEST_HEAD = 256
_FLASH_MULTIPLE = 8


def install(patches: Patches, mode: DeviceMode) -> None:
    """Choose attention kernels for tensors on the fake device, until the patches are undone."""
    patches.register_kernels({"scaled_dot_product_attention": attention})
    operator = type(required(flex_attention, "flex_attention_hop"))
    patches.make([Patch(operator, "__call__", _flex(mode, operator.__call__))])


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Run the kernel that PyTorch would choose. Shapes are (batch, heads, length, features)."""
    one_dtype("scaled_dot_product_attention", [query, key, value])
    capability = torch.cuda.get_device_capability()
    same_heads = query.dim() == 4 and query.size(1) == key.size(1) == value.size(1)
    if (same_heads or enable_gqa) and _flash_supports(query, key, value, attn_mask, is_causal, dropout_p, capability):
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if same_heads and _efficient_supports(query, value, capability):
        return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if not torch._C._get_math_sdp_enabled():
        raise RuntimeError("No available kernel. Aborting execution.")  # as PyTorch says it
    math = torch.ops.aten._scaled_dot_product_attention_math
    return math(query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa)[0]  # type: ignore[no-any-return]


def _flash_supports(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    dropout_p: float,
    capability: tuple[int, int],
) -> bool:
    features = query.size(-1)
    trains = query.requires_grad or key.requires_grad or value.requires_grad
    small = capability in ((8, 6), (8, 9)) or capability[0] == 12  # too little shared memory for some backward passes
    return (
        capability >= _FLASH_FROM
        and mask is None
        and query.dim() == 4
        and query.dtype in (torch.float16, torch.bfloat16)
        and key.size(-1) == value.size(-1) == features <= _LARGEST_HEAD
        and not (is_causal and query.size(-2) != key.size(-2))
        and not (trains and small and (192 < features <= 224 or (features > 224 and dropout_p > 0)))
        and _flash_is_on()
    )


def _flash_is_on() -> bool:
    """Whether FlashAttention is enabled, or only cuDNN's kernel is."""
    c = torch._C
    others = c._get_mem_efficient_sdp_enabled() or c._get_math_sdp_enabled()
    return c._get_flash_sdp_enabled() or (c._get_cudnn_sdp_enabled() and not others)


def _efficient_supports(query: torch.Tensor, value: torch.Tensor, capability: tuple[int, int]) -> bool:
    half = query.dtype in (torch.float16, torch.bfloat16)
    known = query.dtype in (torch.float16, torch.float32) or (half and capability >= _FLASH_FROM)
    tensor_cores = capability >= _FLASH_FROM or (half and capability >= (7, 0))
    elements = _ALIGNMENT // query.element_size() if tensor_cores else 1
    aligned = query.size(-1) % elements == 0 == value.size(-1) % elements
    return known and aligned and torch._C._get_mem_efficient_sdp_enabled()


def _flash(query: Any, key: Any, value: Any, dropout_p: float, is_causal: bool, scale: float | None) -> torch.Tensor:
    features = query.size(-1)
    padding = -features % _FLASH_MULTIPLE
    if padding:
        query, key, value = (torch.nn.functional.pad(one, (0, padding)) for one in (query, key, value))
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    factor = features**-0.5 if scale is None else scale
    result: torch.Tensor = flash(query, key, value, dropout_p, is_causal, False, scale=factor)[0]
    return result[..., :features] if padding else result


def _efficient(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, scale: float | None
) -> torch.Tensor:
    if mask is not None:
        if mask.dtype == torch.bool:
            zero = torch.zeros_like(mask, dtype=query.dtype)
            mask = zero.masked_fill(mask.logical_not(), float("-inf"))
        mask = _padded(mask).expand(query.size(0), query.size(1), query.size(2), key.size(2))
    needs_gradient = query.requires_grad or key.requires_grad or value.requires_grad
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, mask, needs_gradient, dropout_p, is_causal, scale=scale)[0]  # type: ignore[no-any-return]


def _padded(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask whose rows begin at multiples of 16 elements: one of another length is copied into padded memory."""
    length = mask.size(-1)
    padding = -length % 16
    if not padding or mask.stride(-1) != 1:
        return mask
    return torch.nn.functional.pad(mask, (0, padding))[..., :length]


def _flex(mode: DeviceMode, original: Any) -> Any:
    """Return a replacement for the operator behind ``flex_attention`` that computes shapes and records one operator.

    Which blocks of the scores a mask skips is not known, so all are assumed to be computed. The compiler traces
    PyTorch's own, and its graph has it as a node.
    """

    class Flex(torch.autograd.Function):
        """Flex attention of (batch, heads, length, features): the result, and the scores' log-sum-exp and maximum."""

        @staticmethod
        def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
            with mode.muted():
                out = query.new_empty((*query.shape[:-1], value.shape[-1]))
                sums, largest = (query.new_empty(query.shape[:-1], dtype=torch.float32) for _ in range(2))
            mode.recorder.operator("flex_attention", {}, (query, key, value), (out, sums, largest))
            ctx.save_for_backward(query, key, value, out, sums)
            ctx.mark_non_differentiable(sums, largest)
            return out, sums, largest

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
            saved = ctx.saved_tensors
            with mode.muted():
                made = tuple(one.new_empty(one.shape) for one in saved[:3])
            mode.recorder.operator("flex_attention_backward", {}, (gradient, *saved), made)
            return made

    def flex(self: Any, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
        if not hasattr(query, "fake_device") or TracingContext.try_get() is not None:
            return original(self, query, key, value, *others, **options)
        note_mask(mode, others)
        return Flex.apply(query, key, value)  # type: ignore[no-untyped-call]

    return flex


def note_mask(mode: DeviceMode, given: Iterable[Any]) -> None:
    """Say that a mask of flex attention with several blocks, among what it was called with, makes nothing faster here."""
    blocks = [one for mask in given if isinstance(mask, tuple) for one in mask if isinstance(one, torch.Tensor)]
    if any(one.numel() > 1 for one in blocks):
        mode.recorder.note("flex attention computes all blocks of its scores: which ones its mask skips is not known")
