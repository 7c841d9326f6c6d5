"""The parameters of a photonic network: ports, circuits, buffers, and the time to set up a circuit.

The figures are those of TrioSim's study of a wafer (Li et al., ISCA 2025, 7.1), where it gives them: eight ports a GPU of
484 GB/s together, 20 ms for a circuit. It gives no latency and no buffer: 500 ns and no limit are assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from triosim.config import Option
from triosim.config.option import SYSTEM, Kind
from triosim.errors import TopologyError, TriosimError, nearest
from triosim.networks.topology import Section, Topology


@dataclass(frozen=True, slots=True)
class Optics:
    """The ports and the buffer of each GPU, and the circuits between two of them.

    ports: of a GPU. ports_per_circuit: how many of them a circuit takes at each of its two ends.
    bandwidth: bytes per second of a port in one direction; a circuit has that of its ports together.
    latency: seconds from one end of a circuit to the other, whatever the distance.
    setup: seconds that it takes to set up a circuit.
    buffer: bytes that a GPU can have on their way to it.
    """

    ports: int = 8
    bandwidth: float = 60.5e9
    latency: float = 500e-9
    setup: float = 20e-3
    buffer: float = math.inf
    ports_per_circuit: int = 1

    @property
    def circuits(self) -> int:
        """How many circuits a GPU can have at a time."""
        return self.ports // self.ports_per_circuit

    @property
    def circuit_bandwidth(self) -> float:
        """Bytes per second of a circuit, in one direction."""
        return self.bandwidth * self.ports_per_circuit


def _option(name: str, kind: Kind, default: int | str, help: str, **more: Any) -> Option:
    return Option(name, kind, default, help, panel=SYSTEM, **more)


#: The options of the photonic network. What is not given is what the topology's file says, and only then the default.
OPTIONS = (
    _option("ports", "whole", 8, "photonic: optical ports of a GPU."),
    _option("bandwidth", "bandwidth", "60.5 GB/s", "photonic: bandwidth of a port in one direction."),
    _option("latency", "time", "500 ns", "photonic: latency from one end of a circuit to the other."),
    _option("setup", "time", "20 ms", "photonic: time to set up a circuit."),
    _option(
        "buffer", "bytes", "unlimited", "photonic: bytes that may be on their way to a GPU.", choices=("unlimited",)
    ),
    _option("ports_per_circuit", "whole", 1, "photonic: ports that a circuit takes at each end."),
)


def optics_of(topology: Topology) -> Optics | None:
    """Return what the file of a topology says under ``photonic``, or None. Raises ``TopologyError`` for a wrong section."""
    section = topology.sections.get("photonic")
    return None if section is None else section.parsed(_parsed)


def _parsed(section: Section) -> Optics:
    if not isinstance(section.said, Mapping):
        fix = "write '{ports: 8, setup: 20 ms}'"
        raise TopologyError(f"{section.said!r:.60} is not a mapping", where=section.where(), fix=fix)
    return changed(
        Optics(), section.said, lambda key, what, fix: TopologyError(what, where=section.where((key,)), fix=fix)
    )


def changed(optics: Optics, said: Mapping[str, Any], error: Callable[[str, str, str | None], Exception]) -> Optics:
    """Return optics with other values, numbers or texts with units; a wrong one is raised as ``error(key, what, fix)``."""
    known = {option.name: option for option in OPTIONS}
    values: dict[str, Any] = {}
    for key, value in said.items():
        if key not in known:
            raise error(key, "unknown key", nearest(str(key), known))
        try:
            parsed = known[key].parse(value)
        except TriosimError as found:
            raise error(key, found.what, found.fix) from None
        values[key] = math.inf if parsed == "unlimited" else parsed
    if values.get("buffer") == 0:
        raise error("buffer", "0 is not a positive size", "give one such as '64 MB', or 'unlimited'")
    made = replace(optics, **values)
    if made.ports_per_circuit > made.ports:
        raise error(
            "ports_per_circuit",
            f"a circuit takes {made.ports_per_circuit} ports, a GPU has {made.ports}",
            "give the GPUs more ports, or a circuit fewer",
        )
    return made
