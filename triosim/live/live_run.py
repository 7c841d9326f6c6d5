"""A live run: the processes of the running ranks, the engine that simulates all ranks, and the step that stands for all."""

from __future__ import annotations

import importlib
import multiprocessing
import signal
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

from triosim.capture.many_ranks import joined_streams
from triosim.capture.process_pool import start_method
from triosim.compute.pricing.prediction import with_predicted_times
from triosim.engine import Engine, Progress
from triosim.errors import AsymmetryError, OptionError, SimulationError
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.live.job import INTERRUPTED, LiveJob
from triosim.live.live_streams import LiveGroups, LiveStreams
from triosim.live.live_system import LiveSystem
from triosim.live.output import RankOutput
from triosim.live.rank_hosts import ScriptFailed
from triosim.live.running_rank import RunningRank
from triosim.live.step_records import LiveStep, StepRecord, StepRecords
from triosim.tasks import Compute
from triosim.temporary_folder import TemporaryFolder
from triosim.trace import Trace
from triosim.trace.sample_axes import SampleAxes
from triosim.trace.task_streams import TaskStreams

#: What runs in each process. It is loaded by name, because it imports PyTorch.
_WORKER = "triosim.live.script_process.rank_process"


@dataclass(frozen=True, slots=True)
class LiveOutcome:
    """What a run came to: its steps, and the script's exit status.

    ``record`` is that of the step that stands for all, ``streams`` are its task streams; None where no step ended, or the
    script failed.
    """

    steps: tuple[LiveStep, ...]
    status: int
    record: StepRecord | None = None
    streams: TaskStreams | None = None


