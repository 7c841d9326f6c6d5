"""The time of NCCL's collectives between nodes, by the kind of network and the bandwidth of its cards.

As NCCL's tuner (``ncclTopoTuneModel`` in its src/graph/tuning.cc), each algorithm (ring, tree) and protocol (low latency,
simple) has a latency and a bandwidth, and the quickest is taken. A collective of S bytes takes

    t = inside + a + m + c sqrt(a m)

where a is the latency of the algorithm's hops between nodes (in the last term, of one hop of a ring), m the seconds that the
bytes need on the slower of a network card and the node's inside, and the last term the filling of a pipeline whose number of
chunks balances the two. The constants of each kind of network are fitted to measurements (docs/calibration.md, *Between
nodes*).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from triosim.errors import TopologyError, nearest
from triosim.networks.calibration.curves import Algorithm, TimeParts

REFERENCE_CARD = 50e9  # bytes per second; the hop latency of a network kind is that of GPUs with such a card
_SHARPNESS = 8  # of the choice between protocols and algorithms: the p of a p-norm
_OVERLAP = 4  # of a card and the node's inside at once: the p of a p-norm
_STRAIGHT = frozenset({"all_to_all", "gather", "scatter"})
_FILE = Path(__file__).with_name("internode.json")


@dataclass(frozen=True, slots=True)
class NetworkKind:
    """The fitted constants of one kind of network.

    ``hop`` is the seconds from node to node with the low-latency protocol, ``efficiency`` the share of a card's bandwidth that
    large messages reach, ``lone_efficiency`` the same where a node has one GPU in the group (measured for RoCE alone).
    """

    hop: float
    efficiency: float
    lone_efficiency: float


@dataclass(frozen=True, slots=True)
class ProtocolConstants:
    """The fitted constants that all kinds of network share.

    ``inside`` is the share of the in-node latency that adds to a collective over several nodes, ``launch`` the latency of a
    group with one GPU a node, ``simple_hops`` how many times longer a hop takes with the simple protocol,
    ``low_latency_share`` the share of the bandwidth of the low-latency protocol, ``filling`` the c above, ``ring_hop`` a
    ring's hop by a tree's, ``card_exponent`` how the latency falls with the card's bandwidth, ``peer`` the seconds for each
    peer of an all-to-all.
    """

    inside: float
    launch: float
    simple_hops: float
    low_latency_share: float
    filling: float
    ring_hop: float
    card_exponent: float
    peer: float


@dataclass(frozen=True, slots=True)
class InterNodeModel:
    """Collectives over nodes with network cards of ``bandwidth`` bytes per second, each shared by ``gpus_per_card`` GPUs.

    ``delay`` is how many seconds a hop takes longer than on the networks that were measured.
    """

    network: NetworkKind
    shared: ProtocolConstants
    bandwidth: float
    gpus_per_card: int = 1
    delay: float = 0.0

    def parts(
        self, kind: str, nodes: int, gpus: int, nbytes: float, inside: TimeParts, algorithm: str | None = None
    ) -> TimeParts:
        """Return the time of a collective of ``gpus`` spread over ``nodes``, given what its share inside a node takes alone.

        ``algorithm`` is the one to take where NCCL has it for the kind; by default the quickest.
        """
        choice = [one for one in algorithms(kind) if one == algorithm] or algorithms(kind)
        paths = {one: self._path(kind, one, nodes, gpus, nbytes, inside) for one in choice}
        latency = _quickest([path.latency for path in paths.values()])
        whole = _quickest([path.total for path in paths.values()])
        total = max(whole, inside.total)  # never less than inside one of the nodes
        first: Algorithm = min(paths, key=lambda one: paths[one].total)
        return TimeParts(latency, max(total - latency, 0.0), first)

    def _path(
        self, kind: str, algorithm: Algorithm, nodes: int, gpus: int, nbytes: float, inside: TimeParts
    ) -> TimeParts:
        """Return the time of one algorithm, by the quicker of the two protocols."""
        shared, alone = self.shared, gpus == nodes
        card = self.bandwidth / max(1.0, min(self.gpus_per_card, gpus / nodes))
        efficiency = self.network.lone_efficiency if alone else self.network.efficiency
        seconds = nbytes * card_share(kind, algorithm, nodes, gpus) / (efficiency * card)
        moving = (seconds**_OVERLAP + inside.moving**_OVERLAP) ** (1.0 / _OVERLAP)
        hop = self.network.hop * (REFERENCE_CARD / card) ** shared.card_exponent + self.delay
        hops = max(hop, 0.0) * hops_of(kind, algorithm, nodes)
        if algorithm == "ring" and kind == "all_reduce":
            hops *= shared.ring_hop
        start = shared.launch if alone else inside.latency * shared.inside
        if kind in _STRAIGHT:
            start += shared.peer * (gpus - gpus / nodes)

        crossings = (
            hops_of(kind, algorithm, nodes) if algorithm == "tree" else 1.0
        )  # a ring is filled from its first step on

        def total(latency: float, needed: float) -> float:
            fill = latency * crossings / hops_of(kind, algorithm, nodes)
            return start + latency + needed + shared.filling * math.sqrt(fill * needed)

        simple = hops * shared.simple_hops
        idle = _quickest([start + hops, start + simple])
        whole = _quickest([total(hops, moving / shared.low_latency_share), total(simple, moving)])
        return TimeParts(idle, max(whole - idle, 0.0))


def _quickest(seconds: Sequence[float]) -> float:
    """Return a smooth least value, so that a choice makes no step."""
    return sum(one**-_SHARPNESS for one in seconds) ** (-1.0 / _SHARPNESS) if all(seconds) else 0.0


def algorithms(kind: str) -> tuple[Algorithm, ...]:
    """Return what NCCL chooses from between nodes: the algorithm of large messages first, that of small ones last."""
    if kind in _STRAIGHT:
        return ("direct",)
    return ("ring", "tree") if kind == "all_reduce" else ("ring",)


def hops_of(kind: str, algorithm: Algorithm, nodes: int) -> float:
    """Return how many times a first byte crosses between nodes: up and down a tree, round a ring, or straight."""
    if algorithm == "tree":
        return 2.0 * math.log2(nodes)
    if algorithm == "direct":
        return 1.0
    return (2.0 if kind == "all_reduce" else 1.0) * (nodes - 1)


def card_share(kind: str, algorithm: Algorithm, nodes: int, gpus: int) -> float:
    """Return the share of a collective's bytes that each GPU's network card sends.

    NCCL lays a ring, or a pair of trees, for each card, so that all of a node share what crosses between nodes. In a pair of
    binary trees each node sends both halves twice, but for two nodes, of which each sends one half up and the other down.
    """
    inside = gpus / nodes
    if algorithm == "direct":
        return (nodes - 1) / nodes
    if algorithm == "tree":
        return (1.0 if nodes == 2 else 2.0) / inside
    if kind in ("broadcast", "reduce"):
        return 1.0 / inside
    return (2.0 if kind == "all_reduce" else 1.0) * (gpus - 1) / gpus / inside


def model(network: str, bandwidth: float, gpus_per_card: int, delay: float = 0.0) -> InterNodeModel:
    """Return the model of a kind of network, by the bytes per second of a card, the GPUs that share it, and a hop's delay."""
    networks, shared = constants()
    if network not in networks:
        raise TopologyError(f"unknown kind of network '{network}'", fix=nearest(network, tuple(networks)))
    return InterNodeModel(networks[network], shared, bandwidth, gpus_per_card, delay)


@cache
def constants() -> tuple[Mapping[str, NetworkKind], ProtocolConstants]:
    """Return the fitted constants that ship with triosim: of each kind of network, and those that all share."""
    said: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    networks = {kind: NetworkKind(**values) for kind, values in said["networks"].items()}
    return networks, ProtocolConstants(**said["shared"])
