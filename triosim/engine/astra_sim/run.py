"""A run by ASTRA-sim's rules: when each rank's graph is finished, and which never are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from triosim.chakra.graph import RankGraph, rank_graph
from triosim.chakra.inputs.groups import Groups
from triosim.chakra.inputs.network_file import NetworkFile
from triosim.chakra.inputs.remote_memory_file import RemoteMemoryFile
from triosim.chakra.inputs.system_file import SystemFile
from triosim.chakra.reading import EtReader
from triosim.engine.astra_sim.bus import Bus
from triosim.engine.astra_sim.clock import Clock, Timers
from triosim.engine.astra_sim.collectives.collectives import Collectives, Layout
from triosim.engine.astra_sim.collectives.scheduler import Scheduler
from triosim.engine.astra_sim.faults import Stopped, Thrown
from triosim.engine.astra_sim.folding import MirroredMessages, are_alike
from triosim.engine.astra_sim.messages import Messages
from triosim.engine.astra_sim.networks import AstraNetwork, AwareNetwork, UnawareNetwork
from triosim.engine.astra_sim.npu import Devices, Npu
from triosim.engine.astra_sim.remote_memory import RemoteMemory
from triosim.garbage_collector import without_collecting

#: The networks, by the name of ASTRA-sim's backend.
_UNAWARE = "congestion-unaware"
BACKENDS: Mapping[str, Callable[[Clock, NetworkFile], AstraNetwork]] = {
    _UNAWARE: UnawareNetwork,
    "congestion-aware": AwareNetwork,
}
_ENDPOINT_DELAY = 10  # ns; only one that is given is scaled
_WAITS = "it waits for messages or nodes that never come"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What ASTRA-sim reads beside the graphs."""

    network: NetworkFile
    system: SystemFile
    memory: RemoteMemoryFile = field(default_factory=RemoteMemoryFile)
    groups: Groups = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of its command line, and which of its networks."""

    backend: str = "congestion-unaware"
    queues: int = 1
    injection_scale: float = 1.0
    rendezvous: bool = False


@dataclass(frozen=True, slots=True)
class FinishedRank:
    """When a rank was finished, how much of that its GPU computed nothing, and for how long nodes of each kind ran; ns."""

    cycles: int
    exposed: int
    busy: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The ranks that reported, why the others did not, and the bytes that crossed each dimension.

    ``queueing`` are the ns that chunks of all ranks have waited for their turn in each dimension.
    """

    ranks: Mapping[int, FinishedRank]
    unfinished: Mapping[int, str]
    dimension_bytes: Sequence[int]
    queueing: Sequence[int]

    def of_all(self, ranks: int) -> Outcome:
        """Return the outcome of so many ranks that do what the only one does."""
        crossed, queueing = ([ranks * one for one in found] for found in (self.dimension_bytes, self.queueing))
        return Outcome(dict.fromkeys(range(ranks), self.ranks[0]), {}, crossed, queueing)


@without_collecting()
def run(
    graphs: Sequence[RankGraph], inputs: Inputs, settings: Settings = Settings(), *, fold: bool | None = None
) -> Outcome:
    """Run all ranks until nothing happens any more; of ranks that do the same one, unless ``fold`` is False."""
    if fold is not False and _folds(graphs, inputs, settings):
        outcome = _run(graphs[:1], inputs, settings, MirroredMessages)
        if not outcome.unfinished:
            return outcome.of_all(len(graphs))
    return _run(graphs, inputs, settings, Messages)


def _folds(graphs: Sequence[RankGraph], inputs: Inputs, settings: Settings) -> bool:
    if settings.rendezvous or settings.backend != _UNAWARE:
        return False
    return are_alike(graphs, inputs.system, inputs.groups, UnawareNetwork(Clock(), inputs.network))


def _run(graphs: Sequence[RankGraph], inputs: Inputs, settings: Settings, messages: type[Messages]) -> Outcome:
    clock, npus, thrown = Clock(), list[Npu](), dict[int, str]()
    crossed: Sequence[int] = ()
    stopped = None
    try:
        network = BACKENDS[settings.backend](clock, inputs.network)
        crossed = network.dimension_bytes
        between = messages(clock, network, rendezvous=settings.rendezvous)
        npus = _npus(graphs, inputs, settings, between, thrown)
        for npu in npus:
            npu.start()
        clock.run()
    except Stopped as error:
        stopped = str(error)
    finished = {npu.rank: _finished(npu, npu.finished) for npu in npus if npu.finished is not None}
    never = {npu.rank: npu.never_ends for npu in npus}
    reasons = {rank: thrown.get(rank) or never.get(rank) or stopped or _WAITS for rank in range(len(graphs))}
    late = {rank: why for rank, why in reasons.items() if rank not in finished}
    return Outcome(finished, late, crossed, _queueing(npus, len(inputs.network.dimensions), settings.queues))


def _queueing(npus: Sequence[Npu], dimensions: int, queues: int) -> list[int]:
    waited = Counter[int]()
    for npu in npus:
        for queue, ns in npu.queueing.items():
            waited[queue // queues] += ns
    return [waited[dimension] for dimension in range(dimensions)]


def _finished(npu: Npu, cycles: int) -> FinishedRank:
    return FinishedRank(cycles, cycles - npu.computing, npu.busy.totals)


def _npus(
    graphs: Sequence[RankGraph], inputs: Inputs, settings: Settings, messages: Messages, thrown: dict[int, str]
) -> list[Npu]:
    system, clock = inputs.system, messages.clock
    memory = RemoteMemory(inputs.memory)
    layout = Layout(
        tuple(one.npus for one in inputs.network.dimensions), settings.queues, inputs.groups, _custom_graphs()
    )
    given = system.endpoint_delay
    delay = _ENDPOINT_DELAY if given is None else int(given * settings.injection_scale)
    at_once = -(-system.active_chunks // settings.queues)
    found = []
    for rank, graph in enumerate(graphs):
        timers = Timers(clock, _noting(thrown, rank))
        bus = Bus(timers, delay, system.compute.memory_bandwidth, system.bus)
        scheduler = Scheduler(rank, bus, messages, clock, at_once)
        collectives = Collectives(system, layout, scheduler, timers)
        devices = Devices(system.compute, timers, collectives, messages, memory, system.track_memory)
        found.append(Npu(rank, graph, devices))
    return found


def _noting(thrown: dict[int, str], rank: int) -> Callable[[Thrown], None]:
    def note(error: Thrown) -> None:
        thrown.setdefault(rank, str(error))

    return note


def _custom_graphs() -> Callable[[Path, int], RankGraph]:
    reader = EtReader()

    @cache
    def graph(prefix: Path, position: int) -> RankGraph:
        path = prefix.with_name(f"{prefix.name}.{position}.et")
        return rank_graph(path, reader.nodes(path), lenient=True)

    return graph
