"""On a device, what each rank of a sharded model holds is what PyTorch says of its part of the parameters."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import triosim
from triosim.trace import Trace

torch = pytest.importorskip("torch")

HEAD = """
import json, os
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

def held(tensors):
    storages = [local(tensor).untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())  # gradients may share one

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = dist.init_device_mesh("cpu", (world,))
with torch.device("meta"):
    model = nn.Sequential(nn.Linear(30, 50), nn.ReLU(), nn.Linear(50, 7))
"""

FSDP = """
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
"""

TENSOR = """
parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
"""

TRAINING = """
model.to_empty(device="cpu")
for parameter in model.parameters():
    nn.init.ones_(parameter)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for step in range(5):
    model(torch.randn(4, 30)).sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    states = [value for state in optimizer.state.values() for value in state.values()]
    whole = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    gradients = [parameter.grad for parameter in parameters]
    found = {"parameter": held(parameters), "gradient": held(gradients), "optimizer_state": held(states), "whole": whole}
    with open(f"rank{rank}.json", "w") as file:
        json.dump(found, file)
    optimizer.zero_grad()
"""


def captured(folder: Path, shards: str, *options: str, world: int) -> list[tuple[Trace, dict[str, int]]]:
    """Capture each rank of a script as ``torchrun`` starts them; return its trace, and the bytes that PyTorch says it holds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "train.py").write_text(HEAD + shards + TRAINING, encoding="utf-8")
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "triosim", "capture", "--device", "cpu", *options]
    ranks = [
        subprocess.Popen(
            [*command, "-o", f"{rank}.json", "train.py"],
            env={**os.environ, **where, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, said
    found = []
    for rank in range(world):
        trace = triosim.load_trace(folder / f"{rank}.json")
        assert isinstance(trace, Trace)
        found.append((trace, json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8"))))
    return found


def held_at_the_end(trace: Trace) -> dict[str, int]:
    kept: Counter[str] = Counter()
    for storage in trace.storages:
        if storage.died is None:
            kept[storage.category] += storage.nbytes
    return {category: kept[category] for category in ("parameter", "gradient", "optimizer_state")}


@pytest.mark.slow
@pytest.mark.parametrize("shards", [FSDP, TENSOR], ids=["fully_shard", "tensor parallel"])
def test_two_ranks_hold_the_bytes_of_their_own_parts(shards: str, tmp_path: Path) -> None:
    for trace, told in captured(tmp_path, shards, "--skip", "1", "--steps", "1", world=2):
        whole = told.pop("whole")
        assert held_at_the_end(trace) == told
        assert told["parameter"] < 0.6 * whole
        assert trace.model == "Sequential"
        assert trace.batch_size == 4
        assert {"0", "2"} <= {operator.layer for operator in trace.operators}


@pytest.mark.parametrize("shards", [FSDP, TENSOR], ids=["fully_shard", "tensor parallel"])
def test_the_first_step_counts_from_where_the_model_is_made(shards: str, tmp_path: Path) -> None:
    """PyTorch swaps the parameters of a model of distributed tensors that is given memory, which is before the step."""
    ((trace, told),) = captured(tmp_path, shards, "--skip", "0", "--steps", "1", world=1)
    assert told.pop("whole") == told["parameter"] == 4 * (30 * 50 + 50 + 50 * 7 + 7)
    assert held_at_the_end(trace) == told
    assert not [
        operator.name for operator in trace.operators if "fill" in operator.name and operator.phase == "forward"
    ]
