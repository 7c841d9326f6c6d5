"""The fourth step of a simulation, ``run``: runs the ranks' tasks on the engine, those of identical ranks once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from triosim import plugins
from triosim.conditions import Conditions
from triosim.conditions.checks import condition_notes, notes_without_effect
from triosim.config import RunConfig
from triosim.engine import Engine, EngineOptions, Progress, Recording
from triosim.errors import AsymmetryError
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.folding.folded_run import run_folded, should_fold
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

    def engine_on(network: Network, symmetry: Symmetry | None = None) -> Engine:
        return Engine(network.env, network, options, progress=progress, symmetry=symmetry)

    with plugins.blamed():
        notes = list(condition_notes(conditions, tasks.world))
        why_not = _why_not_folded(planned, config)
        if tasks.symmetry is not None and not why_not and should_fold(config.fold, tasks.world):
            try:
                recording, network = run_folded(tasks.symmetry, tasks.tasks, planned.new_network, engine_on)
                return Execution(recording, network, (*notes, *_without_effect(conditions, network, recording)))
            except AsymmetryError as found:
                why_not = str(found)
        if config.fold and why_not and tasks.world > 1:
            notes.append(f"every rank is simulated: {why_not}")
        streams = {rank: tasks.tasks(rank) for rank in range(tasks.world)}
        if conditions.heterogeneous:
            streams = {rank: planned.heterogeneity.stream(rank, stream) for rank, stream in streams.items()}
        recording = engine_on(planned.network).run(streams)
    return Execution(recording, planned.network, (*notes, *_without_effect(conditions, planned.network, recording)))


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
    same = planned.system.conditions == Conditions(interference=planned.system.conditions.interference)
    return "" if same else "GPUs or links differ, or change during the run"
