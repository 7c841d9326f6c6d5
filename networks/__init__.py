"""Topologies, sharing rules and collective algorithms: what moves bytes between GPUs, and how long that takes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triosim.networks import max_min
    from triosim.networks.analytical import AnalyticalNetwork
    from triosim.networks.base import FlowRecord, Network
    from triosim.networks.collectives.base import CollectiveAlgorithm, Edge, Pipeline, Transfer
    from triosim.networks.packet import PacketNetwork
    from triosim.networks.photonic import PhotonicNetwork
    from triosim.networks.topology import Dimension, Link, Node, Topology

_WHERE = {
    "AnalyticalNetwork": "analytical",
    "CollectiveAlgorithm": "collectives.base",
    "Dimension": "topology",
    "Edge": "collectives.base",
    "FlowRecord": "base",
    "Link": "topology",
    "Network": "base",
    "Node": "topology",
    "PacketNetwork": "packet",
    "PhotonicNetwork": "photonic",
    "Pipeline": "collectives.base",
    "Topology": "topology",
    "Transfer": "collectives.base",
}

__all__ = [
    "AnalyticalNetwork",
    "CollectiveAlgorithm",
    "Dimension",
    "Edge",
    "FlowRecord",
    "Link",
    "Network",
    "Node",
    "PacketNetwork",
    "PhotonicNetwork",
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
