"""The system that a live run takes place on, and the times of its operators: what the options of a run come to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from triosim import plugins
from triosim.compute.compute_model import ComputeModel
from triosim.compute.learned import model_files
from triosim.compute.pricing.prediction import with_predicted_times
from triosim.conditions import Conditions
from triosim.conditions.contention import Contention, memory_bound
from triosim.conditions.heterogeneity import Heterogeneity
from triosim.config import RunConfig, parsed
from triosim.engine import EngineOptions
from triosim.errors import AsymmetryError
from triosim.extrapolators.captured.captured_plan import CapturedPlan
from triosim.extrapolators.captured.command_tasks import collective_task
from triosim.extrapolators.captured.commands import GroupCollective
from triosim.extrapolators.captured.groups import classes_of, communicate_as_one_world, communicators
from triosim.extrapolators.captured.rank_classes import RankClasses
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.folding.class_network import ClassNetwork
from triosim.folding.dry_run import TransferPattern, dry_run
from triosim.folding.folded_run import should_fold
from triosim.gpus import Gpu
from triosim.live.network.world_network import world_network
from triosim.networks.base import Network
from triosim.operators.features import is_launched
from triosim.pipeline.launches import with_launches
from triosim.pipeline.reading import Subject
from triosim.pipeline.system import NetworkFactory, System, network_factory, system_of
from triosim.tasks import TaskStream
from triosim.trace import Operator, Trace
from triosim.trace.step_facts import StepFacts
from triosim.trace.task_streams import TaskStreams

#: The most GPUs of a machine that PyTorch's fake devices can be, and those of a machine in a rack (GB200 NVL72).
MOST_LOCAL, _RACK_MACHINE = 8, 4


@dataclass(frozen=True, slots=True)
class LiveSystem:
    """The system of a live run: its network, the engine's options, and what operators take on its GPUs.

    ``like`` is for each rank the running one that it follows in the simulation. With a ``symmetry`` the representatives alone
    are simulated, on a folded network where they stand for running ranks too.
    """

    system: System
    network: Network
    engine: EngineOptions
    heterogeneity: Heterogeneity
    prices: Prices
    like: Sequence[int]
    symmetry: Symmetry | None = None

    @property
    def facts(self) -> StepFacts:
        """What profiles of a step say of it."""
        contention = self.engine.contention
        waiting = None if contention is None else contention.memory_bound
        return StepFacts(self.prices.gpu.name, waiting, free_launches=not self.engine.launch_costs)

    def stream(self, rank: int, stream: TaskStream) -> TaskStream:
        """Return a rank's task stream with the times of its own GPU."""
        return self.heterogeneity.stream(rank, stream) if self.system.conditions.heterogeneous else stream


@dataclass(frozen=True, slots=True)
class Prices:
    """What operators take on a GPU, and what launching them costs the host."""

    gpu: Gpu
    model: ComputeModel
    launch_seconds: float | None
    models: str | None

    def __call__(self, new: Sequence[Operator], known: Sequence[Operator]) -> list[Operator]:
        """Return new operators with times. Those that they differentiate are among the ``known`` ones, or new too."""
        numbers = {one.id for one in new}
        forwards = {one.forward for one in new if one.forward is not None} - numbers
        asked = Trace((*(known[number] for number in sorted(forwards)), *new), 1, gpu=self.gpu.name)
        with model_files.using(self.models):
            priced = with_predicted_times(asked, self.model).operators[len(forwards) :]
        if self.launch_seconds is None:
            return list(priced)
        return [one.with_host_seconds(self.launch_seconds if is_launched(one) else None) for one in priced]


