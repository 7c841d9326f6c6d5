"""Kinds of tables that come from elsewhere: convolutions, DeepBench, DeepEP, systems, attention; and what is fitted to them."""

from __future__ import annotations

import random
import zipfile
from io import BytesIO
from pathlib import Path

from tests.fuzz import mutations
from tests.fuzz.kind import Kind, as_text, triosim, with_text, write_trace

_CONVOLUTIONS = """\
gpu,precision,input_w,input_h,in_channels,batch,out_channels,filter_h,filter_w,pad_h,pad_w,stride_v,stride_h,forward_ms,backward_input_ms,backward_weight_ms
V100-SXM2-16GB,Float,56,56,64,8,64,3,3,1,1,1,1,0.337,0.54,0.319
V100-SXM2-16GB,Float,28,28,128,8,128,3,3,1,1,1,1,0.3,0.5,0.4
V100-SXM2-16GB,Float,14,14,256,8,256,1,1,0,0,2,2,0.1,0.2,0.2
"""
_DEEPBENCH = """\
gpu,precision,M,N,K,A Transpose,B Transpose,Time (msec)
V100-SXM2-16GB,Float,1760,16,1760,N,N,0.059
V100-SXM2-16GB,Float,1760,32,1760,N,T,0.068
V100-SXM2-16GB,16 bit inputs,2048,64,2048,T,N,0.05
"""
_DEEPEP = """\
framework,version,device,node_num,hidden_size,num_token,num_topk,num_experts,dispatch_sms,dispatch_transmit_us,dispatch_notify_us,combine_sms,combine_transmit_us,combine_notify_us,system
sglang,0.5,NVIDIA B200,1,2048,256,8,128,4,32.1,0.5,4,37.8,0.3,B200-SXM
sglang,0.5,NVIDIA B200,2,7168,1024,8,256,24,310.5,20.5,24,480.8,0.3,B200-SXM
"""
_SYSTEMS = """\
collective,gpus,nodes,gpus_per_node,gpu,nic,dtype,bytes,time_us,algorithm,healthy
all_reduce,16,2,8,A100-SXM4-80GB (p4de.24xlarge),4x100 Gb/s EFA,float,1048576,164.3,,yes
all_reduce,16,2,8,A100-SXM4-80GB (p4de.24xlarge),4x100 Gb/s EFA,float,16777216,861.4,NCCL_ALGO=Ring,yes
"""
_ATTENTION = """\
batch_size,sequence_length,num_heads,num_key_value_heads,head_dim,latency_ms
1,128,8,8,128,0.0112
2,1024,8,2,128,0.1120
4,4096,8,8,64,1.5
"""
_NORMS = """\
device,B,H,latency_ms
NVIDIA L4,192,96,0.0238
NVIDIA L4,2560,384,0.18
"""
_GRAPH = "# a ring of four\n0 -> 1\n1 -> 2\n2 - 3\n3 -> 0\n"


def _models(folder: Path) -> None:
    write_trace(folder)
    rows = "".join(f"{size},{size},64,float16,{size * 1e-8}\n" for size in (64, 128, 256, 512))
    (folder / "table.csv").write_text(f"m,n,k,dtype,seconds\n{rows}")
    triosim(folder, "calibrate", "compute", "@table.csv", "--gpu", "A100", "-o", "@models.npz")


def _in_archive(data: bytes, draw: random.Random) -> bytes:
    """Change the bytes of a file of arrays, or the content of one of its members."""
    if draw.random() < 0.4:
        return mutations.of_bytes(data, draw)
    made = BytesIO()
    with zipfile.ZipFile(BytesIO(data)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        chosen = draw.choice(old.namelist())
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, mutations.of_bytes(content, draw) if name == chosen else content)
    return made.getvalue()


_EVALUATE = "calibrate evaluate table.csv"
TABLES = (
    *(
        Kind(name, with_text("table.csv", text), {"table.csv": as_text}, commands)
        for name, text, commands in (
            ("convolutions", _CONVOLUTIONS, (_EVALUATE,)),
            ("deepbench", _DEEPBENCH, (_EVALUATE, "calibrate compute table.csv -o out.npz")),
            ("deepep", _DEEPEP, (_EVALUATE,)),
            ("systems", _SYSTEMS, (_EVALUATE,)),
            ("attention", _ATTENTION, (f"{_EVALUATE} --gpu H100 --operator attention --dtype bfloat16",)),
            ("norms", _NORMS, (f"{_EVALUATE} --operator layer_norm --dtype float32",)),
        )
    ),
    Kind(
        "models",
        _models,
        {"models.npz": _in_archive},
        (
            "simulate trace.json --models models.npz -p ddp -n 2 -o out.json",
            "calibrate evaluate table.csv --gpu A100 --models models.npz",
        ),
    ),
    Kind(
        "hop graph",
        with_text("graph.txt", _GRAPH),
        {"graph.txt": as_text},
        ("simulate trace.json -p hop=4 --option graph=graph.txt -o out.json",),
    ),
)
