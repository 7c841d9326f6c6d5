"""Train a Llama with its parameters, gradients and optimizer states sharded over all ranks: FSDP2, ``fully_shard``.

torchrun --nproc-per-node 8 fsdp2.py --model 8b --sequence 8192 --checkpoint
torchrun --nproc-per-node 8 fsdp2.py --model 1b --replicas 2
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
import transformer
from torch.distributed.device_mesh import init_device_mesh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    transformer.add_arguments(parser)
    parser.add_argument("--replicas", type=int, default=1, help="shard within as many parts of the ranks (HSDP)")
    parser.add_argument("--compile", action="store_true", help="compile each layer by itself")
    transformer.add_shard_arguments(parser)
    args = parser.parse_args()

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    world = dist.get_world_size()
    if args.replicas > 1:
        sizes, names = (args.replicas, world // args.replicas), ("replicate", "shard")
    else:
        sizes, names = (world,), ("shard",)
    mesh = init_device_mesh(kind, sizes, mesh_dim_names=names)

    with torch.device("meta"):
        model = transformer.Transformer(transformer.config(args), recompute=args.checkpoint)
    if args.compile:
        transformer.compile_layers(model)
    transformer.shard(model, mesh, args)
    model.to_empty(device=kind)
    model.reset_parameters()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not args.foreach, foreach=args.foreach)
    began = time.perf_counter()
    for step in range(args.steps):
        shape = (args.batch_size, args.sequence + 1)
        tokens = torch.randint(0, model.config.vocabulary, shape, device=kind)
        loss = transformer.next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            if kind == "cuda":
                torch.cuda.synchronize()
            seconds, began = time.perf_counter() - began, time.perf_counter()
            memory = torch.cuda.max_memory_reserved() / 2**30 if kind == "cuda" else 0.0
            print(f"step {step}: done, tps: {args.batch_size * args.sequence / seconds:,.0f}, memory: {memory:.2f} GiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
