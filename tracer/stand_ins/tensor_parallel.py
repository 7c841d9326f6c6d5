"""What a layer's part sends under tensor parallelism, in the place of TransformerEngine's kernels (Korthikanti et al. 2022).

A column-parallel layer gathers its input where that is divided by the sequence, again in the backward pass as only its part is
kept, and reduces its gradient; a row-parallel one reduces its output, or scatters it where the next layer has a part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks

Product = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]


@dataclass(slots=True)
class Parallel:
    """How a layer is divided: by ``mode`` (column, row), over the ranks of a ``group``, between sequences that are too."""

    mode: str | None
    ranks: int
    sequence: bool
    group: Any

    @classmethod
    def of(cls, given: dict[str, Any]) -> Parallel:
        """Return it by a layer's arguments."""
        ranks = int(given.get("tp_size") or 1)
        return cls(given.get("parallel_mode"), ranks, bool(given.get("sequence_parallel")), given.get("tp_group"))

    def mark(self, weight: Any, bias: Any) -> None:
        """Say of a layer's parameters how they are divided, as TransformerEngine does."""
        divided = self.mode if self.ranks > 1 else None
        for one, by in ((weight, ("column", "row")), (bias, ("column",))):
            if one is not None:
                one.tensor_model_parallel = divided in by
                one.partition_dim, one.partition_stride = int(divided == "row"), 1
        if bias is not None:
            bias.sequence_parallel = self.sequence and divided == "row"

    def product(
        self, multiply: Product, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the layer's result on this rank."""
        if self.ranks == 1 or self.mode is None:
            return multiply(x, weight, bias)
        if self.mode == "column":
            if not self.sequence:
                return multiply(_Copied.apply(x, self.group), weight, bias)  # type: ignore[no-untyped-call]
            return self._of_gathered(multiply, x, weight, bias)
        part = multiply(x, weight, None)
        out = (_Scattered if self.sequence else _Reduced).apply(part, self.group)  # type: ignore[no-untyped-call]
        return out if bias is None else out + bias

    def _of_gathered(
        self, multiply: Product, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the product of all ranks' parts of a sequence, of which this rank keeps its own."""
        whole = _Gathered.apply(x, self.group)  # type: ignore[no-untyped-call]

        def packed(kept: torch.Tensor) -> Any:
            return kept.shape if _shares_memory(kept, whole) else kept

        def unpacked(kept: Any) -> torch.Tensor:
            return kept if isinstance(kept, torch.Tensor) else _gathered(x.detach(), self.group).view(kept)

        with saved_tensors_hooks(packed, unpacked):
            return multiply(whole, weight, bias)


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def _gathered(part: torch.Tensor, group: Any) -> torch.Tensor:
    whole = part.new_empty((part.shape[0] * dist.get_world_size(group), *part.shape[1:]))
    dist.all_gather_into_tensor(whole, part.contiguous(), group=group)
    return whole


def _scattered(whole: torch.Tensor, group: Any) -> torch.Tensor:
    part = whole.new_empty((whole.shape[0] // dist.get_world_size(group), *whole.shape[1:]))
    dist.reduce_scatter_tensor(part, whole.contiguous(), group=group)
    return part


def _reduced(part: torch.Tensor, group: Any) -> torch.Tensor:
    whole = part.contiguous()
    dist.all_reduce(whole, group=group)
    return whole


def _function(
    name: str, forward: Callable[..., torch.Tensor], backward: Callable[..., torch.Tensor]
) -> type[torch.autograd.Function]:
    """Return a function of a tensor and a group, with that of its gradient."""

    def run(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return forward(x, group)

    def back(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return backward(grads[0], ctx.group), None

    return type(name, (torch.autograd.Function,), {"forward": staticmethod(run), "backward": staticmethod(back)})


def _same(x: torch.Tensor, _: Any) -> torch.Tensor:
    return x.view_as(x)


_Copied = _function("Copied", _same, _reduced)
_Gathered = _function("Gathered", _gathered, _scattered)
_Reduced = _function("Reduced", _reduced, _same)
_Scattered = _function("Scattered", _scattered, _gathered)
