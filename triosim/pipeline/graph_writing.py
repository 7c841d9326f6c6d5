"""Writes the step of a run as Chakra graphs, with the files that ASTRA-sim reads beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from triosim import gpus as catalogue
from triosim.chakra.inputs.network_file import BLOCKS
from triosim.chakra.nodes import Node
from triosim.chakra.task_nodes import LaunchCosts, Numbers, RankNodes, with_received_sizes
from triosim.chakra.writing import write_et
from triosim.config import RunConfig
from triosim.gpus import Gpu
from triosim.networks.topology import Topology
from triosim.networks.topology.dimensional import link_bandwidth
from triosim.output_files import check_folder, writing_folder, writing_text
from triosim.pipeline.planning import PlannedRun, plan
from triosim.pipeline.pricing import price
from triosim.pipeline.reading import TraceLike, read

STEM = "step"
#: What a folder is for, in errors.
GRAPHS = "graphs"
_BLOCKS = {"ring": "Ring", "fully_connected": "FullyConnected", "switch": "Switch"}


def write_step(trace: TraceLike, config: RunConfig, folder: Path) -> None:
    """Write the step that a run simulates: a graph for each rank, the network, system, memory and groups.

    The graphs of one rank have no network, since ASTRA-sim knows none of one.
    """
    check_folder(folder, GRAPHS, "*.et")
    planned = plan(price(read(trace, config), config), config)
    timed, numbers = planned.priced.subject.trace, Numbers()
    ranks = _graphs(planned, numbers)
    groups = {str(number): list(group.ranks) for group, number in numbers.groups.items()}
    with writing_folder(folder):
        for rank, nodes in enumerate(ranks):
            write_et(folder / f"{STEM}.{rank}.et", nodes, planned.facts.attributes)
        _write_system(folder, planned.system.topology, timed.gpu, groups, len(ranks))


def _write_system(folder: Path, topology: Topology, gpu: str, groups: Mapping[str, list[int]], ranks: int) -> None:
    """Write the files beside the graphs."""
    found: dict[str, Any] = {"comm_group.json": groups, "remote_memory.json": _memory(topology)}
    if ranks > 1:
        network = _network(topology, ranks)
        with writing_text(folder / "network.yml") as file:
            file.writelines(f"{key}: [ {', '.join(map(str, values))} ]\n" for key, values in network.items())
        sizes = [*network["npus_count"], *map(len, groups.values())]
        found["system.json"] = _system(catalogue.get(gpu), network["topology"], sizes)
    for name, content in found.items():
        with writing_text(folder / name) as file:
            file.write(json.dumps(content, indent=1) + "\n")


def _graphs(planned: PlannedRun, numbers: Numbers) -> list[list[Node]]:
    """Return the nodes of all ranks, as the task streams draw them."""
    launches, ranks = planned.priced.launches, []
    costs = None if launches is None else LaunchCosts(launches.call_seconds, launches.run_ahead)
    for rank in range(planned.plan.world):
        stream = planned.plan.tasks(rank)
        if planned.system.conditions.heterogeneous:
            stream = planned.heterogeneity.stream(rank, stream)
        ranks.append(RankNodes(rank, numbers, costs))
        ranks[-1].draw(stream)
    return with_received_sizes(ranks)


def _network(topology: Topology, world: int) -> dict[str, list[Any]]:
    """Return the dimensions of a topology; one that has none is a switch in each node, and one between nodes."""
    dimensions = topology.dimensions if topology.regularity.by_dimension else None
    if dimensions:
        rows = [(_BLOCKS[one.block], one.size, link_bandwidth(one), one.latency) for one in dimensions if one.size > 1]
    else:
        rows = list(_levels(topology, world))
    blocks, sizes, bandwidths, latencies = (list(column) for column in zip(*rows, strict=True))
    assert set(blocks) <= set(BLOCKS)
    return {
        "topology": blocks,
        "npus_count": sizes,
        "bandwidth": [bandwidth / 2**30 for bandwidth in bandwidths],
        "latency": [latency * 1e9 for latency in latencies],
    }


def _levels(topology: Topology, world: int) -> Iterator[tuple[str, int, float, float]]:
    """Yield a switch for the ranks that are as near as the second one is, and one between such groups."""
    near = topology.latency_and_bandwidth(0, 1)
    inner = next((rank for rank in range(1, world) if topology.latency_and_bandwidth(0, rank) != near), world)
    if world % inner or inner < 2:
        inner = world
    for size, (latency, bandwidth) in ((inner, near), (world // inner, topology.latency_and_bandwidth(0, world - 1))):
        if size > 1:
            yield "Switch", size, bandwidth, latency / 2  # a way through a switch has two links


def _system(gpu: Gpu | None, blocks: list[str], sizes: Iterable[int]) -> dict[str, Any]:
    """Return a system; halving and doubling is for powers of two, so that without it a switch sends to all at once."""
    halving = "direct" if any(size & (size - 1) for size in sizes) else "halvingDoubling"
    algorithms = [{"Ring": "ring", "FullyConnected": "direct"}.get(block, halving) for block in blocks]
    kinds = ("all-reduce", "all-gather", "reduce-scatter")
    return {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 4,
        **{f"{kind}-implementation": algorithms for kind in kinds},
        "all-to-all-implementation": ["direct" for _ in blocks],
        "collective-optimization": "localBWAware",
        "local-mem-bw": 1000 if gpu is None else gpu.bandwidth / 1e9,
        "peak-perf": 100 if gpu is None else gpu.rate("bfloat16") / 1e12,
        "roofline-enabled": 0,
    }


def _memory(topology: Topology) -> dict[str, Any]:
    """Return the host's memory, where a GPU has a way to it."""
    host = topology.host_of(0)
    if host is None:
        return {"memory-type": "NO_MEMORY_EXPANSION"}
    latency, bandwidth = topology.latency_and_bandwidth(host, 0)
    speeds = {"remote-mem-latency": round(latency * 1e9), "remote-mem-bw": max(1, round(bandwidth / 1e9))}
    return {"memory-type": "PER_NPU_MEMORY_EXPANSION", **speeds}
