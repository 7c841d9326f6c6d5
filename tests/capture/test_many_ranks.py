"""The ranks of a distributed script that differ are captured, each in a process, and together they are a step of the world."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import subprocess  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import triosim  # noqa: E402
from triosim.capture.many_ranks import capture_ranks, checked_ranks, independent_axes  # noqa: E402
from triosim.cli import run  # noqa: E402
from triosim.errors import CaptureError, OptionError  # noqa: E402
from triosim.trace.task_streams import TaskStreams  # noqa: E402

HEAD = """
import os
import torch, torch.distributed as dist
from torch import nn
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
"""

DDP = (
    HEAD
    + """
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(8, 64, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    if rank == 0 and FIRST_PRINTS:
        print(loss.item())
"""
)

#: A pipeline whose stages were not told what comes in.
PIPELINE = (
    HEAD
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
stages = world // 2
mesh = init_device_mesh("cuda", (2, stages), mesh_dim_names=("data", "stage"))
place = mesh["stage"].get_local_rank()
device = torch.device("cuda", torch.cuda.current_device())
part = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda(), process_group=mesh["data"].get_group())
stage = PipelineStage(part, place, stages, device, group=mesh["stage"].get_group())
schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
for step in range(2):
    data = torch.randn(8, 64, device="cuda")
    schedule.step(*([data] if place == 0 else []), **({"target": data} if place == stages - 1 else {}))
    optimizer.step()
"""
)


#: Parameters of 20 and 24 rows, sharded over more ranks than that.
UNEVEN = (
    HEAD
    + """
from torch.distributed.fsdp import fully_shard
model = nn.Sequential(nn.Linear(32, 24), nn.Linear(24, 20)).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(8, 32, device="cuda")).sum().backward()
    optimizer.step()
"""
)


