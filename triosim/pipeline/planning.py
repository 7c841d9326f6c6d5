"""The third step of a simulation, ``plan``: plans the tasks of each rank on a system, before the simulated clock starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from triosim import gpus as catalogue
from triosim import plugins
from triosim.compute.compute_model import checked
from triosim.compute.learned import model_files
from triosim.conditions import Conditions
from triosim.conditions.checks import check_conditions
from triosim.conditions.contention import Contention, memory_bound
from triosim.conditions.heterogeneity import Heterogeneity
from triosim.config import COMMON, RunConfig, flags, unread
from triosim.config.offload import Offload
from triosim.config.run_config import option_named
from triosim.errors import OptionError, TraceError, nearest
from triosim.extrapolators.captured.captured_plan import CapturedPlan
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.core.plan import plan as extrapolate
from triosim.extrapolators.core.program.kept_programs import Kept
from triosim.garbage_collector import without_collecting
from triosim.memory.extrapolated_memory import memory_of_run
from triosim.memory.tier_capacity import check_tiers
from triosim.memory.world_memory import WorldMemory
from triosim.networks.base import Network
from triosim.networks.collectives.algorithms.auto import is_auto
from triosim.networks.construction import calibration_notes
from triosim.networks.extensions import GatheringNetwork
from triosim.pipeline.own_models import with_own_models
from triosim.pipeline.pricing import PricedSubject
from triosim.pipeline.reading import with_batch
from triosim.pipeline.system import NetworkFactory, System, network_factory, network_notes, system_of
from triosim.tasks import Tier
from triosim.trace import Operator
from triosim.trace.step_facts import StepFacts
from triosim.trace.task_streams import TaskStreams

#: By trace: runs of one process have few.
_MEMORY_BOUND = Kept[float](16)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that can begin: the plan of all ranks' tasks, the system, and the memory that the ranks need.

    ``network`` is idle, on a clock of its own; ``new_network`` makes others like it. ``heterogeneity`` gives each rank's tasks
    their times where GPUs differ; ``contention`` says how much computations and transfers slow each other.
    """

    priced: PricedSubject
    plan: ParallelPlan | CapturedPlan
    system: System
    network: Network
    new_network: NetworkFactory
    heterogeneity: Heterogeneity
    contention: Contention
    memory: WorldMemory
    notes: tuple[str, ...]

    @property
    def facts(self) -> StepFacts:
        """What files of the step say of it; the samples are left out where they are assumed."""
        streams, plan = self.priced.subject.streams, self.plan
        together = streams is not None and streams.measured_together
        samples = plan.global_batch_size if streams is None else streams.global_batch_size
        gpu, free = self.priced.subject.trace.gpu, self.priced.launches is None
        return StepFacts(gpu, self.contention.memory_bound, together, samples, plan.sample_parts, free)


@with_own_models
@without_collecting()
def plan(priced: PricedSubject, config: RunConfig, system: System | None = None) -> PlannedRun:
    """Return the plan of a run, on another system than its configuration's where one is given.

    Raises ``TriosimError`` for options that contradict each other or that nobody reads."""
    subject = priced.subject
    system = system or system_of(subject, config)
    new_network = network_factory(system, config)
    network = new_network()
    check_conditions(system.conditions, network)
    with plugins.blamed():
        heterogeneity = Heterogeneity(system.conditions, subject.trace, priced.model)
        gathering = system.topology.gathering_memories if isinstance(network, GatheringNetwork) else frozenset[Tier]()
        planned = plan_step(
            *(priced, config),
            gpus=len(system.topology.gpus),
            slowdown=heterogeneity.slowdown,
            gathering_memories=gathering,
        )
    if config.options:
        refuse_unknown(config, (*priced.options_read, *new_network.options_read, *planned.known_options))
    check_draws(config.draws, system.conditions, tokens=tokens_are_drawn(planned))
    with plugins.blamed():
        memory = memory_of_run(planned, subject.trace, fail_on_oom=config.fail_on_oom)
    if config.offload != "none":
        check_tiers(Offload.of(config.offload, training=config.training), memory, system.topology)
    said = subject.trace.notes if subject.streams is None else subject.streams.notes
    notes = [*said, *system.notes, *unread(config, planned.declared, described=subject.described), *memory.notes]
    if is_auto(new_network.algorithm) and config.collective_form == "pipelined":
        notes.extend(calibration_notes(network, planned.world))
    notes.extend(network_notes(network, new_network.algorithm, config))
    notes.extend(_compute_model_note(priced, planned, config))
    if planned.world > len(system.topology.gpus):
        raise OptionError(
            f"the topology has {len(system.topology.gpus)} GPUs, {planned.world} are asked for",
            where=system.topology.name,
            fix="ask for fewer, or give a larger topology",
        )
    if config.host_overhead == "trace" and priced.launches is None:
        what = "the described step" if subject.described else "the trace"
        notes.append(f"{what} has no host times: launches cost nothing")
    if config.models is not None and not model_files.knows(subject.trace.gpu):
        notes.append(f"{config.models} holds no models of {subject.trace.gpu}: those that ship predict its times")
    gpu, streams = catalogue.get(subject.trace.gpu), subject.streams
    waiting = None if streams is None else streams.memory_bound
    if waiting is None:
        waiting = _MEMORY_BOUND.get(subject.trace, lambda: memory_bound(subject.trace.operators))
    together = streams is not None and streams.measured_together
    contention = Contention(system.conditions.interference, gpu, system.topology, waiting, measured_together=together)
    return PlannedRun(priced, planned, system, network, new_network, heterogeneity, contention, memory, tuple(notes))


