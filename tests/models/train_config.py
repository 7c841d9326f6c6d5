"""Train a model of transformers that a config.json describes: what tests/models/test_described_captures.py captures.

python train_config.py config.json [dtype for autocast, or "plain" [dtype of all]]
"""

from __future__ import annotations

import sys

import torch
import transformers
from transformers import AutoConfig

CLASSES = {
    "bert": transformers.AutoModelForMaskedLM,
    "t5": transformers.AutoModelForSeq2SeqLM,
    **dict.fromkeys(("vit", "convnext", "convnextv2"), transformers.AutoModelForImageClassification),
    "clip": transformers.AutoModel,
}

config = AutoConfig.from_pretrained(sys.argv[1])
amp = sys.argv[2] if len(sys.argv) == 3 else None
usual = "bfloat16" if config.model_type in ("mixtral", "deepseek_v3") else "float32"
dtype = getattr(torch, sys.argv[3] if len(sys.argv) > 3 else usual)
device = torch.device("cuda")
with device:
    model = CLASSES.get(config.model_type, transformers.AutoModelForCausalLM).from_config(config).to(dtype).train()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    images = torch.randn(4, 3, 64, 64, device=device)
    if config.model_type == "clip":
        words = torch.randint(0, 512, (4, 48), device=device)
        batch = {"input_ids": words, "pixel_values": images, "return_loss": True}
    elif config.model_type in ("vit", "convnext", "convnextv2"):
        batch = {"pixel_values": images, "labels": torch.randint(0, 10, (4,), device=device)}
    else:
        words = torch.randint(0, 512, (4, 48), device=device)
        batch = {"input_ids": words, "labels": words}
    with torch.autocast("cuda", getattr(torch, amp or "bfloat16"), enabled=amp is not None):
        loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
