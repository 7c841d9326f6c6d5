"""What compiled blocks of a Llama keep for the backward pass, with tensor parallelism, FSDP2 and products in fp8.

PyTorch and torchao (``pip install torchao``) do what they do on GPUs, on one CPU: one rank of 32 runs (``dp=4,tp=8``), whose
collectives move nothing, and blocks have 1/16 of the sizes of Llama 70B. Each tensor that a block saves is printed once, with
how many blocks save it and the bytes that it has when the forward pass is over: FSDP frees its weights.

python validation/scripts/compiled_block.py --fp8 --checkpoint
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

WIDTH, INNER, HEADS, GROUPS, BATCH, LENGTH, TENSOR, DATA = 512, 1792, 64, 8, 16, 512, 8, 4
HEAD = WIDTH // HEADS


@torch.library.custom_op("validation::attention", mutates_args=())
def attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Stand for FlashAttention, whose sizes are known: the result, and a number for each row and head."""
    return torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)


@torch.library.custom_op("validation::attention_backward", mutates_args=())
def attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Stand for FlashAttention's backward pass."""
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, *_results = ctx.saved_tensors
    return attention_backward(grad.contiguous(), query, key, value)  # type: ignore[no-any-return]


attention.register_fake(lambda q, k, v: (torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)))
attention_backward.register_fake(lambda g, q, k, v: tuple(map(torch.empty_like, (q, k, v))))
attention.register_autograd(
    _gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, *output)
)


class Attention(nn.Module):
    """Attention with fewer keys and values than heads."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(WIDTH, GROUPS * HEAD, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        query, key, value = (made(x).view(BATCH, LENGTH, -1, HEAD) for made in (self.wq, self.wk, self.wv))
        times = query.shape[2] // key.shape[2]
        key, value = (one[:, :, :, None].expand(-1, -1, -1, times, -1).flatten(2, 3) for one in (key, value))
        seen = attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))[0]
        return self.wo(seen.transpose(1, 2).contiguous().view(BATCH, LENGTH, -1))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """A gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Widen, gate and narrow."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Add attention and the feed-forward network to the residual stream."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))  # type: ignore[no-any-return]


def divided(block: nn.Module, mesh: DeviceMesh, *, narrow: bool) -> None:
    """Divide a block's products among the ranks, as torchtitan does: gathered in fp8 where ``narrow``."""
    prepare: Callable[..., Any] = PrepareModuleInput
    column, row = ColwiseParallel, RowwiseParallel
    if narrow:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        from torchao.float8 import float8_tensor_parallel as torchao

        convert_to_float8_training(block, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))
        prepare, column, row = (
            torchao.PrepareFloat8ModuleInput,
            torchao.Float8ColwiseParallel,
            torchao.Float8RowwiseParallel,
        )
    whole = prepare(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plan: dict[str, Any] = {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
    plan |= {"attention": whole, "feed_forward": whole}
    plan |= {f"attention.{name}": column() for name in ("wq", "wk", "wv")}
    plan |= {f"feed_forward.{name}": column() for name in ("w1", "w3")}
    plan |= {name: row(output_layouts=Shard(1)) for name in ("attention.wo", "feed_forward.w2")}
    parallelize_module(block, mesh, plan)


def main() -> None:
    """Run the forward and backward pass of three blocks, and print what they saved."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fp8", action="store_true", help="products in fp8 by torchao")
    parser.add_argument("--checkpoint", action="store_true", help="recompute each block in the backward pass")
    options = parser.parse_args()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=DATA * TENSOR)
    mesh = init_device_mesh("cpu", (DATA, TENSOR), mesh_dim_names=("dp", "tp"))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks = []
    for _ in range(3):
        block: Any = Block()
        divided(block, mesh["tp"], narrow=options.fp8)
        if options.checkpoint:
            block = checkpoint_wrapper(block, preserve_rng_state=False)
        blocks.append(torch.compile(block, fullgraph=True))
    model = nn.Sequential(*blocks)
    for block in (*blocks, model):
        fully_shard(block, mesh=mesh["dp"], mp_policy=precision)
    saved: list[Tensor] = []
    x = torch.randn(BATCH, LENGTH // TENSOR, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one):
        result = model(x)
    found = Counter((tuple(one.shape), str(one.dtype), one.untyped_storage().nbytes()) for one in saved)
    for (shape, dtype, nbytes), count in sorted(found.items(), key=lambda item: -item[0][2] * item[1]):
        print(f"{count} times {'x'.join(map(str, shape)) or 'a number':>16} {dtype:20} {nbytes:>10,} bytes")
    saved.clear()
    result.sum().backward()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
