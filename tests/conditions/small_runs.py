"""Runs on a network of one byte per second, and on a switch, for tests of conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy
import traces

import triosim
from triosim.conditions import Conditions
from triosim.engine import Engine, EngineOptions, Recording
from triosim.networks import PacketNetwork, Topology
from triosim.tasks import AllReduce, Communicator, Compute, TaskStream, Wait
from triosim.trace import Trace

WORLD = Communicator((0, 1), "world")


def run(program: Callable[[int], TaskStream], world: int = 2, **conditions: Any) -> Recording:
    """Run a program on a network of 1 byte per second."""
    env = simpy.Environment()
    network = PacketNetwork(env, Topology.load(f"ring({max(world, 2)}, bandwidth=1 B/s)"))
    engine = Engine(env, network, EngineOptions(timeline=True, conditions=Conditions(**conditions)))
    return engine.run({rank: program(rank) for rank in range(world)})


def times(recording: Recording, kind: type) -> list[tuple[float | None, float | None]]:
    assert recording.handles is not None
    return [(h.started, h.finished) for h in recording.handles if isinstance(h.task, kind) and h.rank == 0]


def overlapping(rank: int) -> TaskStream:
    """2 s, then an all-reduce of 3 s (1.5 bytes each way, twice) beside 10 s of computation."""
    yield Compute.of("before", 2)
    handle = yield AllReduce(3, WORLD)
    yield Compute.of("beside", 10)
    yield Wait((handle,))


SWITCH = "switch(4, bandwidth=100 GB/s)"


def two_layers() -> Trace:
    return traces.mlp()


def compute(result: triosim.Result) -> list[float]:
    return [rank.compute_s for rank in result.data.ranks]
