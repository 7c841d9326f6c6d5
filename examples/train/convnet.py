"""Train a small convolutional network on made-up images, with PyTorch alone.

python convnet.py --batch-size 32
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from torch import nn

CHANNELS = (3, 32, 64, 128, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers: list[nn.Module] = []
    for read, made in pairwise(CHANNELS):
        layers += [nn.Conv2d(read, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU(), nn.MaxPool2d(2)]
    side = args.image_size >> (len(CHANNELS) - 1)
    head = [nn.Flatten(), nn.Linear(CHANNELS[-1] * side**2, 512), nn.ReLU(), nn.Linear(512, args.classes)]
    model = nn.Sequential(*layers, *head).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(args.steps):
        images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
        labels = torch.randint(0, args.classes, (args.batch_size,), device=device)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: done")


if __name__ == "__main__":
    main()
