"""The calibration of a topology: that of its file's section, its preset's, or the nearest measured machine's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from triosim.errors import TopologyError, nearest
from triosim.networks.calibration import internode, stored
from triosim.networks.calibration.internode import InterNodeModel
from triosim.networks.calibration.model import Calibration, FasterMachine, MeasuredNode, NodeLink, NodeScale
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
        if isinstance(section.said, str):
            return completed(said, outline)
        _check_node(said, outline, section)
        return _with_cards(said, outline)
    if outline is None or not is_node_system(topology):
        return None
    return _with_cards(_mixed(outline.spec, _machines(topology, outline.spec)), outline)


def is_node_system(topology: Topology) -> bool:
    """Return whether a topology is made of nodes of GPUs: a preset's, or a shape with a network between its nodes."""
    outline = topology.outline
    if outline is None or outline.spec.topology not in NODE_SHAPES:
        return False
    return topology.preset is not None or outline.spec.inter_node is not None


def stand_in(topology: Topology) -> str:
    """Return the names of the measured machines whose collectives stand for those of a topology; empty for its own or none."""
    if "calibration" in topology.sections or topology.outline is None or not is_node_system(topology):
        return ""
    names = _machines(topology, topology.outline.spec)
    own = topology.preset.name if topology.preset is not None else ""
    return "" if names == (own,) else " and ".join(names)


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
    if isinstance(said, Mapping):
        return stored.from_mapping(said, section.where)
    if not isinstance(said, str):
        fix = "write none, the name of a measured machine such as dgx-h100, or what 'triosim calibrate network' wrote"
        raise TopologyError(f"{said!r:.60} is not a calibration", where=section.where(), fix=fix)
    if not stored.ships(said):
        fix = nearest(said, ("none", *stored.names()))
        raise TopologyError(f"'{said}' has no calibration", where=section.where(), fix=fix)
    return stored.shipped(said)


def _machines(topology: Topology, spec: ShapeSpec) -> tuple[str, ...]:
    """Return the measured machines that stand for a topology, the one with the slowest links first.

    A preset, also one with changed keys, takes its own or the nearest one: launch costs are the GPU's. A file that names no
    preset takes all of its kind of node that have slower links, and the next faster one.
    """
    preset = topology.preset.name if topology.preset is not None else _preset_of(spec)
    own = replace(PRESETS[preset].spec, gpus=spec.gpus) if preset else spec
    link: NodeLink = "pcie" if spec.topology == "pcie_tree" else "nvlink"
    wanted = MeasuredNode(node_bandwidth(own), own.latency, link, spec.in_switch_reduction)
    machines = {name: stored.shipped(name) for name in stored.names()}
    if preset:
        own_kind = preset in machines and _distance(machines[preset], wanted)[0] == 0
        return (preset if own_kind else nearest_machine(wanted, machines),)
    least = min(_distance(one, wanted)[0] for one in machines.values())
    known = {_bandwidth(name): name for name in reversed(machines) if _distance(machines[name], wanted)[0] == least}
    slower = [name for bandwidth, name in sorted(known.items()) if bandwidth <= wanted.bandwidth]
    faster = [name for bandwidth, name in sorted(known.items()) if bandwidth > wanted.bandwidth]
    if slower and _bandwidth(slower[-1]) == wanted.bandwidth:
        return tuple(slower)
    return (*slower, *faster[:1])


def _bandwidth(name: str) -> float:
    node = stored.shipped(name).node
    assert node is not None, "calibrations that ship say on what node they were measured"
    return node.bandwidth


def _mixed(spec: ShapeSpec, names: tuple[str, ...]) -> Calibration:
    """Return the calibration of a node between measured machines, the one with the slowest links first."""
    found = _on_boards(spec, _scaled_to(spec, stored.shipped(names[0])))
    if len(names) == 1:
        return found
    low, high = map(_bandwidth, names[:2])
    share, faster = math.log(found.scale.speed) / math.log(high / low), _mixed(spec, names[1:])
    if share < 1.0:
        faster = replace(faster, scale=replace(faster.scale, speed=1.0))
    return replace(found, scale=replace(found.scale, speed=1.0), faster=FasterMachine(faster, min(share, 1.0)))


