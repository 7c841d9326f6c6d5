"""A stand-in of flash-attn 2: its attention is PyTorch's ``scaled_dot_product_attention``, which runs the same algorithm.

Windows and slopes do not make it shorter. Sequences of several lengths are taken as equally long, because the time and memory
of a kernel follow from shapes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from triosim.tracer.stand_ins.stand_in import StandIn


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Return the attention of q [batch, sequence, heads, head size] over k and v, which may have fewer heads."""
    heads = [one.transpose(1, 2) for one in (q, k, v)]
    groups = q.shape[2] != k.shape[2]
    out = F.scaled_dot_product_attention(
        *heads, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale, enable_gqa=groups
    )
    found = out.transpose(1, 2)
    return (found, *_no_probabilities(q)) if return_attn_probs else found


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *args: Any,
    block_table: torch.Tensor | None = None,
    **options: Any,
) -> Any:
    """Return the attention of sequences that lie behind each other, q [tokens, heads, head size], as if all were as long.

    The other arguments are those of ``flash_attn_func``.
    """
    parts = cu_seqlens_q.numel() - 1
    found = flash_attn_func(*(_as_batch(one, parts) for one in (q, k, v)), *args, **options)
    batch, with_probabilities = (found[0], True) if isinstance(found, tuple) else (found, False)
    rows = batch.flatten(0, 1)[: q.shape[0]]
    return (rows, *_no_probabilities(q)) if with_probabilities else rows


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *args: Any, **options: Any) -> Any:
    """Return the attention of qkv [batch, sequence, 3, heads, head size]."""
    return flash_attn_func(*qkv.unbind(2), *args, **options)


def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args: Any, **options: Any) -> Any:
    """Return the attention of q over kv [batch, sequence, 2, heads, head size]."""
    return flash_attn_func(q, *kv.unbind(2), *args, **options)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, *args: Any, **options: Any
) -> Any:
    """Return the attention of sequences that lie behind each other, qkv [tokens, 3, heads, head size]."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **options)


def flash_attn_with_kvcache(*args: Any, **options: Any) -> Any:
    """Generating from a cache is no training."""
    raise NotImplementedError("the stand-in of flash_attn has no flash_attn_with_kvcache")


def index_first_axis(data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return rows of the first dimension."""
    return data[indices]


def unpad_input(hidden: torch.Tensor, attention_mask: torch.Tensor, unused_mask: Any = None) -> tuple[Any, ...]:
    """Return hidden [batch, sequence, ...] without what the mask leaves out, which is nothing here: no mask is computed."""
    batch, sequence = hidden.shape[:2]
    indices = torch.arange(batch * sequence, device=hidden.device)
    ends = torch.arange(0, (batch + 1) * sequence, sequence, dtype=torch.int32, device=hidden.device)
    return index_first_axis(hidden.flatten(0, 1), indices), indices, ends, sequence, ends[1:] - ends[:-1]


def pad_input(hidden: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """Return hidden [tokens, ...] as [batch, sequence, ...]."""
    whole = hidden.new_zeros(batch * seqlen, *hidden.shape[1:])
    return whole.index_copy(0, indices, hidden).unflatten(0, (batch, seqlen))


def apply_rotary_emb(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False, inplace: bool = False, **_: Any
) -> torch.Tensor:
    """Return x [batch, sequence, heads, head size] turned by its positions, in one kernel that reads and writes it once."""
    return x * torch.cat((cos, sin), -1).to(x.dtype)[: x.shape[1], None, : x.shape[-1]]


class RMSNorm(nn.RMSNorm):
    """The fused norm."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, **factory: Any) -> None:
        super().__init__(hidden_size, eps=eps, **{key: factory[key] for key in ("device", "dtype") if key in factory})


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """The fused loss: PyTorch's, whose options it has more of."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, **_: Any
    ) -> None:
        super().__init__(ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing)


def _as_batch(tokens: torch.Tensor, parts: int) -> torch.Tensor:
    """Return rows as equal parts, of which the last is filled up."""
    missing = -tokens.shape[0] % parts
    whole = F.pad(tokens, (0, 0) * (tokens.dim() - 1) + (0, missing)) if missing else tokens
    return whole.unflatten(0, (parts, -1))


def _no_probabilities(q: torch.Tensor) -> tuple[torch.Tensor, None]:
    return q.new_empty(q.shape[:-1], dtype=torch.float32), None


_ATTENTION = {
    one.__name__: one
    for one in (
        *(flash_attn_func, flash_attn_varlen_func, flash_attn_qkvpacked_func, flash_attn_kvpacked_func),
        *(flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache),
    )
}
STAND_IN = StandIn(
    version="2.8.3",
    distribution="flash-attn",
    instead="PyTorch's scaled_dot_product_attention",
    modules={
        "flash_attn": _ATTENTION,
        "flash_attn.flash_attn_interface": _ATTENTION,
        "flash_attn.bert_padding": {
            "index_first_axis": index_first_axis,
            "pad_input": pad_input,
            "unpad_input": unpad_input,
        },
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": {"apply_rotary_emb": apply_rotary_emb},
        "flash_attn.ops": {},
        "flash_attn.ops.rms_norm": {"RMSNorm": RMSNorm},
        "flash_attn.losses": {},
        "flash_attn.losses.cross_entropy": {"CrossEntropyLoss": CrossEntropyLoss},
    },
)
