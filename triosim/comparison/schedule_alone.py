"""Simulates a pipeline schedule on a model of equal stages, without communication.

It shows the schedule's bubble, in which a rank is idle, and how many micro-batches' activations a rank holds. Each stage is one
linear layer; its forward pass and the two parts of its backward pass take given times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from triosim.config import RunConfig
from triosim.engine import Recording
from triosim.engine.recording import operator_times
from triosim.errors import OptionError
from triosim.extrapolators.core.schedule_table import Action, ScheduleTable, in_flight
from triosim.extrapolators.pipeline.schedule_choice import chosen_schedule, table_of
from triosim.simulation import simulate
from triosim.tasks import Compute
from triosim.trace import Category, Operator, Phase, Tensor, Trace

#: A network on which transfers take no time.
_FREE = {"topology": "switch", "bandwidth": 1e18, "latency": 0, "name": "free"}
_WIDTH = 2

#: Operators of an action on this model.
_OPERATORS = {"forward": 1, "backward": 2, "input": 1, "weight": 1}


@dataclass(frozen=True, slots=True)
class ActionTimes:
    """The seconds that a stage takes for one micro-batch: forward, and backward for the input and for the weights."""

    forward: float = 1.0
    input: float = 1.0
    weight: float = 1.0

    @property
    def all(self) -> float:
        """Seconds of forward and backward together."""
        return self.forward + self.input + self.weight


@dataclass(frozen=True, slots=True)
class TimedAction:
    """An action of a rank's schedule slot, with its start and end in seconds."""

    rank: int
    slot: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """A schedule that was simulated. ``seconds`` is the step's time, ``busy`` the compute seconds of each rank."""

    name: str
    schedule: ScheduleTable
    seconds: float
    busy: tuple[float, ...]
    ran: tuple[TimedAction, ...]

    def bubble(self, rank: int) -> float:
        """Return the seconds in which a rank is idle."""
        return self.seconds - self.busy[rank]

    def held(self, rank: int) -> float:
        """Return of how many micro-batches a rank holds activations at once, counting each of its stages."""
        return in_flight(self.schedule, rank)


def run_schedule(
    name: str, ranks: int, micro_batches: int | None = None, *, times: ActionTimes | None = None, **options: Any
) -> ScheduleRun:
    """Simulate a schedule (a name or a file) on ranks with equal stages. Raises ``OptionError`` for what cannot be.

    ``times`` are those of a stage; by default, forward and each part of the backward pass take a second. ``options`` are those
    that the schedule declares (``virtual_stages``).
    """
    if ranks < 1:
        raise OptionError(f"{ranks} ranks", where="stages", fix="give 1 or more")
    times = times or ActionTimes()
    chosen = chosen_schedule(RunConfig.of(schedule=name, **options))
    count = chosen.micro_batches(ranks) if micro_batches is None else micro_batches
    if count < 1:
        raise OptionError(f"{count} is less than 1", where="micro batches", fix="give 1 or more")
    schedule = table_of(chosen, ranks, count)
    result = simulate(
        uniform_trace(schedule.stages, times),
        {"pp": ranks},
        topology=_FREE,
        schedule=name,
        **options,
        batch_size=count,
        micro_batches=count,
        timeline=True,
    )
    recording = result.recording
    assert recording is not None
    ran = tuple(one for rank in range(ranks) for one in _ran(recording, schedule, rank))
    busy = tuple(record.compute_seconds for record in recording.ranks)
    return ScheduleRun(name, schedule, result.step_time_s, busy, ran)


def uniform_trace(stages: int, times: ActionTimes) -> Trace:
    """Return the trace of one sample through equal linear layers, one for each stage."""
    operators: list[Operator] = []
    tensors = 0

    def tensor(*shape: int, category: Category = "activation", of: Tensor | None = None) -> Tensor:
        nonlocal tensors
        tensors += 1
        return Tensor(tensors, shape, "float32", category, tensors, None if of is None else of.id)

    def run(name: str, phase: Phase, stage: int, inputs: tuple[Tensor, ...], output: Tensor, seconds: float) -> None:
        number, forward = len(operators) + 1, stage + 1 if phase == "backward" else None
        operators.append(Operator(number, name, phase, f"stage {stage}", inputs, (output,), seconds, forward=forward))

    weights = [tensor(_WIDTH, _WIDTH, category="parameter") for _ in range(stages)]
    data = [tensor(1, _WIDTH, category="input"), *(tensor(1, _WIDTH) for _ in range(stages))]
    for stage in range(stages):
        run("aten::linear", "forward", stage, (data[stage], weights[stage]), data[stage + 1], times.forward)
    gradient = tensor(1, _WIDTH, category="gradient")
    for stage in reversed(range(stages)):
        into = tensor(1, _WIDTH, category="gradient")
        run("aten::mm", "backward", stage, (gradient, weights[stage]), into, times.input)
        of_weight = tensor(_WIDTH, _WIDTH, category="gradient", of=weights[stage])
        run("aten::mm", "backward", stage, (gradient, data[stage]), of_weight, times.weight)
        gradient = into
    return Trace(tuple(operators), 1, model="uniform stages")


def _ran(recording: Recording, schedule: ScheduleTable, rank: int) -> Iterator[TimedAction]:
    """Yield the actions of a rank: each ran the next operators of its stream."""
    streams: dict[str | None, list[tuple[Operator, float, float]]] = {}
    for handle in recording.handles or ():
        if handle.rank == rank and isinstance(handle.task, Compute):
            streams.setdefault(handle.task.stream, []).extend(operator_times(handle))
    ordered = [iter(entries) for entries in streams.values()]  # the first is that of what runs alone
    for number, slot in enumerate(schedule.rows[rank]):
        for lane, action in enumerate(slot):
            spans = [next(ordered[lane]) for _ in range(_OPERATORS[action.phase])]
            yield TimedAction(rank, number, action, spans[0][1], spans[-1][2])
