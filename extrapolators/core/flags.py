"""The options of parallelisms that have a flag of their own on the command line, by name.

They are declared here, and not with their parallelisms, because a command's help lists them and should not import all
parallelisms. What a parallelism declares by itself is given as ``--option NAME=VALUE``.
"""

from __future__ import annotations

from triosim.config import Option

# fmt: off
GRADIENT_DTYPE = Option("gradient_dtype", "dtype", None, metavar="DTYPE", of_training=True, of_step=True, help=
    "The dtype in which gradients are reduced: fp32, bf16, ... By default each parameter's own.")
BUCKET_SIZE = Option(
    "bucket_size", "bytes", "25 MiB", unit="bytes", least=1000, metavar="SIZE", of_training=True, of_step=True, help=
    "ddp, zero1, zero2: bytes of a gradient bucket.")
FIRST_BUCKET_SIZE = Option(
    "first_bucket_size", "bytes", "1 MiB", unit="bytes", least=1000, metavar="SIZE", of_training=True, of_step=True, help=
    "ddp, zero1, zero2: bytes of the first gradient bucket.")
DP_STYLE = Option(
    "dp_style", "choice", "all-reduce", choices=("all-reduce", "replicate"), metavar="STYLE", of_step=True,
    commands=("simulate", "memory"), help=
    "dp: all-reduce, or replicate (as torch.nn.DataParallel).")
TP_STYLE = Option("tp_style", "choice", None, choices=("gather", "megatron"), metavar="STYLE", of_step=True, help=
    "tp: gather (each layer's output) or megatron (layers in pairs, one all-reduce for two). By default megatron for a model "
    "with attention, else gather.")
SEQUENCE_PARALLEL = Option("sequence_parallel", "flag", False, of_step=True, commands=("simulate", "memory"), help=
    "tp, style megatron: shard norms and residuals by tokens, between all-gathers and reduce-scatters.")
STAGES = Option("stages", "names", None, metavar="LAYER,...", of_step=True, commands=("simulate", "memory"), help=
    "pp: the first layer of each stage after the first. By default balanced by time.")
BALANCE_STAGES = Option("balance_stages", "flag", False, of_step=True, commands=("simulate", "compare"), help=
    "pp: balance by the times on each stage's own GPUs, so that slower ones get fewer layers.")
SCHEDULE = Option("schedule", "part", "1f1b", metavar="NAME", of_step=True, group="schedules", help=
    "pp: gpipe, 1f1b, interleaved, zero-bubble, dualpipe, file.py:Class, or a CSV file (rank, slot, action).")
VIRTUAL_STAGES = Option("virtual_stages", "whole", None, unit="stages", metavar="V", of_step=True, help=
    "pp, interleaved: the number of stages of a rank. By default 2.")
EP_TRANSPORT = Option(
    "ep_transport", "choice", "nccl", choices=("nccl", "deepep", "hybridep"), metavar="NAME", of_step=True, help=
    "ep: what carries tokens to experts and back: nccl (all-to-alls), or the dispatch and combine of deepep or hybridep.")
EP_OVERLAP = Option("ep_overlap", "flag", False, of_training=True, of_step=True, help=
    "ep: run the forward pass of a micro-batch beside the backward pass of another, which computes while tokens are sent.")
# fmt: on

FLAGS = (
    DP_STYLE, GRADIENT_DTYPE, BUCKET_SIZE, FIRST_BUCKET_SIZE, TP_STYLE, SEQUENCE_PARALLEL, STAGES, BALANCE_STAGES, SCHEDULE,
    VIRTUAL_STAGES, EP_TRANSPORT, EP_OVERLAP,
)  # fmt: skip
