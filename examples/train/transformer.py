"""A Llama in plain PyTorch, which fsdp2.py, tensor_parallel.py and pipeline.py train, each in its own parallelism.

RMS norms, rotary positions, grouped queries and gated feed-forward layers, as in Llama 3 (Grattafiori et al. 2024).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


@dataclass(frozen=True)
class Config:
    """The sizes of a Llama. ``hidden`` is the width of the feed-forward layers."""

    width: int
    layers: int
    heads: int
    key_heads: int
    hidden: int
    vocabulary: int = 128256


MODELS = {
    "tiny": Config(width=64, layers=4, heads=8, key_heads=4, hidden=128, vocabulary=256),
    "1b": Config(width=2048, layers=16, heads=32, key_heads=8, hidden=8192),
    "8b": Config(width=4096, layers=32, heads=32, key_heads=8, hidden=14336),
    "70b": Config(width=8192, layers=80, heads=64, key_heads=8, hidden=28672),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which Llama is trained on what."""
    parser.add_argument("--model", choices=sorted(MODELS), default="1b")
    parser.add_argument("--layers", type=int, help="another number of layers")
    parser.add_argument("--batch-size", type=int, default=1, help="samples of each data-parallel rank")
    parser.add_argument("--sequence", type=int, default=8192, help="tokens in a sample")
    parser.add_argument(
        "--checkpoint",
        nargs="?",
        const="full",
        choices=("full", "selective"),
        help="compute the layers' activations again; selective: but attention and every second product",
    )
    parser.add_argument("--steps", type=int, default=5)


def config(args: argparse.Namespace) -> Config:
    """Return the chosen sizes."""
    found = MODELS[args.model]
    return found if args.layers is None else replace(found, layers=args.layers)


def rotation(config: Config, length: int, device: torch.device | None = None) -> Tensor:
    """Return the angles by which positions turn: (length, width of a head / 2, 2), cosines and sines."""
    size = config.width // config.heads
    frequencies = 500000.0 ** (-torch.arange(0, size, 2, device=device).float() / size)
    angles = torch.outer(torch.arange(length, device=device).float(), frequencies)
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """Turn each pair of ``x``, of the shape (batch, length, heads, size)."""
    first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = turn[None, :, None].unbind(-1)
    pairs = torch.stack((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
    return pairs.flatten(-2).type_as(x)


class Attention(nn.Module):
    """Causal attention; ``width`` is that of a head, so that a share of the heads can be computed alone."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.width // config.heads
        self.query = nn.Linear(config.width, config.heads * self.width, bias=False)
        self.key = nn.Linear(config.width, config.key_heads * self.width, bias=False)
        self.value = nn.Linear(config.width, config.key_heads * self.width, bias=False)
        self.output = nn.Linear(config.heads * self.width, config.width, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        query, key, value = (made(x).unflatten(-1, (-1, self.width)) for made in (self.query, self.key, self.value))
        query, key = rotated(query, turn), rotated(key, turn)
        seen = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.output(seen.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention and a feed-forward layer, each added to what came in."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turn)
        return x + self.feed_forward(self.feed_forward_norm(x))


def add_shard_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is sharded over ranks."""
    parser.add_argument(
        "--keep",
        nargs="?",
        const="all",
        choices=("all", "last"),
        help="keep parameters gathered between forward and backward, all or the last ones, which are needed at once again",
    )
    parser.add_argument("--float32", action="store_true", help="compute in float32 instead of bfloat16")
    parser.add_argument("--foreach", action="store_true", help="an optimizer of several kernels instead of a fused one")


def shard(model: Transformer, mesh: DeviceMesh, args: argparse.Namespace) -> None:
    """Shard each layer's parameters over the ranks of a mesh, and what is beside the layers together.

    The last ones that are kept are those of the last layer and of what is beside the layers.
    """
    computed = torch.float32 if args.float32 else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=computed, reduce_dtype=torch.float32)
    last = max(model.layers, key=int)
    for name, layer in model.layers.items():
        keep = args.keep == "all" or (args.keep == "last" and name == last)
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=not keep)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=args.keep is None)


def compile_layers(model: Transformer) -> None:
    """Compile each layer by itself, with what it computes again inside; before the model is sharded."""
    for name, layer in model.layers.items():
        wrapped = checkpoint_wrapper(layer, preserve_rng_state=False, **model.contexts) if model.recompute else layer
        model.layers[name] = torch.compile(wrapped, fullgraph=True)
    model.recompute = None


def selected() -> Any:
    """Return contexts of a checkpoint that keeps what attention and every second matrix product made."""
    kept = {
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    }
    products = {True: 0, False: 0}  # in the forward pass, and when they are computed again

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        keep = operator in kept
        if operator == torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            keep = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Transformer(nn.Module):
    """A Llama, or the part of one that some ``layers`` are; the first part embeds tokens, the last one predicts them."""

    def __init__(self, config: Config, layers: Sequence[int] | None = None, *, recompute: str | None = None) -> None:
        super().__init__()
        layers = range(config.layers) if layers is None else layers
        self.config = config
        self.recompute = recompute
        self.embedding = nn.Embedding(config.vocabulary, config.width) if 0 in layers else None
        self.layers = nn.ModuleDict({str(number): Layer(config) for number in layers})
        last = config.layers - 1 in layers
        self.norm = nn.RMSNorm(config.width, eps=1e-5) if last else None
        self.output = nn.Linear(config.width, config.vocabulary, bias=False) if last else None

    @property
    def contexts(self) -> dict[str, Callable[[], Any]]:
        """What says to a checkpoint which results it keeps."""
        return {"context_fn": selected} if self.recompute == "selective" else {}

    def forward(self, x: Tensor) -> Tensor:
        turn = rotation(self.config, x.shape[1], x.device)
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = checkpoint(layer, x, turn, use_reentrant=False, **self.contexts) if self.recompute else layer(x, turn)
        return x if self.norm is None or self.output is None else self.output(self.norm(x))

    def reset_parameters(self) -> None:
        """Give the parameters their first values, as after they were made without any on the meta device."""
        for module in self.modules():
            if module is not self and hasattr(module, "reset_parameters"):
                module.reset_parameters()


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of predicting each token; ``targets`` are as long as what was read."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
