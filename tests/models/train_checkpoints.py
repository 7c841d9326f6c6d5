"""Train a small Llama that checkpoints its feed-forward networks and norms: what test_described_checkpoints.py captures.

python train_checkpoints.py config.json
"""

from __future__ import annotations

import sys
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM

device = torch.device("cuda")
with device:
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(sys.argv[1])).train()
for layer in model.model.layers:
    for module in (layer.mlp, layer.input_layernorm, layer.post_attention_layernorm):
        module.forward = partial(checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    words = torch.randint(0, 512, (4, 48), device=device)
    model(input_ids=words, labels=words).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
