"""``triosim run``: finds the ranks that differ, runs the script as these, and simulates the step that stands for all."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from statistics import median

from triosim import gpus
from triosim.capture.many_ranks import CapturedStreams, captured_streams, checked_ranks
from triosim.capture.process_pool import CaptureJob
from triosim.config import RunConfig
from triosim.engine import Progress
from triosim.errors import CaptureError, DeadlockError, OptionError, ScriptError
from triosim.extrapolators.expert.expert_loads import LoadDistribution
from triosim.gpus import Gpu
from triosim.live.job import INTERRUPTED, START_TIME, LiveJob
from triosim.live.launchers import Launch
from triosim.live.live_run import LiveOutcome, LiveRun
from triosim.live.live_system import MOST_LOCAL, live_system, machine_ranks
from triosim.live.output import RankOutput
from triosim.pipeline.collecting import collect
from triosim.pipeline.planning import plan
from triosim.pipeline.pricing import price
from triosim.pipeline.reading import read
from triosim.pipeline.running import Execution
from triosim.results.result import Result
from triosim.results.values import ScriptStep
from triosim.temporary_folder import TemporaryFolder
from triosim.trace.task_streams import TaskStreams
from triosim.tracer.distributed.rank_messages import same_exchange
from triosim.tracer.script_runner import check_script
from triosim.units import format_time

#: What a silent run has found: the streams, the ranks that are to run in any case, and how the script failed.
_Compared = tuple[CapturedStreams | None, Sequence[int], ScriptError | None]
#: Of so few ranks all run, where the ranks that differ are not found.
_FEW = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be run, as which ranks, and what is shown of it; see the options of ``triosim run``.

    ``command`` is the command line that asks for it.
    """

    launch: Launch
    gpu: str
    world: int | None = None
    ranks: str = "auto"
    print_ranks: str | None = None
    ranks_output: str | None = None
    steps: int | None = None
    step: int | None = None
    start_time: float | None = None
    loader_seconds: float = 0.0
    files: str | None = None
    patience: float = 600.0
    stand_ins: tuple[str, ...] = ()
    routing: LoadDistribution | None = None
    command: str = ""

    def job(self, config: RunConfig) -> LiveJob:
        """Return the script and its world. Raises ``TriosimError`` where there is no such script, GPU or topology."""
        launch, gpu = self.launch, gpus.find(self.gpu)
        if not launch.script.module:
            check_script(launch.script.path)
        world = self._world(gpu, config)
        return LiveJob(
            replace(launch.script, stand_ins=self.stand_ins, routing=self.routing),
            gpu,
            world=world or 1,
            local=_local_ranks(launch, gpu, world or 1, config),
            distributed=world is not None,
            steps=self.steps,
            loader_seconds=self.loader_seconds,
            files=_folder(self.files),
            start_time=START_TIME if self.start_time is None else self.start_time,
        )

    def _world(self, gpu: Gpu, config: RunConfig) -> int | None:
        """Return the ranks of the world; None for a process without a launcher. Raises ``OptionError`` for a contradiction."""
        launch = self.launch
        started = launch.world
        if started is None and self.world is None and launch.nodes is not None:
            started = launch.nodes * machine_ranks(gpu, None, config)
            print(f"triosim: the launcher starts a rank for each GPU of a machine: {started}", file=sys.stderr)
        if self.world is not None and started not in (None, self.world):
            what = f"the launcher starts {started} processes, not {self.world}"
            raise OptionError(what, where="--world", fix="leave out one of them")
        return self.world or started


def _folder(files: str | None) -> str:
    """Return the folder for what the script writes. Raises ``OptionError`` where it cannot be one."""
    if not files:
        return tempfile.mkdtemp(prefix="triosim-files-")
    try:
        os.makedirs(files, exist_ok=True)
        tempfile.TemporaryFile(dir=files).close()
    except OSError as error:
        fix = "name a folder that can be written"
        raise OptionError(
            f"nothing can be written into '{files}': {error.strerror}", where="--files", fix=fix
        ) from None
    if f"{os.getcwd()}{os.sep}".startswith(f"{os.path.realpath(files)}{os.sep}"):
        what = f"'{files}' holds the files of the working directory, which would not stay as they are"
        raise OptionError(what, where="--files", fix="name another folder, or one in it")
    return files


