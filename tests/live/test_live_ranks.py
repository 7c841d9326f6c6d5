"""Several ranks of a script run at once, and meet in simulated time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SETUP = """
import os, sys, time, torch
import torch.distributed as dist
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % 8)
"""

#: The last rank computes for a second longer than the others, in which they wait for it.
STRAGGLER = (
    SETUP
    + """
layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
optimizer = torch.optim.SGD(layer.parameters())
for step in range(4):
    before = time.perf_counter()
    layer(torch.randn(4, 8, device="cuda")).sum().backward()
    if rank == world - 1:
        time.sleep(1)
    optimizer.step()
    dist.barrier()
    torch.cuda.synchronize()
    print(f"rank {rank} step {step}: {time.perf_counter() - before:.2f}")
"""
)


def run(folder: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, so that its ranks are forked as from a terminal."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "triosim", "run", "--gpu", "H100", *options, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=dict(os.environ))


def test_ranks_wait_for_a_late_one_in_simulated_time(tmp_path: Path) -> None:
    done = run(tmp_path, STRAGGLER, "--world", "4", "-q", "--ranks-output", "logs")
    assert done.returncode == 0, done.stderr
    lines = [f"rank {rank} step {step}: 1.00" for step in range(4) for rank in (0, 3)]
    assert sorted(done.stdout.splitlines()) == sorted(lines)  # rank 0 stands for 1 and 2, which print nothing
    assert (tmp_path / "logs" / "rank-3.log").read_text(encoding="utf-8").splitlines() == lines[1::2]
    assert run(tmp_path, STRAGGLER, "--world", "4", "-q").stdout == done.stdout


def test_the_terminal_shows_the_ranks_that_are_asked_for(tmp_path: Path) -> None:
    done = run(tmp_path, STRAGGLER, "--world", "4", "-q", "--ranks", "all", "--print-ranks", "2")
    assert re.findall(r"rank (\d) step (\d)", done.stdout) == [("2", str(step)) for step in range(4)]
