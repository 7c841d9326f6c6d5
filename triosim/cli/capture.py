"""The command ``triosim capture``: a training script, run as Python would run it, becomes a trace."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from triosim import tracer
from triosim.capture import one_rank
from triosim.capture.many_ranks import CapturedStreams, capture_ranks, checked_ranks
from triosim.cli import options as o
from triosim.cli.command import QuickCommand
from triosim.compute.pricing.prediction import DEFAULT_GPU
from triosim.errors import OptionError
from triosim.output_files import check_outputs, check_trace_name
from triosim.trace import Trace
from triosim.trace.formats import write
from triosim.trace.task_streams import TaskStreams
from triosim.units import format_time

#: Operators that take so many times as long as a step are another step's: one that made states, or had more rounds.
_ALIKE = 1.5
WHAT, WHERE = "Which step", "Which device"


class CaptureCommand(QuickCommand):
    """A command that ends at the script: what stands behind it is the script's, but for an ``-o`` at the very end."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take a last ``-o FILE`` for ours where none stands before the script."""
        ctx.allow_interspersed_args = False
        rest: list[str] = super().parse_args(ctx, list(args))
        script = list(ctx.params.get("arguments") or ())
        if ctx.params.get("output") is None and len(script) >= 2 and script[-2] in ("-o", "--output"):
            ctx.params["output"] = script[-1]
            ctx.params["arguments"] = script[:-2]
        return rest


COMMAND = CaptureCommand


def command(
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A training script; it is run unchanged.", show_default=False)
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENTS]...", help="The script's own arguments.", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default=False,
            help="Where the trace goes (.json or .json.gz); SCRIPT.trace.json.gz otherwise.",
        ),
    ] = None,
    fake: Annotated[
        bool,
        typer.Option("--fake", rich_help_panel=WHERE, help="Without a GPU: shapes, streams, memory; times predicted."),
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu", metavar="NAME", rich_help_panel=WHERE, show_default=False, help="The GPU that --fake plays."
        ),
    ] = None,
    world: Annotated[
        int | None,
        typer.Option(
            "--world",
            metavar="N",
            rich_help_panel=WHERE,
            show_default=False,
            help="With --fake: run the script as N ranks would, as torchrun does.",
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks",
            metavar="auto|all|0,8",
            rich_help_panel=WHERE,
            show_default=False,
            help="The ranks of --world to capture; auto: those that differ.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="auto|cpu|cuda", rich_help_panel=WHERE, help="cpu hides GPUs, cuda asks for one."
        ),
    ] = "auto",
    skip: Annotated[
        int | None,
        typer.Option(
            "--skip",
            metavar="N",
            rich_help_panel=WHAT,
            show_default=False,
            help="Steps before the first that counts; 3, or 1 with --fake.",
        ),
    ] = None,
    warmup: Annotated[
        int,
        typer.Option("--warmup", metavar="N", rich_help_panel=WHAT, help="Steps that warm up the profiler."),
    ] = 1,
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            metavar="N",
            rich_help_panel=WHAT,
            help="Steps that are measured without the profiler, in turns with as many under it.",
        ),
    ] = 5,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            metavar="N",
            rich_help_panel=WHAT,
            show_default=False,
            help="Samples in a step; by default what the model is given.",
        ),
    ] = None,
    quiet: o.Quiet = False,
) -> None:
    """Run a training script until it has trained some steps, and write a trace of one of them.

    A step ends when the script's optimizer returns from step().

    [bold]Examples[/]

    On the GPU that is here, or on the CPU:
    [cyan]triosim capture -o trace.json.gz train.py --batch-size 32[/]

    Without a GPU, as on an H100:
    [cyan]triosim capture --fake --gpu H100 -o trace.json.gz train.py --batch-size 32[/]

    A distributed script, as 64 ranks would run it:
    [cyan]triosim capture --fake --world 64 -o streams.json.gz train.py[/]
    """
    target = output or f"{Path(script).stem}.trace.json.gz"
    check_outputs(target, reading=(script,))
    check_trace_name(target)
    _check(fake=fake, gpu=gpu, device=device, world=world, ranks=ranks)
    _check_counts(world=world, skip=skip, warmup=warmup, steps=steps, batch_size=batch_size)
    trace: Trace | TaskStreams
    assumed: tuple[str, ...] = ()
    with _plain_warnings():
        if world is not None:
            found = _ranks(script, arguments or (), gpu, world, ranks, skip, batch_size)
            trace, assumed = found.streams, tuple(_assumed(found))
        elif fake:
            trace = _fake(script, arguments or (), gpu, skip, batch_size)
        else:
            trace = _measured(script, arguments or (), device, skip, warmup, steps, batch_size)
    write(trace, target)
    if not quiet:
        for line in (*_summary(trace), *assumed, f"written to {target}"):
            print(f"triosim: {line}", file=sys.stderr)


