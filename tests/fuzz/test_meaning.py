"""Inputs that are valid and wrong in meaning, which no random change reaches: each is refused in a line that says why."""

from __future__ import annotations

import gzip
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz.kinds import KINDS
from tests.fuzz.running import run

pytestmark = pytest.mark.slow

#: The kind, the file, what is replaced by what, which of the kind's commands reads it, and what the line says.
REFUSED = (
    (
        "csv pair",
        "pair/trace.csv",
        ",20,18,",
        ",20,1800,",
        0,
        "line 2: Operator_cudatimenooverlap: 0.0018 s is more than",
    ),
    (
        "csv pair",
        "pair/tensor.csv",
        '8]",32',
        '8]",99',
        0,
        "line 2: TensorNumElement: 99 elements do not make the shape",
    ),
    ("csv pair", "pair/trace.csv", "\n3,", "\n1,", 0, "line 4: OperatorID: operator 1 comes after operator 2"),
    ("trace", "trace.json", '"batch_size": 1', '"batch_size": 9', 0, "batch_size: 9 samples are in no input"),
    ("trace", "trace.json", "triosim-trace/1", "triosim-trace/2", 2, "is not a version that this triosim reads"),
    ("trace", "trace.json", '"id":1,', '"id":0,', 2, "there is another tensor with the id 0; ids are unique"),
    ("trace", "trace.json", '"inputs":\\[0,1\\]', '"inputs":[0,9999]', 2, "there is no tensor 9999"),
    ("trace", "trace.json", '"phase":"forward"', '"phase":"optimizer"', 2, "operator 1 is not one of the forward pass"),
    ("kineto", "kineto/rank-0.json.gz", '"rank": 0', '"rank": 1', 1, "is of rank 1 of 2, as another is"),
    ("kineto", "kineto/rank-0.json.gz", '"world_size": 2', '"world_size": 4', 1, "is of 2 ranks, others of 4"),
    ("kineto", "kineto/rank-0.json.gz", '"dur": ?', '"dur": -', 0, "has the time .* and the duration -"),
    (
        "profile",
        "profile/execution_trace.json.gz",
        "1.1.1-chakra",
        "7.1.1-chakra",
        0,
        "schema: '7.1.1-chakra.*' is not a version",
    ),
    ("profile", "profile/profiler.json.gz", '"dur": ?', '"dur": -', 0, "and the duration -"),
    ("gpu", "gpu.yaml", "60 TFLOP/s", "60", 1, "gpu.yaml:2: flops: 60 is less than any GPU has"),
    ("gpu", "gpu.yaml", "900 TFLOP/s", "9000000 TFLOP/s", 1, "is more than any GPU has; give at most 1e\\+18"),
    ("gpu", "gpu.yaml", "80 GB", "80 EB", 1, "gpu.yaml:4: capacity: "),
    ("gpu", "gpu.yaml", "power: 700", "clock: 2", 1, "gpu.yaml:5: clock: 2 is less than any GPU has"),
    ("gpu", "gpu.yaml", "power: 700", "power: 0.7", 1, "gpu.yaml:5: power: 0.7 is less than any GPU has"),
    ("gpu", "gpu.yaml", "power: 700", "power: 700 kW", 1, "gpu.yaml:5: power: 700 kW is more than any GPU has"),
    ("gpu", "gpu.yaml", "name: fuzz", "name: H100", 1, "'H100' is a GPU of the catalogue"),
    ("gpu", "gpu.yaml", "float32: 60 TFLOP/s, ", "", 1, "flops: 'float32' is missing"),
    ("model", "config.json", '"num_attention_heads": 4', '"num_attention_heads": 5', 0, "64 is not divisible by 5"),
    ("model", "config.json", '"num_key_value_heads": 2', '"num_key_value_heads": 8', 0, "4 is not divisible by 8"),
    ("model", "config.json", '"num_key_value_heads": 2', '"head_dim": 7', 0, "head_dim: 7 is not divisible by 2"),
    ("model", "config.json", '"llama"', '"deepseek_v3"', 0, "the key '\\w+' is missing"),
    ("model", "config.json", '"llama"', '"lama"', 0, "model_type 'lama' is not known"),
    ("deepbench", "table.csv", "0.059", "0.0000059", 0, "table.csv:2: .* is 5.9e-09 s, which no operator takes"),
    ("deepbench", "table.csv", "1760,16,1760", "1760,16,176000000000", 0, "table.csv:2: is a product at .* FLOP/s"),
    ("deepbench", "table.csv", "Float", "Flaot", 0, "table.csv:2: precision: 'Flaot' is not known"),
    ("topology", "topology.yaml", "10 GB/s", "10", 0, "bandwidth: 10 has no unit and is read as 10 B/s"),
    ("topology", "topology.yaml", "1 us", "500", 1, "latency: 500 has no unit and is read as 500 s"),
    (
        "links",
        "topology.yaml",
        "from: gpu1, to: switch0",
        "from: gpu1, to: gpu1",
        0,
        "a link leads from gpu1 to itself",
    ),
    ("links", "topology.yaml", "from: gpu1", "from: gpu0", 0, "link 'gpu0->switch0' is declared twice"),
    ("sections", "topology.yaml", "{1: 1.5}", "{99: 1.5}", 1, "slow_gpus: there is no GPU 99"),
    ("sections", "topology.yaml", "setup: 1 us", "setup: 1", 0, "photonic.setup: 1 has no unit"),
    ("memories", "topology.yaml", "capacity: 2 TB", "capacity: 2", 0, "host_memory.capacity: 2 has no unit"),
    ("memories", "topology.yaml", "100 us", "100 s", 1, "nvme.latency: '100 s' is more than any link has"),
    ("dimensions", "topology.yaml", r"\[50, 25\]", "[50000000000, 25]", 0, "is not a positive number of GB/s"),
    ("dimensions", "topology.yaml", r"\[2, 2\]", "[4]", 0, "npus_count: 1 values for 2 dimensions"),
    ("astra-sim", "graphs/network.yml", r"npus_count: *\[.*?\]", "npus_count: [64]", 1, "rank 4 of 64 has no file"),
    ("images", "config.json", '"image_size": 32', '"image_size": 1', 0, "a kernel of 4 does not fit into data of 1x1"),
    ("images", "config.json", r"\[1, 1\]", "[1, 1, 1]", 0, "depths: 3 stages, hidden_sizes: 2"),
    ("nccl-tests", "table.txt", "0.1 0.2 0\n", "0.1 0.2 7\n", 0, "table.txt:4: says that results were wrong"),
    ("products", "table.csv", "512,512,64", "512000,512000,64000", 1, "table.csv:5: is a product at 3.73e\\+21 FLOP/s"),
    (
        "collectives",
        "table.csv",
        "33554432,.*",
        "33554432,0.2",
        0,
        "3.36e\\+07 bytes in 2e-07 s are what no collective",
    ),
    ("collectives", "table.csv", "all_reduce,8", "all_reduce,1", 0, "table.csv:2: 1 GPUs on 1 nodes"),
    ("operators", "table.csv", "128x64 64x64", "128x64 63x64", 1, "table.csv:3: 128x64 cannot be multiplied by 63x64"),
    (
        "convolutions",
        "table.csv",
        ",1,1,1,1,0.337",
        ",1,1,0,0,0.337",
        0,
        "stride_v: '0' is not a whole number above zero",
    ),
    ("convolutions", "table.csv", "64,3,3", "64,99,99", 0, "table.csv:2: the kernel is larger than the data"),
    ("attention", "table.csv", "8,2,", "8,16,", 0, "table.csv:3: 8 heads cannot share 16 heads"),
    ("norms", "table.csv", "0.0238", "0.000002", 0, "is 2e-09 s, which no operator takes"),
    ("times", "times.csv", "mm,", "conv9,", 0, "times.csv:2: the trace has no operator with operator 'conv9'"),
    ("times.yaml", "times.yaml", "time: 12 us", "time: 12 us, seconds: 3", 0, "needs either 'seconds' or 'time'"),
    ("streams", "streams.json", r"\[\[0, 1\]\]", "[[0, 7]]", 0, "there is no rank 7 in a world of 2"),
    ("streams", "streams.json", r"\[0, 0\]", "[0, 1]", 0, "rank 1 was not captured"),
    ("config", "run.yaml", "1.5", "0.2", 0, "slow_gpus: '0.2' is not a factor"),
    ("torchtitan", "job.toml", "degree = 2", "degree = 3", 0, "tp=3 does not divide 4 GPUs"),
    ("megatron", "args.sh", "--bf16", "--bf16 --fp16", 0, "args.sh:8: --fp16: is given together with bf16"),
    ("megatron", "args.sh", "batch-size 4", "batch-size 5", 0, "a global batch of 5 does not divide"),
    (
        "deepspeed",
        "ds.json",
        '"bf16"',
        '"fp16": {"enabled": true}, "bf16"',
        0,
        "fp16.enabled: is given together with bf16",
    ),
    (
        "deepspeed",
        "ds.json",
        '"train_batch_size": 8',
        '"train_batch_size": 9',
        0,
        "9 samples do not divide into micro-batches",
    ),
    ("accelerate", "a.yaml", "tp_size: 2", "tp_size: 3", 0, "fsdp=2 x tp=3 = 6 GPUs, but 4 GPUs are asked for"),
    ("trainer", "t.json", '"bf16"', '"fp16": true, "bf16"', 0, "fp16: is given together with bf16"),
    (
        "trainer",
        "t.json",
        '"deepspeed": null',
        '"deepspeed": {"bf16": {"enabled": true}}',
        0,
        "fsdp: is given together with deepspeed",
    ),
    ("launch script", "train.sh", r"\$\(\(.*\)\)", "3", 0, "tp=3 does not divide 4 GPUs"),
    ("space", "space.yaml", r"\[1, 2\]", "[3]", 0, "no point of the space is valid"),
    ("space", "space.yaml", r"\[node\]", "[nodes]", 0, "there is no rule 'nodes' to leave out"),
    ("result", "result.json", '"step_time_s":[^,]*', '"step_time_s": -1', 0, "'step_time_s' is -1, which no step has"),
    (
        "result",
        "result.json",
        '"step_time_s":[^,]*',
        '"step_time_s": 1e12',
        1,
        "'step_time_s' is 1e\\+12, which no step has",
    ),
    ("hop graph", "graph.txt", "3 -> 0", "3 -> 9", 0, "graph.txt:5: there is no worker 9"),
    ("schedule", "schedule.csv", "\n1,", "\n5,", 0, "schedule.csv: gives rank \\d nothing to do"),
)
#: Rows of tables of systems are refused one by one: predictions for them count as off by 100%.
REFUSED_ROWS = (
    ("deepep", "256,8,128", "256,800,128", "num_topk: each token goes to 800 of 128 experts"),
    ("deepep", "32.1,0.5", "0.0000321,0.0000005", "3.26e-11 s are what no collective takes"),
    ("systems", "all_reduce,16,2,8", "all_reduce,16,2,4", "16 GPUs on 2 nodes of 4"),
    ("systems", "164.3", "0.000164", "s are what no collective takes"),
)