def run_live(request: Request, config: RunConfig, progress: Progress | None = None) -> tuple[int, Result | None]:
    """Run a script; return its exit status, and the result of one of its steps where there is one.

    What it prints goes to the terminal meanwhile. Raises ``TriosimError`` for what is wrong with the options, and where the
    ranks contradict each other, hang or die.
    """
    job = request.job(config)
    shown = None if request.print_ranks is None else checked_ranks(request.print_ranks, job.world, "--print-ranks")
    found, chosen, failure = _compared(request.ranks, job, request.patience)
    like = _followed(chosen, found, job.world)
    alike = None if found is None else found.streams.like
    with RankOutput(shown, request.ranks_output) as output, LiveRun(job, like, output, request.patience, alike) as run:
        if request.ranks == "all":
            config = config.replaced(fold=False)  # ranks that run for themselves may differ
        system = live_system(job.gpu, like, config, None if found is None else found.streams)
        try:
            outcome = run.simulate(system, request.step, progress)
        except DeadlockError as error:
            if failure is None:
                raise _with_ranks(error, like) from None
            sys.stderr.write(failure.output)  # the rank that fails waits for ranks that were not found to run
            output.failed(failure.rank, 1)
            outcome = LiveOutcome((), 1)
    _say_files(str(job.files), kept=request.files is not None)
    return outcome.status, _result(outcome, request.command, config)


def _with_ranks(error: DeadlockError, like: Sequence[int]) -> DeadlockError:
    """Return a deadlock that names the ranks to run as well, where it waits for some that do not run."""
    running = set(like)
    absent = [rank for rank in dict.fromkeys(map(int, re.findall(r"\brank (\d+)", error.what))) if rank not in running]
    if not absent:
        return error
    more = ",".join(map(str, sorted({*running, *absent})))
    fix = f"rank {absent[0]} does not run, and is taken to do what rank {like[absent[0]]} does: run it, --ranks {more}"
    return DeadlockError(error.what, where=error.where, fix=fix)


def _local_ranks(launch: Launch, gpu: Gpu, world: int, config: RunConfig) -> int:
    """Return how many ranks are on a machine: as many as the launcher says, else as a machine of the topology has GPUs."""
    gpus = machine_ranks(gpu, world, config)
    if launch.local is None or launch.local == gpus:
        return gpus
    if launch.local > MOST_LOCAL:
        fix = f"give at most {MOST_LOCAL}, and more machines"
        raise OptionError(f"{launch.local} ranks on a machine are too many", where="the launcher", fix=fix)
    if launch.local < world:
        print(
            f"triosim: note: machines have {launch.local} ranks, the topology's {machine_ranks(gpu, None, config)} GPUs; "
            f"for other machines say --topology, such as 'dgx-h100(gpus={world}, gpus_per_node={launch.local})'",
            file=sys.stderr,
        )
    return launch.local


def _compared(ranks: str, job: LiveJob, patience: float) -> _Compared:
    """Run the first two steps of a distributed script silently and without a clock, to find the ranks that differ.

    Return what was found, the ``ranks`` that are to run in any case, and how the script failed. Of a script that trains no two
    steps, all that it does is compared, unless its world is so small that all ranks can run. Nothing is found where it fails:
    the rank on which it does runs, with those that it needs, and says why.
    """
    chosen = checked_ranks(ranks, job.world)
    failed: list[int] = [0]
    failure: ScriptError | None = None
    if not job.distributed:
        return None, (), None
    asked = None if chosen is None else [0] if ranks == "all" else _with_ends(chosen, job.world)
    for whole in (False, True):
        try:
            return _led_by_last(_captured(job, asked, patience, whole=whole)), chosen or (), None
        except CaptureError as error:
            if chosen is not None or job.world <= _FEW:
                return None, chosen or range(job.world), None
            failed = [error.rank, *error.awaited]
            if isinstance(error, ScriptError):
                failure = error
                break
    return None, failed, failure


