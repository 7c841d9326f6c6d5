"""The kinds of input: for each a small sound example, the commands that read it, and how it is changed."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import mutations
from tests.fuzz.command_lines import random_command
from tests.fuzz.kind import Kind, as_json, as_text, inside, packed, triosim, with_text, write_trace
from tests.fuzz.tables import TABLES

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "tests" / "trace" / "formats" / "pytorch" / "data" / "cnn_cpu_torch213"


def _profile(folder: Path) -> None:
    shutil.copytree(PROFILE, folder / "profile")


def _kineto(folder: Path) -> None:
    write_trace(folder)
    triosim(folder, "S", "@trace.json", "-p", "ddp", "-n", "2", "-q", "--kineto", "@kineto")


def _csv_pair(folder: Path) -> None:
    (folder / "pair").mkdir()
    rows = [
        "OperatorID,OperatorName,Operator_input,Operator_output,Operator_cudatime,Operator_cudatimenooverlap,InputSize,"
        "OutputSize,gpuid,stage,tpflag",
        "1,aten::linear,[4; 6; 8],[10],20,18,[32; 128; 16],[64],0,forward,1",
        "2,aten::cross_entropy_loss,[10; 12],[14],6,5,[64; 4],[1],0,forward,0",
        "3,aten::ones_like,[14],[16],1,1,[1],[1],0,forward,0",
        "4,autograd::engine::evaluate_function: AddmmBackward0,[16],[22],40,38,[1],[128],0,backward,1",
        "5,aten::_foreach_add_,[6; 8; 22],[],2,2,[128; 16; 128],[],0,optimizer,0",
    ]
    tensors = [
        "Index,TensorID,TensorShape,TensorNumElement,TensorEachByte,TensorType,TensorStorgeid,gpuid",
        '0,4,"[4, 8]",32,4,input,5,0',
        '1,6,"[16, 8]",128,4,weight,7,0',
        "2,8,[16],16,4,bias=None,9,0",
        '3,10,"[4, 16]",64,4,output,11,0',
        "4,12,[4],4,8,target,13,0",
        "5,14,[],1,4,output,15,0",
        "6,16,[],1,4,grad_output,100,0",
        '7,22,"[16, 8]",128,4,output,7,0',
    ]
    (folder / "pair" / "trace.csv").write_text("\n".join(rows) + "\n")
    (folder / "pair" / "tensor.csv").write_text("\n".join(tensors) + "\n")


def _chakra(folder: Path) -> None:
    write_trace(folder)
    triosim(folder, "S", "@trace.json", "-p", "ddp", "-n", "4", "-q", "--chakra", "@graphs")


def _gpu(folder: Path) -> None:
    write_trace(folder)
    text = "name: fuzz\nflops: {float32: 60 TFLOP/s, bfloat16: 900 TFLOP/s}\nbandwidth: 3.3 TB/s\ncapacity: 80 GB\npower: 700\n"
    (folder / "gpu.yaml").write_text(text)


def _config(folder: Path) -> None:
    sizes = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 32,
    }
    (folder / "config.json").write_text(json.dumps(sizes))


def _images(folder: Path) -> None:
    sizes = {"model_type": "convnext", "depths": [1, 1], "hidden_sizes": [16, 32], "image_size": 32, "num_labels": 10}
    (folder / "config.json").write_text(json.dumps(sizes))


def _streams(folder: Path) -> None:
    trace = {
        "schema": "triosim-trace/1",
        "batch_size": 1,
        "tensors": [],
        "operators": [
            {
                "id": 0,
                "name": "aten::mm",
                "phase": "forward",
                "layer": "a",
                "inputs": [],
                "outputs": [],
                "seconds": 0.001,
            },
            {
                "id": 1,
                "name": "c10d::allreduce_",
                "phase": "backward",
                "layer": "",
                "inputs": [],
                "outputs": [],
                "seconds": 0.0,
                "stream": "nccl",
                "communication": {"kind": "all_reduce", "group": "world", "nbytes": 1e6, "work": 0},
            },
        ],
        "marks": [{"position": 2, "kind": "wait", "stream": "compute", "number": 0}],
    }
    content = {"schema": "triosim-streams/1", "groups": {"world": [[0, 1]]}, "like": [0, 0], "traces": {"0": trace}}
    (folder / "streams.json").write_text(json.dumps(content))


def _schedule(folder: Path) -> None:
    triosim(folder, "schedule", "1f1b", "--stages", "2", "--micro-batches", "3", "-q", "-o", "@schedule.csv")


def _run_config(folder: Path) -> None:
    write_trace(folder)
    triosim(folder, "S", "@trace.json", "-p", "fsdp=2,tp=2", "-q", "--slow-gpus", "1=1.5", "--save-config", "@run.yaml")


def _launch_file(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (_config(folder), (folder / name).write_text(text))[0]


def _space(folder: Path) -> None:
    _config(folder)
    (folder / "space.yaml").write_text("vary:\n  tp: [1, 2]\n  micro_batch_size: [1, 2]\nwithout_rules: [node]\n")


def _study(folder: Path) -> None:
    _config(folder)
    triosim(
        folder,
        "search",
        "@config.json",
        "--gpu",
        "H100",
        "--gpus",
        "2",
        "--global-batch-size",
        "2",
        "-q",
        "--vary",
        "tp=1,2",
        "--study",
        "@study.db",
    )


def _result(folder: Path) -> None:
    write_trace(folder)
    triosim(folder, "S", "@trace.json", "-p", "ddp", "-n", "2", "-q", "--record", "-o", "@result.json")


_SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=1
GPUS_PER_NODE=2
TP=$((GPUS_PER_NODE / 1))
if [ "$TP" -gt 1 ]; then EXTRA="--sequence-parallel"; fi
ARGS=(--seq-length 32 --micro-batch-size 1 --global-batch-size 4 --tensor-model-parallel-size ${TP} --bf16 --num-layers 2)
torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py ${ARGS[@]} $EXTRA
"""
_TOPOLOGY = """\
topology: mesh
shape: [2, 2]
bandwidth: 10 GB/s
latency: 1 us
host: {bandwidth: 5 GB/s}
overrides:
  - {from: gpu0, to: gpu1, bandwidth: 1 GB/s}
"""
_LINKS = """\
nodes: [gpu0, gpu1, gpu2, gpu3, switch0]
links:
  - {from: gpu0, to: switch0, bandwidth: 10 GB/s, latency: 1 us}
  - {from: gpu1, to: switch0, bandwidth: 10 GB/s, latency: 1 us}
  - {from: gpu2, to: switch0, bandwidth: 10 GB/s, latency: 1 us}
  - {from: gpu3, to: switch0, bandwidth: 10 GB/s, latency: 1 us}
"""
_MEMORIES = """\
topology: switch
nodes: 2
gpus_per_node: 2
bandwidth: 450 GB/s
inter_node: {bandwidth: 50 GB/s, latency: 1 us, gpus_per_nic: 2}
host: {bandwidth: 50 GB/s, latency: 1 us, gpus_per_link: 2}
host_memory: {capacity: 2 TB, bandwidth: 490 GB/s}
nvme: {capacity: 30 TB, read: 50 GB/s, write: 32 GB/s, latency: 100 us}
expansion: {bandwidth: 50 GB/s, latency: 500 ns, capacity: 4 TB, memory_bandwidth: 200 GB/s}
pool: {groups: 8, switches: 4, capacity: 4 TB, bandwidth: 256 GB/s, node_bandwidth: 256 GB/s, group_bandwidth: 99 GB/s}
"""
_SECTIONS = """\
preset: dgx-h100
slow_gpus: {1: 1.5}
gpu_kinds: {2-3: A100}
stragglers: {distribution: lognormal, spread: 0.1, seed: 1, every: iteration}
slow_links: {spread: 0.5, seed: 1}
events: [{at: 1 us, gpu: 3, slowdown: 2}]
compute_slowdown: {all_reduce: 1.2}
collective_slowdown: 1.1
calibration: none
photonic: {ports: 4, bandwidth: 100 GB/s, setup: 1 us}
"""
_DIMENSIONS = """\
topology: [Ring, Switch]
npus_count: [2, 2]
bandwidth: [50, 25]
latency: [500, 700]
"""
_OPERATORS = """\
operator,phase,dtype,inputs,outputs,attributes,seconds
aten::mm,forward,float16,64x64 64x64,64x64,,1e-5
aten::mm,forward,float16,128x64 64x64,128x64,,2e-5
aten::add,forward,float16,64x64 64x64,64x64,,3e-6
"""
_PRODUCTS = """\
m,n,k,dtype,seconds
64,64,64,float16,1e-6
128,128,64,float16,2e-6
256,256,64,float16,4e-6
512,512,64,float16,9e-6
"""
_COLLECTIVES = "collective,gpus,bytes,time_us\n" + "".join(
    f"all_reduce,8,{2**i},{20 + 2**i / 1e5}\n" for i in range(10, 26)
)
_NCCL_TESTS = """\
# nThread 1 nGpus 8 minBytes 1024 maxBytes 4096
#  Rank  0 Group  0 Pid 1 on a device  0
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
""" + "".join(
    f"{2**i:12d} {2**i // 4:12d} float sum -1 {20 + i:.1f} 0.1 0.2 0 {21 + i:.1f} 0.1 0.2 0\n" for i in range(10, 22)
)
_TIMES = "operator,phase,seconds\nmm,forward,0.001\nnative_layer_norm,,2e-5\n"
_LISTED_TIMES = "- {operator: mm, time: 12 us}\n- {layer: transformer, seconds: 0.01}\n"

