"""Topologies, sharing rules and collective algorithms: what moves bytes between GPUs, and how long that takes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triosim.networks import max_min
    from triosim.networks.base import FlowRecord, Network
    from triosim.networks.collectives.base import CollectiveAlgorithm, Edge, Pipeline, Transfer
    from triosim.networks.packet import PacketNetwork
    from triosim.networks.topology import Link, Node, Topology

_WHERE = {
    "CollectiveAlgorithm": "collectives.base",
    "Edge": "collectives.base",
    "FlowRecord": "base",
    "Link": "topology",
    "Network": "base",
    "Node": "topology",
    "PacketNetwork": "packet",
    "Pipeline": "collectives.base",
    "Topology": "topology",
    "Transfer": "collectives.base",
}

__all__ = [
    "CollectiveAlgorithm",
    "Edge",
    "FlowRecord",
    "Link",
    "Network",
    "Node",
    "PacketNetwork",
    "Pipeline",
    "Topology",
    "Transfer",
    "max_min",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for: SimPy and the rest cost time at start."""
    if name == "max_min":
        return import_module("triosim.networks.max_min")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"triosim.networks.{_WHERE[name]}"), name)
