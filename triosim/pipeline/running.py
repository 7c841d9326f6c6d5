"""The fourth step of a simulation, ``run``: runs the ranks' tasks on the engine, those of identical ranks once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from triosim import plugins
from triosim.conditions import Conditions
from triosim.conditions.checks import condition_notes, notes_without_effect
from triosim.config import RunConfig
from triosim.engine import Engine, EngineOptions, Progress, Recording
from triosim.engine.engine import Observer
from triosim.errors import AsymmetryError, OptionError
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.folding.folded_run import run_folded, should_fold
from triosim.folding.schedule_period import SchedulePeriod
from triosim.folding.steady_state import PeriodsLeftOut, WatchedEngine, watched_period
from triosim.networks.base import Network
from triosim.pipeline.expected_tasks import expected_tasks
from triosim.pipeline.planning import PlannedRun
from triosim.tasks import TaskStream
from triosim.units import format_time, parse_ranks


@dataclass(frozen=True, slots=True)
class Execution:
    """The outcome of a run: the recording, the network with the bytes of its links, and notes."""

    recording: Recording
    network: Network
    notes: tuple[str, ...]


def run(planned: PlannedRun, config: RunConfig, progress: Progress | None = None) -> Execution:
    """Run a plan; ``progress`` is called now and then with the simulated time and the number of finished tasks."""
    conditions, tasks = planned.system.conditions, planned.plan
    launches = planned.priced.launches
    options = EngineOptions(
        launch_costs=launches is not None,
        call_overhead=launches.call_seconds if launches else 0.0,
        run_ahead=launches.run_ahead if launches else None,
        timeline=config.timeline,
        timeline_ranks=_timeline_ranks(config, tasks.world),
        conditions=conditions,
        contention=planned.contention,
    )
    with plugins.blamed():
        notes = list(condition_notes(conditions, tasks.world))
        runner = _Runner(planned, config, options, progress)
        recording, network = runner.run()
        notes.extend(runner.notes)
        if recording.is_stopped:
            notes.append(
                f"stopped after {format_time(recording.end)} of simulated time: the figures are of what had run until then"
            )
    return Execution(recording, network, (*notes, *_without_effect(conditions, network, recording)))


def _timeline_ranks(config: RunConfig, world: int) -> frozenset[int] | None:
    """Return the ranks whose tasks are kept, None for all. Raises ``OptionError`` for one that there is not."""
    if config.timeline_ranks is None:
        return None
    ranks = parse_ranks(config.timeline_ranks)
    if max(ranks) >= world:
        what = f"there is no rank {max(ranks)}"
        raise OptionError(what, where="--timeline-ranks", fix=f"give ranks from 0 to {world - 1}")
    return frozenset(ranks)


class _Runner:
    """Runs a plan, with ranks folded and periods of its schedule left out where they may be."""

    def __init__(
        self, planned: PlannedRun, config: RunConfig, options: EngineOptions, progress: Progress | None
    ) -> None:
        self.notes: list[str] = []
        self._planned, self._config, self._options, self._progress = planned, config, options, progress

    def run(self) -> tuple[Recording, Network]:
        """Return the recording, and the network with what it has carried."""
        planned, plan = self._planned, self._planned.plan
        if isinstance(plan, ParallelPlan) and _may_leave_out(planned, self._config):
            period = watched_period(plan)
            if period is not None:
                return self._watched(plan, period)

        def engine_on(network: Network, symmetry: Symmetry | None = None) -> Engine:
            return Engine(network.env, network, self._options, progress=self._progress, symmetry=symmetry)

        return self._folded(plan.tasks, engine_on)

    def _watched(self, plan: ParallelPlan, period: SchedulePeriod) -> tuple[Recording, Network]:
        """Run a plan whose schedule has a period, and leave out what repeats itself."""
        engines: list[WatchedEngine] = []

        def engine_on(network: Network, symmetry: Symmetry | None = None) -> Engine:
            engines.append(WatchedEngine(plan, period, network, self._options, self._progress, symmetry))
            return engines[-1]

        recording, _ = self._folded(PeriodsLeftOut.most(plan, period).tasks, engine_on)
        return recording, engines[-1].repeated

    def _folded(
        self, tasks: Callable[[int], TaskStream], engine_on: Callable[..., Engine]
    ) -> tuple[Recording, Network]:
        planned, config = self._planned, self._config
        if isinstance(self._progress, Observer):
            self._progress.expects(expected_tasks(tasks, planned.plan.world, config.iterations))
        why_not = _why_not_folded(planned, config)
        symmetry, world = planned.plan.symmetry, planned.plan.world
        if symmetry is not None and not why_not and should_fold(config.fold, world):
            try:
                return run_folded(symmetry, tasks, planned.new_network, engine_on)
            except AsymmetryError as found:
                why_not = str(found)
        if config.fold and why_not and world > 1:
            self.notes = [f"every rank is simulated: {why_not}"]
        streams = {rank: tasks(rank) for rank in range(world)}
        if planned.system.conditions.heterogeneous:
            streams = {rank: planned.heterogeneity.stream(rank, stream) for rank, stream in streams.items()}
        return engine_on(planned.network).run(streams), planned.network


def _without_effect(conditions: Conditions, network: Network, recording: Recording) -> Iterable[str]:
    return notes_without_effect(
        conditions,
        network.topology,
        world=len(recording.ranks),
        end_s=recording.end,
        transfer_kinds={kind for kind, *_ in recording.transfers},
    )


def _why_not_folded(planned: PlannedRun, config: RunConfig) -> str:
    """Return why no rank can stand for another one; empty where one may."""
    if planned.plan.symmetry is None:
        return "no parallelism or trace tells which ranks run the same tasks"
    if config.links:
        return "the load of every link is recorded"
    if config.timeline:
        return "the timeline shows every rank"
    return "" if _all_is_equal(planned) else "GPUs or links differ, or change during the run"


def _may_leave_out(planned: PlannedRun, config: RunConfig) -> bool:
    """Whether a micro-batch may stand for another one: not where the user says no, or what happens when is recorded."""
    return config.fold is not False and not config.links and not config.timeline and _all_is_equal(planned)


def _all_is_equal(planned: PlannedRun) -> bool:
    conditions = planned.system.conditions
    return conditions == Conditions(interference=conditions.interference)