def change(path: Path, old: str, new: str) -> None:
    """Replace what a pattern finds first in a file, which may be compressed."""
    data = path.read_bytes()
    is_packed = data[:2] == b"\x1f\x8b"
    text = (gzip.decompress(data) if is_packed else data).decode()
    changed = re.sub(old, lambda _: new, text, count=1)
    assert changed != text
    path.write_bytes(gzip.compress(changed.encode()) if is_packed else changed.encode())


@pytest.mark.parametrize(("kind", "file", "old", "new", "command", "says"), REFUSED)
def test_what_is_wrong_in_meaning_is_refused(
    kind: str, file: str, old: str, new: str, command: int, says: str, tmp_path: Path
) -> None:
    found = next(one for one in KINDS if one.name == kind)
    found.make(tmp_path)
    change(tmp_path / file, old, new)
    ended = run(found.commands[command].split(), tmp_path)
    assert ended.status == 2
    assert re.search(says, ended.errors), ended.errors


@pytest.mark.parametrize(("kind", "old", "new", "says"), REFUSED_ROWS)
def test_a_row_that_no_system_has_is_refused(kind: str, old: str, new: str, says: str, tmp_path: Path) -> None:
    found = next(one for one in KINDS if one.name == kind)
    found.make(tmp_path)
    change(tmp_path / "table.csv", old, new)
    ended = run(found.commands[0].split(), tmp_path)
    assert ended.status == 0, ended.errors
    assert says in " ".join(ended.output.split())


