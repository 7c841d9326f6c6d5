"""A stand-in of NVIDIA's TransformerEngine: its layers of PyTorch, whose products are in fp8 where ``fp8_autocast`` says so.

In fp8 a layer keeps its input and weight as bytes for the backward pass, each also transposed, because the tensor cores of
Hopper take factors in one order alone; gradients are in ``float8_e5m2``. Scales are one a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from triosim.tracer.stand_ins.stand_in import StandIn
from triosim.tracer.stand_ins.tensor_parallel import Parallel

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


class Fp8State:
    """Whether products are in fp8."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        """Whether they are now."""
        return _fp8[-1]


class QuantizedTensor:
    """The class of parameters in fp8, of which there are none."""


class RandomStates:
    """The states of random numbers by name, of which layers here have none of their own."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.states_: dict[str, Any] = {}


class _Fp8Product(torch.autograd.Function):
    """x [tokens, k] times the transpose of weight [n, k], and its two gradients, in fp8.

    ``original`` keeps x as it is, which something else keeps too, and converts it once more in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, original: bool) -> torch.Tensor:
        narrow, weights = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
        ctx.save_for_backward(x if original else narrow.t().contiguous(), weights.t().contiguous())
        ctx.dtype, ctx.original = x.dtype, original
        return _scaled(narrow, weights.t(), x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        inputs, weights = ctx.saved_tensors
        if ctx.original:
            inputs = inputs.to(torch.float8_e4m3fn).t().contiguous()
        grad = grads[0].to(torch.float8_e5m2)
        of_x = _scaled(grad, weights.t(), ctx.dtype)
        return of_x, _scaled(grad.t().contiguous(), inputs.t(), ctx.dtype), None


def _scaled(first: torch.Tensor, second: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    scale = torch.ones((), device=first.device)
    return torch._scaled_mm(first, second, scale, scale, out_dtype=dtype, use_fast_accum=True)


class Linear(nn.Linear):
    """A layer whose product is in fp8 where that is on, and a rank's part of one under tensor parallelism."""

    save_original_input = False

    def __init__(self, in_features: int, out_features: int, bias: bool = True, **given: Any) -> None:
        self.parallel = Parallel.of(given)
        column, row = (self.parallel.ranks if self.parallel.mode == one else 1 for one in ("column", "row"))
        super().__init__(in_features // row, out_features // column, bias, **_factory(given))
        self.parallel_mode = given.get("parallel_mode")
        self.return_bias = bool(given.get("return_bias"))
        self.parallel.mark(self.weight, self.bias)

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Set the group over which the layer is divided."""
        self.parallel.group = tp_group

    def forward(self, inp: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Return the product, and the bias added, or beside it where that was asked for."""
        product = partial(_product, original=self.save_original_input)
        found = self.parallel.product(product, inp, self.weight, None if self.return_bias else self.bias)
        return (found, self.bias) if self.return_bias else found


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, original: bool = False
) -> torch.Tensor:
    if torch.is_autocast_enabled("cuda"):
        to = torch.get_autocast_dtype("cuda")
        x, weight = x.to(to), weight.to(to)
    if not _fp8[-1]:
        return F.linear(x, weight, bias)
    found = _Fp8Product.apply(x.flatten(0, -2), weight, original)  # type: ignore[no-untyped-call]
    found = found.unflatten(0, x.shape[:-1])
    return found if bias is None else found + bias.to(found.dtype)


