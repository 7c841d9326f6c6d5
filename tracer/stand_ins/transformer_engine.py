"""A stand-in of NVIDIA's TransformerEngine: its layers of PyTorch, whose products are in fp8 where ``fp8_autocast`` says so.

In fp8 a layer keeps its input and weight as bytes for the backward pass, each also transposed, because the tensor cores of
Hopper take factors in one order alone; gradients are in ``float8_e5m2``. Scales are one a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from triosim.tracer.stand_ins.stand_in import StandIn

_fp8 = [False]


@contextmanager
def fp8_autocast(enabled: bool = True, *_: Any, **__: Any) -> Iterator[None]:
    """Let products within be in fp8."""
    _fp8.append(enabled)
    try:
        yield
    finally:
        _fp8.pop()


class Recipe:
    """How tensors are scaled, which changes no shapes."""

    def __init__(self, *_: Any, **given: Any) -> None:
        self.__dict__.update(given)


class Format:
    """The number formats by name."""

    E4M3, E5M2, HYBRID = "E4M3", "E5M2", "HYBRID"


class _Fp8Product(torch.autograd.Function):
    """x [tokens, k] times the transpose of weight [n, k], and its two gradients, in fp8."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        narrow, weights = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
        ctx.save_for_backward(narrow.t().contiguous(), weights.t().contiguous())
        ctx.dtype = x.dtype
        return _scaled(narrow, weights.t(), x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, weights = ctx.saved_tensors
        grad = grads[0].to(torch.float8_e5m2)
        of_x = _scaled(grad, weights.t(), ctx.dtype)
        return of_x, _scaled(grad.t().contiguous(), inputs.t(), ctx.dtype)


def _scaled(first: torch.Tensor, second: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    scale = torch.ones((), device=first.device)
    return torch._scaled_mm(first, second, scale, scale, out_dtype=dtype, use_fast_accum=True)


class Linear(nn.Linear):
    """A layer whose product is in fp8 where that is on."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, **given: Any) -> None:
        super().__init__(in_features, out_features, bias, **_factory(given))

    def forward(self, input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return the product, and the bias added."""
        return _product(input, self.weight, self.bias)


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if torch.is_autocast_enabled("cuda"):
        to = torch.get_autocast_dtype("cuda")
        x, weight = x.to(to), weight.to(to)
    if not _fp8[-1]:
        return F.linear(x, weight, bias)
    found = _Fp8Product.apply(x.flatten(0, -2), weight).unflatten(0, x.shape[:-1])  # type: ignore[no-untyped-call]
    return found if bias is None else found + bias.to(found.dtype)


class LayerNormLinear(nn.Module):
    """A norm, and a product."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        bias: bool = True,
        normalization: str = "LayerNorm",
        **given: Any,
    ) -> None:
        super().__init__()
        self.norm = _norm(normalization, in_features, eps, given)
        self.linear = Linear(in_features, out_features, bias, **_factory(given))

    def forward(self, inp: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return the product of the norm."""
        found: torch.Tensor = self.linear(self.norm(inp))
        return found


class LayerNormMLP(nn.Module):
    """A norm, a product, an activation, and a product."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        **given: Any,
    ) -> None:
        super().__init__()
        self.activation = activation
        gated = activation in _GATED
        self.norm = _norm(normalization, hidden_size, eps, given)
        self.fc1 = Linear(hidden_size, (1 + gated) * ffn_hidden_size, bias, **_factory(given))
        self.fc2 = Linear(ffn_hidden_size, hidden_size, bias, **_factory(given))

    def forward(self, inp: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return the layer's result."""
        wide = self.fc1(self.norm(inp))
        if self.activation in _GATED:
            gate, value = wide.chunk(2, -1)
            wide = _GATED[self.activation](gate) * value
        else:
            wide = getattr(F, self.activation)(wide)
        found: torch.Tensor = self.fc2(wide)
        return found


class DotProductAttention(nn.Module):
    """Attention of query [sequence, batch, heads, head size], or with ``qkv_format`` bshd of [batch, sequence, ...]."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: Any = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.dropout, self.scale = attention_dropout, softmax_scale
        self.format, self.mask = qkv_format, attn_mask_type

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **given: Any
    ) -> torch.Tensor:
        """Return the attention, with heads and their sizes in one dimension."""
        causal = "causal" in (given.get("attn_mask_type") or self.mask)
        first = (given.get("qkv_format") or self.format) == "sbhd"
        heads = [one.permute(1, 2, 0, 3) if first else one.transpose(1, 2) for one in (query, key, value)]
        dropout = self.dropout if self.training else 0.0
        groups = heads[0].shape[1] != heads[1].shape[1]
        out = F.scaled_dot_product_attention(
            *heads, dropout_p=dropout, is_causal=causal, scale=self.scale, enable_gqa=groups
        )
        return (out.permute(2, 0, 1, 3) if first else out.transpose(1, 2)).flatten(-2)


class LayerNorm(nn.LayerNorm):
    """The fused norm."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, **given: Any) -> None:
        super().__init__(hidden_size, eps=eps, **_factory(given))


class RMSNorm(nn.RMSNorm):
    """The fused norm."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, **given: Any) -> None:
        super().__init__(hidden_size, eps=eps, **_factory(given))


_GATED = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}


def _norm(kind: str, size: int, eps: float, given: dict[str, Any]) -> nn.Module:
    return RMSNorm(size, eps, **_factory(given)) if kind == "RMSNorm" else LayerNorm(size, eps, **_factory(given))


def _factory(given: dict[str, Any]) -> dict[str, Any]:
    """Return where and in what dtype parameters are made: on the current GPU, as TransformerEngine does."""
    return {"device": given.get("device", "cuda"), "dtype": given.get("dtype", given.get("params_dtype"))}


_RECIPES = dict.fromkeys(("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling"), Recipe)
_LAYERS = {
    one.__name__: one
    for one in (Linear, LayerNormLinear, LayerNormMLP, DotProductAttention, LayerNorm, RMSNorm, fp8_autocast)
}
STAND_IN = StandIn(
    version="2.8.0",
    distribution="transformer_engine",
    instead="PyTorch's operators, in fp8 within fp8_autocast",
    modules={
        "transformer_engine": {},
        "transformer_engine.pytorch": {**_LAYERS, "autocast": fp8_autocast},
        "transformer_engine.common": {},
        "transformer_engine.common.recipe": {**_RECIPES, "Format": Format},
    },
)
