"""Small graphs, and ASTRA-sim's other files, written into a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from triosim.chakra.nodes import CollectiveType, Node, NodeType, Value
from triosim.chakra.writing import write_et

SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 1,
    **{f"{name}-implementation": ["ring"] for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")},
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
}


def node(identity: int, kind: NodeType, *parents: int, us: int = 0, **attributes: Value) -> Node:
    return Node(identity, f"n{identity}", kind, (), parents, 0, us, {"is_cpu_op": False, **attributes})


def computation(identity: int, us: int, *parents: int, **attributes: Value) -> Node:
    return node(identity, NodeType.COMP, *parents, us=us, **attributes)


def all_reduce(identity: int, size: int, *parents: int, **attributes: Value) -> Node:
    kind = int(CollectiveType.ALL_REDUCE)
    return node(identity, NodeType.COMM_COLL, *parents, comm_type=kind, comm_size=size, **attributes)


def message(identity: int, kind: NodeType, size: int, *parents: int, peer: int, tag: int = 0) -> Node:
    end = {"comm_dst": peer} if kind is NodeType.COMM_SEND else {"comm_src": peer}
    return node(identity, kind, *parents, comm_size=size, comm_tag=tag, **end)


def write_graphs(folder: Path, ranks: Iterable[Iterable[Node]]) -> Path:
    """Write a graph for each rank; return their prefix."""
    for rank, nodes in enumerate(ranks):
        write_et(folder / f"w.{rank}.et", nodes)
    return folder / "w"


def write_inputs(
    folder: Path, npus: int, *, system: Mapping[str, Any] = SYSTEM, block: str = "Ring", bandwidth: float = 50.0
) -> None:
    """Write a network of one dimension, 500 ns a link, and a system."""
    lines = {"topology": block, "npus_count": npus, "bandwidth": bandwidth, "latency": 500.0}
    text = "".join(f"{key}: [ {value} ]\n" for key, value in lines.items())
    (folder / "network.yml").write_text(text, encoding="utf-8")
    (folder / "system.json").write_text(json.dumps(system), encoding="utf-8")