def _check(*, fake: bool, gpu: str | None, device: str, world: int | None, ranks: str | None) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise OptionError(f"'{device}' is no device", where="--device", fix="give auto, cpu or cuda")
    if gpu is not None and not fake:
        raise OptionError("a GPU is only played without one", where="--gpu", fix="give --fake too")
    if fake and device != "auto":
        raise OptionError("--fake plays a device", where="--device", fix="leave one of them out")
    if world is not None and not fake:
        raise OptionError("a world is only played without GPUs", where="--world", fix="give --fake too")
    if ranks is not None:
        if world is None:
            raise OptionError("there is one rank", where="--ranks", fix="say of how many: --world 64")
        checked_ranks(ranks, world)


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        least = 1 if name in ("batch_size", "world") else 0
        if count is not None and count < least:
            raise OptionError(f"{count} is too few", where=f"--{name.replace('_', '-')}", fix=f"give {least} or more")


def _fake(script: str, arguments: Sequence[str], gpu: str | None, skip: int | None, batch_size: int | None) -> Trace:
    found = one_rank.capture_fake(
        script,
        arguments,
        gpu=gpu or DEFAULT_GPU,
        skip=1 if skip is None else skip,
        batch_size=batch_size,
    )
    return found.trace


def _ranks(
    script: str,
    arguments: Sequence[str],
    gpu: str | None,
    world: int,
    ranks: str | None,
    skip: int | None,
    batch_size: int | None,
) -> CapturedStreams:
    return capture_ranks(
        script,
        arguments,
        world=world,
        ranks=ranks or "auto",
        gpu=gpu or DEFAULT_GPU,
        skip=1 if skip is None else skip,
        batch_size=batch_size,
    )


def _measured(
    script: str,
    arguments: Sequence[str],
    device: str,
    skip: int | None,
    warmup: int,
    steps: int,
    batch_size: int | None,
) -> Trace:
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before PyTorch is imported
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its profiler warns of each thing that it does
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise OptionError(
                "there is no GPU here", where="--device cuda", fix="capture without one: --fake --gpu H100"
            )
    trace, _ = tracer.capture_script(
        script, arguments, batch_size=batch_size, skip=3 if skip is None else skip, warmup=warmup, steps=steps
    )
    return trace


def _assumed(found: CapturedStreams) -> Iterator[str]:
    """Say which ranks were compared, where the others are only assumed to run the same operators."""
    if 0 < len(found.compared) < found.streams.world:
        names = ", ".join(map(str, found.compared))
        same = "the same operators as one of them" if len(found.streams.traces) > 1 else "the same operators"
        yield f"compared: rank{'s'[: len(found.compared) - 1]} {names}; the others are assumed to run {same}"


def _summary(trace: Trace | TaskStreams) -> Iterator[str]:
    if isinstance(trace, TaskStreams):
        names = ", ".join(map(str, sorted(trace.traces)))
        yield f"{trace.world:,} ranks, captured as {'rank' if len(trace.traces) == 1 else 'ranks'} {names}"
        for one in trace.traces.values():
            yield from _summary(one)
        return
    yield f"{trace.model} on {trace.gpu}: {len(trace.operators):,} operators, batch of {trace.batch_size:,}"
    if trace.step_seconds is None:
        yield f"operators take {format_time(trace.seconds)}, {trace.times}"
        return
    share = trace.seconds / trace.step_seconds
    step = f"a step takes {format_time(trace.step_seconds)} without the profiler"
    if share < _ALIKE:
        yield f"{step}; its operators {100 * share:.1f}% of that"
    else:
        yield f"{step}, the operators of the one that was profiled {format_time(trace.seconds)}: the steps are not alike"
    if "profiler" in trace.software:
        yield f"the profiler {trace.software['profiler']}"


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show the capture's own warnings as lines of ours, and the script's as Python does."""
    shown = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
        if category.__module__.startswith("triosim."):
            print(f"triosim: warning: {' '.join(str(message).split())}", file=sys.stderr)
        else:
            shown(message, category, *rest, **named)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
