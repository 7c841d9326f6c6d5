"""Train a Llama whose layers are each divided among ranks, with the sequence divided too, and sharded over the other ranks.

torchrun --nproc-per-node 8 tensor_parallel.py --model 8b --tensor-parallel 8
torchrun --nproc-per-node 8 tensor_parallel.py --model 8b --tensor-parallel 2 --sequence-parallel
"""

from __future__ import annotations

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import transformer
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


def divide(model: transformer.Transformer, mesh: DeviceMesh, *, sequence: bool, loss: bool) -> None:
    """Divide heads and hidden widths; with ``sequence``, what is between the layers is divided along the sequence.

    With ``loss``, each rank has the predictions of its part of the vocabulary, as ``loss_parallel`` wants them.
    """
    between = Shard(1) if sequence else Replicate()
    whole: dict[str, nn.Module] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "output": ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1) if loss else Replicate(), use_local_output=not loss
        ),
    }
    layer: dict[str, nn.Module] = {
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "attention.output": RowwiseParallel(output_layouts=between),
        **{f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")},
        "feed_forward.down": RowwiseParallel(output_layouts=between),
    }
    if sequence:
        whole["norm"] = SequenceParallel()
        layer["attention_norm"] = layer["feed_forward_norm"] = SequenceParallel()
        layer["attention"] = PrepareModuleInput(
            input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
        )
        layer["feed_forward"] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    parallelize_module(model, mesh, whole)
    for block in model.layers.values():
        parallelize_module(block, mesh, layer)


def by_mesh(model: nn.Module) -> list[dict[str, list[nn.Parameter]]]:
    """Group parameters: the optimizer's operators on lists take no mixture of divided and plain ones, or of two meshes."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return [{"params": parameters} for parameters in groups.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    transformer.add_arguments(parser)
    parser.add_argument("--tensor-parallel", type=int, help="ranks that divide each layer; by default all of them")
    parser.add_argument(
        "--sequence-parallel", action="store_true", help="divide norms and additions along the sequence"
    )
    parser.add_argument("--loss-parallel", action="store_true", help="leave the predictions divided by vocabulary")
    transformer.add_shard_arguments(parser)
    args = parser.parse_args()

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    tensor = args.tensor_parallel or dist.get_world_size()
    data = dist.get_world_size() // tensor
    mesh = init_device_mesh(kind, (data, tensor), mesh_dim_names=("data", "tensor"))

    with torch.device("meta"):
        model = transformer.Transformer(transformer.config(args), recompute=args.checkpoint)
    divide(model, mesh["tensor"], sequence=args.sequence_parallel, loss=args.loss_parallel)
    if data > 1:
        transformer.shard(model, mesh["data"], args)
    elif not args.float32:
        model.to(torch.bfloat16)
    model.to_empty(device=kind)
    model.reset_parameters()

    optimizer = torch.optim.AdamW(by_mesh(model), lr=1e-4, fused=not args.foreach, foreach=args.foreach)
    for step in range(args.steps):
        torch.manual_seed(step * data + mesh["data"].get_local_rank())  # ranks of one tensor group read the same tokens
        shape = (args.batch_size, args.sequence + 1)
        tokens = torch.randint(0, model.config.vocabulary, shape, device=kind)
        with loss_parallel() if args.loss_parallel else contextlib.nullcontext():
            loss = transformer.next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
