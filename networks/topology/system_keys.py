"""What a topology file says of a system beyond its nodes and links: what the photonic network is made of, what
collectives were measured to take, and under what conditions it runs.

These keys go with every kind of topology, so they are taken out before the rest is read, and put on the topology that comes of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from triosim import conditions
from triosim.errors import TopologyError
from triosim.networks.calibration.attached import attach
from triosim.networks.photonic.optics import Optics, changed

if TYPE_CHECKING:
    from triosim.networks.topology.topology import Topology

#: How errors say where a key stands.
Where = Callable[[tuple[str | int, ...]], str]

KEYS = ("photonic", "calibration", *conditions.KEYS)


def divided(mapping: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what describes the graph, and what is said beyond it."""
    said = {key: mapping[key] for key in KEYS if key in mapping}
    return {key: value for key, value in mapping.items() if key not in said}, said


def equip(topology: Topology, said: Mapping[str, Any], where: Where) -> Topology:
    """Put what is said beyond the graph on a topology. Raises ``TopologyError``."""
    if "photonic" in said:
        topology.photonic = _optics(said["photonic"], where)
    if "calibration" in said:
        attach(topology, said["calibration"], where)
    others = {key: value for key, value in said.items() if key in conditions.KEYS}
    if others:
        topology.conditions = conditions.parse_conditions(
            others, lambda path, what, fix: TopologyError(what, where=where(path), fix=fix), topology.conditions
        )
    return topology


def _optics(said: Any, where: Where) -> Optics:
    if not isinstance(said, Mapping):
        raise TopologyError(
            f"{said!r:.60} is not a mapping", where=where(("photonic",)), fix="write '{ports: 8, setup: 20 ms}'"
        )
    return changed(Optics(), said, lambda key, what, fix: TopologyError(what, where=where(("photonic", key)), fix=fix))
