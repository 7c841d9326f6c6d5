"""How a topology comes to its calibration: by the key ``calibration`` of its file, or because it is a preset that has one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from triosim.errors import TopologyError, nearest
from triosim.networks.calibration import stored
from triosim.networks.calibration.model import ANY, Calibration, assumed

if TYPE_CHECKING:
    from triosim.networks.topology import Topology

#: The keys of a preset that make another machine of it, of which nothing was measured.
OTHER_MACHINE = frozenset(
    {"bandwidth", "reverse_bandwidth", "latency", "gpus_per_node", "in_switch_reduction", "routing"}
)


def attach_shipped(topology: Topology, preset: str, changed: Collection[str]) -> Topology:
    """Have a preset take the times that ship for it, unless what is changed makes another machine of it."""
    other = sorted(OTHER_MACHINE.intersection(changed))
    if stored.ships(preset) and not other:
        topology.calibrate = partial(_shipped, preset)
    elif stored.ships(preset):
        topology.uncalibrated = (
            f"with another {' and '.join(other)} it is another machine than the {preset} that was measured"
        )
    return topology


def attach(topology: Topology, said: Any, where: stored.Where) -> None:
    """Give a topology the calibration of its file: a mapping, the name of a preset, or ``none``."""
    topology.uncalibrated = ""
    if said is None or said == "none":
        topology.calibrate = None
    elif isinstance(said, str):
        if not stored.ships(said):
            known = ("none", *stored.names())
            raise TopologyError(f"'{said}' has no calibration", where=where(("calibration",)), fix=nearest(said, known))
        topology.calibrate = partial(_shipped, said)
    else:
        given = stored.from_mapping(said, lambda key: where(("calibration", *key)))
        topology.calibrate = partial(completed, given)
        topology.measured_on = None  # it is of these very links


def _shipped(preset: str, topology: Topology) -> Calibration | None:
    found = stored.shipped(preset)
    return None if found is None else completed(found, topology)


def completed(calibration: Calibration, topology: Topology) -> Calibration:
    """Return a calibration with what is assumed between the nodes of a topology, where nothing was measured."""
    between: Mapping[str, Any] = calibration.between
    several = len(topology.gpus) > calibration.gpus_per_node and len(topology.dimensions) > 1
    if ANY in between or not several:
        return calibration
    return replace(calibration, between={**between, ANY: assumed(topology.dimensions[-1].bandwidth)})
