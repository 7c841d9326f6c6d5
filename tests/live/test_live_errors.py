"""Whatever goes wrong in a running script is one clear message, and leaves no process behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_live_ranks import SETUP, STAGES, run

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


#: All ranks but the first wait for it.
LEFT_ALONE = (
    SETUP
    + """
value = torch.ones(10, device="cuda")
if rank:
    dist.all_reduce(value)
torch.cuda.synchronize()
"""
)
SLEEPING = SETUP + "import threading\nthreading.Event().wait()\n"


@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        (LEFT_ALONE, (), "15 ranks can never go on: ranks 1-15 in all_reduce of 40 B in 'world' at train.py:"),
        (SLEEPING, ("--patience", "3 s"), "train.py:8: rank 0 has launched nothing for 3 seconds: the script hangs"),
    ],
)
def test_errors_speak_of_the_ranks_that_do_not_run_too(
    tmp_path: Path, script: str, options: tuple[str, ...], said: str
) -> None:
    done = run(tmp_path, script, "--world", "16", "-q", *options)
    assert done.returncode == 2, done.stderr
    error = done.stderr.splitlines()[-1]
    assert error.startswith("triosim: error: ")
    assert said in error


def test_a_stage_of_a_pipeline_that_fails_shows_why(tmp_path: Path) -> None:
    """The others wait for what it sends; those whose shapes it needs run too."""
    failing = STAGES.replace(
        "    optimizer.step()\n", "    assert dist.get_rank() != 0, 'of rank 0'\n    optimizer.step()\n"
    )
    done = run(tmp_path, failing.replace("FIRST", "9"), "--world", "16", "-q")
    assert done.returncode == 1, done.stderr
    assert "AssertionError: of rank 0" in done.stderr
    assert done.stderr.splitlines()[-1] == "triosim: rank 0 ended with status 1: the others are ended"


ALONE = """
import os, socket, torch
import torch.distributed as dist
held = socket.create_server(("127.0.0.1", 0))  # nobody listens to the script's port: any may be in use
dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{held.getsockname()[1]}", rank=0, world_size=SIZE)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
model(torch.randn(4, 8, device="cuda")).sum().backward()
dist.barrier()
print(dist.get_world_size(), dist.get_backend(), "RANK" in os.environ)
"""


def test_a_script_that_is_a_world_by_itself_needs_no_launcher(tmp_path: Path) -> None:
    assert run(tmp_path, ALONE.replace("SIZE", "1"), "-q").stdout == "1 nccl False\n"


@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        (
            SETUP,
            (),
            "train.py:4: the script makes process groups, and nobody says of how many ranks, where 1 is run; say",
        ),
        (
            ALONE.replace("SIZE", "4"),
            (),
            "train.py:5: the script makes process groups of 4 ranks, where 1 is run; run as many",
        ),
        (ALONE.replace("SIZE", "4"), ("--world", "2"), "of 4 ranks, where 2 are run; run as many: --world 4"),
    ],
)
def test_a_script_with_process_groups_is_told_of_the_world(
    tmp_path: Path, script: str, options: tuple[str, ...], said: str
) -> None:
    done = run(tmp_path, script, "-q", *options)
    assert done.returncode == 2, done.stderr
    assert [line.startswith("triosim: error: ") for line in done.stderr.splitlines() if said in line][:1] == [True]


@pytest.mark.parametrize(
    ("script", "status", "shown"),
    [
        ("import os\nprint('before', flush=True)\nos._exit(5)\n", 5, ""),
        ("def f():\n    raise KeyboardInterrupt\nf()\n", 130, "line 2, in f"),
        ("import sys\nsys.exit(-1)\n", 255, ""),
    ],
)
def test_a_script_leaves_with_the_status_that_python_has(tmp_path: Path, script: str, status: int, shown: str) -> None:
    done = run(tmp_path, script)
    assert done.returncode == status
    assert shown in done.stderr


def test_a_rank_that_leaves_at_once_ends_the_others(tmp_path: Path) -> None:
    leaving = FAILING.replace("raise ValueError('of rank 1')", "os._exit(5)")
    done = run(tmp_path, leaving, "--world", "2", "--ranks", "all", "-q")
    assert done.returncode == 5
    assert done.stderr.splitlines()[-1] == "triosim: rank 1 ended with status 5: the others are ended"


@pytest.mark.parametrize(
    ("failing", "shown"),
    [
        ("def build():\n    raise ValueError('mine')\nbuild()\n", "ValueError: mine"),
        ("if rank == 15:\n    raise ValueError('mine')\n", "ValueError: mine"),
        (
            "torch.cuda.set_device(rank)\n",
            "cuda:15 was asked for, and a machine has 8 (a rank's own is the one of LOCAL_RANK)",
        ),
    ],
)
def test_a_script_that_fails_before_its_ranks_are_compared_shows_why(tmp_path: Path, failing: str, shown: str) -> None:
    done = run(tmp_path, SETUP + failing, "--world", "16", "-q")
    assert done.returncode == 1
    assert shown in done.stderr
    assert re.search(r"File \"train.py\", line \d+, in", done.stderr)
    assert "triosim/" not in done.stderr


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


#: Sends its model to another process, as Hogwild training does.
SHARING = """
import torch
import torch.multiprocessing as mp

