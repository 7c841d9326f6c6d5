"""``torch.profiler`` in a live run: what it averages and exports are the simulated kernels, in their simulated times."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from trace_slices import assert_nested

import triosim
from triosim.cli import run

torch = pytest.importorskip("torch")

PROFILED = """
import os, time, torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
world = int(os.environ.get("WORLD_SIZE", "1"))
rank = int(os.environ.get("RANK", "0"))
torch.cuda.set_device(rank)
model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]).cuda()
if world > 1:
    torch.distributed.init_process_group("nccl")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(4096, 2048, device="cuda")

def train():
    with record_function("my forward"):
        loss = model(x).square().mean()
    with record_function("asleep"):
        time.sleep(1e-3)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
settings = dict(activities=activities, record_shapes=True, schedule=schedule(wait=2, warmup=1, active=2, repeat=1))
with profile(on_trace_ready=lambda p: p.export_chrome_trace(f"rank-{rank}.json.gz"), **settings) as p:
    for step in range(6):
        before = time.perf_counter()
        train()
        torch.cuda.synchronize()
        if rank == 0:
            print(f"step {step}: {time.perf_counter() - before:.9f}")
        p.step()
rows = {row.key: row for row in p.key_averages()}
if rank == 0:
    print("steps", rows["ProfilerStep*"].count, rows["ProfilerStep*"].cpu_time / 1e6)
    print("asleep", rows["asleep"].cpu_time / 1e6)
    print("optimizer", rows["Optimizer.step#AdamW.step"].count)
    print("products", rows["aten::addmm"].count, rows["aten_addmm_kernel"].count)
    print("kernels", sum(row.self_device_time_total for row in rows.values() if row.device_type.name == "CUDA") / 1e6)
    assert "CUDA total" in p.key_averages().table(sort_by="cuda_time_total", row_limit=5)
"""

OTHERS = """
import os, torch, time
from torch import nn
from torch.utils.benchmark import Timer
model = nn.Linear(2048, 2048).cuda()
x = torch.randn(4096, 2048, device="cuda")
def seconds(of):
    return sum(row.self_device_time_total for row in of.key_averages() if row.device_type.name == "CUDA") / 1e6
with torch.autograd.profiler.profile(use_device="cuda") as old:
    model(x)
print("old", seconds(old))
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as host:
    model(x)
print("host", seconds(host), len(host.events()) > 0)
host.export_chrome_trace("host.json")
with torch.autograd.profiler.emit_nvtx(), torch.cuda.profiler.profile(), torch.cuda.nvtx.range("a"):
    torch.cuda.nvtx.mark("b")
    model(x)
torch.cuda.cudart().cudaProfilerStart()
torch.cuda.synchronize()
print("timer", Timer("model(x)", globals=globals()).timeit(10).mean)
with torch.profiler.profile(on_trace_ready=torch.profiler.tensorboard_trace_handler("logs")):
    model(x)
print("logs", len(os.listdir("logs")))
"""


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)

    def live(script: str, *options: str) -> str:
        (tmp_path / "train.py").write_text(script, encoding="utf-8")
        assert run(["run", "-q", "--gpu", "H100", "--files", "files", *options, "train.py"]) == 0
        return capsys.readouterr().out

    return live


def printed(log: str, name: str) -> list[float]:
    found = re.search(rf"^{name}:? (.*)$", log, re.MULTILINE)
    assert found is not None, log
    return [float(one == "True") if one in ("True", "False") else float(one) for one in found[1].split()]


def exported(folder: Path, name: str) -> Path:
    (found,) = folder.glob(f"files/**/{name}")
    return found


def test_a_profile_is_that_of_the_simulated_steps(live: Callable[..., str], tmp_path: Path) -> None:
    """Two steps are profiled: 8 products forward. The profile, what it simulates as, and the script's log have one time."""
    log = live(PROFILED)
    (step,) = printed(log, "step 3")
    count, profiled = printed(log, "steps")
    assert count == 2
    assert profiled == pytest.approx(step, rel=0.01)
    assert printed(log, "asleep") == [pytest.approx(1e-3, rel=0.01)]
    assert printed(log, "optimizer") == [2]
    assert printed(log, "products") == [8, 8]  # calls and kernels
    trace = triosim.load_trace(exported(tmp_path, "rank-0.json.gz"))
    assert 2 * sum(one.seconds for one in trace.operators) == pytest.approx(printed(log, "kernels")[0], rel=0.01)
    assert triosim.simulate(trace).step_time_s == pytest.approx(step, rel=0.01)


def test_the_profiles_of_several_ranks_are_read_as_their_step(live: Callable[..., str], tmp_path: Path) -> None:
    log = live(PROFILED, "--world", "4", "--ranks", "all")
    folder = exported(tmp_path, "rank-0.json.gz").parent
    assert {path.name for path in folder.glob("*.gz")} == {f"rank-{rank}.json.gz" for rank in range(4)}
    result = triosim.simulate(os.fspath(folder), topology="dgx-h100(gpus=8)")
    assert result.step_time_s == pytest.approx(printed(log, "step 3")[0], rel=0.01)


