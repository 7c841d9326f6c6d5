"""The command ``triosim capture``: runs a training script as Python would, and writes a trace of a step."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule, QuickCommand
from triosim.config import Option
from triosim.config.option import GENERAL
from triosim.errors import OptionError, printable
from triosim.gpus import DEFAULT_GPU
from triosim.output_files import check_outputs, check_trace_name
from triosim.trace import Trace
from triosim.trace.formats import write
from triosim.trace.task_streams import TaskStreams
from triosim.units import format_time

if TYPE_CHECKING:
    from triosim.extrapolators.expert.expert_loads import LoadDistribution

tracer = LaterModule("tracer")
one_rank = LaterModule("capture.one_rank")
expert_loads = LaterModule("extrapolators.expert.expert_loads")
many_ranks = LaterModule("capture.many_ranks")

#: From so many times a step's time on, the operators are another step's: one that allocated states, or ran more iterations.
_ANOTHER_STEP = 1.5
STEP, DEVICE = "Captured step", "Captured device"


class CaptureCommand(QuickCommand):
    """A command whose options end at the script: later arguments are the script's, except for a final ``-o``."""

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

# fmt: off
OPTIONS = (
    Option("output", metavar="FILE", short="-o", panel=GENERAL, help=
        "The trace: .json or .json.gz. By default SCRIPT.trace.json.gz."),
    Option("fake", "flag", False, panel=DEVICE, help=
        "Capture without a GPU: shapes, streams and memory; times are predicted."),
    Option("gpu", metavar="NAME", panel=DEVICE, help=f"The GPU that --fake simulates. By default {DEFAULT_GPU}."),
    Option("world", "whole", metavar="N", panel=DEVICE, help=
        "With --fake: run the script as N ranks would, as torchrun does."),
    Option("ranks", metavar="auto|all|0,8", panel=DEVICE, help=
        "The ranks of --world to capture. By default auto: those that differ."),
    Option("device", "choice", "auto", choices=("auto", "cpu", "cuda"), metavar="auto|cpu|cuda", panel=DEVICE, help=
        "The device to capture on: cpu hides GPUs, cuda requires one."),
    Option("skip", "whole", metavar="N", least=0, panel=STEP, help=
        "Steps before the captured one. By default 3, or 1 with --fake."),
    Option("warmup", "whole", 1, metavar="N", least=0, panel=STEP, help=
        "Steps that warm up the profiler and are thrown away."),
    Option("steps", "whole", 5, metavar="N", least=0, panel=STEP, help=
        "Steps timed without the profiler, and as many with it."),
    Option("batch_size", "whole", metavar="N", panel=STEP, help=
        "Samples in a step. By default the batch size of the model's input."),
    replace(o.ROUTING, panel=DEVICE),
    replace(o.QUIET, panel=GENERAL),
)
# fmt: on


@o.takes(*OPTIONS)
def command(
    script: Annotated[str, o.argument("SCRIPT", "A training script; it is run unchanged.")],
    arguments: Annotated[list[str] | None, o.argument("ARGUMENTS", "The script's own arguments.")] = None,
    **given: Any,
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
    named = {field.name for field in fields(CaptureRequest)}
    request = CaptureRequest(script, arguments or (), **{name: given[name] for name in given.keys() & named})
    target = given["output"] or f"{Path(script).stem}.trace.json.gz"
    check_outputs(target, reading=(script,))
    check_trace_name(target)
    request.check()
    with _plain_warnings():
        trace, assumed = _captured(request)
    write(trace, target)
    if not given["quiet"]:
        for line in (*_summary(trace), *assumed, f"written to {target}"):
            print(f"triosim: {printable(line)}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """A script, the options of its capture, and its arguments. ``skip`` None is 3 on a real device, 1 on a fake one."""

    script: str
    arguments: Sequence[str]
    fake: bool
    gpu: str | None
    world: int | None
    ranks: str | None
    device: str
    skip: int | None
    warmup: int
    steps: int
    batch_size: int | None
    routing: str | None

    @property
    def load(self) -> LoadDistribution | None:
        """How the choice of routers is drawn, if it is. Raises ``OptionError`` for what is none."""
        found: LoadDistribution | None = (
            expert_loads.load_of(self.routing, "--routing") if self.routing is not None else None
        )
        return found

    def check(self) -> None:
        """Raise ``OptionError`` for options that contradict each other."""
        if self.gpu is not None and not self.fake:
            raise OptionError("only a capture with --fake simulates a GPU", where="--gpu", fix="add --fake")
        if self.fake and self.device != "auto":
            raise OptionError(
                "chooses a real device, and --fake uses none", where="--device", fix="leave out one of them"
            )
        if self.world is not None and not self.fake:
            raise OptionError("only a capture with --fake simulates ranks", where="--world", fix="add --fake")
        if self.routing is not None and not self.fake:
            raise OptionError("only a capture with --fake draws it", where="--routing", fix="add --fake")
        if self.world is not None and self.load is not None and self.load.is_random:
            what = "the ranks of a capture do not know how many tokens the others send"
            raise OptionError(what, where="--routing", fix="run the script by triosim run, or write 'balanced'")
        if self.ranks is not None:
            if self.world is None:
                what = "chooses among the ranks of --world"
                raise OptionError(what, where="--ranks", fix="say how many there are: --world 64")
            many_ranks.checked_ranks(self.ranks, self.world)


def _captured(request: CaptureRequest) -> tuple[Trace | TaskStreams, tuple[str, ...]]:
    """Return the trace, or the task streams of all ranks, and what is assumed of ranks that were not run."""
    if not request.fake:
        return _measured(request), ()
    gpu, skip = request.gpu or DEFAULT_GPU, 1 if request.skip is None else request.skip
    script, arguments, batch_size = request.script, request.arguments, request.batch_size
    if request.world is None:
        return one_rank.capture_fake(
            script, arguments, gpu=gpu, skip=skip, batch_size=batch_size, routing=request.load
        ), ()
    found = many_ranks.capture_ranks(
        *(script, arguments),
        world=request.world,
        ranks=request.ranks or "auto",
        gpu=gpu,
        skip=skip,
        batch_size=batch_size,
        routing=request.load,
    )
    return found.streams, tuple(_assumed(found))


def _measured(request: CaptureRequest) -> Trace:
    if request.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before PyTorch is imported
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its profiler warns of each thing that it does
    if request.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise OptionError(
                "there is no GPU here", where="--device cuda", fix="capture without one: --fake --gpu H100"
            )
    trace: Trace
    trace, _ = tracer.capture_script(
        request.script,
        request.arguments,
        batch_size=request.batch_size,
        skip=3 if request.skip is None else request.skip,
        warmup=request.warmup,
        steps=request.steps,
    )
    return trace


def _assumed(found: Any) -> Iterator[str]:
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
    if share < _ANOTHER_STEP:
        yield f"{step}; its operators {100 * share:.1f}% of that"
    else:
        yield f"{step}, but the operators of the profiled step take {format_time(trace.seconds)}: steps differ in length"
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