_TITAN = """\
# a job of torchtitan
[model]
name = "llama3"
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[training]
seq_len = 32
local_batch_size = 2
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = true
components = ["model", "loss"]
"""

_MEGATRON = """\
#!/bin/bash
GPUS=4 # in a node
ARGS=(
    --num-layers 2 --hidden-size 64
    --tensor-model-parallel-size 2
    --micro-batch-size 1 --global-batch-size 4
    --seq-length 32
    --bf16
)
if [[ "$GPUS" -gt 2 ]]; then
    ARGS+=(--sequence-parallel)
fi
torchrun --nnodes ${NODES:-1} --nproc-per-node $GPUS pretrain_gpt.py "${ARGS[@]}" --lr 1e-4
"""
_DEEPSPEED = {
    "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 2, "overlap_comm": True}, "bf16": {"enabled": True},
}  # fmt: skip
_ACCELERATE = """\
distributed_type: FSDP
num_processes: 4
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
parallelism_config:
  parallelism_config_tp_size: 2
  parallelism_config_dp_shard_size: 2
"""
_TRAINER = {
    "output_dir": "out", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "bf16": True,
    "fsdp": "full_shard auto_wrap", "deepspeed": None, "optim": "adamw_torch",
}  # fmt: skip

_ON_TRACE = "simulate trace.json -p ddp -n 4 -o out.json"
_ON_TOPOLOGY = ("topology topology.yaml", f"{_ON_TRACE} -t topology.yaml")
_ON_MODEL = "simulate config.json --gpu H100 -p ddp -n 2 -o out.json"
_ON_TABLE = ("calibrate evaluate table.csv --gpu A100", "calibrate compute table.csv --gpu A100 -o out.npz")
_ON_GRAPHS = ("simulate graphs/step -o out.json", "simulate graphs/step --rules astra-sim -o out.json")
_LIKE = "simulate config.json --gpu H100 -n 4 --like"
_SEARCH = "search config.json --gpu H100 -q"

