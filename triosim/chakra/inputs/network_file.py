"""ASTRA-sim's ``network.yml``: the dimensions of a network, the innermost first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from triosim.errors import TopologyError
from triosim.input_files import yaml_lines
from triosim.input_files.reading import head, read_text

BLOCKS = ("Ring", "FullyConnected", "Switch")


@dataclass(frozen=True, slots=True)
class NetworkDimension:
    """One dimension: its block, how many NPUs it joins, GB/s (of 2^30 bytes) of a link, and the ns of one."""

    block: str
    npus: int
    bandwidth: float
    latency: float

    @property
    def bytes_per_ns(self) -> float:
        """The bandwidth in bytes per ns."""
        return self.bandwidth * 2**30 / 1e9


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """The dimensions of a network."""

    dimensions: tuple[NetworkDimension, ...]


def is_network(path: Path) -> bool:
    """Return whether a file is a network of ASTRA-sim's."""
    try:
        return path.is_file() and b"npus_count" in head(path)
    except OSError:
        return False


def read_network(path: Path) -> NetworkFile:
    """Return the network of a file. Raises ``TopologyError`` where it is not one."""
    found, _ = yaml_lines.parse(read_text(path, TopologyError), str(path))
    keys = ("topology", "npus_count", "bandwidth", "latency")
    if not isinstance(found, dict) or any(not isinstance(found.get(key), list) for key in keys):
        raise TopologyError(
            f"is not a network of ASTRA-sim's: {', '.join(keys)}", where=str(path), fix="give each as a list"
        )
    columns = [found[key] for key in keys]
    if len({len(column) for column in columns}) != 1 or not columns[0]:
        raise TopologyError("its lists are not equally long", where=str(path), fix="give each dimension in every list")
    return NetworkFile(tuple(_dimension(path, *row) for row in zip(*columns, strict=True)))


def _dimension(path: Path, block: object, npus: object, bandwidth: object, latency: object) -> NetworkDimension:
    if block not in BLOCKS:
        raise TopologyError(f"there is no block '{block}'", where=str(path), fix=f"write one of {', '.join(BLOCKS)}")
    if not isinstance(npus, int) or npus < 2:
        raise TopologyError(f"npus_count {npus!r} of a dimension", where=str(path), fix="write a whole number above 1")
    for key, value in (("bandwidth", bandwidth), ("latency", latency)):
        number = isinstance(value, (int, float)) and 0 <= value < math.inf
        if not number or (key == "bandwidth" and value == 0):
            raise TopologyError(f"{key} {value!r} of a dimension", where=str(path), fix="write a number above 0")
    assert isinstance(bandwidth, (int, float))
    assert isinstance(latency, (int, float))
    return NetworkDimension(str(block), npus, float(bandwidth), float(latency))