def work(model):
    model(torch.ones(2, 2, device="cuda"))

if __name__ == "__main__":
    model = torch.nn.Linear(2, 2).cuda()
    model.share_memory()
    mp.get_context("spawn").Process(target=work, args=(model,)).start()
"""
REMOTE = """
import torch.distributed.rpc as rpc
rpc.init_rpc("worker", rank=0, world_size=1)
"""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            SHARING,
            "train.py:11: a tensor of the GPU is sent to another process, and processes that a script starts have",
        ),
        (REMOTE, "train.py:3: torch.distributed.rpc is not simulated"),
    ],
)
def test_what_nothing_stands_in_for_is_refused_in_one_line(tmp_path: Path, script: str, said: str) -> None:
    done = run(tmp_path, script, "-q")
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.startswith("triosim: error: ")][1:] == []
    assert f"triosim: error: {said}" in done.stderr


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
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,  # a job in the background ignores it
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while "began" not in (line := process.stdout.readline()):
            assert line
        listed = ["ps", "-o", "pid=", "--ppid", str(process.pid)]
        children = subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split()
        process.send_signal(signal.SIGINT)
        tables, said = process.communicate()
    assert process.returncode == 130
    assert "triosim: 3 steps ended, of " in said
    assert "step time" in tables
    assert len(json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["steps"]) == 3
    assert children
    assert not [one for one in children if os.path.exists(f"/proc/{one}")]


def test_the_script_is_no_output_of_its_run(tmp_path: Path) -> None:
    done = run(tmp_path, "print(1)\n", "-o", "train.py")
    assert done.returncode == 2
    assert "train.py: is an input of this command" in done.stderr
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == "print(1)\n"


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """What is written to /dev/full fails as on a full disk."""
    script = "import torch\ntorch.save(torch.ones(2), 'a.pt')\nopen('/dev/full', 'w').write('x' * 100_000)\n"
    done = run(tmp_path, script, "-q", "--files", "own")
    (error,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert error.startswith(f"triosim: error: the disk of --files is full: {tmp_path}/own has ")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("shown", ["0,1,2,3", "2"])
def test_an_error_of_ours_that_all_ranks_have_is_shown_once(tmp_path: Path, shown: str) -> None:
    script = "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)\n"
    done = run(tmp_path, script, "--world", "4", "--ranks", "all", "--print-ranks", shown)
    assert done.returncode == 2
    assert done.stderr.count("triosim: error: the script starts 2 ranks") == 1
