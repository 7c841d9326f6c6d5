"""The system that a live run takes place on, and the times of its operators: what the options of a run come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triosim import plugins
from triosim.compute.compute_model import ComputeModel
from triosim.compute.learned import model_files
from triosim.compute.pricing.prediction import with_predicted_times
from triosim.conditions.contention import Contention, memory_bound
from triosim.conditions.heterogeneity import Heterogeneity
from triosim.config import RunConfig, parsed
from triosim.engine import EngineOptions
from triosim.gpus import Gpu
from triosim.networks.base import Network
from triosim.pipeline.launches import with_launches
from triosim.pipeline.reading import Subject
from triosim.pipeline.system import System, network_factory, system_of
from triosim.tasks import TaskStream
from triosim.trace import Operator, Trace
from triosim.trace.task_streams import TaskStreams


@dataclass(frozen=True, slots=True)
class LiveSystem:
    """The system of a live run: its network, the engine's options, and what operators take on its GPUs."""

    system: System
    network: Network
    engine: EngineOptions
    heterogeneity: Heterogeneity
    prices: Prices

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
        return [one.with_host_seconds(self.launch_seconds if one.seconds else None) for one in priced]


def live_system(gpu: Gpu, world: int, config: RunConfig, streams: TaskStreams | None = None) -> LiveSystem:
    """Return the system of a run of ``world`` ranks; ``streams`` are those of a step, where ranks were compared.

    Raises ``TriosimError`` for options that cannot be.
    """
    subject = Subject(_one_operator(gpu) if streams is None else streams, world)
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
        contention=Contention(system.conditions.interference, gpu, system.topology, waiting),
    )
    prices = Prices(gpu, model, launched.trace.operators[0].host_seconds, config.models)
    heterogeneity = Heterogeneity(system.conditions, subject.trace, model)
    return LiveSystem(system, network_factory(system, config)(), options, heterogeneity, prices)


def _one_operator(gpu: Gpu) -> Trace:
    """Return a trace that only says what GPU there is, and that its operators take time."""
    return Trace((Operator(0, "aten::add", "forward", "", (), (), 1.0),), 1, gpu=gpu.name, times="predicted")
