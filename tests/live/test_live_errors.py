"""Whatever goes wrong in a running script is one clear message, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_live_ranks import SETUP, run

torch = pytest.importorskip("torch")

DISAGREEING = (
    SETUP
    + """
value = torch.ones(1024 if rank else 2048, device="cuda")
dist.all_reduce(value)
torch.cuda.synchronize()
print(time.time())
"""
)
WAITING = (
    SETUP
    + """
if rank == 0:
    dist.recv(torch.empty(4, device="cuda"), src=1)
else:
    dist.recv(torch.empty(4, device="cuda"), src=0)
torch.cuda.synchronize()
print(time.time())
"""
)
DYING = (
    SETUP + "if rank == 1:\n    os.kill(os.getpid(), 9)\ndist.barrier()\ntorch.cuda.synchronize()\nprint(time.time())\n"
)
FAILING = (
    SETUP
    + "if rank == 1:\n    raise ValueError('of rank 1')\ndist.barrier()\ntorch.cuda.synchronize()\nprint(time.time())\n"
)
HANGING = "import time\nbegan = time.time()\nwhile True:\n    pass\n"
FORKING = """
import os, time, torch
child = os.fork()
if not child:
    print("in the child", flush=True)
    try:
        torch.ones(2, device="cuda")
    except RuntimeError as error:
        print(str(error)[:40], flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("in the parent", round(time.time()))
"""


@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        (DISAGREEING, ("--ranks", "all"), ("ranks 0 and 1", "8192 bytes at train.py:9", "4096 bytes at train.py:9")),
        (WAITING, ("--ranks", "all"), ("deadlock", "rank 0", "train.py:9", "train.py:11")),
        (DYING, ("--ranks", "all"), ("the process of rank 1 died by signal 9",)),
        (HANGING, ("--patience", "3 s"), ("rank 0 has launched nothing for 3 seconds: the script hangs", "train.py:")),
    ],
)
def test_an_error_of_the_run_is_one_message(
    tmp_path: Path, script: str, options: tuple[str, ...], said: tuple[str, ...]
) -> None:
    world = () if script is HANGING else ("--world", "2")
    done = run(tmp_path, script, *world, *options)
    assert done.returncode == 2, done.stderr
    error = done.stderr.splitlines()[-1]
    assert error.startswith("triosim: error: ")
    assert [one for one in said if one not in error] == []


def test_a_script_with_process_groups_is_told_of_the_world(tmp_path: Path) -> None:
    done = run(tmp_path, SETUP + "print(rank, world)\n", "-q")
    assert done.returncode == 2
    said = (
        "triosim: error: train.py:4: the script makes process groups of GPUs; say how many ranks there are: --world N"
    )
    assert [said in line for line in done.stderr.splitlines()] == [True]
    assert run(tmp_path, SETUP + "print(rank, world)\n", "-q", "--world", "1").stdout == "0 1\n"


def test_a_rank_that_raises_ends_the_others(tmp_path: Path) -> None:
    done = run(tmp_path, FAILING, "--world", "2", "--ranks", "all")
    assert done.returncode == 1
    assert "ValueError: of rank 1" in done.stderr
    assert "triosim: rank 1 ended with status 1: the others are ended" in done.stderr


def test_a_rank_that_raises_says_why_where_others_are_shown(tmp_path: Path) -> None:
    """Of the rank that failed only its standard error is shown, and that once."""
    script = FAILING.replace("raise", "print('not shown'); raise")
    done = run(tmp_path, script, "--world", "2", "--ranks", "all", "--print-ranks", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("ValueError: of rank 1") == 1
    assert done.stderr.index("ValueError: of rank 1") < done.stderr.index("triosim: rank 1 ended with status 1")


def test_a_process_that_the_script_forks_may_print_and_has_no_gpu(tmp_path: Path) -> None:
    done = run(tmp_path, FORKING, "-q")
    assert done.stdout.splitlines() == [
        "in the child",
        "Cannot re-initialize CUDA in forked subp",
        "in the parent 1767225600",
    ]


ENDLESS = """
import time, torch
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(3):
    model(torch.randn(64, 512, device="cuda")).sum().backward()
    optimizer.step()
torch.cuda.synchronize()
print(time.perf_counter(), "began", flush=True)
while True:
    pass
"""


def test_ctrl_c_ends_the_script_and_shows_the_table_so_far(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDLESS, encoding="utf-8")
    command = [sys.executable, "-m", "triosim", "run", "--gpu", "H100", "-o", "result.json", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "began" not in (line := process.stdout.readline()):
            assert line
        listed = ["ps", "-o", "pid=", "--ppid", str(process.pid)]
        children = subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split()
        process.send_signal(signal.SIGINT)
        tables, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "triosim: 3 steps ended, of " in said
    assert "step time" in tables
    assert len(json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["steps"]) == 3
    assert children
    assert not [one for one in children if os.path.exists(f"/proc/{one}")]
