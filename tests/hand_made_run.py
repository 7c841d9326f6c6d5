"""A run written down by hand, small enough to check on paper, for the tests of results and reports.

Two GPUs. Each computes 3 ms forward (layer a: 1 ms, layer b: 2 ms), 4 ms backward (b: 2, a: 2) and 1 ms of the optimizer. An
all-reduce of 10 MB is asked for by GPU 0 at 5 ms and by GPU 1 at 6 ms and ends at 9 ms; the backward passes end at 7 ms.
So the step is 10 ms, exposed communication 2 ms, GPU 0 waits 1 ms, and nobody is idle. GPU 0 also sends 1 MB to GPU 1 on a
stream of its own, from 1 to 2 ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triosim.config import RunConfig
from triosim.engine import Recording
from triosim.engine.recording import RankRecord, TransferCount
from triosim.networks.extensions import FigureReporter, LinkRate, LinkRecorder
from triosim.networks.topology import Link, Node, Topology
from triosim.pipeline.collecting import inputs_of
from triosim.pipeline.reading import Subject
from triosim.results.figures import figures
from triosim.results.finished_run import FinishedRun
from triosim.results.result import Result
from triosim.tasks import AllReduce, Communicator, Compute, Handle, Layers, Recv, Send, Task
from triosim.trace import Operator, Trace

MS = 1e-3


@dataclass(frozen=True)
class FakePlan:
    global_batch_size: int = 64
    notes: tuple[str, ...] = ("a note of the plan",)
    work: tuple[tuple[Trace, float], ...] = ()
    training: bool = True
    pipeline_axis: str | None = None


@dataclass
class FakeFlow:
    source: str = "gpu0"
    destination: str = "gpu1"
    nbytes: float = 1e6
    started: float = 1 * MS
    finished: float = 2 * MS
    links: tuple[str, ...] = ("forth",)


class FakeNetwork(LinkRecorder, FigureReporter):
    def __init__(self) -> None:
        self.topology = topology()
        self.record = True
        self.flows = [FakeFlow()]  # type: ignore[list-item]
        self.rates = [
            LinkRate(1 * MS, "forth", 1e9, 1.0),
            LinkRate(2 * MS, "forth", 5e8, 0.5),
            LinkRate(2 * MS, "forth", 0.0, 0.0),
        ]

    def bytes_by_link(self) -> dict[str, float]:
        return {"forth": 5e6}

    def figures(self) -> dict[str, float]:
        return {}


def operator(number: int, name: str, phase: str, layer: str, milliseconds: float) -> Operator:
    return Operator(number, name, phase, layer, (), (), milliseconds * MS)  # type: ignore[arg-type]


FORWARD = (operator(0, "aten::conv2d", "forward", "a", 1), operator(1, "aten::addmm", "forward", "b", 2))
BACKWARD = (operator(2, "aten::mm", "backward", "b", 2), operator(3, "aten::conv", "backward", "a", 2))
OPTIMIZER = (operator(4, "aten::add_", "optimizer", "a", 1),)
TRACE = Trace(FORWARD + BACKWARD + OPTIMIZER, 32, "toy", "NVIDIA H100")


def topology() -> Topology:
    return Topology(
        "pair",
        [Node("gpu0", "gpu"), Node("gpu1", "gpu")],
        [Link("forth", "gpu0", "gpu1", 1e9), Link("back", "gpu1", "gpu0", 1e9)],
    )


def handle(rank: int, task: Task, arrived: float, started: float, finished: float) -> Handle:
    made = Handle(rank, task)
    made.arrived, made.started, made.finished = arrived * MS, started * MS, finished * MS
    made.received = 1e6 if isinstance(task, Recv) else 0.0
    return made


def recording(*, timeline: bool = True, iterations: int = 1) -> Recording:
    made = Recording([], handles=[] if timeline else None, end=10 * MS)
    group = Communicator((0, 1), "dp")
    forward, backward, optimizer = Compute(FORWARD), Compute(BACKWARD), Compute(OPTIMIZER)
    reduce = AllReduce(10e6, group, layers=Layers({"a": 7.5e6, "b": 2.5e6}))
    exchange = (Send(1, 1e6, stream="p2p"), Recv(0, stream="p2p"))
    for rank in (0, 1):
        handles = [
            handle(rank, forward, 0, 0, 3),
            handle(rank, exchange[rank], 1, 1, 2),
            handle(rank, backward, 3, 3, 7),
            handle(rank, reduce, 5 + rank, 6, 9),
            handle(rank, optimizer, 9, 9, 10),
        ]
        record = RankRecord(rank, compute_seconds=8 * MS, waiting_seconds=(1 - rank) * MS, finished=10 * MS)
        for one in handles:
            assert one.started is not None
            assert one.arrived is not None
            assert one.finished is not None
            if isinstance(one.task, Compute):
                record.compute.add(one.started, one.finished)
                made.compute_counts.setdefault(id(one.task), (one.task, {}))[1][rank] = 1
            else:
                record.communication.add(one.arrived, one.started, one.finished, *named(one.task))
        record.iterations = [10 * MS * (index + 1) / iterations for index in range(iterations)]
        made.ranks.append(record)
        if made.handles is not None:
            made.handles.extend(handles)
    made.transfers["all_reduce", "dp", 2, 10e6] = TransferCount(1, 3 * MS)
    made.transfers["send", "", 2, 1e6] = TransferCount(1, 1 * MS)
    return made


def named(task: Task) -> tuple[str, Layers | None]:
    return (task.group.name if isinstance(task, AllReduce) else "", getattr(task, "layers", None))


def result(run: Recording | None = None, notes: tuple[str, ...] = ()) -> Result:
    made = run if run is not None else recording()
    network: Any = FakeNetwork()
    finished = FinishedRun(made, TRACE, FakePlan(), network)
    inputs = inputs_of(Subject(TRACE, 2), RunConfig.of(parallel="ddp", gpus=2), network.topology)
    return Result(figures(finished, inputs=inputs, notes=notes), made, network.topology, network)
