"""The time of DeepEP's and HybridEP's dispatch and combine, and how their bytes load the links of a topology.

With T tokens a GPU of b bytes each, R distinct GPUs and D distinct nodes for each token, n nodes and S multiprocessors that
run the kernel, a kernel for training takes

    launch + b launch' + hop log2(n) + fill T / (T + 150) + (s^4 + l^4 + c^4)^(1/4)
    s = T (R (message + b message') + token + b token' + D b forward) / S

where l and c are what the busiest NVLink and card need for their bytes at the efficiency that was fitted. Constants are fitted
to aiconfigurator's measurements (Apache-2.0) by ``python -m validation.deepep --write``, those of HybridEP to what it
publishes by ``python -m validation.hybridep --write``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from triosim.networks.calibration.calibrated_times import CalibratedCollective
from triosim.networks.collectives.algorithm import Edge, SteadyState, busiest
from triosim.networks.collectives.expert_exchange import Exchange, exchange, rows_of
from triosim.networks.topology import Topology
from triosim.networks.topology.node_bandwidth import node_bandwidth
from triosim.tasks import EXPERT_LIBRARIES, DeepEP, ExpertLibrary

#: The constants of each library.
FILES: Mapping[ExpertLibrary, Path] = {name: Path(__file__).with_name(f"{name}.json") for name in EXPERT_LIBRARIES}
FILLED = 150.0  # tokens with which the kernels' pipeline is half full
SHARPNESS = 4  # of the choice between what limits a kernel: the p of a p-norm
MOST_AGREED = 4  # nodes over which measurements and DeepEP's own figures agree
_MOST_EDGES = 1_000_000


@dataclass(frozen=True, slots=True)
class NormalKernel:
    """The constants of a kernel for training on one kind of GPU: seconds, seconds a byte, and seconds times multiprocessors.

    ``launch_byte`` is of a token's bytes; ``message`` and ``message_byte`` are for each GPU that a token reaches, ``token`` and
    ``token_byte`` for each token. ``link_efficiency`` is the part of the bandwidth inside a node that it reaches.
    """

    launch: float
    launch_byte: float
    fill: float
    message: float
    message_byte: float
    token: float
    token_byte: float
    link_efficiency: float


@dataclass(frozen=True, slots=True)
class LowLatencyKernel:
    """The constants of a kernel for decoding on one kind of GPU: seconds.

    ``launch_byte`` is of a token's bytes, ``expert`` of each expert that a GPU has, ``copy`` and ``copy_byte`` of each of a
    token's experts.
    """

    launch: float
    launch_byte: float
    expert: float
    copy: float
    copy_byte: float


@dataclass(frozen=True, slots=True)
class BetweenNodes:
    """The constants of a kernel over several nodes: ``hop`` in seconds for each doubling of the nodes.

    ``forward_byte`` is in seconds times multiprocessors, for each node that a token reaches. ``card_efficiency`` is the part of
    a card's bandwidth that is reached, by number of nodes; between two numbers it is interpolated over their logarithm.
    """

    hop: float
    forward_byte: float
    card_efficiency: tuple[tuple[int, float], ...]

    def efficiency(self, nodes: int) -> float:
        """Return the part of a card's bandwidth that is reached over so many nodes."""
        known, values = zip(*self.card_efficiency, strict=True)
        return float(np.interp(math.log2(nodes), np.log2(known), values))


@dataclass(frozen=True, slots=True)
class DeepEPSystem:
    """A kind of GPU: its bandwidth to the other GPUs of a node in bytes per second, and its kernels by step."""

    name: str
    link_bandwidth: float
    normal: dict[str, NormalKernel]
    low_latency: dict[str, LowLatencyKernel]


@dataclass(frozen=True, slots=True)
class DeepEPConstants:
    """All that was fitted: systems, and the kernels over several nodes by step. ``source`` says to what."""

    source: str
    systems: tuple[DeepEPSystem, ...]
    normal: dict[str, BetweenNodes]
    low_latency: dict[str, BetweenNodes]

    def nearest(self, link_bandwidth: float, name: str = "") -> DeepEPSystem:
        """Return the system of a name, else that of the nearest bandwidth inside a node, of several one of the same family."""

        def distance(one: DeepEPSystem) -> tuple[bool, float, bool]:
            farther = abs(math.log(one.link_bandwidth / link_bandwidth))
            return one.name != name, farther, one.name.split("-")[0] != name.split("-")[0]

        return min(self.systems, key=distance)


