"""``triosim run``: finds the ranks that differ, runs the script as these, and simulates the step that stands for all."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

from triosim import gpus
from triosim.capture.many_ranks import CapturedStreams, capture_ranks, checked_ranks
from triosim.config import RunConfig
from triosim.live.job import START_TIME, LiveJob
from triosim.live.launchers import Launch
from triosim.live.live_run import LiveOutcome, LiveRun
from triosim.live.live_system import live_system
from triosim.live.output import RankOutput
from triosim.results.result import Result
from triosim.results.values import ScriptStep
from triosim.simulation import simulate_config
from triosim.tracer.script_runner import check_script


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be run, as which ranks, and what is shown of it; see the options of ``triosim run``."""

    launch: Launch
    gpu: str
    world: int | None = None
    ranks: str = "auto"
    print_ranks: str | None = None
    ranks_output: str | None = None
    steps: int | None = None
    step: int | None = None
    start_time: float | None = None
    patience: float = 600.0

    def job(self) -> LiveJob:
        """Return the script and its world. Raises ``OptionError`` where there is no such script or GPU."""
        launch = self.launch
        if not launch.module:
            check_script(launch.path)
        return LiveJob(
            launch.path,
            launch.arguments,
            gpus.find(self.gpu),
            world=self.world or 1,
            distributed=self.world is not None,
            module=launch.module,
            steps=self.steps,
            start_time=START_TIME if self.start_time is None else self.start_time,
        )


def run_live(request: Request, config: RunConfig) -> tuple[int, Result | None]:
    """Run a script; return its exit status, and the result of one of its steps where there is one.

    What it prints goes to the terminal meanwhile. Raises ``TriosimError`` for what is wrong with the options, and where the
    ranks contradict each other, hang or die.
    """
    job = request.job()
    shown = None if request.print_ranks is None else checked_ranks(request.print_ranks, job.world)
    found = _compared(request.ranks, job)
    like = (0,) if found is None else _followed(request.ranks, found)
    with (
        RankOutput(shown, request.ranks_output) as output,
        LiveRun(job, sorted(set(like)), output, request.patience) as run,
    ):
        system = live_system(job.gpu, job.world, config, None if found is None else found.streams)
        outcome = run.simulate(like, system, request.step)
    return outcome.status, _result(outcome, config)


def _compared(ranks: str, job: LiveJob) -> CapturedStreams | None:
    """Run the first two steps of a distributed script silently and without a clock, to find the ranks that differ.

    None where there is one rank. Raises ``CaptureError`` where the script has no such steps.
    """
    if not job.distributed:
        return None
    chosen = checked_ranks(ranks, job.world)
    asked: str | list[int] = "auto" if chosen is None else [0] if ranks == "all" else _with_ends(chosen, job.world)
    return capture_ranks(
        job.path, job.arguments, world=job.world, ranks=asked, gpu=job.gpu, quiet=True, module=job.module
    )


def _followed(ranks: str, found: CapturedStreams) -> tuple[int, ...]:
    """Return for each rank the running one that it follows. Rank 0 and the last one run always."""
    world = found.streams.world
    if ranks == "all":
        return tuple(range(world))
    like = list(found.streams.like)
    for rank in _with_ends(found.awaited, world):
        like[rank] = rank
    return tuple(like)


def _with_ends(ranks: Iterable[int], world: int) -> list[int]:
    return sorted({0, world - 1, *ranks})


def _result(outcome: LiveOutcome, config: RunConfig) -> Result | None:
    """Return the result of the step that stands for all, with when each step ran."""
    if outcome.streams is None:
        if outcome.steps and not outcome.status:
            print("triosim: note: the steps differ too much for tables of one of them", file=sys.stderr)
        return None
    result = simulate_config(outcome.streams, config)
    sample = None if result.data.metrics is None else result.data.metrics.tokens_per_sample
    tokens = None if sample is None else sample * result.data.global_batch_size
    steps = tuple([ScriptStep(one.index, one.began_s, one.seconds, tokens) for one in outcome.steps])
    return replace(result, data=replace(result.data, steps=steps))
