"""ASTRA-sim's ``remote_memory.json``: what kind of remote memory there is, its latency and its bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from triosim.chakra.inputs.json_keys import Keys
from triosim.errors import TopologyError, nearest
from triosim.input_files.reading import read_object


class MemoryType(Enum):
    """Who shares a remote memory."""

    NONE = "NO_MEMORY_EXPANSION"
    PER_NPU = "PER_NPU_MEMORY_EXPANSION"
    PER_NODE = "PER_NODE_MEMORY_EXPANSION"
    POOL = "MEMORY_POOL"


@dataclass(frozen=True, slots=True)
class RemoteMemoryFile:
    """A remote memory: ns, and bytes per ns (decimal GB/s), whole numbers both, as ASTRA-sim reads them."""

    memory: MemoryType = MemoryType.NONE
    latency: int = 0
    bandwidth: int = 0
    npus_per_node: int = 1

    def shared(self, rank: int) -> int | None:
        """Return the number of the memory that a rank shares with others, or None where it has one of its own."""
        return {MemoryType.POOL: 0, MemoryType.PER_NODE: rank // self.npus_per_node}.get(self.memory)

    def time_of(self, size: int) -> int:
        """Return the ns of an access of so many bytes."""
        return self.latency + int(size / self.bandwidth)


def read_remote_memory(path: Path) -> RemoteMemoryFile:
    """Return the remote memory of a file. Raises ``TopologyError`` where it is not one."""
    keys = Keys(read_object(path, TopologyError), str(path))
    kinds = {kind.value: kind for kind in MemoryType}
    name = keys.text("memory-type")
    if name not in kinds:
        what = "has no 'memory-type'" if name is None else f"there is no memory-type '{name}'"
        raise TopologyError(what, where=str(path), fix=nearest(name or "", kinds))
    found = RemoteMemoryFile(
        kinds[name],
        latency=int(keys.number("remote-mem-latency", 0)),
        bandwidth=int(keys.number("remote-mem-bw", 0)),
        npus_per_node=keys.whole("num-npus-per-node", 0 if name == MemoryType.PER_NODE.value else 1),
    )
    if found.memory is not MemoryType.NONE and found.bandwidth <= 0:
        raise TopologyError("remote-mem-bw is not 1 or more", where=str(path), fix="write it in GB/s, a whole number")
    if found.npus_per_node <= 0:
        raise TopologyError(
            "num-npus-per-node is not 1 or more", where=str(path), fix="say how many ranks share a memory"
        )
    return found
