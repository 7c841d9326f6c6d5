"""The options of the command line that more than one command takes: what they are called, say, complete and refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from triosim.errors import OptionError, nearest

PARALLELISM, SYSTEM, TIMES, OUTPUT = "Parallelism", "System", "Operator times", "Output"


def one_of(option: str, words: Iterable[str]) -> dict[str, Any]:
    """Return the arguments that make an option complete some words and refuse all others."""
    known = tuple(words)

    def check(value: str | None) -> str | None:
        if value is not None and value not in known:
            raise OptionError(f"'{value}' is not known", where=option, fix=nearest(value, known))
        return value

    return {"callback": check, "autocompletion": completing(lambda: known)}


def completing(words: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a shell completion over words that are found when they are needed."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return complete


def _plugins(group: str) -> Callable[[str], list[str]]:
    def names() -> list[str]:
        from triosim import plugins

        return plugins.names(cast(plugins.Group, group))

    return completing(names)


def _topologies() -> list[str]:
    from triosim.networks.topology.presets import PRESETS
    from triosim.networks.topology.shapes import SHAPES

    return [
        *PRESETS,
        *SHAPES,
        *(str(path) for suffix in ("yaml", "yml") for path in sorted(Path().glob(f"*.{suffix}"))),
    ]


def gpu_names() -> list[str]:
    """Return the GPUs of the catalogue, and the files here that may be one."""
    from triosim import gpus

    return [*(gpu.name for gpu in gpus.catalogue()), *(str(path) for path in sorted(Path().glob("*.yaml")))]


def _schedules() -> list[str]:
    from triosim import plugins

    return [*plugins.names("schedules"), *(str(path) for path in sorted(Path().glob("*.csv")))]


def _recomputing() -> list[str]:
    from triosim.extrapolators.core.recompute import POLICIES

    return [*POLICIES, "save="]


#: Completes the names of pipeline schedules, and files.
schedules = completing(_schedules)


def key_values(pairs: Iterable[str]) -> Mapping[str, str]:
    """Return ``key=value`` pairs as a mapping. Raises ``OptionError``."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise OptionError(f"'{pair}' is not a key and a value", where="--option", fix="write key=value")
        if key in found:
            raise OptionError(f"'{key}' is given twice", where="--option")
        found[key] = value
    return found


