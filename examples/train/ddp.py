"""Train a language model of Hugging Face transformers with DistributedDataParallel.

torchrun --nproc-per-node 8 ddp.py --model gpt2 --batch-size 8
"""

from __future__ import annotations

import argparse
import os

import hugging_face
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    hugging_face.add_arguments(parser)
    parser.add_argument("--bucket-size", type=float, default=25, help="MiB of gradients that are reduced together")
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")

    model = DistributedDataParallel(
        hugging_face.build(args, device), device_ids=[device.index] if on_gpu else None, bucket_cap_mb=args.bucket_size
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(args.steps):
        batch = hugging_face.batch(args, model.module.config.vocab_size, device)
        with torch.autocast(device.type, getattr(torch, args.amp or "bfloat16"), enabled=args.amp is not None):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