KINDS: tuple[Kind, ...] = (
    Kind(
        "trace",
        write_trace,
        {"trace.json": as_json},
        (
            _ON_TRACE,
            "simulate trace.json -p tp=2 -b 4 -o out.json",
            "show trace.json",
            "memory trace.json -p fsdp=2",
            "compare trace.json -n 2 --format json",
            "convert trace.json out.json",
        ),
    ),
    Kind("trace.gz", write_trace, {"trace.json": packed}, (_ON_TRACE, "show trace.json")),
    Kind(
        "kineto",
        _kineto,
        {"kineto/rank-0.json.gz": inside},
        ("show kineto/rank-0.json.gz", "simulate kineto -o out.json"),
    ),
    Kind(
        "profile",
        _profile,
        {f"profile/{name}.json.gz": inside for name in ("execution_trace", "profiler")},
        ("simulate profile -o out.json", "show profile", "convert profile out.json"),
    ),
    Kind(
        "csv pair",
        _csv_pair,
        {"pair/trace.csv": as_text, "pair/tensor.csv": as_text},
        ("simulate pair -o out.json", "show pair"),
    ),
    Kind("topology", with_text("topology.yaml", _TOPOLOGY), {"topology.yaml": as_text}, _ON_TOPOLOGY),
    Kind("links", with_text("topology.yaml", _LINKS), {"topology.yaml": as_text}, _ON_TOPOLOGY),
    Kind("sections", with_text("topology.yaml", _SECTIONS), {"topology.yaml": as_text}, _ON_TOPOLOGY),
    Kind(
        "memories",
        with_text("topology.yaml", _MEMORIES),
        {"topology.yaml": as_text},
        (
            "topology topology.yaml",
            "simulate trace.json -p zero2 -n 4 --offload optimizer=nvme -t topology.yaml -o out.json",
            "simulate trace.json -p fsdp -n 4 --fold --offload parameters=pool,optimizer=host -t topology.yaml -o out.json",
            "memory trace.json -p fsdp -n 4 --offload parameters=pool,optimizer=host -t topology.yaml",
        ),
    ),
    Kind("dimensions", with_text("topology.yaml", _DIMENSIONS), {"topology.yaml": as_text}, _ON_TOPOLOGY),
    Kind(
        "chakra",
        _chakra,
        {"graphs/step.0.et": mutations.of_bytes, "graphs/step.2.et": mutations.of_bytes},
        (*_ON_GRAPHS, "show graphs/step"),
    ),
    Kind(
        "astra-sim",
        _chakra,
        {
            "graphs/network.yml": as_text,
            "graphs/system.json": as_json,
            "graphs/remote_memory.json": as_json,
            "graphs/comm_group.json": as_json,
        },
        _ON_GRAPHS,
    ),
    Kind(
        "gpu",
        _gpu,
        {"gpu.yaml": as_text},
        (
            f"{_ON_TRACE} --gpu gpu.yaml",
            "gpus gpu.yaml",
            "describe gpt2 --layers 1 --seq 16 --gpu gpu.yaml -o out.json",
        ),
    ),
    Kind(
        "model",
        _config,
        {"config.json": as_json},
        (_ON_MODEL, "memory config.json", "describe config.json -o out.json"),
    ),
    Kind("images", _images, {"config.json": as_json}, (_ON_MODEL,)),
    Kind("operators", with_text("table.csv", _OPERATORS), {"table.csv": as_text}, _ON_TABLE),
    Kind("products", with_text("table.csv", _PRODUCTS), {"table.csv": as_text}, _ON_TABLE),
    Kind(
        "collectives",
        with_text("table.csv", _COLLECTIVES),
        {"table.csv": as_text},
        ("calibrate network table.csv -t dgx-h100 -o out.yaml", "calibrate evaluate table.csv -t dgx-h100"),
    ),
    Kind(
        "nccl-tests",
        with_text("table.txt", _NCCL_TESTS),
        {"table.txt": as_text},
        ("calibrate network table.txt -t dgx-h100 --collective all_reduce -o out.yaml",),
    ),
    Kind(
        "schedule",
        _schedule,
        {"schedule.csv": as_text},
        (
            "schedule schedule.csv --stages 2 --micro-batches 3",
            "simulate gpt2 --layers 2 --gpu H100 -s 16 -p pp=2 --micro-batches 3 --schedule schedule.csv -o out.json",
        ),
    ),
    Kind("times", with_text("times.csv", _TIMES), {"times.csv": as_text}, (f"{_ON_TRACE} --operator-times times.csv",)),
    Kind(
        "times.yaml",
        with_text("times.yaml", _LISTED_TIMES),
        {"times.yaml": as_text},
        (f"{_ON_TRACE} --operator-times times.yaml",),
    ),
    Kind("streams", _streams, {"streams.json": as_json}, ("simulate streams.json -o out.json", "show streams.json")),
    Kind(
        "config",
        _run_config,
        {"run.yaml": as_text},
        ("simulate --config run.yaml -o out.json", "memory --config run.yaml"),
    ),
    Kind(
        "torchtitan",
        _launch_file("job.toml", _TITAN),
        {"job.toml": as_text},
        (f"{_LIKE} job.toml -o out.json", f"{_LIKE} job.toml --ignore-unknown -o out.json"),
    ),
    Kind("megatron", _launch_file("args.sh", _MEGATRON), {"args.sh": as_text}, (f"{_LIKE} args.sh -o out.json",)),
    Kind(
        "deepspeed",
        _launch_file("ds.json", json.dumps(_DEEPSPEED)),
        {"ds.json": as_json},
        (f"{_LIKE} ds.json -o out.json",),
    ),
    Kind("accelerate", _launch_file("a.yaml", _ACCELERATE), {"a.yaml": as_text}, (f"{_LIKE} a.yaml -o out.json",)),
    Kind(
        "trainer", _launch_file("t.json", json.dumps(_TRAINER)), {"t.json": as_json}, (f"{_LIKE} t.json -o out.json",)
    ),
    Kind(
        "space",
        _space,
        {"space.yaml": as_text},
        (f"{_SEARCH} --gpus 4 --global-batch-size 4 --space space.yaml -o out.json",),
    ),
    Kind(
        "study",
        _study,
        {"study.db": mutations.of_bytes},
        (
            "search --show study.db",
            f"{_SEARCH} --gpus 2 --global-batch-size 2 --vary tp=1,2 --study study.db -o out.json",
        ),
    ),
    Kind(
        "result",
        _result,
        {"result.json": as_json},
        ("report result.json -o out.html", "doubt result.json", "simulate --config result.json"),
    ),
    *TABLES,
    Kind(
        "launch script",
        _launch_file("train.sh", _SCRIPT),
        {"train.sh": as_text},
        (f"{_LIKE} train.sh --ignore-unknown -o out.json",),
    ),
    Kind("command line", write_trace, {}, ()),
)


def command_of(kind: Kind, draw: random.Random) -> list[str]:
    """Return a command that reads an input of a kind."""
    return draw.choice(kind.commands).split() if kind.commands else random_command(draw)
