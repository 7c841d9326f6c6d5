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

#: The first rank takes long to write a file, and all read it after they have met.
CHECKPOINT = (
    SETUP
    + """
import threading
for round in range(3):
    if rank == 0:
        threading.Event().wait(0.5)
        time.sleep(2)
        open(f"{round}.txt", "w").write("written")
    MEET
    print(rank, open(f"{round}.txt").read(), round, f"{time.perf_counter():.2f}")
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


@pytest.mark.parametrize("call", ["dist.barrier()", "dist.broadcast_object_list([1], src=0)"])
def test_a_barrier_holds_the_processes_of_ranks(tmp_path: Path, call: str) -> None:
    done = run(tmp_path, CHECKPOINT.replace("MEET", call), "--world", "3", "--ranks", "all", "-q")
    assert done.returncode == 0, done.stderr
    expected = [f"{rank} written {number} {2 * number + 2:.2f}" for rank in range(3) for number in range(3)]
    assert sorted(done.stdout.splitlines()) == expected


def test_the_terminal_shows_the_ranks_that_are_asked_for(tmp_path: Path) -> None:
    done = run(tmp_path, STRAGGLER, "--world", "4", "-q", "--ranks", "all", "--print-ranks", "2")
    assert re.findall(r"rank (\d) step (\d)", done.stdout) == [("2", str(step)) for step in range(4)]


#: Every rank does the same; the first and the last one read the clock, at different places.
ALIKE = (
    SETUP
    + """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda())
optimizer = torch.optim.SGD(model.parameters())
began = time.perf_counter()
for step in range(4):
    model(torch.randn(64, 512, device="cuda")).sum().backward()
    if rank == world - 1:
        time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        torch.cuda.synchronize()
    else:
        torch.cuda.synchronize()
        print(f"step {step}: {time.perf_counter() - began:.6f}")
"""
)


def test_folded_ranks_take_the_time_of_all(tmp_path: Path) -> None:
    whole, folded = (run(tmp_path, ALIKE, "--world", "16", "-q", fold) for fold in ("--no-fold", "--fold"))
    assert whole.returncode == 0, whole.stderr
    assert len(whole.stdout.splitlines()) == 4
    times = [[float(one) for one in re.findall(r": (\S+)$", done.stdout, re.MULTILINE)] for done in (whole, folded)]
    assert times[0] == pytest.approx(times[1], rel=1e-5)


def test_ranks_that_were_taken_for_equal_and_differ_are_named(tmp_path: Path) -> None:
    done = run(tmp_path, STRAGGLER, "--world", "16", "-q")
    assert done.returncode == 2
    assert "ranks 0 and 15 were assumed to run the same and differ" in done.stderr
    assert "1 s of the host at train.py:14 on rank 15; let each run for itself: --ranks 0,15" in done.stderr
    alone = run(tmp_path, STRAGGLER, "--world", "16", "-q", "--ranks", "0,15")
    assert alone.stdout.splitlines()[-1] == "rank 15 step 3: 1.00"