def test_a_profile_whose_step_ends_ahead_of_the_wait_for_the_gpu_takes_as_long(
    live: Callable[..., str], tmp_path: Path
) -> None:
    """The host waits in the next step, which is no cost of the launches after it."""
    early = PROFILED.replace("        p.step()\n", "").replace(
        "        torch.cuda.sync", "        p.step()\n        torch.cuda.sync"
    )
    early = early.replace("        time.sleep(1e-3)", "        pass")
    world = ("--topology", "switch(2, bandwidth=200 GB/s, latency=1 us)", "--world", "2", "--ranks", "all")
    (step,) = printed(live(early, *world), "step 3")
    again = triosim.simulate(str(exported(tmp_path, "rank-0.json.gz").parent), topology=world[1])
    assert again.step_time_s == pytest.approx(step, rel=0.01)


def test_the_other_profilers_work_in_simulated_time(live: Callable[..., str], tmp_path: Path) -> None:
    """The older interface sees the kernel, a profile of the host alone none, and the benchmark's timer waits for it."""
    log = live(OTHERS)
    (kernel,) = printed(log, "old")
    assert kernel > 0.5e-3  # 34 GFLOP in single precision
    assert printed(log, "host") == [0.0, 1.0]
    content = json.loads(exported(tmp_path, "host.json").read_text(encoding="utf-8"))
    assert not any(one.get("cat") in ("kernel", "cuda_runtime") for one in content["traceEvents"])
    assert printed(log, "timer")[0] == pytest.approx(kernel, rel=0.05)
    assert printed(log, "logs") == [1]


SHARDED = """
import os, torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile
torch.distributed.init_process_group("nccl")
rank = torch.distributed.get_rank()
torch.cuda.set_device(rank)
model = nn.Sequential(nn.LayerNorm(1000), *[nn.Linear(1000, 1000) for _ in range(3)], nn.Linear(1000, 8008)).cuda()
for part in model:
    fully_shard(part)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4096, 1000, device="cuda")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as p:
    model(x).square().mean().backward()
    optimizer.step()
p.export_chrome_trace(f"rank-{rank}.json")
"""


def test_the_profile_of_a_stack_of_linear_layers_has_its_batch_and_parameters(
    live: Callable[..., str], tmp_path: Path
) -> None:
    """The first call of the forward pass is a transpose of a weight, of 2,048 x 2,048."""
    live(PROFILED)
    trace = triosim.load_trace(exported(tmp_path, "rank-0.json.gz"))
    assert trace.batch_size == 4096
    assert sorted(one.shape for one in trace.parameters.values()) == 4 * [(2048,)] + 4 * [(2048, 2048)]


def test_the_profile_of_a_rank_of_fsdp_has_the_model_s_batch_and_parameters(
    live: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first calls gather a layer's parameters, and its collectives are no operators of unknown names."""
    live(SHARDED, "--world", "8")
    path = exported(tmp_path, "rank-0.json")
    trace = triosim.load_trace(path)
    assert trace.batch_size == 4096
    expected = 5 * [(1000,)] + 3 * [(1000, 1000)] + [(8008,), (8008, 1000)]
    assert sorted(one.shape for one in trace.parameters.values()) == expected
    assert run(["simulate", os.fspath(path)]) == 0
    assert "unknown operators" not in "".join(capsys.readouterr())


REPLICATED = """
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
torch.distributed.init_process_group("nccl")
rank = torch.distributed.get_rank()
torch.cuda.set_device(rank)
layers = nn.Conv2d(3, 64, 7), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
model = nn.Sequential(*layers)
model = nn.parallel.DistributedDataParallel(model.cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(96, 3, 64, 64, device="cuda")
for step in range(2):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as p:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
p.export_chrome_trace(f"rank-{rank}.json")
"""


def test_the_profile_of_a_rank_of_ddp_has_the_model_s_batch_and_parameters(
    live: Callable[..., str], tmp_path: Path
) -> None:
    """It broadcasts buffers ahead of the first layer, whose weight autocast casts first; its hooks copy gradients."""
    live(REPLICATED, "--world", "4")
    trace = triosim.load_trace(exported(tmp_path, "rank-0.json"))
    assert trace.batch_size == 96
    expected = [(10,), (10, 64), *3 * [(64,)], (64, 3, 7, 7)]
    assert sorted(one.shape for one in trace.parameters.values()) == expected


def test_the_slices_of_a_script_s_profile_nest(live: Callable[..., str], tmp_path: Path) -> None:
    """FSDP names ranges of no length, and ranges that begin within a layer's forward pass."""
    live(SHARDED, "--world", "8")
    events = json.loads(exported(tmp_path, "rank-0.json").read_text(encoding="utf-8"))["traceEvents"]
    assert_nested(events)


def test_a_profile_without_ranges_is_written(live: Callable[..., str]) -> None:
    script = "import torch\nwith torch.profiler.profile() as p:\n    torch.ones(9, device='cuda') * 2\nprint(len(p.events()))\n"
    assert int(live(script).splitlines()[0])