def made(kind: str, folder: Path) -> Path:
    next(one for one in KINDS if one.name == kind).make(folder)
    return folder


@pytest.mark.parametrize(("old", "new"), [('"step_time_s":', '"step_time_s":-'), ('"peak_bytes":', '"peak_bytes":-')])
def test_a_study_with_figures_that_no_step_has_is_refused(old: str, new: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(made("study", tmp_path) / "study.db")) as study:
        study.execute("UPDATE outcomes SET outcome = replace(outcome, ?, ?)", (old, new))
        study.commit()
    ended = run(["search", "--show", "study.db"], tmp_path)
    assert ended.status == 2
    assert "study.db: is damaged: it holds what no search wrote" in ended.errors


@pytest.mark.parametrize("time", [-1e-6, np.nan, np.inf])
def test_fitted_models_with_times_that_no_operator_takes_are_refused(time: float, tmp_path: Path) -> None:
    path = made("models", tmp_path) / "models.npz"
    arrays = dict(np.load(path, allow_pickle=False))
    arrays["law 0 seconds"][0] = time
    np.savez(path, **arrays)
    ended = run(["simulate", "trace.json", "--models", "models.npz", "-p", "ddp", "-n", "2"], tmp_path)
    assert ended.status == 2
    assert "models.npz: is not a file of fitted models" in ended.errors


@pytest.mark.parametrize(
    ("groups", "says"),
    [('{"1": [0, 9]}', "group 1 has rank 9 of 4"), ('{"1": [0, 0, 1, 2, 3]}', "group 1 has a rank twice")],
)
def test_groups_of_graphs_with_ranks_that_are_none_are_refused(groups: str, says: str, tmp_path: Path) -> None:
    (made("chakra", tmp_path) / "graphs" / "comm_group.json").write_text(groups)
    ended = run(["simulate", "graphs/step"], tmp_path)
    assert ended.status == 2
    assert says in ended.errors


def test_a_rank_without_a_graph_is_named(tmp_path: Path) -> None:
    (made("chakra", tmp_path) / "graphs" / "step.2.et").unlink()
    ended = run(["simulate", "graphs/step"], tmp_path)
    assert ended.status == 2
    assert "graphs/step: rank 2 of 4 has no file" in ended.errors
