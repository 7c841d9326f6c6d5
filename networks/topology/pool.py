"""Disaggregated memory: a pool of memory groups behind switches that all nodes share, and the closed forms of its accesses.

ASTRA-sim 2.0 (Won et al. 2023), section IV-D, "hierarchical": each memory group is linked to all switches between nodes, each
of these to the switch inside of every node, and that one to the node's GPUs. A tensor is striped over all groups and switches,
so that the links of one hop carry equal loads. Chunks follow each other from hop to hop; a stage of that pipeline lasts as long
as its slowest hop. The switches may gather shares while they are loaded (V-B): each link then carries the gathered tensor once
for all GPUs behind it.

The paper's number of stages is printed as nested fractions; that of its worked example, the bytes of a memory group's link
over the chunk, is meant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: The largest packet of InfiniBand, in bytes.
CHUNK = 4096.0


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of memory groups, in bytes, bytes per second in one direction of one link, and seconds.

    - ``groups`` of ``capacity`` bytes each, ``switches`` between nodes.
    - ``bandwidth`` is that of the link of a GPU to the switch in its node, ``node_bandwidth`` that of a node's link to each of
      the ``switches``, ``group_bandwidth`` that of a group's link to each of them; ``latency`` is that of each link.
    - ``memory_bandwidth`` is what a group reads and writes together; None where its links are what limits it.
    - ``gathers``: the switches gather what is loaded through them. ``chunk`` is what they forward at once.
    - ``simultaneous`` accesses of the pool run at once (None: any number).
    """

    groups: int
    switches: int
    capacity: float
    bandwidth: float
    node_bandwidth: float
    group_bandwidth: float
    memory_bandwidth: float | None = None
    latency: float = 0.0
    gathers: bool = False
    chunk: float = CHUNK
    simultaneous: int | None = None


@dataclass(frozen=True, slots=True)
class SharedPool:
    """A pool that the GPUs of some nodes share. Its closed forms assume that all of them access it at once."""

    pool: Pool
    nodes: int
    gpus: int

    def access_seconds(self, nbytes: float) -> float:
        """Return what it takes when every GPU loads, or stores, so many bytes; latencies left out."""
        whole, pool = nbytes * self.gpus, self.pool
        return self._seconds(whole / (pool.groups * pool.switches), whole / (pool.switches * self.nodes), nbytes)

    def gather_seconds(self, nbytes: float, ranks: int, nodes: int) -> float:
        """Return what it takes when switches gather a tensor for each group of ``ranks`` GPUs, which are on some ``nodes``."""
        pool, together = self.pool, self.gpus / ranks
        through_node = nbytes * together * nodes / self.nodes
        stored = nbytes * together / (pool.groups * pool.switches)
        return self._seconds(stored, through_node / pool.switches, nbytes)

    def _seconds(self, from_group: float, to_node: float, to_gpu: float) -> float:
        """Return the time of the pipeline, given the bytes that each link of a hop carries."""
        pool = self.pool
        stages = max(1, math.ceil(from_group / pool.chunk))
        from_memory = math.inf if pool.memory_bandwidth is None else pool.memory_bandwidth / pool.switches
        hops = (
            from_group / min(pool.group_bandwidth, from_memory),
            to_node / pool.node_bandwidth,
            to_gpu / pool.bandwidth,
        )
        return pipeline_seconds([seconds / stages for seconds in hops], stages)


def pipeline_seconds(hops: Sequence[float], chunks: int) -> float:
    """Return what a pipeline takes whose stages last as long as the slowest of the hops that are busy in them.

    ``hops`` are the seconds of a chunk on each; in stage s, hop h carries chunk s - h.
    """
    filled = min(chunks, len(hops))
    partly = math.fsum(
        max(hops[max(0, stage - filled) : stage]) for stage in range(1, filled + len(hops))
    )  # with no more chunks than hops
    return partly + (chunks - filled) * max(hops)
