"""What is found out of one point: its memory and lower bound (``Weigh``), or all figures by a simulation (``Simulate``).

Both are tasks that processes can be handed. What points share is kept between them: the described model, and the times of
collectives on the idle network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from triosim import gpus as catalogue
from triosim.config import RunConfig
from triosim.configuration_search.memory_order import implied
from triosim.configuration_search.outcome import Figures, Memory, Outcome
from triosim.configuration_search.point import Point
from triosim.configuration_search.spaces.declaration import REPLICATED
from triosim.configuration_search.spaces.layout import Layout
from triosim.configuration_search.spaces.space import Space
from triosim.errors import TriosimError
from triosim.extrapolators.core.flags import EP_OVERLAP
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.core.schedule_table import ScheduleTable, accumulate, in_flight
from triosim.extrapolators.pipeline.schedule_choice import chosen_schedule, table_of
from triosim.garbage_collector import without_collecting
from triosim.memory.world_memory import RankMemory
from triosim.pipeline.bounds import IdleCollectives, lower_bound
from triosim.pipeline.planning import PlannedRun, plan
from triosim.pipeline.pricing import price
from triosim.pipeline.reading import read
from triosim.results.metrics import tokens_of
from triosim.results.result import Result
from triosim.simulation import simulate_config


@dataclass
class Weigh:
    """Finds the memory of a point, and where that fits, the lower bound of its step.

    The outcome is ``out_of_memory``, ``refused``, or ``excluded`` until the point is simulated.
    """

    space: Space
    _idle: dict[str, IdleCollectives] = field(default_factory=dict, repr=False)
    _found: dict[str, Outcome] = field(default_factory=dict, repr=False)

    def __call__(self, point: Point) -> Outcome:
        """Return what is found; a point that needs no less memory than one that did not fit is not planned."""
        outcome = implied(self.space, point, self._found) or self._weighed(point)
        self._found[point.key] = outcome
        return outcome

    @without_collecting()
    def _weighed(self, point: Point) -> Outcome:
        try:
            config, layout = self.space.config(point), self.space.layout(point)
            short = shortened(config, layout)
            chosen = config if short is None else short.config
            planned = plan(price(read(self.space.source(point), chosen), chosen), chosen)
        except TriosimError as error:
            return Outcome(point.key, "refused", str(error))
        left_out = 0 if short is None else short.left_out
        memory = Memory(_peak_bytes(planned, left_out), planned.memory.capacity)
        if not memory.fits(self.space.memory_margin):
            return Outcome(point.key, "out_of_memory", planned.memory.warning or "", memory=memory)
        bound = lower_bound(planned, self._collectives(planned, config), None if short is None else short.schedule)
        samples = layout.global_batch_size or planned.plan.global_batch_size
        figures = _figures_at(bound, samples, planned, config, self.space.network_price(point))
        return Outcome(point.key, "excluded", at_bound=figures, memory=memory)

    def _collectives(self, planned: PlannedRun, config: RunConfig) -> IdleCollectives:
        """Return the idle network of a point: the same for all that have its topology, network and algorithm."""
        chosen = (planned.system.topology.name, len(planned.system.topology.gpus), config.network, config.collective)
        key = repr(
            (*chosen, config.collective_form, config.chunk_schedule, sorted(config.options.items()), config.topology)
        )
        if key not in self._idle:
            self._idle[key] = IdleCollectives(planned.new_network())
        return self._idle[key]


@dataclass(frozen=True, slots=True)
class ShortStep:
    """A step without some micro-batches, which needs as much memory but for their inputs, and the ``schedule`` of all."""

    config: RunConfig
    schedule: ScheduleTable
    left_out: int


def shortened(config: RunConfig, layout: Layout) -> ShortStep | None:
    """Return a step of fewer micro-batches of the same size, of which as many are in flight on every rank; None for none.

    The peak comes while most micro-batches are in flight and gradients are there, or in the last one: more of the others only
    repeat it.
    """
    micro_batches, samples = layout.of_batch(per_micro_batch=False), layout.of_batch(per_micro_batch=True)
    if micro_batches is None or samples is None or layout.data not in REPLICATED:
        return None
    least = 3 * layout.pp
    if micro_batches <= least:
        return None
    whole = _schedule(config, layout, micro_batches)
    rows = range(len(whole.rows))
    for fewer in range(least, micro_batches, layout.pp):
        table = _schedule(config, layout, fewer)
        if all(in_flight(table, row) == in_flight(whole, row) for row in rows):
            count = {} if config.micro_batches is None else {"micro_batches": fewer}
            short = config.replaced(global_batch_size=layout.dp * fewer * samples, **count)
            return ShortStep(short, whole, micro_batches - fewer)
        if fewer > 2 * least:
            break
    return None


def _peak_bytes(planned: PlannedRun, left_out: int) -> float:
    """Return the peak of the fullest rank, with the inputs of micro-batches that are not in the plan, all of which it holds."""
    step, memory = planned.plan, planned.memory

    def peak(one: RankMemory) -> float:
        held = one.reserved_bytes or one.peak_bytes
        if not left_out or not isinstance(step, ParallelPlan):
            return held
        lowering = step.lowerings[0][step.variant(one.rank)]
        stages = step.program.schedule.stages_of(lowering.pipeline_rank(one.rank))
        return held + left_out * sum(lowering.input_bytes[stage] for stage in stages)

    return max(map(peak, memory.ranks))


def _schedule(config: RunConfig, layout: Layout, micro_batches: int) -> ScheduleTable:
    if layout.pp > 1:
        return table_of(chosen_schedule(config), layout.pp, micro_batches, training=config.training)
    schedule = accumulate(micro_batches, side_by_side=layout.ep > 1 and config.value_of(EP_OVERLAP))
    return schedule if config.training else schedule.forward_alone()


@dataclass
class Simulate:
    """Simulates a point, on another ``network`` than the space's if one is given."""

    space: Space
    network: Any = None

    def __call__(self, point: Point) -> Outcome:
        """Return its figures, or that it is refused."""
        try:
            config = self.space.config(point)
            chosen = config if self.network is None else config.replaced(network=self.network)
            result = simulate_config(self.space.source(point), chosen)
        except TriosimError as error:
            return Outcome(point.key, "refused", str(error))
        figures = Figures.of(result, self.space.network_price(point))
        return Outcome(point.key, "simulated", figures=figures, memory=memory_of(result))


def memory_of(result: Result) -> Memory | None:
    """Return the memory of a result's fullest rank."""
    memory = result.memory
    if memory is None:
        return None
    return Memory(memory.fullest.reserved_bytes or memory.fullest.peak_bytes, memory.capacity)


def _figures_at(
    seconds: float, samples: int, planned: PlannedRun, config: RunConfig, network_price: float | None
) -> Figures | None:
    """Return the figures of a step of so many samples that takes so long; None for a bound of 0."""
    if not seconds:
        return None
    step, trace = planned.plan, planned.priced.subject.trace
    gpu, rate = catalogue.get(trace.gpu), samples / seconds
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
        network_price=network_price,
    )
