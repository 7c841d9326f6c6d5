"""Task streams that are written by hand, and a network on which every time is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import simpy

from triosim.engine import Engine, EngineOptions, Recording
from triosim.extrapolators.captured.captured_plan import CapturedPlan
from triosim.trace import Communication, CommunicationKind, Mark, Operator, Phase, Tensor, Trace
from triosim.trace.task_streams import TaskStreams


class OneBytePerSecond:
    """A network without contention: a transfer or a collective of n bytes takes n seconds. It notes what it is asked for."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.topology = SimpleNamespace(node=lambda rank: f"gpu{rank}", name="test")
        self.asked: list[tuple[Any, ...]] = []

    def transfer(self, source: object, destination: object, nbytes: float) -> simpy.Event:
        self.asked.append((source, destination, nbytes))
        return self.env.timeout(nbytes)

    def collective(self, kind: str, group: object, nbytes: float, **more: Any) -> simpy.Event:
        self.asked.append((kind, group, nbytes, more.get("root")))
        return self.env.timeout(nbytes)


class Script:
    """Writes a rank's operators and marks in the order in which its host issues them, at so many seconds each."""

    def __init__(self, host_seconds: float | None = None) -> None:
        self.host_seconds = host_seconds
        self.operators: list[Operator] = []
        self.marks: list[Mark] = []

    def run(self, *seconds: float, stream: str = "compute", phase: Phase = "forward") -> Script:
        for one in seconds:
            self._add("aten::mm", one, stream, phase, None)
        return self

    def ask(
        self, kind: CommunicationKind, group: str, nbytes: float, *, stream: str = "compute", **more: Any
    ) -> Script:
        self._add(f"c10d::{kind}", 0.0, stream, "forward", Communication(kind, group, nbytes, **more))
        return self

    def mark(self, kind: Any, stream: str | None = None, number: int | None = None) -> Script:
        self.marks.append(Mark(len(self.operators), kind, stream, number))
        return self

    def trace(self, batch_size: int = 1) -> Trace:
        return Trace(tuple(self.operators), batch_size, times="made up", marks=tuple(self.marks))

    def _add(self, name: str, seconds: float, stream: str, phase: Phase, asked: Communication | None) -> None:
        number = len(self.operators)
        tensor = Tensor(number, (4, 4))
        what = (number, name, phase, f"layer{number}", (tensor,), (tensor,), seconds, None, self.host_seconds)
        self.operators.append(Operator(*what, stream=stream, communication=asked))


def same_on(world: int, script: Script, **groups: tuple[tuple[int, ...], ...]) -> TaskStreams:
    """Every rank does the same; without groups named, they are all in one, "world"."""
    return TaskStreams({0: script.trace()}, (0,) * world, groups or {"world": (tuple(range(world)),)})


def run(streams: TaskStreams, *, iterations: int = 1, **options: Any) -> tuple[Recording, list[tuple[Any, ...]]]:
    """Run the streams; return what was recorded, and what the network was asked for."""
    env = simpy.Environment()
    network = OneBytePerSecond(env)
    captured = CapturedPlan(streams, iterations=iterations)
    engine = Engine(env, network, EngineOptions(timeline=True, **options))  # type: ignore[arg-type]
    return engine.run({rank: captured.tasks(rank) for rank in range(captured.world)}), network.asked