def _captured(job: LiveJob, asked: list[int] | None, patience: float, *, whole: bool) -> CapturedStreams:
    """Capture a script's second step, or the ``whole`` of it, and show nothing. Raises ``CaptureError`` where it has none."""
    said = io.StringIO()
    with redirect_stderr(said), TemporaryFolder() as files:
        capture = CaptureJob(
            job.script,
            job.gpu,
            job.world,
            skip=0 if whole else 1,
            batch_size=1 if whole else None,
            files=files,
            local=job.local,
            whole=whole,
            patience=patience,
        )
        try:
            return captured_streams(capture, asked, quiet=True)
        except ScriptError as error:
            error.output = said.getvalue()
            raise


def _led_by_last(found: CapturedStreams) -> CapturedStreams:
    """Let the last rank, which runs in any case, stand for those that it equals."""
    streams, last = found.streams, found.streams.world - 1
    model = streams.like[last]
    if model in (0, last):
        return found
    like = tuple([last if one == model else one for one in streams.like])
    traces = {last if rank == model else rank: trace for rank, trace in streams.traces.items()}
    return replace(found, streams=replace(streams, traces=traces, like=like))


def _followed(chosen: Sequence[int], found: CapturedStreams | None, world: int) -> tuple[int, ...]:
    """Return for each rank the running one that it follows.

    Rank 0, the last one and those that the script names run always, and those that send a running rank what no other does.
    """
    like = [0] * world if found is None else list(found.streams.like)
    for rank in (*_with_ends(chosen, world), *(() if found is None else found.singled_out)):
        like[rank] = rank
    while found is not None and (needed := _needed(like, found)):
        for rank in needed:
            like[rank] = rank
    return tuple(like)


def _needed(like: Sequence[int], found: CapturedStreams) -> set[int]:
    """Return the ranks that do not run, and without which a running one would wait for a message that nobody sends."""
    return {
        sender
        for sender, receiver in found.exchanges
        if like[receiver] == receiver
        and like[sender] != sender
        and same_exchange(like, found.streams.like, sender, receiver) is None
    }


def _with_ends(ranks: Iterable[int], world: int) -> list[int]:
    return sorted({0, world - 1, *ranks})


def _say_files(folder: str, *, kept: bool) -> None:
    """Say where what the script wrote lies; a temporary folder without any is removed."""
    if any(names for _, _, names in os.walk(folder)):
        print(f"triosim: what the script wrote is in {folder}", file=sys.stderr)
    elif not kept:
        shutil.rmtree(folder)


def _say_interrupted(outcome: LiveOutcome) -> None:
    steps = [one.seconds for one in outcome.steps]
    so_far = f"{len(steps)} steps ended, of {format_time(median(steps))} (median)" if steps else "no step ended"
    print(f"triosim: {so_far}", file=sys.stderr)


def _of_no_groups(streams: TaskStreams) -> Iterator[str]:
    """Say what a world is in which no rank communicates."""
    if streams.world > 1 and not streams.groups:
        yield (
            f"each of the {streams.world} ranks trains a model of its own, and those that run print the same "
            "(--print-ranks 0 shows one): without --world the script runs once"
        )


def _result(outcome: LiveOutcome, command: str, config: RunConfig) -> Result | None:
    """Return the result of the step that stands for all, with when each step ran."""
    if outcome.status == INTERRUPTED:
        _say_interrupted(outcome)
    if outcome.streams is None or outcome.record is None:
        if outcome.steps and outcome.status in (0, INTERRUPTED):
            print("triosim: note: no tables: the steps did nothing on the GPU, or differ too much", file=sys.stderr)
        elif not outcome.status:
            print("triosim: note: no tables: no step, which ends where an optimizer's step() returns", file=sys.stderr)
        return None
    planned = plan(price(read(outcome.streams, config), config), config)
    result = collect(Execution(outcome.record.recording, outcome.record.network, ()), planned, config)
    sample = None if result.data.metrics is None else result.data.metrics.tokens_per_sample
    tokens = None if sample is None else sample * result.data.global_batch_size
    steps = tuple([ScriptStep(one.index, one.began_s, one.seconds, tokens) for one in outcome.steps])
    inputs = {**result.inputs, "command": command}
    notes = (
        *result.data.notes,
        *_of_no_groups(outcome.streams),
        "memory is that of this step; what torch.cuda reports as its peak is that of the whole run",
    )
    return replace(result, data=replace(result.data, steps=steps, inputs=inputs, notes=notes))
