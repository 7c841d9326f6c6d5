"""How much a transfer slows the kernels beside it on a GPU, and they it: what it takes of multiprocessors and memory.

NCCL runs a collective as one kernel with a block for each of its channels, which keeps a multiprocessor for itself. Products
wait for multiprocessors, other kernels for memory too; a collective whose memory is asked by others waits as they do:

    computation:    1 / (1 - m - w * max(0, b - m))        m: channels / multiprocessors
    communication:  1 + w * b                              b: bytes through memory per second / bandwidth

``w`` is the part of a step's time before the optimizer in which kernels wait for memory. NCCL's logs say how many channels
there are, by what connects the group (NVIDIA/nccl issues 1259, 892, 228, 1538 and 1189; NVIDIA's forum, 337991): two for
each NVLink of 25 GB/s, up to 24; two for each network card, up to 16; two on PCIe; 16 where the switch reduces. A send has
two, 1.5% of an H100's multiprocessors, which is left out; copies from and to the host are done by copy engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from triosim.conditions.conditions import Interference
from triosim.gpus import Gpu
from triosim.networks.topology import Topology
from triosim.networks.topology.node_bandwidth import node_bandwidth
from triosim.networks.topology.shapes import ShapeSpec
from triosim.operators import features
from triosim.operators.kinds import Kind
from triosim.trace import Operator

#: The channels of a group on PCIe, and for each link or network card.
_PAIR = 2
#: Transfers whose kernels are small, or none.
_WITHOUT = ("send", "copy")
_MOST_IN_A_NODE, _MOST_BETWEEN_NODES, _IN_SWITCH = 24, 16, 16
_NVLINK = 25e9  # bytes per second of one in a direction
#: Each byte that passes a GPU is written to its memory, and read.
_PASSES = 2.0
#: The most that a transfer takes of a GPU's multiprocessors, and of its memory: assumed, and reached on small boards alone.
_MOST = 0.5
#: The kinds of operators that wait for multiprocessors, not for memory.
_COMPUTE_BOUND: frozenset[Kind] = frozenset({"product", "convolution", "attention", "recurrent"})


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The factors of the times of computations beside a transfer, and of the transfer beside computations."""

    computation: float = 1.0
    communication: float = 1.0


class Contention:
    """The slow-downs of transfers on the GPUs of a system.

    ``stated`` are those that a user gave: a side (computation, communication) of which anything is stated has no others. A GPU
    whose multiprocessors are not known has none of its own. ``memory_bound`` is the part of the time of computations in which
    they wait for memory. The times of computations that were ``measured_together`` with transfers have it: theirs is no other.
    """

    def __init__(
        self,
        stated: Interference,
        gpu: Gpu | None = None,
        topology: Topology | None = None,
        memory_bound: float = 0.0,
        *,
        measured_together: bool = False,
    ) -> None:
        self._stated = stated
        self._gpu = gpu if gpu is not None and gpu.sms and gpu.architecture != "x86" else None
        self._topology = topology
        self.memory_bound = memory_bound
        self._measured_together = measured_together
        self._known: dict[tuple[str, Sequence[int]], Slowdown] = {}

    def __bool__(self) -> bool:
        predicted = self._gpu is not None and not (self._stated.computation and self._stated.communication)
        return bool(self._stated) or predicted

    def slowdown(self, kind: str, ranks: Sequence[int]) -> Slowdown:
        """Return the slow-down of a transfer of a kind between some ranks."""
        key = (kind, ranks)
        if key not in self._known:
            own, stated = self._predicted(kind, ranks), self._stated
            self._known[key] = Slowdown(
                stated.computation.get(kind, 1.0) if stated.computation else own.computation,
                stated.communication.get(kind, 1.0) if stated.communication else own.communication,
            )
        return self._known[key]

    def _predicted(self, kind: str, ranks: Sequence[int]) -> Slowdown:
        gpu, topology = self._gpu, self._topology
        if gpu is None or topology is None or kind in _WITHOUT or len(ranks) < 2:
            return Slowdown()
        channels, rate = _resources(kind, ranks, gpu, topology)
        processors, memory = min(channels / gpu.sms, _MOST), min(_PASSES * rate / gpu.bandwidth, _MOST)
        waiting = processors + self.memory_bound * max(0.0, memory - processors)
        computation = 1.0 if self._measured_together else 1.0 / (1.0 - waiting)
        return Slowdown(computation, 1.0 + self.memory_bound * memory)


def memory_bound(operators: Iterable[Operator]) -> float:
    """Return the part of the operators' time before the optimizer in which they wait for memory, by their kinds."""
    seconds = waiting = 0.0
    for operator in operators:
        if operator.phase != "optimizer":
            seconds += operator.seconds
            if features.kind(operator) not in _COMPUTE_BOUND:
                waiting += operator.seconds
    return waiting / seconds if seconds else 0.0


def _resources(kind: str, ranks: Sequence[int], gpu: Gpu, topology: Topology) -> tuple[int, float]:
    """Return the channels of a transfer, and the bytes per second that pass each of its GPUs."""
    outline = topology.outline
    if outline is None or outline.spec.gpus is None:
        rate = topology.latency_and_bandwidth(ranks[0], ranks[1])[1]
        return _in_node(gpu.nvlink_bandwidth), rate
    spec, nodes = outline.spec, {rank // outline.spec.gpus for rank in ranks}
    inside = node_bandwidth(spec)
    if len(nodes) == 1 or spec.inter_node is None:
        reduced = kind == "all_reduce" and spec.in_switch_reduction
        return (_IN_SWITCH if reduced else _in_node(_nvlinks(spec, inside))), inside
    wire = spec.inter_node
    cards = max(1, len(ranks) // len(nodes) // wire.gpus_per_nic)
    return min(_PAIR * cards, _MOST_BETWEEN_NODES), min(inside, cards * wire.bandwidth)


def _nvlinks(spec: ShapeSpec, bandwidth: float) -> float:
    return 0.0 if spec.topology == "pcie_tree" else bandwidth


def _in_node(nvlinks: float) -> int:
    """Return the channels of a group inside a node, whose GPUs have so many bytes per second of NVLinks."""
    return min(max(_PAIR * round(nvlinks / _NVLINK), _PAIR), _MOST_IN_A_NODE)
