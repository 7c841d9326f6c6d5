"""A stand-in of NVIDIA's Apex: its optimizers, norms and functions of many tensors, as PyTorch's fused and ``foreach`` ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from triosim.tracer.stand_ins.stand_in import StandIn

Tensors = Sequence[torch.Tensor]


class FusedAdam(torch.optim.AdamW):
    """Adam, or with ``adam_w_mode`` AdamW, in one kernel of many tensors: both cost the same."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        **_: Any,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, fused=True)


class FusedSGD(torch.optim.SGD):
    """SGD in one kernel of many tensors."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        **_: Any,
    ) -> None:
        given = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, lr=lr, fused=True, **given)


class FusedLAMB(torch.optim.Optimizer):
    """LAMB (You et al. 2020): Adam's step, then each tensor scaled by its norm over the step's. The moments are in float32."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), **given: Any) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": given.get("weight_decay", 0.01)})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Change all parameters that have gradients."""
        loss = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                if params := [one for one in group["params"] if one.grad is not None]:
                    self._change(params, [one.grad for one in params], group)
        return loss

    def _change(self, params: list[torch.Tensor], grads: list[torch.Tensor], group: dict[str, Any]) -> None:
        for param in params:
            if not self.state[param]:
                for name in ("exp_avg", "exp_avg_sq"):
                    self.state[param][name] = torch.zeros_like(param, dtype=torch.float32)
        first, second = ([self.state[one][name] for one in params] for name in ("exp_avg", "exp_avg_sq"))
        torch._foreach_norm(grads)
        torch._foreach_lerp_(first, grads, 1 - group["betas"][0])
        torch._foreach_mul_(second, group["betas"][1])
        torch._foreach_addcmul_(second, grads, grads, 1 - group["betas"][1])
        steps = torch._foreach_div(first, torch._foreach_sqrt(second))
        ratios = torch._foreach_div(torch._foreach_norm(params), torch._foreach_norm(steps))
        torch._foreach_mul_(steps, ratios)
        torch._foreach_add_(params, steps, alpha=-group["lr"])


class FusedLayerNorm(nn.LayerNorm):
    """The fused norm, which is one kernel in PyTorch too."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, **_: Any) -> None:
        super().__init__(normalized_shape, eps=eps, elementwise_affine=elementwise_affine)


class FusedRMSNorm(nn.RMSNorm):
    """The fused norm, which is one kernel in PyTorch too."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, **_: Any) -> None:
        super().__init__(normalized_shape, eps=eps, elementwise_affine=elementwise_affine)


def fused_layer_norm_affine(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, normalized_shape: Any, eps: float = 1e-6, *_: Any
) -> torch.Tensor:
    """Return the layer norm."""
    return F.layer_norm(input, [*normalized_shape], weight, bias, eps)


def fused_rms_norm_affine(
    input: torch.Tensor, weight: torch.Tensor, normalized_shape: Any, eps: float = 1e-6, *_: Any
) -> torch.Tensor:
    """Return the RMS norm."""
    return F.rms_norm(input, [*normalized_shape], weight, eps)


class MultiTensorApply:
    """Calls a function of ``amp_C`` with lists of tensors."""

    available = True

    def __init__(self, chunk_size: int = 2048 * 32) -> None:
        self.chunk_size = chunk_size

    def __call__(self, op: Callable[..., Any], noop_flag_buffer: Any, tensor_lists: Any, *args: Any) -> Any:
        """Return what the function returns."""
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


def multi_tensor_l2norm(chunk_size: int, noop: Any, lists: Sequence[Tensors], per_tensor: bool = False, *_: Any) -> Any:
    """Return the norm of all tensors together, and of each."""
    norms = torch.stack(torch._foreach_norm([*lists[0]])).float()
    return torch.linalg.vector_norm(norms)[None], norms if per_tensor else norms.new_empty(0)


def multi_tensor_scale(chunk_size: int, noop: Any, lists: Sequence[Tensors], scale: Any) -> None:
    """Write the first tensors, times a number, into the second."""
    source, target = ([*one] for one in lists[:2])
    if all(one is other for one, other in zip(source, target, strict=True)):
        torch._foreach_mul_(target, scale)
    else:
        torch._foreach_copy_(target, torch._foreach_mul(source, scale))


_NORMS = {
    "FusedLayerNorm": FusedLayerNorm,
    "MixedFusedLayerNorm": FusedLayerNorm,
    "FusedRMSNorm": FusedRMSNorm,
    "MixedFusedRMSNorm": FusedRMSNorm,
    "fused_layer_norm_affine": fused_layer_norm_affine,
    "fused_rms_norm_affine": fused_rms_norm_affine,
}
_OPTIMIZERS = {"FusedAdam": FusedAdam, "FusedSGD": FusedSGD, "FusedLAMB": FusedLAMB}
_FUNCTIONS = {
    "multi_tensor_l2norm": multi_tensor_l2norm,
    "multi_tensor_l2norm_mp": multi_tensor_l2norm,
    "multi_tensor_scale": multi_tensor_scale,
}
STAND_IN = StandIn(
    version="0.1",
    distribution="apex",
    instead="PyTorch's fused and foreach functions",
    modules={
        "apex": {},
        "apex.optimizers": _OPTIMIZERS,
        "apex.normalization": _NORMS,
        "apex.normalization.fused_layer_norm": _NORMS,
        "apex.multi_tensor_apply": {"MultiTensorApply": MultiTensorApply, "multi_tensor_applier": MultiTensorApply()},
        "apex.parallel": {
            "DistributedDataParallel": nn.parallel.DistributedDataParallel,
            "SyncBatchNorm": nn.SyncBatchNorm,
        },
        "amp_C": _FUNCTIONS,
    },
)
