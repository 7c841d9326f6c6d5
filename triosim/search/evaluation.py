"""What is found out of one point: its memory and lower bound (``Weigh``), or all figures by a simulation (``Simulate``).

Both are tasks that processes can be handed. What points share is kept between them: the described model, and the times of
collectives on the idle network.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from triosim import gpus as catalogue
from triosim.config import RunConfig
from triosim.errors import TriosimError
from triosim.pipeline.planning import PlannedRun, plan
from triosim.pipeline.pricing import price
from triosim.pipeline.reading import read
from triosim.results.metrics import tokens_of
from triosim.results.result import Result
from triosim.search.bounds import IdleCollectives, lower_bound
from triosim.search.outcome import Figures, Memory, Outcome
from triosim.search.point import Point
from triosim.search.spaces.space import Space
from triosim.simulation import simulate_config


@dataclass
class Weigh:
    """Finds the memory of a point, and where that fits, the lower bound of its step.

    The outcome is ``out_of_memory``, ``refused``, or ``excluded`` until the point is simulated.
    """

    space: Space
    _idle: dict[str, IdleCollectives] = field(default_factory=dict, repr=False)

    def __call__(self, point: Point) -> Outcome:
        """Return what is found."""
        try:
            config = self.space.config(point)
            planned = plan(price(read(self.space.source(point), config), config), config)
        except TriosimError as error:
            return Outcome(point.key, "refused", str(error))
        fullest = planned.memory.fullest
        memory = Memory(fullest.reserved_bytes or fullest.peak_bytes, planned.memory.capacity)
        if not memory.fits(self.space.memory_margin):
            return Outcome(point.key, "out_of_memory", planned.memory.warning or "", memory=memory)
        bound = lower_bound(planned, self._collectives(planned, config))
        return Outcome(point.key, "excluded", at_bound=_figures_at(bound, planned, config), memory=memory)

    def _collectives(self, planned: PlannedRun, config: RunConfig) -> IdleCollectives:
        """Return the idle network of a point: the same for all that have its topology, network and algorithm."""
        chosen = (planned.system.topology.name, len(planned.system.topology.gpus), config.network, config.collective)
        key = repr((*chosen, config.collective_form, sorted(config.options.items()), config.topology))
        if key not in self._idle:
            self._idle[key] = IdleCollectives(planned.new_network())
        return self._idle[key]


@dataclass
class Simulate:
    """Simulates a point."""

    space: Space

    def __call__(self, point: Point) -> Outcome:
        """Return its figures, or that it is refused."""
        try:
            result = simulate_config(self.space.source(point), self.space.config(point))
        except TriosimError as error:
            return Outcome(point.key, "refused", str(error))
        return Outcome(point.key, "simulated", figures=Figures.of(result), memory=memory_of(result))


def memory_of(result: Result) -> Memory | None:
    """Return the memory of a result's fullest rank."""
    memory = result.memory
    if memory is None:
        return None
    return Memory(memory.fullest.reserved_bytes or memory.fullest.peak_bytes, memory.capacity)


def _figures_at(seconds: float, planned: PlannedRun, config: RunConfig) -> Figures | None:
    """Return the figures of a step that takes so long; None for a bound of 0."""
    if not seconds:
        return None
    step, trace = planned.plan, planned.priced.subject.trace
    gpu, rate = catalogue.get(trace.gpu), step.global_batch_size / seconds
    tokens = config.tokens_per_sample or tokens_of(trace)
    hourly = config.price or (gpu.price_per_hour if gpu is not None else None)
    return Figures(
        step_time_s=seconds,
        gpus=step.world,
        samples_per_s=rate,
        compute_s=0.0,
        exposed_communication_s=0.0,
        waiting_s=0.0,
        launch_wait_s=0.0,
        tokens_per_s=rate * tokens if tokens else None,
        energy_j=step.world * gpu.tdp_watts * seconds if gpu is not None and gpu.tdp_watts else None,
        cost=None if hourly is None else hourly * step.world * seconds / 3600,
    )
