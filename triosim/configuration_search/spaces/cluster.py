"""The cluster of a point: how many GPUs its topology has, how many of them are in a node, and what its network costs."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from triosim.config import RunConfig
from triosim.configuration_search.point import Point
from triosim.configuration_search.spaces.subject import SearchSubject
from triosim.configuration_search.spaces.topology_axes import changed_mapping
from triosim.input_files.file_state import file_state
from triosim.networks.topology import Topology
from triosim.networks.topology.price import network_price
from triosim.pipeline.system import assumed_topology


@dataclass(frozen=True, slots=True)
class Cluster:
    """The GPUs of a topology, and those of one node; a topology that says nothing of nodes is one.

    ``price`` is that of the links and switches, where the topology's file says what they cost.
    """

    gpus: int
    node: int
    price: float | None = None


def cluster_of(subject: SearchSubject, base: RunConfig, point: Point) -> Cluster:
    """Return the cluster of a point. Raises ``TopologyError`` for a topology that cannot be, or with fewer GPUs."""
    asked = point.get("gpus", base.gpus)
    gpus = asked if isinstance(asked, int) else None
    topology: Any = point.get("topology") or base.topology
    if topology is None:
        gpu = point.get("gpu") or base.gpu or subject.gpu
        topology = assumed_topology(str(getattr(gpu, "name", gpu)), gpus)
    if (changed := changed_mapping(topology, point)) is not None:
        return _of_mapping(json.dumps(changed), gpus)
    if isinstance(topology, Topology):
        return _cluster(topology)
    if isinstance(topology, Mapping):
        return _cluster(Topology.from_dict(topology, gpus=gpus))
    return _of_name(str(topology), file_state(str(topology)), gpus)


@lru_cache(maxsize=64)
def _of_name(name: str, state: Hashable, gpus: int | None) -> Cluster:
    """Return the cluster of a topology's name or file; ``state`` is that of the file."""
    return _cluster(Topology.load(name, gpus=gpus))


@lru_cache(maxsize=64)
def _of_mapping(text: str, gpus: int | None) -> Cluster:
    return _cluster(Topology.from_dict(json.loads(text), gpus=gpus))


def _cluster(topology: Topology) -> Cluster:
    gpus = len(topology.gpus)
    node = topology.outline.spec.gpus if topology.outline is not None else None
    return Cluster(gpus, node or gpus, network_price(topology))