#: Samples are split over pairs of ranks, and parameters are sharded over all.
CONTEXT_PARALLEL = (
    HEAD
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel
mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "cp"))
model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 100)).cuda()
fully_shard(model, mesh=init_device_mesh("cuda", (world,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    tokens = torch.randint(0, 100, (4, 32), device="cuda")
    with context_parallel(mesh["cp"], buffers=[tokens], buffer_seq_dims=[1], no_restore_buffers={tokens}):
        model(tokens).sum().backward()
    optimizer.step()
"""
)


#: A compiled block over two ranks, whose attention is computed again in the backward pass.
COMPILED = (
    HEAD
    + """
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.into, self.out = nn.RMSNorm(64), nn.Linear(64, 192, bias=False), nn.Linear(64, 64, bias=False)
    def forward(self, x):
        q, k, v = self.into(self.norm(x)).unflatten(-1, (-1, 3, 16)).transpose(1, 2).unbind(3)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(heads.transpose(1, 2).flatten(2))

plan = {"norm": SequenceParallel(), "into": ColwiseParallel(input_layouts=Shard(1)),
        "out": RowwiseParallel(output_layouts=Shard(1))}
block = parallelize_module(Block().cuda(), init_device_mesh("cuda", (world,)), plan)
block = torch.compile(checkpoint_wrapper(block), fullgraph=True)
optimizer = torch.optim.AdamW(block.parameters())
for step in range(2):
    block(torch.randn(4, 8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
)


def written(folder: Path, text: str, **values: object) -> Path:
    path = folder / "train.py"
    path.write_text("".join(f"{name} = {value!r}\n" for name, value in values.items()) + text, encoding="utf-8")
    return path


def test_where_shards_become_smaller_ranks_are_compared_first(tmp_path: Path) -> None:
    """Rather than by bisection, which compares ten ranks to find two borders among 32."""
    capture = capture_ranks(written(tmp_path, UNEVEN), world=32)
    assert capture.streams.like == (0,) * 20 + (20,) * 4 + (24,) * 8
    assert capture.compared == (0, 1, 19, 20, 23, 24, 31)


def test_ranks_that_do_the_same_are_captured_once_and_all_run(tmp_path: Path) -> None:
    capture = capture_ranks(written(tmp_path, DDP, FIRST_PRINTS=False), world=8)
    found = capture.streams
    assert sorted(found.traces) == [0]
    assert found.like == (0,) * 8
    assert found.global_batch_size == 64
    assert found.groups == {"world": (tuple(range(8)),)}
    assert capture.compared == (0, 7)
    result = triosim.simulate(found, topology="dgx-a100")
    assert result.world == 8


def test_the_first_rank_which_prints_is_apart(tmp_path: Path) -> None:
    found = capture_ranks(written(tmp_path, DDP, FIRST_PRINTS=True), world=8)
    assert found.streams.like[0] == 0
    assert len(set(found.streams.like[1:])) == 1


def test_stages_of_a_pipeline_tell_each_other_their_shapes_and_data_parallel_ranks_are_alike(tmp_path: Path) -> None:
    streams = capture_ranks(written(tmp_path, PIPELINE), world=6).streams
    assert streams.like == (0, 1, 2, 0, 1, 2)
    assert streams.groups == {"data": ((0, 3), (1, 4), (2, 5)), "stage": ((0, 1, 2), (3, 4, 5))}
    assert streams.global_batch_size == 16
    kinds = [
        [one.communication.kind for one in streams.traces[rank].operators if one.communication] for rank in (0, 1, 2)
    ]
    sends = sum(kind.count("send") for kind in kinds)
    assert sends == sum(kind.count("recv") for kind in kinds) == 4 * 2 * 2  # micro-batches, boundaries, directions
    assert all(kind.count("all_reduce") == 1 for kind in kinds)
    triosim.simulate(streams, topology="dgx-a100")


def test_samples_that_ranks_share_are_counted_once_and_their_tokens_too(tmp_path: Path) -> None:
    streams = capture_ranks(written(tmp_path, CONTEXT_PARALLEL), world=8, quiet=True).streams
    assert (streams.global_batch_size, streams.sample_parts) == (16, 2)
    target = tmp_path / "streams.json"
    triosim.save_trace(streams, target)
    result = triosim.simulate(target, topology="dgx-h100")
    assert result.data.metrics is not None
    assert result.data.metrics.tokens_per_sample == 32
    assert result.data.global_batch_size == 16


def test_a_compiled_block_computes_again_what_two_ranks_divide(tmp_path: Path) -> None:
    (trace,) = capture_ranks(written(tmp_path, COMPILED), world=2, quiet=True).streams.traces.values()
    attention = [one.phase for one in trace.operators if "attention" in one.name and "backward" not in one.name]
    assert attention == ["forward", "backward"]


def test_given_ranks_stand_for_those_that_share_most_places_with_them(tmp_path: Path) -> None:
    streams = capture_ranks(written(tmp_path, PIPELINE), world=6, ranks="0,1,2").streams
    assert streams.like == (0, 1, 2, 0, 1, 2)


def test_the_command_writes_streams_that_simulate_reads(tmp_path: Path) -> None:
    script, target = written(tmp_path, DDP, FIRST_PRINTS=True), tmp_path / "streams.json"
    command = [sys.executable, "-m", "triosim", "capture", "--fake", "--world", "2", "--ranks", "all"]
    said = subprocess.run([*command, "-o", str(target), str(script)], capture_output=True, text=True, check=True)
    assert said.stdout == "1.0\n"  # of the first step; the second is captured, and is the last
    assert "2 ranks, captured as ranks 0, 1" in said.stderr
    assert "compared:" not in said.stderr  # all were captured
    assert "train.py:17: reads a tensor's value" in said.stderr
    streams = triosim.load_trace(target)
    assert isinstance(streams, TaskStreams)
    assert sorted(streams.traces) == [0, 1]
    assert all(trace.times == "predicted" and trace.seconds > 0 for trace in streams.traces.values())
    assert run(["simulate", str(target), "--topology", "dgx-a100"]) == 0


def test_a_rank_that_fails_says_so_with_its_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = written(
        tmp_path,
        HEAD + "if rank == 1:\n    raise ValueError('rank one is odd')\n" + DDP.removeprefix(HEAD),
        FIRST_PRINTS=False,
    )
    with pytest.raises(CaptureError, match="rank 1: the capture has no step: the script raised ValueError"):
        capture_ranks(script, world=2, ranks="all")
    assert "ValueError: rank one is odd" in capfd.readouterr().err


@pytest.mark.parametrize("axes", [("--tensor-parallel", "4"), ("--tensor-parallel", "2")])
def test_the_example_of_tensor_parallelism_is_captured_whose_optimizer_runs_lists(axes: tuple[str, str]) -> None:
    """On a GPU an optimizer takes all parameters at once, and DTensor refuses lists of divided and plain ones."""
    script = Path(__file__).resolve().parents[2] / "examples" / "train" / "tensor_parallel.py"
    found = capture_ranks(script, ["--model", "tiny", "--sequence", "16", "--steps", "2", *axes], world=4, ranks=[0])
    names = [one.name for one in found.streams.traces[0].operators if one.phase == "optimizer"]
    assert "aten::_fused_adamw_" in names


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--world", "2"], "--world: only a capture with --fake simulates ranks; add --fake"),
        (["--fake", "--ranks", "0"], "--ranks: chooses among the ranks of --world; say how many there are: --world 64"),
        (["--fake", "--world", "0"], "--world: 0 is less than 1; give 1 or more"),
        (
            ["--fake", "--world", "2", "--ranks", "2"],
            "--ranks: there is no rank 2 in a world of 2; give ranks from 0 to 1",
        ),
        (
            ["--fake", "--world", "2", "--ranks", "x"],
            "--ranks: 'x' is not a list of ranks; give auto, all or 0,8,12-15",
        ),
    ],
)
def test_what_cannot_be_is_said_before_the_script_runs(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = written(tmp_path, "raise AssertionError('the script ran')")
    assert run(["capture", *options, "-o", str(tmp_path / "streams.json"), str(script)]) == 2
    assert capsys.readouterr().err == f"triosim: error: {said}\n"


def test_ranks_are_sorted_and_none_is_named_twice() -> None:
    assert checked_ranks("8,0,8", 16) == [0, 8]
    with pytest.raises(OptionError, match="no rank -1"):
        checked_ranks([-1], 4)


def test_the_axes_of_a_world_are_the_families_that_tell_its_ranks_apart() -> None:
    families = {
        "world": ((0, 1, 2, 3, 4, 5, 6, 7),),
        "data": ((0, 4), (1, 5), (2, 6), (3, 7)),
        "tensor": ((0, 1), (2, 3), (4, 5), (6, 7)),
        "stage": ((0, 2), (1, 3), (4, 6), (5, 7)),
        "some": ((0, 1), (2, 3)),
    }
    assert independent_axes(families, 8) == [families[name] for name in ("data", "tensor", "stage")]
    assert independent_axes({"world": ((0, 1, 2),)}, 3) == [((0, 1, 2),)]
    assert independent_axes({}, 3) == [((0, 1, 2),)]


def test_ranks_that_the_script_names_are_compared(tmp_path: Path) -> None:
    more = "    if rank % 4 == 2:\n        torch.ones(3, device='cuda').exp()\n    optimizer.step()"
    script = DDP.replace("    optimizer.step()", more)
    capture = capture_ranks(written(tmp_path, script, FIRST_PRINTS=False), world=8)
    assert capture.streams.like == (0, 0, 2, 0, 0, 0, 2, 0)
    assert capture.compared == (0, 2, 7)
