"""The command ``triosim describe``: writes the trace of a training step from a model's name or config, without PyTorch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule
from triosim.config import DESCRIBED, Option
from triosim.config.option import GENERAL
from triosim.errors import OptionError, printable
from triosim.gpus import DEFAULT_GPU
from triosim.output_files import check_outputs, check_trace_name
from triosim.reports.terminal.progress import Progress
from triosim.trace.formats import write
from triosim.units import format_time

if TYPE_CHECKING:
    from triosim.trace import Trace

catalogue = LaterModule("models.catalogue")
description = LaterModule("models.description")
step_choices = LaterModule("models.step_choices")

# fmt: off
OPTIONS = (
    Option("output", metavar="FILE", short="-o", panel=GENERAL, help=
        "The trace (.json or .json.gz); by default MODEL.trace.json.gz."),
    *(replace(option, panel=GENERAL) for option in DESCRIBED.values()),
    Option("gpu", "text", DEFAULT_GPU, metavar="NAME", panel=GENERAL, help=
        "The GPU whose times are predicted: a name that 'triosim gpus' lists, or a YAML file."),
    Option("list", "flag", False, panel=GENERAL, help="List the names of the models."),
    replace(o.QUIET, panel=GENERAL),
)
# fmt: on


@o.takes(*OPTIONS)
def command(
    model: Annotated[
        str | None,
        o.argument("MODEL", "A name, such as llama3-8b (--list shows all), or a config.json of transformers.", "model"),
    ] = None,
    **given: Any,
) -> None:
    """Write the trace of a training step from a model's name or config, with times predicted for a GPU.

    [bold]Examples[/]

    [cyan]triosim describe llama3-8b --batch 2 --seq 8192 --dtype bf16 -o trace.json[/]
    [cyan]triosim describe gpt3-175b --dtype fp16 --attention math --layers 4 --gpu A100 -o gpt.json.gz[/]
    """
    if given["list"]:
        print("\n".join(sorted(catalogue.MODELS)))
        return
    if model is None:
        raise OptionError("Missing argument 'MODEL'", fix="see 'triosim describe --help', or --list")
    target = given["output"] or f"{_stem(model)}.trace.json.gz"
    check_outputs(target, reading=(model,))
    check_trace_name(target)
    choices = step_choices.StepChoices(**{name: given[option.name] for name, option in DESCRIBED.items()})
    with Progress(shown=not given["quiet"]) as progress:
        progress.said("describing")
        trace = description.described(model, choices, gpu=given["gpu"])
        progress.said("writing")
        write(trace, target)
    if not given["quiet"]:
        _tell(trace, target)


def _tell(trace: Trace, target: str) -> None:
    count = sum(parameter.numel for parameter in trace.parameters.values())
    for line in (
        f"{trace.model} on {trace.gpu}: {count:,} parameters, {len(trace.operators):,} operators, "
        f"batch of {trace.batch_size:,}",
        f"operators take {format_time(trace.seconds)}, {trace.times}",
        f"written to {target}",
    ):
        print(f"triosim: {printable(line)}", file=sys.stderr)


def _stem(model: str) -> str:
    """Return what a trace is called: as the model, or as the folder of its config."""
    path = Path(model)
    return (path.resolve().parent.name if path.name == "config.json" else path.name.removesuffix(".json")) or "model"
