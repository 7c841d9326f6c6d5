"""Each line of docs/run.md's "What does not work" is so, and the script's user is told where there is something to tell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from test_live_ranks import SETUP, run

torch = pytest.importorskip("torch")

TRAINING = """
import time, torch
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters())
"""


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("torch.linalg.lstsq(x, x)", "without a GPU the shape of what aten::linalg_lstsq returns is not known;"),
        ("torch.nested.nested_tensor([x, x])", "nested tensors are not captured without a GPU; pad them"),
        ("x.to_sparse()", "sparse tensors of a GPU are not captured without one; use dense ones"),
        (
            "torch.nn.Embedding(8, 4, sparse=True).cuda()(i).sum().backward()",
            "sparse tensors of a GPU are not captured",
        ),
    ],
)
def test_an_operator_that_is_not_captured_is_one_line_after_the_scripts_traceback(
    tmp_path: Path, call: str, said: str
) -> None:
    setup = "import torch\nx = torch.rand(4, 4, device='cuda')\ni = torch.arange(3).cuda()\n"
    done = run(tmp_path, setup + call, "-q")
    assert done.returncode == 2, done.stderr
    assert 'File "train.py", line 4' in done.stderr
    assert f"triosim: error: {said}" in done.stderr
    assert "triosim/tracer" not in done.stderr
    assert "died" not in done.stderr


@pytest.mark.parametrize(
    ("script", "printed", "said"),
    [
        pytest.param(
            "import torch\nprint(torch.rand(4, device='cuda').sum().item() > 0)\n",
            "True",
            "train.py:2: reads a tensor's value, which is not computed: it is assumed to be ",
            id="contents",
        ),
        pytest.param(
            TRAINING
            + """
turns = 0
while True:
    loss = model(torch.rand(4, 512, device="cuda")).sum()
    turns += 1
    if loss.item() < 0.01:
        break
print(100 < turns < 110)
""",
            "True",
            "and to end the loop after 100 turns",
            id="loop",
        ),
        pytest.param(
            """
import threading, time
time.sleep(1)
before, read = time.perf_counter(), []
thread = threading.Thread(target=lambda: read.append(time.perf_counter()))
thread.start()
thread.join()
print(read[0] == before)
""",
            "True",
            "",
            id="clock of a thread",
        ),
        pytest.param(
            TRAINING
            + """
compiled, seconds = torch.compile(model), []
for _ in range(3):
    torch.cuda.synchronize()
    began = time.perf_counter()
    compiled(torch.rand(4, 512, device="cuda"))
    torch.cuda.synchronize()
    seconds.append(time.perf_counter() - began)
print(seconds[0] < 2 * seconds[2])
""",
            "True",
            "",
            id="time of compiling",
        ),
        pytest.param(
            """
import torch
from torch.func import vmap
print(vmap(lambda x: torch.nn.Linear(4, 2, device="cuda")(x), randomness="same")(torch.rand(3, 4, device="cuda")).shape)
""",
            "",
            "Error",
            id="models inside of vmap",
        ),
        pytest.param(
            TRAINING
            + """
from torch.profiler import profile
with profile(profile_memory=True, with_flops=True, with_stack=True) as p:
    model(torch.rand(4, 512, device="cuda"))
print({(one.device_memory_usage, one.flops, len(one.stack)) for one in p.key_averages()})
""",
            "{(0, 0, 0)}",
            "",
            id="profiles",
        ),
        pytest.param(
            """
import datetime, time, resource
import numpy
today = datetime.datetime(2026, 1, 1)
print(str(datetime.date.today())[:4], time.time() == 1767225600, str(numpy.datetime64("now"))[:10] != "2026-01-01")
""",
            "2026 True True",
            "",
            id="clocks that are real",
        ),
    ],
)
def test_what_is_different_is_as_the_list_says(tmp_path: Path, script: str, printed: str, said: str) -> None:
    done = run(tmp_path, script, "-q")
    assert done.stdout.strip() == printed, done.stderr
    assert said in done.stderr


def test_data_parallel_on_several_gpus_is_refused_and_runs_on_one(tmp_path: Path) -> None:
    script = TRAINING + "print(torch.nn.DataParallel(model)(torch.rand(8, 512, device='cuda')).shape)\n"
    assert run(tmp_path, script, "-q").stdout == "torch.Size([8, 512])\n"
    done = run(tmp_path, script, "--world", "4", "-q")
    assert done.returncode == 2
    assert (
        "train.py:5: DataParallel runs on 4 GPUs in threads of one process, which is not simulated; use" in done.stderr
    )


def test_many_fractions_that_are_sent_are_unknown_where_they_arrive(tmp_path: Path) -> None:
    script = """
value = torch.full((2000,), 7.0, device="cuda") if rank == 0 else torch.zeros(2000, device="cuda")
if rank == 0:
    dist.send(value, 1)
else:
    dist.recv(value, 0)
print(rank, value.sum().item())
"""
    done = run(tmp_path, SETUP + script, "--world", "2", "-q")
    assert done.returncode == 0, done.stderr
    assert "0 14000.0" in done.stdout.splitlines()
    assert "1 14000.0" not in done.stdout.splitlines()
    assert "reads a tensor's value, which is not computed" in done.stderr


def test_a_script_without_an_optimizer_has_no_steps_and_is_told_so(tmp_path: Path) -> None:
    script = """import torch
model = torch.nn.Linear(4, 4).cuda()
model(torch.ones(2, 4, device="cuda")).sum().backward()
for one in model.parameters():
    one.data.add_(one.grad, alpha=-0.1)
print("trained")
"""
    done = run(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "no tables: no step, which ends where an optimizer's step() returns" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_a_hard_link_of_before_is_another_file_afterwards(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("before", encoding="utf-8")
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    script = 'open("one", "w").write("after")\nprint(open("one").read(), open("two").read())\n'
    assert run(tmp_path, script, "-q").stdout == "after before\n"
    assert (tmp_path / "one").read_text(encoding="utf-8") == "before"
