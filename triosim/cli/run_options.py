"""The options of a run, once for all commands that simulate: ``simulate`` and ``compare`` take them from one list.

An option of the command line is an argument of ``triosim.simulate`` by the same name, but for the few that
``arguments_of`` turns into one. A new option is a line of ``OPTIONS``; ``compare`` has it too unless the line says that it
makes a strategy, or belongs to one run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer

from triosim.cli import condition_options as c
from triosim.cli import options as o

Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class RunOption:
    """An option by the name that commands know it by, with what typer is to know of it. ``compare``: that command has it."""

    name: str
    kind: Any
    default: Any = None
    compare: bool = True


def _file(name: str, help: str, *letters: str) -> Any:
    option = typer.Option(name, *letters, metavar="FILE", rich_help_panel=o.OUTPUT, show_default=False, help=help)
    return Annotated[str | None, option]


_Output = _file("--output", "Everything as JSON, also by layer and rank.", "-o")
_Csv = _file("--csv", "Every figure, a row each.")
_Timeline = _file("--timeline", "A timeline for ui.perfetto.dev or chrome://tracing (.json or .json.gz).")

#: All options of a run, in the order in which they are shown.
OPTIONS = (
    RunOption("trace_format", o.TraceFormat),
    RunOption("parallel", o.Parallel, "single", compare=False),
    RunOption("gpus", o.Gpus, compare=False),
    RunOption("batch_size", o.BatchSize),
    RunOption("global_batch_size", o.GlobalBatchSize),
    RunOption("inference", o.Inference, False),
    RunOption("iterations", o.Iterations, 1, compare=False),
    RunOption("micro_batches", o.MicroBatches, compare=False),
    RunOption("stages", o.Stages, compare=False),
    RunOption("balance_stages", o.BalanceStages, False),
    RunOption("schedule", o.Schedule, "gpipe"),
    RunOption("virtual_stages", o.VirtualStages),
    RunOption("tp_style", o.TpStyle, "gather"),
    RunOption("sequence_parallel", o.SequenceParallel, False, compare=False),
    RunOption("dp_style", o.DpStyle, "all-reduce", compare=False),
    RunOption("bucket_size", o.BucketSize, "25 MiB"),
    RunOption("first_bucket_size", o.FirstBucketSize, "1 MiB"),
    RunOption("gradient_dtype", o.GradientDtype),
    RunOption("recompute", o.Recompute, "none"),
    RunOption("topology", o.TopologyName),
    RunOption("network", o.NetworkName, "packet"),
    RunOption("collective", o.CollectiveName),
    RunOption("collective_form", o.CollectiveForm, "pipelined"),
    RunOption("copy_input", o.CopyInput, False),
    RunOption("host_overhead", o.HostOverhead),
    RunOption("run_ahead", o.RunAhead, compare=False),
    *(RunOption(name, kind) for name, kind in c.CONDITION_OPTIONS.items()),
    RunOption("draws", c.Draws, 1),
    RunOption("option", o.PluginOptions),
    RunOption("fail_on_oom", o.FailOnOom, False, compare=False),
    RunOption("fold", o.Fold),
    RunOption("gpu", o.Gpu),
    RunOption("operator_times", o.OperatorTimes),
    RunOption("compute_model", o.ComputeModel, "auto"),
    RunOption("output", _Output, compare=False),
    RunOption("csv", _Csv, compare=False),
    RunOption("timeline", _Timeline, compare=False),
    RunOption("plot", o.Plot),
    RunOption("tokens_per_sample", o.TokensPerSample),
    RunOption("price", o.Price),
    RunOption("links", o.Links, False, compare=False),
    RunOption("link_plot", o.LinkPlot, compare=False),
    RunOption("by_layer", o.ByLayer, False, compare=False),
    RunOption("what_if", o.WhatIf, False, compare=False),
    RunOption("format", o.Format, "table"),
    RunOption("quiet", o.Quiet, False),
)


def takes(options: tuple[RunOption, ...]) -> Callable[[Command], Command]:
    """Give a command the parameters of ``options``, after its own.

    It names those of them that it reads itself, without a default; the others reach it as keywords.
    """
    names = {option.name for option in options}

    def with_options(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        kind = inspect.Parameter.KEYWORD_ONLY
        own = [
            one.replace(kind=kind)
            for one in signature.parameters.values()
            if one.name not in names and one.kind is not one.VAR_KEYWORD
        ]
        shared = [inspect.Parameter(one.name, kind, default=one.default, annotation=one.kind) for one in options]
        every = [*own, *shared]
        command.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]  # as inspect documents
        command.__annotations__ = {one.name: one.annotation for one in every}
        return command

    return with_options


def arguments_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``triosim.simulate`` is to be given for options of the command line."""
    return dict(_arguments(options))


def _arguments(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if name == "inference":
            yield "training", not value
        elif name == "stages":
            yield name, None if value is None else [stage.strip() for stage in value.split(",")]
        elif name == "option":
            yield "options", o.key_values(value or ())
        elif name not in c.CONDITION_OPTIONS:
            yield name, value
    yield "conditions", {name: value for name, value in options.items() if name in c.CONDITION_OPTIONS and value}
