"""The calibration of a topology: that of its file's section, or the one that ships for its preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triosim.errors import TopologyError, nearest
from triosim.networks.calibration import stored
from triosim.networks.calibration.model import ANY, Calibration, assumed
from triosim.networks.topology import Section, Topology

#: The keys of a preset that make another machine of it, of which nothing was measured.
OTHER_MACHINE = frozenset(
    {"bandwidth", "reverse_bandwidth", "latency", "gpus_per_node", "in_switch_reduction", "routing"}
)


def calibration_of(topology: Topology) -> Calibration | None:
    """Return the calibration of a topology, or None; between nodes, where nothing was measured, it has an assumption.

    Raises ``TopologyError`` for a wrong section.
    """
    section = topology.sections.get("calibration")
    if section is not None:
        said = section.parsed(_parsed)
    else:
        ships = topology.preset is not None and not reason_uncalibrated(topology)
        said = stored.shipped(topology.preset.name) if topology.preset is not None and ships else None
    return said if said is None else _completed(said, topology)


def reason_uncalibrated(topology: Topology) -> str:
    """Return why a topology is not calibrated although its preset is; empty where that is not so."""
    if topology.preset is None or "calibration" in topology.sections or not stored.ships(topology.preset.name):
        return ""
    changed = sorted(OTHER_MACHINE.intersection(topology.preset.changed))
    if not changed:
        return ""
    return f"with another {' and '.join(changed)} it is not the {topology.preset.name} that was measured"


def measured_on(topology: Topology) -> Topology:
    """Return the machine that the calibration of a topology was measured on: the same one with all links at full speed."""
    nominal = topology.nominal or topology
    section = topology.sections.get("calibration")
    if section is not None and not isinstance(section.said, str):
        return nominal  # the section is about these very links
    preset = topology.preset
    if preset is None or preset.without_overrides is None or not stored.ships(preset.name):
        return nominal
    return nominal if OTHER_MACHINE.intersection(preset.changed) else Topology.described(preset.without_overrides)


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


def _completed(calibration: Calibration, topology: Topology) -> Calibration:
    """Return a calibration with an assumption about the links between the nodes of a topology, where none was measured."""
    between: Mapping[str, Any] = calibration.between
    several = len(topology.gpus) > calibration.gpus_per_node and len(topology.dimensions) > 1
    if ANY in between or not several:
        return calibration
    return replace(calibration, between={**between, ANY: assumed(topology.dimensions[-1].bandwidth)})
