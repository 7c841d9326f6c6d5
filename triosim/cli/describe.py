"""The command ``triosim describe``: the trace of a training step from a model's name or config, without PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from triosim.cli import options as o
from triosim.errors import OptionError


def _names() -> list[str]:
    from triosim.models.catalogue import MODELS

    return sorted(MODELS)


def describe(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            autocompletion=o.completing(_names),
            help="A name (llama3-8b; an unknown one says those that are known), or a config.json of transformers.",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default=False,
            help="The trace (.json or .json.gz); by default MODEL.trace.json.gz.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", "-b", metavar="N", help="Samples in a step.")] = 1,
    seq: Annotated[
        int | None,
        typer.Option(
            "--seq",
            "-s",
            metavar="N",
            show_default=False,
            help="Tokens in a sample; by default the model's own length.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", metavar="NAME", help="fp32, bf16 or fp16.")] = "bf16",
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            metavar="plain|mixed",
            **o.one_of("--precision", ("plain", "mixed")),
            help="Parameters in --dtype, or fp32 ones and autocast to it.",
        ),
    ] = "plain",
    optimizer: Annotated[
        str,
        typer.Option(
            "--optimizer", metavar="NAME", help="adamw, fused-adamw, master-adamw (fp32 copies), sgd or none."
        ),
    ] = "adamw",
    attention: Annotated[
        str,
        typer.Option(
            "--attention",
            metavar="flash|math",
            **o.one_of("--attention", ("flash", "math")),
            help="One kernel, or products with the scores in memory.",
        ),
    ] = "flash",
    kernels: Annotated[
        str | None,
        typer.Option(
            "--kernels",
            metavar="eager|fused|compiled",
            show_default=False,
            **o.one_of("--kernels", ("eager", "fused", "compiled")),
            help="One an operator; one for what libraries fuse (norms, rotations, gates, the loss); or as a compiler fuses.",
        ),
    ] = None,
    products: Annotated[
        str,
        typer.Option(
            "--products",
            metavar="plain|fp8",
            **o.one_of("--products", ("plain", "fp8")),
            help="Those of linear layers in --dtype, or in fp8 with a scale a tensor.",
        ),
    ] = "plain",
    dropout: Annotated[
        str | None,
        typer.Option(
            "--dropout", metavar="P", show_default=False, help="Another probability than the model's own: 0, 0.1."
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option("--layers", metavar="N", show_default=False, help="Another number of layers than the model's."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME",
            autocompletion=o.completing(o.gpu_names),
            show_default=False,
            help="The GPU whose times are predicted: a name that 'triosim gpus' lists, or a YAML file. By default H100-SXM.",
        ),
    ] = None,
    quiet: o.Quiet = False,
) -> None:
    """Write the trace of a training step from a model's name or config, with times predicted for a GPU.

    [bold]Examples[/]

    [cyan]triosim describe llama3-8b --batch 2 --seq 8192 --dtype bf16 -o trace.json[/]
    [cyan]triosim describe gpt3-175b --dtype fp16 --attention math --layers 4 --gpu A100 -o gpt.json.gz[/]
    """
    from triosim.compute.pricing.prediction import DEFAULT_GPU
    from triosim.output_files import check_outputs, check_trace_name
    from triosim.trace.formats import write

    target = output or f"{_stem(model)}.trace.json.gz"
    check_outputs(target, reading=(model,))
    check_trace_name(target)
    from triosim.models.description import describe as described

    trace = described(
        model,
        batch=batch,
        sequence=seq,
        dtype=dtype,
        precision=precision,  # type: ignore[arg-type]  # one of its words: the option was checked
        optimizer=optimizer,
        attention=attention,  # type: ignore[arg-type]
        kernels=kernels,  # type: ignore[arg-type]
        dropout=None if dropout is None else _probability(dropout),
        layers=layers,
        products=products,  # type: ignore[arg-type]
        gpu=gpu or DEFAULT_GPU,
    )
    write(trace, target)
    if quiet:
        return
    from triosim.units import format_time

    count = sum(parameter.numel for parameter in trace.parameters.values())
    for line in (
        f"{trace.model} on {trace.gpu}: {count:,} parameters, {len(trace.operators):,} operators, "
        f"batch of {trace.batch_size:,}",
        f"operators take {format_time(trace.seconds)}, {trace.times}",
        f"written to {target}",
    ):
        print(f"triosim: {line}", file=sys.stderr)


def _stem(model: str) -> str:
    """Return what a trace is called: as the model, or as the folder of its config."""
    path = Path(model)
    return (path.resolve().parent.name if path.name == "config.json" else path.name.removesuffix(".json")) or "model"


def _probability(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        raise OptionError(f"'{text}' is no probability", where="--dropout", fix="give 0 or more, and less than 1")
    return number