class LiveRun:
    """A script that runs on simulated GPUs as those ranks that ``like`` says stand for all; on leaving, its processes end.

    ``output`` gets what they print, in the order of the simulated time. A rank that launches nothing for ``patience`` seconds
    of real time hangs. Ranks for which ``alike`` has the same number run the same.
    """

    def __init__(
        self, job: LiveJob, like: Sequence[int], output: RankOutput, patience: float, alike: Sequence[int] | None = None
    ) -> None:
        self.job = job
        self._patience = patience
        self._output = output
        self._groups = LiveGroups()
        self._groups.add({"world": [tuple(range(job.world))]})
        self._folder = TemporaryFolder()
        self._like, self._alike = tuple(like), tuple(like if alike is None else alike)
        self._processes: dict[int, tuple[Any, Any]] = {}
        try:
            for rank in sorted(set(like)):
                self._processes[rank] = self._started(rank)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> LiveRun:
        return self

    def __exit__(self, *_: object) -> None:
        for process, connection in self._processes.values():
            process.kill()
            connection.close()
        for process, _ in self._processes.values():
            process.join()
        self._folder.cleanup()

    def simulate(self, system: LiveSystem, step: int | None = None, progress: Progress | None = None) -> LiveOutcome:
        """Simulate all ranks until the script ends.

        ``step`` is the one whose record is wanted, by default one that takes as long as the median one. Raises
        ``SimulationError`` where ranks contradict each other, or can never go on.
        """
        running = {
            rank: RunningRank(rank, process, connection, system.prices, self._groups.add, self._patience)
            for rank, (process, connection) in self._processes.items()
        }
        symmetry = system.symmetry
        simulated = range(self.job.world) if symmetry is None else symmetry.representatives
        homes = {rank: rank if symmetry is None else symmetry.representative(rank) for rank in running}
        models = {rank: system.like[rank] for rank in simulated}
        engine = Engine(system.network.env, system.network, system.engine, progress=progress, symmetry=symmetry)
        hosts = sum(models[home] == rank for rank, home in homes.items())
        records = StepRecords(engine.recording, system.network, hosts, step)
        streams = LiveStreams(running, models, homes, self._groups, self._output, records.ended, system.facts)
        status, stopped = 0, False
        try:
            stopped = engine.run({rank: system.stream(rank, streams.tasks(rank)) for rank in simulated}).is_stopped
        except AsymmetryError as folded:
            raise SimulationError(str(folded), fix="simulate every rank: --no-fold") from None
        except ScriptFailed as failed:
            if self.job.world > 1:
                self._output.failed(failed.rank, failed.status)
            return LiveOutcome(tuple(records.steps), failed.status)
        except KeyboardInterrupt:
            status = INTERRUPTED
        if status or stopped:
            _interrupt(running.values())
        records.close()
        outcome = LiveOutcome(tuple(records.steps), status)
        if not records.steps:
            return outcome
        for chosen in _chosen(records, None if status or stopped else step):
            found = self._streams_of(running, chosen.index, system)
            if found is not None:
                record = _of_all_ranks(records.kept[chosen.index], found, symmetry)
                return replace(outcome, record=record, streams=found)
        return outcome

    def _streams_of(self, running: Mapping[int, RunningRank], step: int, system: LiveSystem) -> TaskStreams | None:
        """Return the task streams of a step; None where a rank kept no trace of it."""
        traces: dict[int, Trace] = {}
        sample_axes = SampleAxes()
        for rank in sorted(set(system.like)):
            trace, of_a_rank = running[rank].trace(step)
            if trace is None:
                return None
            traces[rank] = with_predicted_times(trace, system.prices.model)
            sample_axes = sample_axes.joined(of_a_rank)
        groups = {family: tuple(every) for family, every in self._groups.groups.items()}
        return joined_streams(traces, tuple(system.like), groups, sample_axes)

    def _started(self, rank: int) -> tuple[Any, Any]:
        context: Any = multiprocessing.get_context(start_method(_WORKER))
        ours, theirs = context.Pipe()
        given = (self.job, rank, self._like, self._alike, theirs, self._folder.name)
        process = context.Process(target=_run_rank, args=given, daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; PyTorch's hold no locks
            process.start()
        theirs.close()
        return process, ours


def _run_rank(*given: Any) -> None:
    for asked in (signal.SIGUSR1, signal.SIGUSR2):  # until it can answer
        signal.signal(asked, signal.SIG_IGN)
    importlib.import_module(_WORKER).run_rank(*given)


def _interrupt(running: Iterable[RunningRank]) -> None:
    """Ask the ranks of a run that was ended early for their traces, as far as they still answer."""
    for rank in running:
        with suppress(Exception):  # Ctrl-C may have cut a message in two
            rank.interrupt()


def _chosen(records: StepRecords, step: int | None) -> list[LiveStep]:
    """Return the steps that may stand for all, the best one first: the wanted one, or those like the median one.

    The first step is left out of the median where there are more: it sets up the script. Raises ``OptionError`` for a step that
    there is not.
    """
    steps = records.steps
    if step is None:
        middle = median_low([one.seconds for one in steps[1:] or steps])
        return records.near(next(one for one in steps[1:] or steps if one.seconds == middle))
    if not 0 <= step < len(steps):
        raise OptionError(f"there is no step {step}", where="--step", fix=f"the script ran steps 0 to {len(steps) - 1}")
    return [steps[step]]


def _of_all_ranks(record: StepRecord, streams: TaskStreams, symmetry: Symmetry | None) -> StepRecord:
    """Return the record of a step with the operators that its ``streams`` name, and with the ranks that were not simulated."""
    recording = record.recording
    computed: dict[int, tuple[Compute, dict[int, int]]] = {}
    for captured, trace in streams.traces.items():
        task = Compute(tuple([one for one in trace.operators if one.communication is None]))
        ranks = {one.rank: 1 for one in recording.ranks if streams.like[one.rank] == captured}
        computed[id(task)] = task, ranks
    recording = replace(recording, compute_counts=computed)
    if symmetry is None:
        return replace(record, recording=recording)
    represented: dict[int, list[int]] = {}
    for rank in range(streams.world):
        represented.setdefault(symmetry.representative(rank), []).append(rank)
    return replace(record, recording=recording.expanded(represented))
