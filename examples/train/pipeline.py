"""Train a Llama whose layers are divided into stages, by a schedule of ``torch.distributed.pipelining``.

torchrun --nproc-per-node 4 pipeline.py --model 1b --schedule 1F1B --micro-batches 8
torchrun --nproc-per-node 4 pipeline.py --model 1b --schedule Interleaved1F1B --micro-batches 8
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import transformer
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

#: Schedules that go through the ranks forth and back, so that the first rank has the last stage.
FORTH_AND_BACK = ("ZBVZeroBubble", "DualPipeV")


def stages_of(rank: int, ranks: int, schedule: str) -> list[int]:
    """Return the stages that a rank has under a schedule."""
    if issubclass(get_schedule_class(schedule), PipelineScheduleSingle):
        return [rank]
    if schedule in FORTH_AND_BACK:
        return [rank, 2 * ranks - 1 - rank]
    return [rank, rank + ranks]


def layers_of(stage: int, stages: int, layers: int) -> range:
    """Return the layers of a stage, as equally divided as can be."""
    return range(stage * layers // stages, (stage + 1) * layers // stages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    transformer.add_arguments(parser)
    parser.set_defaults(batch_size=8)
    parser.add_argument("--schedule", default="1F1B", help="GPipe, 1F1B, Interleaved1F1B, InterleavedZeroBubble, ...")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16", help="of the parameters: float32, bfloat16, ...")
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    config, dtype = transformer.config(args), getattr(torch, args.dtype)
    mine = stages_of(rank, ranks, args.schedule)
    count = ranks * len(mine)
    if config.layers < count:
        parser.error(f"{config.layers} layers are too few for {count} stages")
    parts, stages = torch.nn.ModuleList(), []
    size = args.batch_size // args.micro_batches
    for stage in mine:
        with device:
            part = transformer.Transformer(config, layers_of(stage, count, config.layers), recompute=args.checkpoint)
        parts.append(part.to(dtype))
        # What comes in and goes out is told, so that the stages need not ask each other.
        shape = (size, args.sequence)
        tokens = torch.zeros(*shape, dtype=torch.int64, device="meta")
        between, logits = (
            torch.zeros(*shape, width, dtype=dtype, device="meta", requires_grad=True)
            for width in (config.width, config.vocabulary)
        )
        given, made = tokens if stage == 0 else between, logits if stage == count - 1 else between
        stages.append(PipelineStage(part, stage, count, device, input_args=given, output_args=made))

    kind = get_schedule_class(args.schedule)
    single = issubclass(kind, PipelineScheduleSingle)
    schedule = kind(stages[0] if single else stages, args.micro_batches, loss_fn=transformer.next_token_loss)
    optimizer = torch.optim.AdamW(parts.parameters(), lr=1e-4)
    for step in range(args.steps):
        torch.manual_seed(step)
        tokens = torch.randint(0, config.vocabulary, (args.batch_size, args.sequence + 1), device=device)
        inputs = (tokens[:, :-1],) if 0 in mine else ()
        targets = {"target": tokens[:, 1:]} if count - 1 in mine else {}
        schedule.step(*inputs, **targets)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}: done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