@with_own_models
def plan_step(
    priced: PricedSubject,
    config: RunConfig,
    *,
    gpus: int | None = None,
    slowdown: Callable[[int, Operator], float] | None = None,
    gathering_memories: frozenset[Tier] = frozenset(),
) -> ParallelPlan | CapturedPlan:
    """Return the tasks of all ranks, whatever the system: the trace extrapolated, or the streams as they were captured.

    ``gpus`` is how many there are where the configuration leaves it open; ``slowdown`` says by how many times longer an
    operator takes on a rank, for a parallelism that divides work by it; ``gathering_memories`` are behind switches that gather
    what ranks load.
    """
    subject = priced.subject
    if subject.streams is not None:
        _check_times(subject.streams)
        return CapturedPlan(subject.streams, iterations=config.iterations)
    return extrapolate(
        subject.trace,
        config.parallel,
        gpus=subject.gpus if subject.gpus is not None else gpus,
        config=with_batch(config) if subject.described else config,
        model=priced.model,
        slowdown=slowdown,
        gathering_memories=gathering_memories,
    )


def _compute_model_note(
    priced: PricedSubject, planned: ParallelPlan | CapturedPlan, config: RunConfig
) -> Iterator[str]:
    """Yield a note where times were predicted, and the compute model that was asked for knows none of the operators."""
    trace, model = priced.subject.trace, priced.model
    if config.compute_model == "auto" or not isinstance(planned, ParallelPlan) or " by auto, because " in trace.times:
        return
    before = {operator.id: operator.seconds for operator in trace.operators}
    own = planned.program.operators
    if priced.subject.described or any(one.predicted_by and one.seconds != before.get(one.id) for one in own):
        found = checked(model.estimate(trace.operators, trace.gpu), trace.operators, model)
        if np.isnan(found.seconds).all():
            yield f"{plugins.label(model)} estimates no operator of this step: auto's predictions are used"


def check_draws(draws: int, conditions: Conditions, *, tokens: bool) -> None:
    """Raise ``OptionError`` for several draws of a run in which nothing is drawn; ``tokens`` are drawn or not."""
    if draws > 1 and not (tokens or conditions.stragglers or conditions.slow_links):
        raise OptionError(
            "nothing in this run is drawn at random",
            where="--draws",
            fix="give --stragglers or --slow-links, or ep with a load that is not balanced",
        )


def tokens_are_drawn(planned: ParallelPlan | CapturedPlan) -> bool:
    """Whether something in the tasks is drawn at random."""
    return isinstance(planned, ParallelPlan) and planned.is_random


def refuse_unknown(config: RunConfig, read: Iterable[str]) -> None:
    """Raise ``OptionError`` for an option given by name that no part reads: it is a mistake."""
    known = {*read}
    for name in config.options:
        if name not in known:
            has_flag = name in COMMON or name in flags()
            fix = f"give {option_named(name).where}" if has_flag else nearest(name, known)
            raise OptionError(f"no part of this run takes '{name}'", where=f"--option {name}", fix=fix)


def _check_times(streams: TaskStreams) -> None:
    """Refuse streams in which nothing takes time. Raises ``TraceError``."""
    if streams.complete:  # graphs may communicate alone
        return
    if not any(operator.seconds for trace in streams.traces.values() for operator in trace.operators):
        raise TraceError("the streams have no times", where=streams.source or None, fix="give a GPU: --gpu H100")