def live_system(gpu: Gpu, like: Sequence[int], config: RunConfig, streams: TaskStreams | None = None) -> LiveSystem:
    """Return the system of a run whose ranks follow the running ones of ``like``; ``streams`` are those of a step.

    Each rank that runs is simulated, for itself and those that follow it by ``like``: what rank 0 alone does later, such as to
    log, then stands in nobody's way. Of groups whose ranks do the same, one is simulated, where the network is alike.

    Raises ``TriosimError`` for options that cannot be.
    """
    subject = Subject(_one_operator(gpu) if streams is None else streams, len(like))
    kind = plugins.find("compute_models", config.compute_model)
    model: ComputeModel = plugins.make(kind, options=parsed(kind, config.options))
    _, launches = with_launches(subject, config)
    launched, _ = with_launches(Subject(_one_operator(gpu), 1), config)
    system = system_of(subject, config)
    waiting = 0.0 if streams is None else memory_bound(subject.trace.operators)
    options = EngineOptions(
        launch_costs=launches is not None,
        call_overhead=launches.call_seconds if launches else 0.0,
        run_ahead=launches.run_ahead if launches else None,
        conditions=system.conditions,
        timeline=config.timeline,
        contention=Contention(system.conditions.interference, gpu, system.topology, waiting),
    )
    prices = Prices(gpu, model, launched.trace.operators[0].host_seconds, config.models)
    heterogeneity = Heterogeneity(system.conditions, subject.trace, model)
    new_network = network_factory(system, config)
    symmetry: Symmetry | None = None
    network: Network | None = None
    folds = not (config.timeline or config.links) and should_fold(config.fold, len(like))
    if streams is not None and folds and _all_is_equal(system.conditions):
        with suppress(AsymmetryError):
            network, symmetry = _folded(streams, like, new_network)
    return LiveSystem(system, network or new_network(), options, heterogeneity, prices, like, symmetry)


def machine_ranks(gpu: Gpu, world: int | None, config: RunConfig) -> int:
    """Return how many ranks of a world, or of any, are on a machine. Raises ``TriosimError`` for a topology that cannot be."""
    outline = system_of(Subject(_one_operator(gpu), world), config).nominal.outline
    gpus = MOST_LOCAL if outline is None or not outline.spec.gpus else outline.spec.gpus
    if gpus > MOST_LOCAL:
        gpus = _RACK_MACHINE if gpu.name.startswith("GB") else MOST_LOCAL
    return gpus if world is None else min(world, gpus)


def _all_is_equal(conditions: Conditions) -> bool:
    return conditions == Conditions(interference=conditions.interference)


def _folded(streams: TaskStreams, like: Sequence[int], new_network: NetworkFactory) -> tuple[Network, RankClasses]:
    """Return the classes of a step's ranks, and their network. Raises ``AsymmetryError`` where every rank is simulated."""
    classes = classes_of(streams, like)
    if communicate_as_one_world(streams):
        return world_network(new_network, len(like), _sent(streams)), classes
    if not classes.has_copies:
        return new_network(), classes
    plan = CapturedPlan(streams)
    sent = dry_run({rank: plan.tasks(rank) for rank in classes.representatives})
    return ClassNetwork(new_network, classes, sent.patterns), classes


def _sent(streams: TaskStreams) -> dict[TransferPattern, list[float]]:
    """Return the sizes of the collectives of a step whose ranks communicate as one world, by pattern."""
    groups = communicators(streams)
    found: dict[TransferPattern, dict[float, None]] = {}
    for rank, trace in streams.traces.items():
        for operator in trace.operators:
            asked = operator.communication
            if asked is None or len(groups[rank][asked.group].ranks) == 1:
                continue
            task = collective_task(groups[rank][asked.group], GroupCollective(asked, "", ""))
            found.setdefault(TransferPattern.of(task), {})[task.nbytes] = None
    return {pattern: list(sizes) for pattern, sizes in found.items()}


def _one_operator(gpu: Gpu) -> Trace:
    """Return a trace that only says what GPU there is, and that its operators take time."""
    return Trace((Operator(0, "aten::add", "forward", "", (), (), 1.0),), 1, gpu=gpu.name, times="predicted")
