"""The time of NCCL's collectives between nodes, by the kind of network and the bandwidth of its cards.

As NCCL's tuner (``ncclTopoTuneModel`` in its src/graph/tuning.cc), each algorithm (ring, tree) and protocol (low latency,
simple) has a latency and a bandwidth, and the quickest is taken. A collective of S bytes takes

    t = inside + H h + m + H / (1 / m + 1 / c)

where H is the number of hops between nodes (in the last term 1 for a ring), h the latency of one, m the seconds that the bytes
need on the slower of a network card and the node's inside, and c those of a chunk: a hop passes on what it has received in
chunks, or whole where that is less. The constants of each kind of network are fitted to measurements (docs/calibration.md,
*Between nodes*).
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
#: What a user may ask NCCL for besides: by itself it takes these trees where a plain one with the simple protocol is as quick.
_BY_NAME: Mapping[str, tuple[Algorithm, ...]] = {"all_reduce": ("nvls-tree",)}
_FILE = Path(__file__).with_name("internode.json")


@dataclass(frozen=True, slots=True)
class NetworkKind:
    """The fitted constants of one kind of network.

    ``hop`` is the seconds from node to node with the low-latency protocol, on a card of ``REFERENCE_CARD``; on another card it
    is longer by the ``hop_exponent``-th power of the ratio of their bandwidths (EFA's generations differ so; 0 for others).
    ``efficiency`` is the share of a card's bandwidth that large messages reach, ``lone_efficiency`` the same where a node has
    one GPU in the group (measured for RoCE alone).
    """

    hop: float
    efficiency: float
    lone_efficiency: float
    hop_exponent: float = 0.0


@dataclass(frozen=True, slots=True)
class ProtocolConstants:
    """The fitted constants that all kinds of network share.

    ``launch`` is the latency of a group with one GPU a node, ``simple_hops`` how many times longer a hop takes with the simple
    protocol, ``low_latency_share`` the share of a card's bandwidth that the low-latency protocol has, ``chunk`` the bytes on a
    card that a hop passes on at once, ``ring_hop`` a hop of an all-reduce's ring by one of its tree, ``peer`` the seconds for
    each peer of an all-to-all. The errors are the mean ones of clusters that were left out of the fit, below and from 1 MiB.
    """

    launch: float
    simple_hops: float
    low_latency_share: float
    chunk: float
    ring_hop: float
    peer: float
    latency_error: float
    moving_error: float


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
        choice = [one for one in (*algorithms(kind), *_BY_NAME.get(kind, ())) if one == algorithm] or algorithms(kind)
        paths = {one: self._path(kind, one, nodes, gpus, nbytes, inside) for one in choice}
        latency = _quickest([path.latency for path in paths.values()])
        whole = _quickest([path.total for path in paths.values()])
        on_card = min(card_share(kind, one, nodes, gpus) for one in choice) * nbytes / self._card(gpus / nodes)
        total = max(
            whole, inside.total, on_card
        )  # never less than inside one of the nodes, or on a card at its full speed
        first: Algorithm = min(paths, key=lambda one: paths[one].total)
        return TimeParts(latency, max(total - latency, 0.0), first)

    def _card(self, inside: float) -> float:
        """Return the bandwidth of a card that each of so many GPUs of a node has."""
        return self.bandwidth / max(1.0, min(self.gpus_per_card, inside))

    def _path(
        self, kind: str, algorithm: Algorithm, nodes: int, gpus: int, nbytes: float, inside: TimeParts
    ) -> TimeParts:
        """Return the time of one algorithm, by the quicker of the two protocols; trees over NVLS have the simple one alone."""
        shared, alone = self.shared, gpus == nodes
        card = self._card(gpus / nodes)
        efficiency = self.network.lone_efficiency if alone else self.network.efficiency
        seconds = nbytes * card_share(kind, algorithm, nodes, gpus) / (efficiency * card)
        crossings = hops_of(kind, algorithm, nodes)
        hops = crossings * max(
            self.network.hop * (REFERENCE_CARD / card) ** self.network.hop_exponent + self.delay, 0.0
        )
        if algorithm == "ring" and kind == "all_reduce":
            hops *= shared.ring_hop
        start = shared.launch if alone else inside.latency
        if kind in _STRAIGHT:
            start += shared.peer * (gpus - gpus / nodes)
        filled = 1.0 if algorithm in ("ring", "direct") else crossings  # a ring's hops all send from its first step on
        chunk = shared.chunk / card

        def total(latency: float, on_card: float) -> float:
            needed = math.pow(on_card**_OVERLAP + inside.moving**_OVERLAP, 1.0 / _OVERLAP)
            return latency + needed + filled * needed * chunk / (needed + chunk)

        simple, quick = start + hops * shared.simple_hops, start + hops
        if algorithm == "nvls-tree":
            return TimeParts(simple, total(simple, seconds) - simple)
        idle = _quickest([quick, simple])
        whole = _quickest([total(quick, seconds / shared.low_latency_share), total(simple, seconds)])
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
    if algorithm in ("tree", "nvls-tree"):
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
    if algorithm in ("tree", "nvls-tree"):
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