class LayerNormLinear(Linear):
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
        super().__init__(in_features, out_features, bias, **given)
        self.norm = _norm(normalization, in_features, eps, given)

    def forward(self, inp: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Return the product of the norm."""
        return super().forward(self.norm(inp))


class GroupedLinear(nn.Module):
    """A product for each expert, of the rows that it gets."""

    save_original_input = False

    def __init__(self, num_gemms: int, in_features: int, out_features: int, bias: bool = True, **given: Any) -> None:
        super().__init__()
        self.parallel_mode, self.num_gemms = given.get("parallel_mode"), num_gemms
        self.return_bias = bool(given.get("return_bias"))
        for number in range(num_gemms):
            part = nn.Linear(in_features, out_features, bias, **_factory(given))
            self.register_parameter(f"weight{number}", part.weight)
            self.register_parameter(f"bias{number}", part.bias)

    def forward(self, inp: torch.Tensor, m_splits: Any, *_: Any, **__: Any) -> Any:
        """Return the products of so many rows with each weight, biases added, or beside them where that was asked for."""
        weights, biases = (
            [getattr(self, f"{kind}{at}") for at in range(self.num_gemms)] for kind in ("weight", "bias")
        )
        added = [None] * self.num_gemms if self.return_bias else biases
        parts = zip(inp.split(list(m_splits)), weights, added, strict=True)
        original = self.save_original_input
        found = torch.cat([_product(rows, weight, bias, original=original) for rows, weight, bias in parts])
        return (found, biases) if self.return_bias else found


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
        _mark_sequence_parallel(self, given)


class RMSNorm(nn.RMSNorm):
    """The fused norm."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, **given: Any) -> None:
        super().__init__(hidden_size, eps=eps, **_factory(given))
        _mark_sequence_parallel(self, given)


def _mark_sequence_parallel(norm: nn.Module, given: dict[str, Any]) -> None:
    """Say of a norm's parameters that their gradients are of a rank's part of the sequence."""
    for one in norm.parameters():
        one.sequence_parallel = bool(given.get("sequence_parallel"))  # type: ignore[attr-defined]


_GATED = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}


def _norm(kind: str, size: int, eps: float, given: dict[str, Any]) -> nn.Module:
    return RMSNorm(size, eps, **given) if kind == "RMSNorm" else LayerNorm(size, eps, **given)


def _factory(given: dict[str, Any]) -> dict[str, Any]:
    """Return where and in what dtype parameters are made: on the current GPU, as TransformerEngine does."""
    return {"device": given.get("device", "cuda"), "dtype": given.get("dtype", given.get("params_dtype"))}


def general_gemm(
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    *_: Any,
    out_dtype: torch.dtype | None = None,
    layout: str = "TN",
    bias: torch.Tensor | None = None,
    grad: bool = False,
    **__: Any,
) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
    """Return the product of B and A, each transposed where its letter of ``layout``, A's first, is T."""
    first, second = (one.t() if by == "T" else one for one, by in ((B, layout[1]), (A, layout[0])))
    found = first @ second
    if bias is not None and not grad:
        found = found + bias
    return (found if out_dtype is None else found.to(out_dtype)), None, None, None


def _not_there(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("the stand-in of transformer_engine has no fused router: run without --moe-router-fusion")


_RECIPES = {
    name: type(name, (Recipe,), {})
    for name in ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling")
}
_ROUTER = ("fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss", "fused_topk_with_score_function")
_LAYERS = {
    one.__name__: one
    for one in (
        *(Linear, LayerNormLinear, LayerNormMLP, GroupedLinear, DotProductAttention, LayerNorm, RMSNorm),
        fp8_autocast,
    )
}
STAND_IN = StandIn(
    version="2.8.0",
    distribution="transformer_engine",
    instead="PyTorch's operators, in fp8 within fp8_autocast",
    modules={
        "transformer_engine": {},
        "transformer_engine.pytorch": {**_LAYERS, "autocast": fp8_autocast},
        "transformer_engine.pytorch.fp8": {"FP8GlobalStateManager": Fp8State, "fp8_autocast": fp8_autocast},
        "transformer_engine.pytorch.tensor": {"QuantizedTensor": QuantizedTensor},
        "transformer_engine.pytorch.distributed": {
            "CudaRNGStatesTracker": RandomStates,
            "activation_recompute_forward": lambda *_, **__: nullcontext(),
            "checkpoint": checkpoint,
        },
        "transformer_engine.pytorch.cpp_extensions": {"general_gemm": general_gemm},
        "transformer_engine.pytorch.module": {},
        "transformer_engine.pytorch.ops": {"FusibleOperation": nn.Module, "Sequential": nn.Sequential},
        "transformer_engine.pytorch.module.base": {"get_workspace": lambda: None},
        "transformer_engine.pytorch.router": dict.fromkeys(_ROUTER, _not_there),
        "transformer_engine.common": {},
        "transformer_engine.common.recipe": {**_RECIPES, "Format": Format},
    },
)
