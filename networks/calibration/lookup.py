"""The calibration of a topology: that of its file's section, its preset's, or the nearest measured machine's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from triosim.errors import TopologyError, nearest
from triosim.networks.calibration import internode, stored
from triosim.networks.calibration.internode import InterNodeModel
from triosim.networks.calibration.model import Calibration, MeasuredNode, NodeLink, NodeScale
from triosim.networks.topology import Section, Topology
from triosim.networks.topology.node_bandwidth import node_bandwidth
from triosim.networks.topology.presets import PRESETS
from triosim.networks.topology.shapes import ShapeOutline, ShapeSpec

#: The shapes of nodes of GPUs on which NCCL runs as it does on those that were measured.
NODE_SHAPES = frozenset({"switch", "fully_connected", "hybrid_cube_mesh", "pcie_tree"})
CARD_LATENCY = 1e-6  # seconds; of the presets' links to the network: a longer one adds to each hop


def calibration_of(topology: Topology) -> Calibration | None:
    """Return the calibration of a topology, or None for links that are taken as they are.

    Raises ``TopologyError`` for a wrong section.
    """
    section, outline = topology.sections.get("calibration"), topology.outline
    if section is not None:
        said = section.parsed(_parsed)
        if said is None or outline is None:
            return said
        return completed(said, outline) if isinstance(section.said, str) else _with_cards(said, outline)
    if outline is None or not is_node_system(topology):
        return None
    return completed(_machine(topology, outline), outline)


def is_node_system(topology: Topology) -> bool:
    """Return whether a topology is made of nodes of GPUs: a preset's, or a shape with a network between its nodes."""
    outline = topology.outline
    if outline is None or outline.spec.topology not in NODE_SHAPES:
        return False
    return topology.preset is not None or outline.spec.inter_node is not None


def stand_in(topology: Topology) -> str:
    """Return the name of the measured machine whose collectives stand for those of a topology; empty for its own or none."""
    if "calibration" in topology.sections or topology.outline is None or not is_node_system(topology):
        return ""
    name = _machine_name(topology, topology.outline.spec)
    return "" if topology.preset is not None and name == topology.preset.name else name


def measured_on(topology: Topology) -> Topology:
    """Return the machine that the calibration of a topology was measured on: the same one with all links at full speed."""
    nominal, section = topology.nominal or topology, topology.sections.get("calibration")
    fitted_to_these_links = section is not None and not isinstance(section.said, str)
    if nominal.outline is None or not nominal.overridden or fitted_to_these_links:
        return nominal
    return Topology.described(nominal.outline.description())


def _parsed(section: Section) -> Calibration | None:
    """Parse the section of a file: a mapping, the name of a preset, or ``none``; or take a calibration as it is."""
    said = section.said
    if isinstance(said, Calibration):
        return said
    if said is None or said == "none":
        return None
    if not isinstance(said, str):
        return stored.from_mapping(said, section.where)
    if not stored.ships(said):
        fix = nearest(said, ("none", *stored.names()))
        raise TopologyError(f"'{said}' has no calibration", where=section.where(), fix=fix)
    return stored.shipped(said)


def _machine(topology: Topology, outline: ShapeOutline) -> Calibration:
    found = stored.shipped(_machine_name(topology, outline.spec))
    assert found is not None
    return found


def _machine_name(topology: Topology, spec: ShapeSpec) -> str:
    """Return the preset whose measurements a topology takes: its own, or the nearest of the same kind of node.

    Of a preset whose bandwidth was changed it is that of the preset as it is: launch costs are the GPU's.
    """
    preset = topology.preset
    own = spec if preset is None else PRESETS[preset.name].spec
    link: NodeLink = "pcie" if spec.topology == "pcie_tree" else "nvlink"
    sized = replace(own, gpus=spec.gpus)
    wanted = MeasuredNode(node_bandwidth(sized), own.latency, link, spec.in_switch_reduction)
    if preset is not None and stored.ships(preset.name) and _distance(stored.shipped(preset.name), wanted)[0] == 0:
        return preset.name
    return nearest_machine(wanted, {name: stored.shipped(name) for name in stored.names()})


def nearest_machine(wanted: MeasuredNode, machines: Mapping[str, Calibration | None]) -> str:
    """Return the name of the measured machine whose node is most like one that is wanted."""
    return min(machines, key=lambda name: _distance(machines[name], wanted))


def _distance(calibration: Calibration | None, wanted: MeasuredNode) -> tuple[int, float]:
    """Return how far the node of a measured machine is from a node: how many kinds differ, then the e-folds of bandwidth."""
    node = None if calibration is None else calibration.node
    if node is None:
        return 2, 0.0
    differ = 2 * (node.link != wanted.link) + (node.reduces != wanted.reduces)
    return differ, abs(math.log(node.bandwidth / wanted.bandwidth))


def completed(calibration: Calibration, outline: ShapeOutline) -> Calibration:
    """Return the calibration of a measured machine for a topology's nodes and for the network between them."""
    spec = outline.spec
    assert spec.gpus is not None
    scale = NodeScale()
    if calibration.node is not None:
        direct, whole = spec.topology in ("fully_connected", "hybrid_cube_mesh"), node_bandwidth(spec)
        delay = _near_zero((1.0 if direct else 2.0) * spec.latency - 2.0 * calibration.node.latency)
        shares = tuple(node_bandwidth(spec, group) / whole for group in range(2, spec.gpus)) if direct else ()
        scale = NodeScale(whole / calibration.node.bandwidth, delay, shares)
    return _with_cards(replace(calibration, scale=scale), outline)


def _with_cards(calibration: Calibration, outline: ShapeOutline) -> Calibration:
    """Return a calibration with the model of the network between the nodes of a topology, and their size."""
    assert outline.spec.gpus is not None
    if outline.nodes == 1:
        return replace(calibration, gpus_per_node=outline.spec.gpus)
    return replace(calibration, gpus_per_node=outline.spec.gpus, internode=_between(outline.spec))


def _between(spec: ShapeSpec) -> InterNodeModel | None:
    wire = spec.inter_node
    if wire is None:
        return None
    delay = _near_zero(2.0 * (wire.latency - CARD_LATENCY))
    return internode.model(wire.network, wire.bandwidth, wire.gpus_per_nic, delay)


def _near_zero(seconds: float) -> float:
    """Return seconds, without what rounding made of nothing."""
    return 0.0 if abs(seconds) < 1e-12 else seconds
