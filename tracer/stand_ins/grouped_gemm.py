"""A stand-in of grouped_gemm (tgale96, and Megatron's of fanshiqing): its products are PyTorch's ``_grouped_mm``."""

from __future__ import annotations

from typing import Any

import torch

from triosim.tracer.stand_ins.stand_in import StandIn


def gmm(
    a: torch.Tensor,
    b: torch.Tensor,
    batch_sizes: torch.Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    c: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the products of rows of a [tokens, k], ``batch_sizes`` of them with each b [experts, k, n]."""
    ends = batch_sizes.cumsum(0).to(a.device, torch.int32)
    given = a.t() if trans_a else a, b.transpose(-2, -1) if trans_b else b
    found: torch.Tensor = _Product.apply(*given, ends)  # type: ignore[no-untyped-call]
    return found


class _Product(torch.autograd.Function):
    """The products of groups of rows, whose gradients may be views of one number, as those of a sum are."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, factors: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, factors, ends)
        return torch._grouped_mm(rows, factors, offs=ends)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        rows, factors, ends = ctx.saved_tensors
        grad = grads[0].contiguous()
        of_rows = torch._grouped_mm(grad, factors.transpose(-2, -1), offs=ends)
        return of_rows, torch._grouped_mm(rows.t(), grad, offs=ends), None


def permute(
    input: torch.Tensor, indices: torch.Tensor, num_out_tokens: int = 0, max_token_num: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens [tokens, width] in the order of their experts, ``indices`` [tokens, experts of a token], and that order."""
    chosen = indices.view(indices.shape[0], -1)
    order = torch.argsort(chosen.flatten(), stable=True)[: num_out_tokens or None]
    return input.index_select(0, order // chosen.shape[1]), order


def unpermute(
    input: torch.Tensor, row_id_map: torch.Tensor, probs: torch.Tensor | None = None, **_: Any
) -> torch.Tensor:
    """Return what experts computed at its tokens' places, weighted and added up."""
    experts = 1 if probs is None else probs.shape[1]
    placed = torch.zeros_like(input).index_copy(0, row_id_map, input).unflatten(0, (-1, experts))
    return placed.sum(1) if probs is None else (placed * probs[..., None].to(placed.dtype)).sum(1)


_FUNCTIONS = {"gmm": gmm, "permute": permute, "unpermute": unpermute}
STAND_IN = StandIn(
    version="1.1.4",
    distribution="grouped_gemm",
    instead="PyTorch's _grouped_mm",
    modules={"grouped_gemm": _FUNCTIONS, "grouped_gemm.ops": _FUNCTIONS},
)
