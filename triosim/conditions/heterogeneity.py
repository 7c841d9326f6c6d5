"""Unequal GPUs: the same program on GPUs of other kinds, slower ones, and ones that are slower by chance.

A rank's task stream passes through here, and every operator in it gets the time that it takes on that rank's GPU. On another
kind of GPU that is its time, times the ratio of the two kinds' predictions for the operator in the trace; a piece of an
operator, or one in another shape, has the ratio of the whole.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from triosim import gpus
from triosim.compute.base import ComputeModel
from triosim.compute.pricing.repricing import on_gpu
from triosim.conditions.conditions import Conditions, Stragglers
from triosim.engine.recording import Recording
from triosim.errors import OptionError, TriosimError
from triosim.networks.base import Network
from triosim.networks.photonic.photonic import CircuitTopology
from triosim.networks.topology import Link, Topology
from triosim.tasks import Compute, Iteration, TaskStream
from triosim.trace import Operator, Trace
from triosim.units import format_time


@dataclass(frozen=True, slots=True)
class Kind:
    """Another kind of GPU: the operators of the trace as they would be there, by id, and by how much all of it is slower."""

    name: str
    operators: Mapping[int, Operator]
    ratios: Mapping[int, float]
    overall: float

    def ratio(self, operator: Operator) -> float:
        """Return by how many times longer an operator takes."""
        return self.ratios.get(operator.id, self.overall)


class Unequal:
    """Which GPU takes how long. Raises ``OptionError`` for a kind that the catalogue does not have."""

    def __init__(self, conditions: Conditions, trace: Trace, model: ComputeModel) -> None:
        self._conditions = conditions
        kinds = {name: _kind(trace, name, model) for name in dict.fromkeys(conditions.kinds.values())}
        self._kinds = {rank: kinds[name] for rank, name in conditions.kinds.items()}
        self._kept: dict[tuple[int, str, float], tuple[Compute, Compute]] = {}

    def factor(self, rank: int, operator: Operator) -> float:
        """Return by how many times longer an operator takes on a rank, but for what is drawn anew in each iteration."""
        kind = self._kinds.get(rank)
        factor = self._conditions.slow.get(rank, 1.0) * (kind.ratio(operator) if kind else 1.0)
        stragglers = self._conditions.stragglers
        return factor * draw(stragglers, rank, 0) if stragglers and stragglers.every == "run" else factor

    def stream(self, rank: int, tasks: TaskStream) -> TaskStream:
        """Yield the tasks of a rank with the times that they take on its GPU."""
        stragglers = self._conditions.stragglers
        kind, slow = self._kinds.get(rank), self._conditions.slow.get(rank, 1.0)
        keep = stragglers is None or stragglers.every == "run"
        iteration = 0
        factor = slow * (draw(stragglers, rank, 0) if stragglers else 1.0)
        answer: Any = None
        while True:
            try:
                task = tasks.send(answer)
            except StopIteration:
                return
            if type(task) is Compute and (kind is not None or factor != 1.0):
                task = self._slowed(task, kind, factor, keep=keep)
            elif type(task) is Iteration and stragglers is not None and stragglers.every == "iteration":
                iteration += 1
                factor = slow * draw(stragglers, rank, iteration)
            answer = yield task

    def _slowed(self, task: Compute, kind: Kind | None, factor: float, *, keep: bool) -> Compute:
        """Return a task with its times; that of equal ranks is made once, so that results still see that they are equal."""
        key = (id(task.operators), kind.name if kind else "", factor)
        found = self._kept.get(key) if keep and not task.after else None
        if found is not None and (found[0].stream, found[0].share) == (task.stream, task.share):
            return found[1]
        operators = found[1].operators if found else tuple(_taking(one, kind, factor) for one in task.operators)
        made = Compute(operators, task.stream, task.share, after=task.after)
        if keep and not task.after:
            self._kept[key] = task, made
        return made


def with_slow_links(topology: Topology, stragglers: Stragglers) -> Topology:
    """Return a topology of which each link, both directions together, is slower by a factor; but not those of hosts."""
    memories = {name for name, node in topology.nodes.items() if node.kind in ("host", "memory")}

    def slowed(link: Link) -> float:
        ends = sorted((link.source, link.destination)) if link.source else [link.name]
        return link.bandwidth / (1.0 if memories.intersection(ends) else draw(stragglers, *ends))

    return with_bandwidths(topology, slowed)


def with_bandwidths(topology: Topology, bandwidth: Callable[[Link], float]) -> Topology:
    """Return a topology whose links have other bandwidths (bytes per second), all else as it is.

    What its collectives were measured to take goes up and down with what their links would need.
    """
    changed = Topology(
        topology.name,
        topology.nodes.values(),
        [replace(link, bandwidth=bandwidth(link)) for link in topology.links.values()],
        routing=topology.routing,
        routes={ends: [link.name for link in route] for ends, route in topology.given_routes.items()},
        coordinates=topology.coordinates,
        dimensions=topology.dimensions,
        uniform=False,
        reducing=topology.reducing,
    )
    changed.by_dimension, changed.photonic, changed.conditions = (
        *(topology.by_dimension, topology.photonic),
        topology.conditions,
    )
    changed.uncalibrated = topology.uncalibrated
    changed.calibrate, changed.measured_on = topology.calibrate, topology.measured_on or topology
    return changed


def draw(stragglers: Stragglers, *what: int | str) -> float:
    """Return the factor of a rank in an iteration, or of a link: the same for the same seed, whatever else is drawn."""
    chance = random.Random("/".join(map(str, (stragglers.seed, *what))))
    if stragglers.distribution == "uniform":
        return 1.0 + stragglers.spread * chance.random()
    if stragglers.distribution == "exponential":
        return 1.0 + (chance.expovariate(1.0 / stragglers.spread) if stragglers.spread else 0.0)
    return math.exp(chance.gauss(0.0, stragglers.spread))


def check(conditions: Conditions, network: Network) -> None:
    """Raise ``OptionError`` for a GPU or a link that is not there, or a network whose links cannot change."""
    count = len(network.topology.gpus)
    ranks = {"slow_gpus": conditions.slow, "gpu_kinds": conditions.kinds}
    ranks["events"] = {event.rank: event.slowdown for event in conditions.gpu_events}
    for key, named in ranks.items():
        for rank in named:
            if rank >= count:
                where = f"{network.topology.name}: {key}"
                raise OptionError(f"there is no GPU {rank}", where=where, fix=f"name one from 0 to {count - 1}")
    for rank, name in conditions.kinds.items():
        try:
            gpus.find(name)
        except TriosimError as error:
            where = f"{network.topology.name}: gpu_kinds: {rank}"
            raise OptionError(
                error.what, where=f"{where}: {error.where}" if error.where else where, fix=error.fix
            ) from None
    if conditions.link_events and type(network).set_bandwidth is Network.set_bandwidth:
        what = f"{type(network).__name__} cannot change links while it runs"
        raise OptionError(what, where="events", fix="take the network 'packet'")
    for event in conditions.link_events:
        network.topology.links_between(event.source, event.destination)


def notes(conditions: Conditions, world: int) -> Iterable[str]:
    """Yield what a reader of the figures should know."""
    kinds: dict[str, list[int]] = {}
    for rank, name in conditions.kinds.items():
        if rank < world:
            kinds.setdefault(gpus.find(name).name, []).append(rank)
    for name, ranks in kinds.items():
        yield f"{len(ranks)} of the {world} GPUs are {name}: their times are predicted"
    if conditions.slow_links:
        drawn = conditions.slow_links
        yield f"links are slower by chance: {drawn.distribution}, spread {drawn.spread:g}, seed {drawn.seed}"
    if conditions.stragglers:
        drawn = conditions.stragglers
        often = "each iteration" if drawn.every == "iteration" else "the whole run"
        yield f"GPUs are slower by chance: {drawn.distribution}, spread {drawn.spread:g}, seed {drawn.seed}, for {often}"


def without_effect(conditions: Conditions, network: Network, recording: Recording) -> Iterable[str]:
    """Yield a note for each condition that was given and made no difference, once the run is over."""
    world = len(recording.ranks)
    for option, named in (("slow_gpus", conditions.slow), ("gpu_kinds", conditions.kinds)):
        idle = sorted(rank for rank in named if rank >= world)
        if idle:
            yield f"{option}: GPU {idle[0]} takes no part in a run of {world} GPUs"
    times = [event.at for event in conditions.gpu_events] + [event.at for event in conditions.link_events]
    late = min((at for at in times if at >= recording.end), default=None)
    if late is not None:
        yield f"the event at {format_time(late)} comes after the end of the run, at {format_time(recording.end)}"
    ran = {kind for kind, *_ in recording.transfers}
    sides = {
        "compute_slowdown": conditions.interference.computation,
        "collective_slowdown": conditions.interference.communication,
    }
    for option, factors in sides.items():
        if ran and factors and ran.isdisjoint(factors):
            yield f"{option}: there was no {' or '.join(factors)}, but {' and '.join(sorted(ran))}"
    if conditions.slow_links and isinstance(network.topology, CircuitTopology):
        yield "slow_links: circuits are not slowed"


def _kind(trace: Trace, name: str, model: ComputeModel) -> Kind:
    other = on_gpu(trace, gpus.find(name), model)
    pairs = list(zip(trace.operators, other.operators, strict=True))
    ratios = {old.id: new.seconds / old.seconds for old, new in pairs if old.seconds}
    before, after = (math.fsum(operator.seconds for operator in found.operators) for found in (trace, other))
    operators = {new.id: new for old, new in pairs if new is not old}
    return Kind(name, operators, ratios, after / before if before else 1.0)


def _taking(operator: Operator, kind: Kind | None, factor: float) -> Operator:
    if kind is None:
        return replace(operator, seconds=operator.seconds * factor, busy_seconds=None)
    predicted = kind.operators.get(operator.id, operator)
    errors = [one.relative_error for one in (operator, predicted) if one.relative_error is not None]
    return replace(
        operator,
        seconds=operator.seconds * factor * kind.ratio(operator),
        busy_seconds=None,
        predicted_by=predicted.predicted_by,
        relative_error=math.hypot(*errors) if errors else None,
    )
