"""The fourth step of a simulation, ``run``: runs the ranks' tasks on the engine, those of identical ranks once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass

from triosim import plugins
from triosim.conditions import Conditions
from triosim.conditions.checks import condition_notes, notes_without_effect
from triosim.config import RunConfig
from triosim.engine import Engine, EngineOptions, Progress, Recording
from triosim.errors import AsymmetryError
from triosim.extrapolators.captured.captured_plan import CapturedPlan
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.folding.folded_run import run_folded, should_fold
from triosim.folding.steady_state import NoSteadyState, ShortPlan, WatchedEngine, short_plans
from triosim.networks.base import Network
from triosim.pipeline.planning import PlannedRun


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
        conditions=conditions,
        contention=planned.contention,
    )
    with plugins.blamed():
        notes = list(condition_notes(conditions, tasks.world))
        runner = _Runner(planned, config, options, progress)
        recording, network = runner.steady_state() or runner.whole()
        notes.extend(runner.notes)
    return Execution(recording, network, (*notes, *_without_effect(conditions, network, recording)))


class _Runner:
    """Runs a plan, or one with fewer micro-batches that stands for it, with its ranks folded where they may be."""

    def __init__(
        self, planned: PlannedRun, config: RunConfig, options: EngineOptions, progress: Progress | None
    ) -> None:
        self.notes: list[str] = []
        self._planned, self._config, self._options, self._progress = planned, config, options, progress

    def steady_state(self) -> tuple[Recording, Network] | None:
        """Run a part of the micro-batches; None where no number of them stands for all."""
        plan = self._planned.plan
        if not isinstance(plan, ParallelPlan) or not _may_leave_out(self._planned, self._config):
            return None
        plans = short_plans(plan)
        short = next(plans, None)
        while short is not None:
            try:
                return self._shortened(short)
            except NoSteadyState as found:
                short = _next(plans, found.more)
        return None

    def _shortened(self, short: ShortPlan) -> tuple[Recording, Network]:
        engines: list[WatchedEngine] = []

        def engine_on(network: Network, symmetry: Symmetry | None = None) -> Engine:
            engines.append(WatchedEngine(short, network, self._options, self._progress, symmetry))
            return engines[-1]

        recording, _ = self._run(short.plan, self._planned.new_network(), engine_on)
        return recording, engines[-1].repeated

    def whole(self) -> tuple[Recording, Network]:
        """Run every micro-batch."""

        def engine_on(network: Network, symmetry: Symmetry | None = None) -> Engine:
            return Engine(network.env, network, self._options, progress=self._progress, symmetry=symmetry)

        return self._run(self._planned.plan, self._planned.network, engine_on)

    def _run(
        self, tasks: ParallelPlan | CapturedPlan, network: Network, engine_on: Callable[..., Engine]
    ) -> tuple[Recording, Network]:
        planned, config = self._planned, self._config
        why_not = _why_not_folded(planned, config)
        if tasks.symmetry is not None and not why_not and should_fold(config.fold, tasks.world):
            try:
                return run_folded(tasks.symmetry, tasks.tasks, planned.new_network, engine_on)
            except AsymmetryError as found:
                why_not = str(found)
        if config.fold and why_not and tasks.world > 1:
            self.notes = [f"every rank is simulated: {why_not}"]
        streams = {rank: tasks.tasks(rank) for rank in range(tasks.world)}
        if planned.system.conditions.heterogeneous:
            streams = {rank: planned.heterogeneity.stream(rank, stream) for rank, stream in streams.items()}
        return engine_on(network).run(streams), network


def _next(plans: Generator[ShortPlan, int, None], more: int) -> ShortPlan | None:
    """Return the next of several plans, which is to be ``more`` periods longer; None where there is none."""
    with suppress(StopIteration):
        return plans.send(more)
    return None


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
