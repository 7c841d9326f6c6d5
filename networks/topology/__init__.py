"""Topologies: nodes and links, their files, shapes and presets, and the routes through them."""

from triosim.networks.topology.description import SECTIONS, Section
from triosim.networks.topology.graph import Dimension, Link, Node, NodeKind, NodeRef, Regularity
from triosim.networks.topology.topology import Topology

__all__ = ["SECTIONS", "Dimension", "Link", "Node", "NodeKind", "NodeRef", "Regularity", "Section", "Topology"]
