"""Several ranks of a script run at once, and meet in simulated time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
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

#: A layer that all ranks have, and its optimizer.
REPLICATED = (
    SETUP
    + """
layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
optimizer = torch.optim.SGD(layer.parameters())
"""
)

#: The last rank computes for a second longer than the others, in which they wait for it.
STRAGGLER = (
    REPLICATED
    + """
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


def run(folder: Path, script: str, *options: str, launcher: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, so that its ranks are forked as from a terminal."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "triosim", "run", "--gpu", "H100", *options, *launcher, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=dict(os.environ))


def test_ranks_wait_for_a_late_one_in_simulated_time(tmp_path: Path) -> None:
    done = run(tmp_path, STRAGGLER, "--world", "4", "-q", "--ranks-output", "logs")
    assert done.returncode == 0, done.stderr
    lines = [f"rank {rank} step {step}: 1.00" for step in range(4) for rank in (0, 3)]
    assert sorted(done.stdout.splitlines()) == sorted(lines)  # rank 0 stands for 1 and 2, which print nothing
    assert (tmp_path / "logs" / "rank-3.log").read_text(encoding="utf-8").splitlines() == lines[1::2]
    assert run(tmp_path, STRAGGLER, "--world", "4", "-q").stdout == done.stdout


def test_ranks_that_do_not_communicate_train_models_of_their_own(tmp_path: Path) -> None:
    """Eight models on eight samples each; samples a second and the FLOPs of each GPU speak of the same samples."""
    script = """
import torch
layer = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(layer.parameters())
for _ in range(3):
    layer(torch.randn(8, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
    done = run(tmp_path, script, "--world", "8", "-o", "result.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result.json").read_text())["global_batch_size"] == 64
    assert "each of the 8 ranks trains a model of its own" in " ".join((done.stdout + done.stderr).split())


def test_the_page_has_the_timeline_of_the_step_that_the_tables_show(tmp_path: Path) -> None:
    done = run(tmp_path, STRAGGLER, "--world", "4", "-q", "--report", "page.html", "-o", "result.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    assert "triosim run --gpu H100 --world 4 -q --report page.html -o result.json train.py" in page
    timeline = json.loads(found[1])["timeline"]
    assert timeline["end_ns"] == pytest.approx(result["step_time_s"] * 1e9, abs=1)
    for rank in result["ranks"]:
        tracks = [one for one in timeline["tracks"] if rank["rank"] in one["ranks"]]
        computed = [one for one in tracks if one["stream"] == "compute"]
        assert sum(sum(one["lasts"]) for one in computed) == pytest.approx(rank["compute_s"] * 1e9, abs=100)
        waited = sum(wait for one in tracks for _, wait, _ in one["waits"])
        assert waited == pytest.approx(rank["waiting_s"] * 1e9, abs=100)
        assert (rank["waiting_s"] > 0.9) == (rank["rank"] != 3)  # all wait for the last one, a second long
        assert {whom for one in tracks for _, _, whom in one["waits"]} <= {3, None, 0, 1, 2}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors cannot be chosen here")
def test_the_output_is_the_same_on_one_processor_and_on_several(tmp_path: Path) -> None:
    """To the last digit, with the clock read on all ranks, which wait for each other."""
    script = STRAGGLER.replace(":.2f}", "!r}")
    every = os.sched_getaffinity(0)
    printed = []
    try:
        for processors in sorted({1, 2, len(every)}):
            os.sched_setaffinity(0, sorted(every)[:processors])
            done = run(
                tmp_path, script, "--world", "4", "--ranks", "all", "-q", "-o", "result.json", "--ranks-output", "logs"
            )
            assert done.returncode == 0, done.stderr
            logs = [(tmp_path / "logs" / f"rank-{rank}.log").read_bytes() for rank in range(4)]
            printed.append((done.stdout, logs, (tmp_path / "result.json").read_bytes()))
    finally:
        os.sched_setaffinity(0, every)
    assert re.search(r"step 3: 1\.\d{6}", printed[0][0])
    assert [one for one in printed if one != printed[0]] == []


@pytest.mark.parametrize("call", ["dist.barrier()", "dist.broadcast_object_list([1], src=0)"])
def test_a_barrier_holds_the_processes_of_ranks(tmp_path: Path, call: str) -> None:
    done = run(tmp_path, CHECKPOINT.replace("MEET", call), "--world", "3", "--ranks", "all", "-q")
    assert done.returncode == 0, done.stderr
    expected = [f"{rank} written {number} {2 * number + 2:.2f}" for rank in range(3) for number in range(3)]
    assert sorted(done.stdout.splitlines()) == expected


def test_a_rank_that_waits_for_a_lock_on_a_file_does_not_hold_the_one_that_has_it(tmp_path: Path) -> None:
    """As ``datasets`` and ``huggingface_hub`` do: it sleeps and tries again, and the other one reads the clock meanwhile."""
    script = """
import filelock, threading
with filelock.FileLock("the.lock", poll_interval=0.05):
    threading.Event().wait(0.2)
    time.perf_counter()
    torch.cuda.synchronize()
print(rank)
"""
    done = run(tmp_path, SETUP + script, "--world", "3", "--ranks", "all", "-q")
    assert sorted(done.stdout.split()) == ["0", "1", "2"], done.stderr


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


#: Rank 0 waits for its GPU and prints, as in most scripts.
LOGGING = ALIKE.replace("    else:\n        torch.cuda.synchronize()\n        print", "        print")


def test_the_last_rank_stands_for_those_that_it_equals(tmp_path: Path) -> None:
    """So that beside rank 0, which logs, one process runs."""
    done = run(tmp_path, LOGGING, "--world", "16", "-q", "--ranks-output", "logs", "-o", "result.json")
    assert done.returncode == 0, done.stderr
    notes = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["notes"]
    assert [one for one in notes if one.startswith("ranks 0, 15 were captured; the other 14 ranks")]


@pytest.mark.parametrize("ranks", ["auto", "0,3,7"])
def test_a_rank_that_differs_leaves_the_others_folded(tmp_path: Path, ranks: str) -> None:
    found = []
    for fold in ("--no-fold", "--fold"):
        done = run(tmp_path, LOGGING, "--world", "16", "-q", "--ranks", ranks, fold, "-o", "result.json")
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 4
        result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
        found.append((done.stdout, result["step_time_s"], result["ranks"]))
    assert found[0] == found[1]


def test_a_rank_that_runs_and_differs_later_runs_for_itself(tmp_path: Path) -> None:
    """The ranks were compared over two steps; the last one is late from the third."""
    done = run(tmp_path, STRAGGLER, "--world", "16", "-q")
    assert done.returncode == 0, done.stderr
    assert "rank 15 step 3: 1.00" in done.stdout.splitlines()


#: Two axes of parallelism; rank 0 computes and logs alone, from the third step on or from the first.
MESH = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (4, 4), mesh_dim_names=("dp", "tp"))
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).cuda()
PARALLEL
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    before = time.perf_counter()
    loss = model(torch.randn(8, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0 and step >= FIRST:
        print(step, loss.item() * 0, torch.ones(999, 999, device="cuda").exp().sum().item() * 0, time.perf_counter() - before)
"""
TENSOR_AND_DATA = """
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
"""
#: Stages of a pipeline, each of which has four replicas; the first and the last rank of all log.
STAGES = """
import os, time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (4, 4), mesh_dim_names=("pp", "dp"))
number = mesh["pp"].get_local_rank()
layers = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(128, 128).cuda(), process_group=mesh["dp"].get_group())
stage = PipelineStage(layers, number, 4, torch.device("cuda"), group=mesh["pp"].get_group())
schedule = Schedule1F1B(stage, 8, loss_fn=lambda found, wanted: (found - wanted).square().mean())
optimizer = torch.optim.SGD(layers.parameters())
for step in range(4):
    before = time.perf_counter()
    given = [torch.randn(64, 128, device="cuda")] if number == 0 else []
    schedule.step(*given, **({"target": torch.randn(64, 128, device="cuda")} if number == 3 else {}))
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() in (0, 15) and step >= FIRST:
        print(dist.get_rank(), step, torch.ones(999, 999, device="cuda").sum().item() * 0, time.perf_counter() - before)
"""


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize(
    ("script", "parallel", "lines"),
    [(MESH, TENSOR_AND_DATA, 1), (MESH, "fully_shard(model, mesh=mesh)", 1), (STAGES, "", 2)],
    ids=["tensor-and-data", "hybrid-shard", "pipeline"],
)
def test_ranks_of_a_mesh_are_folded_where_one_acts_alone(
    tmp_path: Path, script: str, parallel: str, lines: int, first: int
) -> None:
    found = []
    for fold in ("--no-fold", "--fold"):
        source = script.replace("PARALLEL", parallel).replace("FIRST", str(first))
        done = run(tmp_path, source, "--world", "16", "-q", fold, "-o", "result.json")
        assert done.returncode == 0, done.stderr
        result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
        found.append(([float(one) for one in re.findall(r"\S+$", done.stdout, re.MULTILINE)], result))
    (times, whole), (folded_times, folded) = found
    assert len(times) == lines * (4 - first)
    assert folded_times == pytest.approx(times, rel=1e-9)
    assert folded["step_time_s"] == pytest.approx(whole["step_time_s"], rel=1e-9)
    for table, key in (("ranks", "communication_s"), ("collectives", "count"), ("links", "bytes")):
        assert [one[key] for one in folded[table]] == pytest.approx([one[key] for one in whole[table]], rel=1e-9)


def test_one_rank_of_each_stage_of_a_pipeline_runs(tmp_path: Path) -> None:
    """Rank 3 waits for the shapes that rank 1 sends, which follows rank 0: those that rank 0 sends to rank 2."""
    steps, _, _ = STAGES.partition("    if dist.get_rank()")
    script = f"{steps}print(dist.get_rank())\n"
    for before, after in (("(4, 4)", "(2, 2)"), ("number, 4", "number, 2"), ("number == 3", "stage.is_last")):
        script = script.replace(before, after)
    found = {}
    for ranks in ("auto", "all"):
        done = run(tmp_path, script, "--world", "4", "-q", "--ranks", ranks, "-o", "result.json")
        assert done.returncode == 0, done.stderr
        result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
        found[ranks] = sorted(done.stdout.split()), result["step_time_s"]
    assert found["auto"][0] == ["0", "3"]
    assert found["all"][0] == ["0", "1", "2", "3"]
    assert found["auto"][1] == pytest.approx(found["all"][1], rel=1e-9)


def test_a_rank_that_reads_a_value_stays_equal_to_the_others(tmp_path: Path) -> None:
    reading = MESH.replace("PARALLEL", TENSOR_AND_DATA).replace("FIRST", "2")
    done = run(
        tmp_path,
        reading.replace('torch.ones(999, 999, device="cuda").exp().sum().item() * 0, ', ""),
        "--world",
        "16",
        "-q",
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["2", "3"]


#: What each rank gets in collectives over known values and Python objects.
EXCHANGES = (
    SETUP
    + """
def numbers(*values):
    return torch.tensor(values, device="cuda")

summed, mean, largest = numbers(rank + 1), numbers(float(rank)), numbers(rank)
dist.all_reduce(summed)
dist.all_reduce(mean, dist.ReduceOp.AVG)
dist.all_reduce(largest, dist.ReduceOp.MAX)
gathered = [numbers(0) for _ in range(world)]
dist.all_gather(gathered, numbers(rank))
sent = numbers(10 * rank)
dist.broadcast(sent, src=world - 1)
swapped = torch.empty(world, dtype=torch.int64, device="cuda")
dist.all_to_all_single(swapped, torch.arange(world, device="cuda") + 100 * rank)
mine = numbers(0)
dist.scatter(mine, [numbers(7 + other) for other in range(world)] if rank == 1 else None, src=1)
objects, sizes, task = [None] * world, [rank], [None]
dist.all_gather_object(objects, {"rank": rank})
dist.broadcast_object_list(sizes, src=2)
dist.scatter_object_list(task, list("abcd") if rank == 0 else None, src=0)
if rank == 0:
    dist.send_object_list(["hello"], dst=1)
if rank == 1:
    dist.recv_object_list(sizes, src=0)
print(rank, summed.item(), mean.item(), largest.item(), [one.item() for one in gathered], sent.item(), swapped.tolist(),
      mine.item(), [one and one["rank"] for one in objects], sizes, task)
"""
)


def test_running_ranks_get_what_the_others_send(tmp_path: Path) -> None:
    done = run(tmp_path, EXCHANGES, "--world", "4", "-q")
    assert done.returncode == 0, done.stderr
    expected = [
        f"{rank} 10 1.5 3 [0, 1, 2, 3] 30 {[100 * other + rank for other in range(4)]} {7 + rank} [0, 1, 2, 3] "
        f"{['hello'] if rank == 1 else [2]} {['abcd'[rank]]}"
        for rank in range(4)
    ]
    assert sorted(done.stdout.splitlines()) == expected


def test_what_one_rank_sends_to_another_is_known_there_in_whatever_order_it_is_awaited(tmp_path: Path) -> None:
    script = (
        SETUP
        + """
mine, ahead, behind = (torch.full((2,), value, device="cuda") for value in (0.5 + rank, 0.0, 0.0))
sends = [dist.P2POp(dist.isend, mine, 1 - rank)]
for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, ahead, 1 - rank), *sends]):
    work.wait()
first, second = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
if rank == 0:
    for value in (1, 2):
        dist.send(torch.tensor([value]), 1)
    dist.send(behind, 1, tag=7)
else:
    received = dist.irecv(first, 0), dist.irecv(second, 0)
    dist.recv(behind, 0, tag=7)
    received[1].wait()
    received[0].wait()
print(rank, ahead.tolist(), first.item(), second.item())
"""
    )
    done = run(tmp_path, script, "--world", "2", "-q")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 [1.5, 1.5] 0 0", "1 [0.5, 0.5] 1 2"]


def test_a_rank_that_does_not_run_sends_what_grows_with_the_rank(tmp_path: Path) -> None:
    """Ranks 1 and 2 follow rank 0; what they send is between what ranks 0 and 3 do."""
    done = run(tmp_path, EXCHANGES, "--world", "4", "-q", "--ranks", "0,3")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert line[1:].startswith(" 10 1.5 3 [0, 1, 2, 3] 30 "), line


#: Each rank sends one number more than the one before it, to each.
UNEQUAL = (
    SETUP
    + """
sent = [rank + 1] * world
got = [other + 1 for other in range(world)]
into = torch.empty(sum(got), dtype=torch.int64, device="cuda")
dist.all_to_all_single(into, torch.full((sum(sent),), rank, device="cuda"), got, sent)
print(rank, into.tolist())
got, sent = [one * 2**20 for one in got], [one * 2**20 for one in sent]
large = torch.empty(sum(got), device="cuda")
torch.cuda.synchronize()
before = time.perf_counter()
dist.all_to_all_single(large, torch.empty(sum(sent), device="cuda"), got, sent)
torch.cuda.synchronize()
print("seconds", time.perf_counter() - before)
"""
)


def test_parts_of_an_all_to_all_may_differ_by_rank(tmp_path: Path) -> None:
    """The last rank sends 3 x 16 MiB to the others, at 450 GB/s at most."""
    done = run(tmp_path, UNEQUAL, "--world", "4", "-q", "--ranks", "all")
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines[:4] == [f"{rank} [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]" for rank in range(4)]
    assert all(3 * 2**24 / 450e9 < float(line.split()[1]) < 3 * 3 * 2**24 / 450e9 for line in lines[4:])


#: A script that trains nothing: a benchmark of a collective.
BENCHMARK = (
    SETUP
    + """
value = torch.ones(2**24, device="cuda")
dist.all_reduce(value)
torch.cuda.synchronize()
before = time.perf_counter()
dist.all_reduce(value)
torch.cuda.synchronize()
print(rank, os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], torch.cuda.device_count(), time.perf_counter() > before)
"""
)


@pytest.mark.parametrize(
    ("options", "ranks", "local"),
    [
        ((), (0, 15), 8),
        (("--ranks", "0-2"), (0, 1, 2, 15), 8),
        (("--topology", "dgx-h100(nodes=4, gpus_per_node=4)"), (0, 15), 4),
    ],
)
def test_a_script_without_steps_runs_on_ranks_of_machines(
    tmp_path: Path, options: tuple[str, ...], ranks: tuple[int, ...], local: int
) -> None:
    done = run(tmp_path, BENCHMARK.replace("% 8", f"% {local}"), "--world", "16", "-q", *options)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"{rank} {rank % local} {local} {local} True" for rank in ranks)


#: A script that says what its launcher has told it.
LAUNCHED = (
    SETUP.replace("rank % 8", 'int(os.environ["LOCAL_RANK"])')
    + 'print(rank, world, os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], sys.argv[1:])\n'
)
#: A script that starts its processes itself.
SPAWNING = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(local, world):
    rank = int(os.environ.get("RANK", local))
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29501", rank=rank, world_size=world)
    torch.cuda.set_device(local)
    print(dist.get_rank(), world, local, torch.cuda.device_count(), [])
if __name__ == "__main__":
    count = torch.cuda.device_count()
    mp.spawn(work, args=(count,), nprocs=count)
"""
#: One that does so without ``spawn``.
STARTING = SPAWNING.replace(
    "    mp.spawn(work, args=(count,), nprocs=count)",
    """
    mp.set_start_method("spawn")
    started = [mp.Process(target=work, args=(rank, count)) for rank in range(count)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * count
""",
)


@pytest.mark.parametrize(
    ("script", "options", "launcher", "lines"),
    [
        (LAUNCHED, (), "torchrun --nproc-per-node 2", ("0 2 0 2 []", "1 2 1 2 []")),
        (LAUNCHED, (), "python -m torch.distributed.run --nnodes 2 --nproc-per-node 1", ("0 2 0 1 []", "1 2 0 1 []")),
        (
            LAUNCHED,
            (),
            "python -m torch.distributed.launch --nproc-per-node 2",
            ("0 2 0 2 ['--local-rank=0']", "1 2 1 2 ['--local-rank=1']"),
        ),
        (LAUNCHED, (), "deepspeed --num_gpus 2", ("0 2 0 2 ['--local_rank=0']", "1 2 1 2 ['--local_rank=1']")),
        (LAUNCHED, (), "accelerate launch --num_processes 2", ("0 2 0 2 []", "1 2 1 2 []")),
        (SPAWNING, ("--world", "2"), "python", ("0 2 0 2 []", "1 2 1 2 []")),
        (SPAWNING, (), "python", ("0 1 0 1 []",)),
        (STARTING, ("--world", "2"), "python", ("0 2 0 2 []", "1 2 1 2 []")),
    ],
)
def test_a_launcher_tells_the_script_its_place(
    tmp_path: Path, script: str, options: tuple[str, ...], launcher: str, lines: tuple[str, ...]
) -> None:
    done = run(tmp_path, script, "-q", *options, launcher=("--", *launcher.split()))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == list(lines)


#: All ranks save a model under FSDP2 and its optimizer, and load both again.
CHECKPOINTS = (
    SETUP
    + """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
model = fully_shard(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
weights, states = get_state_dict(model, optimizer)
SAVE({"weights": weights, "states": states, "step": step}, checkpoint_id="saved")WAIT
loaded = {"weights": weights, "states": states, "step": -1}
dcp.load(loaded, checkpoint_id="saved")
set_state_dict(model, optimizer, model_state_dict=loaded["weights"], optim_state_dict=loaded["states"])
found = dcp.FileSystemReader("saved").read_metadata().state_dict_metadata["weights.0.weight"]
print(rank, sorted(chunk.offsets[0] for chunk in found.chunks), loaded["step"], sorted(os.listdir("saved")))
"""
)


@pytest.mark.parametrize(("save", "wait"), [("dcp.save", ""), ("dcp.async_save", ".result()")])
def test_a_distributed_checkpoint_has_the_shards_of_all_running_ranks(tmp_path: Path, save: str, wait: str) -> None:
    script = CHECKPOINTS.replace("SAVE", save).replace("WAIT", wait).replace('"nccl"', '"cpu:gloo,cuda:nccl"')
    done = run(tmp_path, script, "--world", "4", "-q", "--ranks", "0,3")
    assert done.returncode == 0, done.stderr
    files = ["'.metadata'", "'__0_0.distcp'", "'__3_0.distcp'"]
    assert sorted(done.stdout.splitlines()) == [f"{rank} [0, 48] 2 [{', '.join(files)}]" for rank in (0, 3)]


#: Of eight ranks two run: the others' numbers are worked out, and what rank 0 alone does changes nothing.
NUMBERS = (
    REPLICATED
    + """
for step in range(3):
    layer(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    if rank == 0:
        torch.ones(2, device="cuda").sum().item()
total = torch.tensor([rank, 1], device="cuda")
dist.all_reduce(total)
objects = [None] * world
dist.all_gather_object(objects, {"rank": rank})
parts = torch.empty(world, dtype=torch.int64, device="cuda")
dist.all_gather_into_tensor(parts, torch.tensor([100 + rank], device="cuda"))
rows = torch.tensor([len(range(rank, 100, world))], device="cuda")
dist.all_reduce(rows)
if rank == 0:
    print(total.tolist(), [one["rank"] for one in objects], parts.tolist())
"""
)


def test_numbers_that_depend_on_the_rank_are_those_of_all_ranks(tmp_path: Path) -> None:
    done = run(tmp_path, NUMBERS, "--world", "8", "-q")
    assert done.stdout.splitlines()[0] == f"[28, 8] {list(range(8))} {list(range(100, 108))}", done.stderr
    assert "ranks 0, 7 send different numbers, and the 6 that do not run" in " ".join(done.stderr.split())


#: The shards of two of eight ranks are saved and loaded again, in each form that FSDP1 has.
SHARDS = (
    SETUP
    + """
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
model = FSDP(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    optimizer.step()
for kind in (StateDictType.SHARDED_STATE_DICT, StateDictType.LOCAL_STATE_DICT, StateDictType.FULL_STATE_DICT):
    with FSDP.state_dict_type(model, kind):
        state = model.state_dict()
        torch.save(state, f"{kind.name}{rank}.pt")
        model.load_state_dict(torch.load(f"{kind.name}{rank}.pt", weights_only=False))
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    dcp.save({"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}, checkpoint_id="all")
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id="all")
    model.load_state_dict(state["model"])
print(rank, type(state["model"]["weight"]).__name__, tuple(state["model"]["weight"].shape))
"""
)


def test_shards_of_the_ranks_that_run_are_saved_and_loaded(tmp_path: Path) -> None:
    done = run(tmp_path, SHARDS, "--world", "8", "-q")
    assert sorted(done.stdout.splitlines()) == [f"{rank} ShardedTensor (64, 64)" for rank in (0, 7)], done.stderr


FILLS = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
held = []
try:
    while True:
        held.append(torch.empty(10 * 2**30, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    print(f"{len(held)} of 10 GiB", flush=True)
"""


def test_a_script_that_fills_the_memory_ends_where_ranks_are_compared_too(tmp_path: Path) -> None:
    done = run(tmp_path, FILLS, "--world", "4", "-q", "--patience", "60 s", "--print-ranks", "0")
    assert (done.returncode, done.stdout) == (0, "7 of 10 GiB\n"), done.stderr


STOPPED = """
import sys
from triosim.config import RunConfig
from triosim.engine.engine import Observer
from triosim.live import launchers, scripts

class Stops(Observer):
    def began(self, engine):
        self.engine = engine
    def __call__(self, seconds, tasks):
        if tasks > 1000:
            self.engine.stop()

if __name__ == "__main__":
    request = scripts.Request(launch=launchers.launch_of(["train.py"]), gpu="H100", world=4, print_ranks="0")
    status, result = scripts.run_live(request, RunConfig(), Stops())
    print(status, result is not None and result.step_time_s > 0)
"""


def test_a_run_that_the_monitor_stops_has_the_figures_of_what_has_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STRAGGLER.replace("range(4)", "range(10**6)"), encoding="utf-8")
    (tmp_path / "stopped.py").write_text(STOPPED, encoding="utf-8")
    done = subprocess.run([sys.executable, "stopped.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["0 True"], done.stderr


READS = (
    SETUP
    + """
import sys
sys.path.insert(0, "site-packages")
import library
library.read(torch.randn(3, device="cuda").sum())
if rank == 2:
    float(torch.randn(3, device="cuda").sum())
"""
)


def test_a_warning_is_shown_once_for_all_ranks_and_names_the_scripts_line(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text("def read(value):\n    return value.item()\n")
    done = run(tmp_path, READS, "--world", "4", "-q", "--ranks", "all", "--ranks-output", "logs")
    warnings = [line for line in done.stderr.splitlines() if "warning" in line]
    first = READS.split("\n").index('library.read(torch.randn(3, device="cuda").sum())') + 1
    what = "reads a tensor's value, which is not computed: it is assumed to be 1.0"
    expected = [f"train.py:{first}: in library.py:2: {what}", f"train.py:{first + 2}: {what}"]
    assert warnings == [f"triosim: warning: {one}" for one in expected]
    assert f"warning: {expected[0]}" in (tmp_path / "logs" / "rank-3.log").read_text(encoding="utf-8")


#: Rank 5 leaves after the two steps in which ranks are compared, or before them; or it is the only one that sends.
LEAVES = (
    REPLICATED
    + """
for step in range(5):
    if rank == 5 and step == WHEN:
        print("rank 5 gives up", file=sys.stderr)
        sys.exit(3)
    layer(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
)


@pytest.mark.parametrize("when", [0, 4])
def test_a_rank_that_the_script_names_runs_and_fails(tmp_path: Path, when: int) -> None:
    done = run(tmp_path, LEAVES.replace("WHEN", str(when)), "--world", "16", "-q")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-2:] == [
        "rank 5 gives up",
        "triosim: rank 5 ended with status 3: the others are ended",
    ]


OF_A_NAMED_RANK = (
    SETUP
    + """
number = torch.tensor([rank * rank], device="cuda")
dist.broadcast(number, src=5)
if rank == 5:
    dist.send(number, dst=0)
if rank == 0:
    dist.recv(torch.zeros(1, dtype=torch.int64, device="cuda"), src=5)
    print(number.item())
"""
)


def test_a_root_and_a_sender_that_the_script_names_run(tmp_path: Path) -> None:
    done = run(tmp_path, OF_A_NAMED_RANK, "--world", "16", "-q", "--print-ranks", "0")
    assert (done.stdout, done.returncode) == ("25\n", 0), done.stderr


def test_a_deadlock_names_the_ranks_to_run(tmp_path: Path) -> None:
    hidden = OF_A_NAMED_RANK.replace("rank == 5", "rank == len(sys.path[:1]) * 5")
    done = run(tmp_path, hidden, "--world", "16", "-q")
    assert done.returncode == 2
    assert "rank 5 does not run, and is taken to do what rank 15 does: run it, --ranks 0,5,15" in done.stderr
    assert run(tmp_path, hidden, "--world", "16", "-q", "--ranks", "0,5,15", "--print-ranks", "0").stdout == "25\n"


OTHERWISE = (
    SETUP
    + """
number = torch.tensor(rank % 3, device="cuda")
dist.all_reduce(number, dist.ReduceOp.MAX)
half = dist.new_group(list(range(world // 2))) , dist.new_group(list(range(world // 2, world)))
count = torch.tensor(1, device="cuda")
dist.all_reduce(count, group=half[rank >= world // 2])
print(number.item(), count.item())
"""
)


@pytest.mark.parametrize("ranks", ["auto", "all"])
def test_lines_that_use_numbers_of_ranks_that_do_not_run_are_named(tmp_path: Path, ranks: str) -> None:
    done = run(tmp_path, OTHERWISE, "--world", "4", "-q", "--ranks", ranks if ranks == "all" else "0,3")
    lines = OTHERWISE.split("\n")
    named = [number for number, line in enumerate(lines, 1) if "all_reduce" in line]
    said = f"at train.py:{named[0]}, train.py:{named[1]} numbers of the 2 ranks that do not run are taken to be"
    assert (said in done.stderr) == (ranks == "auto")
    assert done.stdout.splitlines() == (["2 2"] * 4 if ranks == "all" else ["0 2"] * 2)


def test_a_clock_that_is_read_after_the_time_of_an_event_has_gone_on(tmp_path: Path) -> None:
    script = """
import time, torch
model, data = torch.nn.Linear(8192, 8192).cuda(), torch.randn(4096, 8192, device="cuda")
began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start = time.time()
began.record()
model(data).sum().backward()
ended.record()
torch.cuda.synchronize()
elapsed = began.elapsed_time(ended) / 1e3
print(0.01 < elapsed <= time.time() - start < 1.01 * elapsed)
"""
    done = run(tmp_path, script, "-q")
    assert done.stdout == "True\n", done.stderr
