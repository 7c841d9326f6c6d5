"""A GPT as Megatron-LM wrote it before FlashAttention, in plain PyTorch: what test_described_captures.py captures.

Activations are (sequence, batch, hidden), the scores of attention a batched product into memory that is not read.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WORDS, HIDDEN, HEADS, LAYERS, LENGTH, BATCH = 512, 128, 4, 2, 48, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.linear_proj = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length, batch, hidden = x.shape
        width, rows = hidden // HEADS, batch * HEADS
        mixed = self.linear_qkv(x).view(length, batch, HEADS, 3 * width)
        query, key, value = (part.reshape(length, rows, width).transpose(0, 1) for part in mixed.split(width, dim=-1))
        scores = torch.empty(rows, length, length, dtype=x.dtype, device=x.device)
        scores = torch.baddbmm(scores, query, key.transpose(1, 2), beta=0.0, alpha=width**-0.5)
        found = functional.dropout(scores.view(batch, HEADS, length, length).softmax(-1), 0.1).view(
            rows, length, length
        )
        found = torch.bmm(found, value).view(batch, HEADS, length, width).permute(2, 0, 1, 3).contiguous()
        return self.linear_proj(found.view(length, batch, hidden))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.pre_mlp_layernorm = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.self_attention = Attention()
        self.linear_fc1, self.linear_fc2 = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + functional.dropout(self.self_attention(self.input_layernorm(x)), 0.1)
        found = functional.gelu(self.linear_fc1(self.pre_mlp_layernorm(x)), approximate="tanh")
        return x + functional.dropout(self.linear_fc2(found), 0.1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.shape[1], device=words.device).unsqueeze(0).expand_as(words)
        x = functional.dropout((self.words(words) + self.positions(places)).transpose(0, 1).contiguous(), 0.1)
        for layer in self.layers:
            x = layer(x)
        logits = functional.linear(self.norm(x), self.words.weight)
        return functional.cross_entropy(logits.float().view(-1, WORDS), labels.transpose(0, 1).reshape(-1))


model = Model().cuda().half()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(2):
    words = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
    model(words, words).backward()
    optimizer.step()
    optimizer.zero_grad()