def _on_boards(spec: ShapeSpec, calibration: Calibration) -> Calibration:
    """Return a calibration that says so where PCIe boards share switches otherwise than in the server that was measured."""
    node = calibration.node
    if spec.topology != "pcie_tree" or node is None or node.gpus_per_switch == spec.gpus_per_switch:
        return calibration
    return replace(calibration, scale=replace(calibration.scale, gpus_per_switch=spec.gpus_per_switch))


def _preset_of(spec: ShapeSpec) -> str:
    """Return the measured preset of which a file says all figures that a collective depends on, or nothing."""

    def figures(one: ShapeSpec) -> tuple[object, ...]:
        links = one.topology, one.bandwidth, one.latency, one.reverse_bandwidth, one.in_switch_reduction
        return *links, one.gpus_per_node or one.gpus, one.gpus_per_switch, one.inter_node

    return next((name for name in stored.names() if figures(PRESETS[name].spec) == figures(spec)), "")


def nearest_machine(wanted: MeasuredNode, machines: Mapping[str, Calibration]) -> str:
    """Return the name of the measured machine whose node is most like one that is wanted."""
    return min(machines, key=lambda name: _distance(machines[name], wanted))


def _distance(calibration: Calibration, wanted: MeasuredNode) -> tuple[int, float]:
    """Return how far the node of a measured machine is from a node: how many kinds differ, then the e-folds of bandwidth."""
    node = calibration.node
    if node is None:
        return 2, 0.0
    differ = 2 * (node.link != wanted.link) + (node.reduces != wanted.reduces)
    return differ, abs(math.log(node.bandwidth / wanted.bandwidth))


def completed(calibration: Calibration, outline: ShapeOutline) -> Calibration:
    """Return the calibration of a measured machine for a topology's nodes and for the network between them."""
    return _with_cards(_scaled_to(outline.spec, calibration), outline)


def _scaled_to(spec: ShapeSpec, calibration: Calibration) -> Calibration:
    """Return the calibration of a measured machine for the nodes of a topology."""
    calibration = replace(calibration, gpus_per_node=spec.gpus or 1)
    if calibration.node is None:
        return calibration
    direct, whole = spec.topology in ("fully_connected", "hybrid_cube_mesh"), node_bandwidth(spec)
    delay = _near_zero((1.0 if direct else 2.0) * spec.latency - 2.0 * calibration.node.latency)
    shares = tuple(node_bandwidth(spec, group) / whole for group in range(2, spec.gpus or 1)) if direct else ()
    return replace(calibration, scale=NodeScale(whole / calibration.node.bandwidth, delay, shares))


def _check_node(calibration: Calibration, outline: ShapeOutline, section: Section) -> None:
    """Raise ``TopologyError`` where a calibration is of other nodes than those of its topology."""
    size = outline.spec.gpus or 1
    if calibration.gpus_per_node != size and outline.nodes > 1:
        what = f"the nodes of the topology have {size} GPUs, not {calibration.gpus_per_node}"
        raise TopologyError(what, where=section.where(("gpus_per_node",)), fix=f"write {size}, or calibrate such nodes")


def _with_cards(calibration: Calibration, outline: ShapeOutline) -> Calibration:
    """Return a calibration with the model of the network between the nodes of a topology, if there are several."""
    return replace(calibration, internode=_between(outline.spec)) if outline.nodes > 1 else calibration


def _between(spec: ShapeSpec) -> InterNodeModel | None:
    wire = spec.inter_node
    if wire is None:
        return None
    delay = _near_zero(2.0 * (wire.latency - CARD_LATENCY))
    return internode.model(wire.network, wire.bandwidth, wire.gpus_per_nic, delay)


def _near_zero(seconds: float) -> float:
    """Return seconds, without what rounding made of nothing."""
    return 0.0 if abs(seconds) < 1e-12 else seconds
