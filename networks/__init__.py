"""Networks: topologies, sharing rules and collective algorithms, which determine how long bytes take between GPUs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triosim.networks.analytical import AnalyticalNetwork
    from triosim.networks.base import Network
    from triosim.networks.collectives.algorithm import (
        CollectiveAlgorithm,
        CollectiveOperation,
        Edge,
        SteadyState,
        Transfer,
    )
    from triosim.networks.extensions import FlowRecord, LinkRate
    from triosim.networks.flow import max_min
    from triosim.networks.flow.packet import PacketNetwork
    from triosim.networks.photonic.photonic import PhotonicNetwork
    from triosim.networks.topology import Dimension, Link, Node, Topology

__all__ = [
    "AnalyticalNetwork", "CollectiveAlgorithm", "CollectiveOperation", "Dimension", "Edge", "FlowRecord", "Link", "LinkRate",
    "Network", "Node", "PacketNetwork", "PhotonicNetwork", "SteadyState", "Topology", "Transfer", "max_min",
]  # fmt: skip

#: The module of each public name.
_MODULES = {
    "AnalyticalNetwork": "analytical",
    "FlowRecord": "extensions",
    "LinkRate": "extensions",
    "Network": "base",
    "PacketNetwork": "flow.packet",
    "PhotonicNetwork": "photonic.photonic",
    **dict.fromkeys(("Dimension", "Link", "Node", "Topology"), "topology"),
    **dict.fromkeys(
        ("CollectiveAlgorithm", "CollectiveOperation", "Edge", "SteadyState", "Transfer"), "collectives.algorithm"
    ),
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for: SimPy and the rest cost time at start."""
    if name == "max_min":
        return import_module("triosim.networks.flow.max_min")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"triosim.networks.{_MODULES[name]}"), name)
