"""The command ``triosim run``: runs a training script to its end on GPUs that are not there, on a simulated clock."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triosim.cli import options as o
from triosim.cli.command import LaterModule, QuickCommand, show_on_terminal
from triosim.cli.monitoring import monitored
from triosim.cli.subject import chosen
from triosim.config import Option, RunConfig
from triosim.config.option import CHAKRA, GENERAL, OUTPUT
from triosim.errors import OptionError
from triosim.gpus import DEFAULT_GPU
from triosim.output_files import check_outputs

if TYPE_CHECKING:
    from triosim.live.scripts import Request
    from triosim.results.result import Result

live = LaterModule("live.scripts")
launchers = LaterModule("live.launchers")
stand_ins = LaterModule("tracer.stand_ins.finder")
expert_loads = LaterModule("extrapolators.expert.expert_loads")
document = LaterModule("reports.page.document")
tables = LaterModule("reports.terminal.result_tables")

RANKS = "Ranks"
#: Options of a simulation that a running script decides by itself, or that this command has of its own.
_NOT_OURS = (
    "trace_format",
    "gpus",
    "iterations",
    "draws",
    "fail_on_oom",
    "gpu",
    "links",
    "operator_times",
    "timeline_ranks",
)


class RunCommand(QuickCommand):
    """A command whose options end at the script, at ``-m MODULE`` or at ``--``: what follows is the script's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the script and its arguments apart."""
        flags = {
            name for one in self.params if getattr(one, "is_flag", False) for name in (*one.opts, *one.secondary_opts)
        }
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] not in ("-m", "--"):
            place += 1 if args[place] in flags or "=" in args[place] or args[place] in ("-h", "--help") else 2
        rest = args[place:]
        rest = rest[1:] if rest[:1] == ["--"] else rest
        return super().parse_args(ctx, [*args[:place], *(["--"] if rest else []), *rest])


COMMAND = RunCommand

# fmt: off
OPTIONS = (
    Option("gpu", metavar="NAME", panel=RANKS, help=f"The GPU of every rank. By default {DEFAULT_GPU}."),
    Option("world", "whole", metavar="N", panel=RANKS, help=
        "The ranks of the world, as torchrun starts them. By default what the launcher's command says, else one process."),
    Option("ranks", metavar="auto|all|0,8-15", panel=RANKS, help=
        "The ranks that run the script, beside rank 0 and the last one. By default auto: those that differ in a first run."),
    Option("print_ranks", metavar="0,8", panel=RANKS, help=
        "The ranks whose output the terminal shows. By default all that run."),
    Option("ranks_output", metavar="DIR", panel=RANKS, help="Write what each running rank prints to DIR/rank-N.log."),
    Option("steps", "whole", metavar="N", panel=GENERAL, help="End the script after N steps of its optimizer."),
    Option("step", "whole", metavar="K", least=0, panel=OUTPUT, help=
        "The step that the tables show. By default the median one."),
    Option("start_time", metavar="TIME", panel=GENERAL, help=
        "What the script's clock shows when it begins. By default 2026-01-01T00:00:00Z."),
    Option("files", metavar="DIR", panel=GENERAL, help=
        "The folder for what the script writes; files that exist stay as they are. By default a temporary one."),
    Option("loader_time", "time", "0 s", metavar="TIME", panel=GENERAL, help=
        "What the script waits for each batch of a DataLoader."),
    Option("stand_in", metavar="LIST", panel=GENERAL, help=
        "Packages that are not installed and whose kernels PyTorch's operators take the place of: flash_attn,apex,..."),
    o.ROUTING,
    Option("patience", "time", "600 s", metavar="TIME", panel=GENERAL, help=
        "How long a rank may launch nothing, in real time, before its script counts as hanging."),
    Option("output", metavar="FILE", short="-o", panel=OUTPUT, help="Write the whole result as JSON."),
    o.REPORT,
    *o.MONITOR,
    replace(o.QUIET, help="Print no tables: the script's output alone."),
)
SYSTEM_OPTIONS = tuple(
    one
    for one in o.of_run("simulate")
    if not one.of_step and one.panel != CHAKRA and one.name not in _NOT_OURS
)
# fmt: on


@o.takes(*OPTIONS, run=SYSTEM_OPTIONS)
def command(
    script: Annotated[
        list[str] | None, o.argument("SCRIPT ...", "The script and its arguments, -m MODULE ..., or -- torchrun ... .")
    ] = None,
    **given: Any,
) -> None:
    """Run a training script, unchanged, to its end on GPUs that are not there: its own log shows the simulated times.

    [bold]Examples[/]

    On one H100:
    [cyan]triosim run --gpu H100 train.py --batch-size 32[/]

    As 64 ranks, on eight DGX H100:
    [cyan]triosim run --gpu H100 --world 64 --topology "dgx-h100(gpus=64)" train.py --its own --arguments[/]

    As a launcher would start it:
    [cyan]triosim run --gpu H100 -- torchrun --nproc-per-node 8 --nnodes 8 train.py[/]
    """
    request = _request(script or [], given)
    check_outputs(given["output"], given["report"], reading=[request.launch.script.path])
    if given["report"] is not None:
        document.check_page(given["report"])
    config = RunConfig.of(**chosen(OPTIONS, given))
    if given["report"] is not None:
        config = config.replaced(timeline=True, links=True)
    with monitored(_unheard, given) as progress:
        status, result = live.run_live(request, config, progress)
    if result is not None:
        _give(result, given)
    if not given["quiet"] and not status:
        print("triosim: contents of tensors, such as losses, were not computed", file=sys.stderr)
    if status:
        raise typer.Exit(status)


def _request(script: Sequence[str], given: Mapping[str, Any]) -> Request:
    """Return what the command line asks for."""
    same = ("world", "print_ranks", "ranks_output", "steps", "step", "files", "patience")
    routing = None if given["routing"] is None else expert_loads.load_of(given["routing"], "--routing")
    all_differ = routing is not None and routing.is_random  # each rank draws its own tokens
    request: Request = live.Request(
        launch=launchers.launch_of(script),
        gpu=given["gpu"] or DEFAULT_GPU,
        ranks=given["ranks"] or ("all" if all_differ else "auto"),
        start_time=_seconds(given["start_time"]),
        loader_seconds=given["loader_time"],
        stand_ins=() if given["stand_in"] is None else stand_ins.checked(given["stand_in"]),
        routing=routing,
        command=shlex.join(["triosim", *sys.argv[1:]]),
        **{name: given[name] for name in same},
    )
    return request


def _give(result: Result, given: Mapping[str, Any]) -> None:
    """Write the files that are asked for, and show the tables."""
    if given["output"] is not None:
        result.save(given["output"])
    if given["report"] is not None:
        result.save_report(given["report"])
    if not given["quiet"]:
        show_on_terminal(tables.render(result.data, result.title))


def _unheard(seconds: float, tasks: int) -> None:
    """Show no progress: the terminal is the script's."""


def _seconds(text: str | None) -> float | None:
    """Return a time of the day in seconds since 1970; one without a time zone is in UTC."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise OptionError(f"'{text}' is no time", where="--start-time", fix="write 2026-01-01T00:00:00Z") from None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
