"""DeepSpeed: a mixture of experts on different ranks; prints what its gate chose, an expert's rows, and each step's time."""

import argparse
import sys
import time

import deepspeed
import torch
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from torch import nn

WORDS, LENGTH, WIDTH, BATCH, EXPERTS = 1000, 128, 256, 4, 8
parser = argparse.ArgumentParser()
parser.add_argument("--choices", type=int, default=2)
parser.add_argument("--keep", action="store_true", help="drop no tokens")
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
deepspeed.init_distributed()
world = torch.distributed.get_world_size()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        expert = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.layers = nn.ModuleList(
            MoE(WIDTH, expert, num_experts=EXPERTS, ep_size=world, k=args.choices, drop_tokens=not args.keep)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words, labels):
        data, loss = self.embed(words), 0.0
        for number, layer in enumerate(self.layers):
            added, balance, counts = layer(data)
            sys.stdout.write(f"rank {engine.global_rank} layer {number} counts {counts.tolist()} of {sizes.pop()}\n")
            data, loss = data + added, loss + 0.01 * balance
        return nn.functional.cross_entropy(self.head(data).flatten(0, 1).float(), labels.flatten()) + loss


model, sizes = Model(), []
for layer in model.layers:
    layer.deepspeed_moe.experts.register_forward_pre_hook(lambda _, given: sizes.append(given[0].shape[-2]))
config = {
    "train_micro_batch_size_per_gpu": BATCH,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": args.stage},
}
groups = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
last = time.perf_counter()
for _ in range(4):
    words = torch.randint(0, WORDS, (BATCH, LENGTH), device=engine.device)
    loss = engine(words, words)
    engine.backward(loss)
    engine.step()
    torch.cuda.synchronize()
    now = time.perf_counter()
    if engine.global_rank == 0:
        print(f"step: {now - last:.9f}", flush=True)
    last = now