@cache
def constants(library: ExpertLibrary = "deepep") -> DeepEPConstants:
    """Return the constants of a library that ship with triosim."""
    return from_mapping(json.loads(FILES[library].read_text(encoding="utf-8")))


def from_mapping(said: dict[str, Any]) -> DeepEPConstants:
    """Return the constants that a mapping, as in the file, has."""

    def between(kernels: dict[str, Any]) -> dict[str, BetweenNodes]:
        return {
            step: BetweenNodes(
                one["hop"],
                one["forward_byte"],
                tuple(sorted((int(nodes), share) for nodes, share in one["card_efficiency"].items())),
            )
            for step, one in kernels.items()
        }

    systems = [
        DeepEPSystem(
            name,
            one["link_bandwidth"],
            {step: NormalKernel(**kernel) for step, kernel in one["normal"].items()},
            {step: LowLatencyKernel(**kernel) for step, kernel in one["low_latency"].items()},
        )
        for name, one in said["systems"].items()
    ]
    over_nodes = said["between_nodes"]
    return DeepEPConstants(
        said["source"], tuple(systems), between(over_nodes["normal"]), between(over_nodes["low_latency"])
    )


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time of a kernel alone, in seconds: before its bytes flow, and while they do."""

    latency: float
    moving: float


def kernel_time(
    kernel: DeepEP, moved: Exchange, links: float, cards: float, system: DeepEPSystem, fitted: DeepEPConstants
) -> KernelTime:
    """Return the time of a kernel; ``links`` and ``cards`` are what the busiest NVLink and card need at full bandwidth."""
    nbytes, doublings = kernel.token_bytes, math.log2(moved.nodes)
    if kernel.low_latency:
        low = system.low_latency[kernel.step]
        wide = fitted.low_latency[kernel.step]
        latency = low.launch + low.launch_byte * nbytes + low.expert * kernel.experts / moved.ranks
        moving = _norm(moved.messages * (low.copy + nbytes * low.copy_byte), cards / wide.efficiency(moved.nodes))
        return KernelTime(latency + wide.hop * doublings, moving)
    one, wide = system.normal[kernel.step], fitted.normal[kernel.step]
    latency = one.launch + one.launch_byte * nbytes + wide.hop * doublings
    latency += one.fill * kernel.tokens / (kernel.tokens + FILLED)
    work = moved.messages * (one.message + nbytes * one.message_byte) + kernel.tokens * (
        one.token + nbytes * one.token_byte
    )
    if moved.nodes > 1:
        work += moved.forwards * nbytes * wide.forward_byte
    limits = (work / kernel.sms, links / one.link_efficiency, cards / wide.efficiency(moved.nodes))
    return KernelTime(latency, _norm(*limits))


def _norm(*seconds: float) -> float:
    """Return the time of several limits that act together: near the largest, and more where several are equal."""
    largest: float = max(seconds)
    if not largest:
        return 0.0
    return largest * math.pow(math.fsum((one / largest) ** SHARPNESS for one in seconds), 1.0 / SHARPNESS)


@dataclass(frozen=True, slots=True)
class _TokenExchange:
    """What a kernel moves for one token a GPU, of one byte; the seconds that it needs on links at full speed, and as they are.

    ``links`` and ``cards`` are what the busiest link inside a node and between nodes need, ``idle`` and ``busy`` the busiest
    of both, at full speed and as they are.
    """

    moved: Exchange
    links: float
    cards: float
    idle: float
    busy: float


class DeepEPCollectives:
    """DeepEP's kernels on a topology; ``machine`` is the same one with all links at full speed, which their times are of.

    Without a ``machine`` their bytes go over the links as they are, and take nothing else.
    """

    def __init__(self, topology: Topology, machine: Topology | None) -> None:
        self.topology = topology
        self._machine = machine
        self._per_node = gpus_per_node(topology)
        self._known: dict[tuple[tuple[int, ...], DeepEP], _TokenExchange] = {}
        self._edges = 0
        self._systems: dict[ExpertLibrary, DeepEPSystem] = {}

    def plan(self, ranks: Sequence[int], kernel: DeepEP) -> CalibratedCollective:
        """Return the edges of a kernel, its latency, and how often its bytes count on links to take its time alone."""
        token, nbytes = self._of_token(tuple(ranks), kernel), kernel.tokens * kernel.token_bytes
        time = self._time(token, kernel)
        stretch = time.moving / (token.idle * nbytes) if token.idle * nbytes else 1.0
        return CalibratedCollective(
            SteadyState((*token.moved.inside, *token.moved.between), time.latency), nbytes, stretch
        )

    def seconds(self, ranks: Sequence[int], kernel: DeepEP) -> float:
        """Return the time of a kernel alone, longer where links are slowed."""
        token = self._of_token(tuple(ranks), kernel)
        time = self._time(token, kernel)
        return time.latency + time.moving * (token.busy / token.idle if token.idle else 1.0)

    def _system(self, library: ExpertLibrary) -> DeepEPSystem | None:
        if self._machine is None:
            return None
        if library not in self._systems:
            self._systems[library] = constants(library).nearest(*_link_bandwidth(self._machine))
        return self._systems[library]

    def notes(self, library: ExpertLibrary) -> Iterator[str]:
        """Yield what a reader should know of the times of a library's kernels on this topology."""
        name, kernels = self.topology.name, EXPERT_LIBRARIES[library]
        system = self._system(library)
        if system is None:
            yield f"{name}: {kernels}'s bytes take the links as they are, without the launch costs of its kernels"
            return
        if self.topology.preset is None or self.topology.preset.name != system.name:
            yield f"{name}: {kernels} was not measured on it; its kernels take the constants of {system.name}"
        if library == "deepep" and len(self.topology.gpus) > MOST_AGREED * self._per_node:
            measured = "measurements of a third of the bandwidth that it publishes"
            yield f"DeepEP over more than {MOST_AGREED} nodes follows {measured}"

    def _of_token(self, ranks: tuple[int, ...], kernel: DeepEP) -> _TokenExchange:
        one = replace(kernel.scaled(1.0 / kernel.tokens), token_bytes=1.0, sms=0, library="deepep")
        found = self._known.get((ranks, one))
        if found is None:
            by_node: dict[int, list[int]] = {}
            for rank in ranks:
                by_node.setdefault(rank // self._per_node, []).append(rank)
            moved = exchange(self._in_order(one, ranks, by_node), list(by_node.values()))
            edges, machine = (*moved.inside, *moved.between), self._machine or self.topology
            idle = busiest(edges, machine)
            busy = idle if machine is self.topology else busiest(edges, self.topology)
            found = _TokenExchange(moved, busiest(moved.inside, machine), busiest(moved.between, machine), idle, busy)
            self._edges += len(edges)
            if self._edges > _MOST_EDGES:
                self._known.clear()
                self._edges = len(edges)
            self._known[ranks, one] = found
        return found

    def _time(self, token: _TokenExchange, kernel: DeepEP) -> KernelTime:
        """Return the time of a kernel alone on links at full speed."""
        nbytes, moved = kernel.tokens * kernel.token_bytes, token.moved
        system = self._system(kernel.library)
        if system is None:
            return KernelTime(self._latency(moved.inside) + self._latency(moved.between), token.idle * nbytes)
        messages, forwards = moved.messages * kernel.tokens, moved.forwards * kernel.tokens
        whole = replace(moved, messages=messages, forwards=forwards)
        fitted = constants(kernel.library)
        return kernel_time(kernel, whole, token.links * nbytes, token.cards * nbytes, system, fitted)

    def _latency(self, edges: Sequence[Edge]) -> float:
        return max((self.topology.latency_and_bandwidth(*edge[:2])[0] for edge in edges), default=0.0)

    def _in_order(self, kernel: DeepEP, ranks: tuple[int, ...], by_node: dict[int, list[int]]) -> DeepEP:
        """Return the kernel with its rows in the order of the nodes, where the ranks of a group are in another."""
        order = [rank for node in by_node.values() for rank in node]
        if kernel.rows is None or tuple(order) == ranks:
            return kernel
        places = [ranks.index(rank) for rank in order]
        return kernel.with_rows(rows_of(kernel, len(ranks))[np.ix_(places, places)].ravel().tolist())


def gpus_per_node(topology: Topology) -> int:
    """Return how many GPUs a node has; all of them where the topology is not made of nodes."""
    outline = topology.outline
    return max((outline is not None and outline.nodes > 1 and outline.spec.gpus) or len(topology.gpus), 1)


def _link_bandwidth(topology: Topology) -> tuple[float, str]:
    """Return what a GPU can send to the others of its node together, and the name of the preset, if it is one."""
    name = topology.preset.name if topology.preset is not None else ""
    if topology.outline is not None:
        return node_bandwidth(topology.outline.spec), name
    return topology.latency_and_bandwidth(0, min(1, len(topology.gpus) - 1))[1], name
