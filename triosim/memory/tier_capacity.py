"""Whether the memories outside of GPUs exist, are large enough for what is offloaded to them, and fast in a known way."""

from __future__ import annotations

import math
from collections.abc import Mapping

from triosim.config.offload import Offload
from triosim.errors import OptionError
from triosim.memory.world_memory import WorldMemory
from triosim.networks.topology import Topology
from triosim.networks.topology.memories import TIERS
from triosim.tasks import Tier
from triosim.units import format_bytes

_WHERE = "--offload"


def check_tiers(offload: Offload, memory: WorldMemory, topology: Topology) -> None:
    """Raise ``OptionError`` for a memory that there is not, that is too small, or whose bandwidth a CPU's update would need."""
    check_capacity(offload, memory, topology)
    if offload.optimizer is not None:
        host = topology.memory_of(0, "host") or ""
        if host not in topology.memories or topology.memories[host].port is None:
            what = f"the bandwidth of {topology.name}'s host memory is not known, at which its CPUs would update parameters"
            name = "dgx-h20" if topology.preset is None else topology.preset.name
            fix = f"say it, as in '{name}(host_memory={{capacity: 2 TB, bandwidth: 400 GB/s}})'"
            raise OptionError(what, where=_WHERE, fix=fix)


def check_capacity(offload: Offload, memory: WorldMemory, topology: Topology) -> None:
    """Raise ``OptionError`` for a memory that there is not, or that is too small for what all its ranks offload to it."""
    for tier, (what, key) in TIERS.items():
        if tier in offload.tiers:
            if topology.memory_of(0, tier) is None:
                fix = f"give a topology that has it: one with the key '{key}'"
                raise OptionError(f"{topology.name} has no {what}", where=_WHERE, fix=fix)
            _check_held(held_by_node(memory, topology, tier), topology, what)


def held_by_node(memory: WorldMemory, topology: Topology, tier: Tier) -> Mapping[str, float]:
    """Return the bytes that the ranks hold at most in each memory of a tier, by the name of its node."""
    found: dict[str, float] = {}
    for one in memory.ranks:
        nbytes = sum(one.outside.get(tier, {}).values())
        for rank in one.ranks if nbytes else ():
            node = topology.memory_of(rank, tier)
            if node is not None:
                found[node] = found.get(node, 0.0) + nbytes
    return found


def _check_held(held: Mapping[str, float], topology: Topology, what: str) -> None:
    for node, nbytes in held.items():
        capacity = topology.memories[node].capacity if node in topology.memories else math.inf
        if nbytes > capacity:
            asked, has = format_bytes(nbytes), format_bytes(capacity)
            fix = "offload less, use more nodes, or give a topology with more"
            raise OptionError(f"{asked} are offloaded to {node} ({what}), which has {has}", where=_WHERE, fix=fix)
