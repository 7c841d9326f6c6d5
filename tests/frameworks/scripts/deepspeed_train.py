"""DeepSpeed: ZeRO of a stage with accumulation, clipping and a checkpoint; prints what each step takes."""

import argparse
import time

import deepspeed
import torch
from torch import nn

WORDS, LENGTH, WIDTH, BATCH, ACCUMULATE = 1000, 128, 256, 4, 2
parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int)
parser.add_argument("--local_rank", type=int, default=-1)
stage = parser.parse_args().stage


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, dropout=0.0)
        self.model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, 2), nn.Linear(WIDTH, WORDS))

    def forward(self, words, labels):
        return nn.functional.cross_entropy(self.model(words).flatten(0, 1), labels.flatten())


deepspeed.init_distributed()
model = Model()
config = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": ACCUMULATE,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": stage},
    "wall_clock_breakdown": True,
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
last = time.perf_counter()
for _ in range(5):
    for _ in range(ACCUMULATE):
        words = torch.randint(0, WORDS, (BATCH, LENGTH), device=engine.device)
        loss = engine(words, words)
        engine.backward(loss)
        engine.step()
    torch.cuda.synchronize()
    now = time.perf_counter()
    if engine.global_rank == 0:
        print(f"step: {now - last:.9f}", flush=True)
    last = now
engine.save_checkpoint("checkpoints", tag="last")
