"""A step of a small model: on one GPU, under FSDP2, or under FSDP2 with its ``CPUOffloadPolicy``."""

import sys

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

WIDTH, LAYERS, BATCH, LENGTH = 1024, 8, 16, 1024


class Block(nn.Module):
    """A norm and two linear layers, as an MLP of a transformer has them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input and what the layers add to it."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Blocks, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(LAYERS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the blocks make of the input."""
        for layer in self.layers:
            x = layer(x)
        return x


def host_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of this rank's parameters, gradients and optimizer states that are on the host."""
    tensors = [*model.parameters(), *(parameter.grad for parameter in model.parameters())]
    tensors += [
        one for state in optimizer.state.values() for one in state.values() if one.dim()
    ]  # not the count of steps
    local = [one.to_local() if hasattr(one, "to_local") else one for one in tensors]
    return sum(one.numel() * one.element_size() for one in local if one.device.type == "cpu")


def main(wrapped: str) -> None:
    model = Model()
    if wrapped != "offloaded":
        model = model.cuda()
    if wrapped != "alone":
        torch.distributed.init_process_group("nccl")
        torch.cuda.set_device(torch.distributed.get_rank() % torch.cuda.device_count())
        policy = {"offload_policy": CPUOffloadPolicy(pin_memory=False)} if wrapped == "offloaded" else {}
        for layer in model.layers:
            fully_shard(layer, **policy)
        fully_shard(model, **policy)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        samples = torch.randn(BATCH, LENGTH, WIDTH, device="cuda")
        model(samples).square().mean().backward()
        optimizer.step()
        print("bytes on the host:", host_bytes(model, optimizer), flush=True)
        optimizer.zero_grad()


main(sys.argv[1])