TracePath = Annotated[
    str, typer.Argument(metavar="TRACE", help="A trace in any known format: a file or a folder.", show_default=False)
]
TraceFormat = Annotated[
    str | None,
    typer.Option(
        "--trace-format",
        metavar="NAME",
        autocompletion=_plugins("trace_formats"),
        show_default=False,
        help="The trace's format, if its content does not say: a name, or a plug-in's file.py.",
    ),
]
Parallel = Annotated[
    str,
    typer.Option(
        "--parallel",
        "-p",
        autocompletion=_plugins("extrapolators"),
        rich_help_panel=PARALLELISM,
        help="single, dp, ddp, fsdp, zero1, zero2, tp, cp, ep, pp, local-sgd, with sizes and combined (dp=2,tp=4), "
        "parameter-server, hop, or a plug-in (file.py:Class).",
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus",
        "-n",
        metavar="N",
        rich_help_panel=PARALLELISM,
        show_default=False,
        help="How many GPUs. By default what the sizes of --parallel come to, or as many as the topology has.",
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        autocompletion=completing(gpu_names),
        rich_help_panel=TIMES,
        show_default=False,
        help="Predict for another GPU than the trace's: a name that 'triosim gpus' lists, or a YAML file.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        "-b",
        metavar="N",
        rich_help_panel=PARALLELISM,
        show_default=False,
        help="Samples of each data-parallel replica. By default the trace's.",
    ),
]
GlobalBatchSize = Annotated[
    int | None,
    typer.Option(
        "--global-batch-size",
        metavar="N",
        rich_help_panel=PARALLELISM,
        show_default=False,
        help="Samples of all replicas together, instead of --batch-size.",
    ),
]
MicroBatches = Annotated[
    int | None,
    typer.Option(
        "--micro-batches",
        metavar="M",
        rich_help_panel=PARALLELISM,
        show_default=False,
        help="Into how many the batch is divided: by default as many as pp has GPUs, or as its schedule needs. "
        "Without pp, gradients accumulate.",
    ),
]
Stages = Annotated[
    str | None,
    typer.Option(
        "--stages",
        metavar="LAYER,...",
        rich_help_panel=PARALLELISM,
        show_default=False,
        help="pp: the first layer of each stage after the first. By default balanced by time.",
    ),
]
BalanceStages = Annotated[
    bool,
    typer.Option(
        "--balance-stages",
        rich_help_panel=PARALLELISM,
        help="pp: balance by the times on each stage's own GPUs, so that slower ones get fewer layers.",
    ),
]
Schedule = Annotated[
    str,
    typer.Option(
        "--schedule",
        metavar="NAME",
        autocompletion=schedules,
        rich_help_panel=PARALLELISM,
        help="pp: gpipe, 1f1b, interleaved, zero-bubble, dualpipe, or a CSV file (rank, slot, action).",
    ),
]
VirtualStages = Annotated[
    int | None,
    typer.Option(
        "--virtual-stages",
        metavar="V",
        rich_help_panel=PARALLELISM,
        show_default=False,
        help="pp, interleaved: how many stages a rank has. By default 2.",
    ),
]
TpStyle = Annotated[
    str,
    typer.Option(
        "--tp-style",
        **one_of("--tp-style", ("gather", "megatron")),
        metavar="STYLE",
        rich_help_panel=PARALLELISM,
        help="tp: gather (each layer's output) or megatron (layers in pairs, one all-reduce for two).",
    ),
]
SequenceParallel = Annotated[
    bool,
    typer.Option(
        "--sequence-parallel",
        rich_help_panel=PARALLELISM,
        help="tp, style megatron: norms and residuals on a share of the sequence; reduce-scatters and all-gathers.",
    ),
]
DpStyle = Annotated[
    str,
    typer.Option(
        "--dp-style",
        **one_of("--dp-style", ("all-reduce", "replicate")),
        metavar="STYLE",
        rich_help_panel=PARALLELISM,
        help="dp: all-reduce, or replicate (what torch.nn.DataParallel does).",
    ),
]
BucketSize = Annotated[
    str,
    typer.Option(
        "--bucket-size",
        metavar="SIZE",
        rich_help_panel=PARALLELISM,
        help="ddp, zero1, zero2: bytes of a gradient bucket.",
    ),
]
FirstBucketSize = Annotated[
    str,
    typer.Option(
        "--first-bucket-size",
        metavar="SIZE",
        rich_help_panel=PARALLELISM,
        help="ddp, zero1, zero2: bytes of the first one.",
    ),
]
GradientDtype = Annotated[
    str | None,
    typer.Option(
        "--gradient-dtype",
        metavar="DTYPE",
        rich_help_panel=PARALLELISM,
        show_default=False,
        help="What gradients are reduced in: fp32, bf16, ... (default: each parameter's own).",
    ),
]
Recompute = Annotated[
    str,
    typer.Option(
        "--recompute",
        metavar="POLICY",
        autocompletion=completing(_recomputing),
        rich_help_panel=PARALLELISM,
        help="Which activations the backward pass computes again: none, selective (attention), full, checkpoint (as "
        "torch.utils.checkpoint), save=mm,attention for all but these, or modules=mlp for what these modules need.",
    ),
]
Inference = Annotated[
    bool, typer.Option("--inference", rich_help_panel=PARALLELISM, help="Simulate the forward pass alone.")
]
Iterations = Annotated[
    int, typer.Option("--iterations", metavar="N", rich_help_panel=PARALLELISM, help="Steps to simulate.")
]
TopologyName = Annotated[
    str | None,
    typer.Option(
        "--topology",
        "-t",
        metavar="NAME",
        autocompletion=completing(_topologies),
        rich_help_panel=SYSTEM,
        show_default=False,
        help="dgx-h100, 'ring(8, bandwidth=50 GB/s)' or a YAML file. By default what the trace's GPU usually comes in.",
    ),
]
NetworkName = Annotated[
    str,
    typer.Option(
        "--network",
        metavar="NAME",
        autocompletion=_plugins("networks"),
        rich_help_panel=SYSTEM,
        help="The sharing rule: packet, analytical, photonic, module:Class or file.py:Class.",
    ),
]
CollectiveName = Annotated[
    str | None,
    typer.Option(
        "--collective",
        metavar="NAME",
        autocompletion=_plugins("collective_algorithms"),
        rich_help_panel=SYSTEM,
        show_default=False,
        help="The collective algorithm: auto (as NCCL chooses), ring, tree, nvls, ... or file.py:Class. By default ring.",
    ),
]
CollectiveForm = Annotated[
    str,
    typer.Option(
        "--collective-form",
        **one_of("--collective-form", ("pipelined", "steps")),
        metavar="FORM",
        rich_help_panel=SYSTEM,
        help="pipelined (all of an algorithm's edges at once) or steps (one after the other).",
    ),
]
CopyInput = Annotated[
    bool,
    typer.Option(
        "--copy-input/--no-copy-input", rich_help_panel=SYSTEM, help="Whether the input is copied from host memory."
    ),
]
HostOverhead = Annotated[
    str | None,
    typer.Option(
        "--host-overhead",
        metavar="TIME",
        rich_help_panel=SYSTEM,
        show_default=False,
        help="What a launch costs the host: '5 us', trace for each operator's own, or none. By default none.",
    ),
]
RunAhead = Annotated[
    int | None,
    typer.Option(
        "--run-ahead",
        metavar="N",
        rich_help_panel=SYSTEM,
        show_default=False,
        help="How many operators the host is ahead of its GPU at most. By default as many as CUDA's launch queue holds.",
    ),
]
OperatorTimes = Annotated[
    str | None,
    typer.Option(
        "--operator-times",
        metavar="FILE",
        rich_help_panel=TIMES,
        show_default=False,
        help="Times that replace the trace's, by operator or layer.",
    ),
]
ComputeModel = Annotated[
    str,
    typer.Option(
        "--compute-model",
        metavar="NAME",
        autocompletion=_plugins("compute_models"),
        rich_help_panel=TIMES,
        help="What estimates operators of other shapes: auto, linear, roofline, module:Class or file.py:Class.",
    ),
]
FailOnOom = Annotated[
    bool,
    typer.Option("--fail-on-oom", rich_help_panel=SYSTEM, help="Stop with status 3 where a rank does not fit its GPU."),
]
Fold = Annotated[
    bool | None,
    typer.Option(
        "--fold/--no-fold",
        rich_help_panel=SYSTEM,
        show_default=False,
        help="Simulate ranks that do the same once: the same results, sooner. By default from 16 GPUs on.",
    ),
]
PluginOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        rich_help_panel=SYSTEM,
        show_default=False,
        help="An option of a parallelism (fsdp: prefetch=2), network, collective or plug-in. Repeatable.",
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        **one_of("--format", ("table", "json")),
        metavar="FORM",
        rich_help_panel=OUTPUT,
        help="What is printed: table, or json and nothing else.",
    ),
]
Plot = Annotated[
    str | None,
    typer.Option(
        "--plot", metavar="FILE", rich_help_panel=OUTPUT, show_default=False, help="A picture (png, svg, pdf)."
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", rich_help_panel=OUTPUT, help="Print no tables and show no progress.")
]
TokensPerSample = Annotated[
    str | None,
    typer.Option(
        "--tokens-per-sample",
        metavar="N",
        rich_help_panel=OUTPUT,
        show_default=False,
        help="For tokens per second. By default what the trace feeds into a table of embeddings.",
    ),
]
Price = Annotated[
    str | None,
    typer.Option(
        "--price",
        metavar="PRICE",
        rich_help_panel=OUTPUT,
        show_default=False,
        help="Of a GPU for an hour, for what a step costs. By default the catalogue's, if it has one.",
    ),
]
Links = Annotated[
    bool,
    typer.Option("--links", rich_help_panel=OUTPUT, help="Record what each link carries when; show the busiest."),
]
LinkPlot = Annotated[
    str | None,
    typer.Option(
        "--link-plot",
        metavar="FILE",
        rich_help_panel=OUTPUT,
        show_default=False,
        help="A heat map of the links: on the topology, and over time (png, svg, pdf).",
    ),
]
ByLayer = Annotated[
    bool,
    typer.Option("--by-layer", rich_help_panel=OUTPUT, help="Show whose communication is exposed: layer and axis."),
]
WhatIf = Annotated[
    bool,
    typer.Option(
        "--what-if",
        rich_help_panel=OUTPUT,
        help="Run again with the GPUs, and each kind of link, twice as fast; show what that saves.",
    ),
]
