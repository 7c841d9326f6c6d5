"""How long Chakra graphs take: nodes a second read and written, and seconds and MB to simulate them, by the number of ranks.

``python -m benchmarks.chakra [--ranks 64 256 1024] [--nodes 1000] [--rules]`` writes graphs of a data- and tensor-parallel
step: each layer computes and all-reduces in a group of eight ranks, and all-reduces gradients with the ranks of the same place.
``--rules`` simulates by ASTRA-sim's rules; ``--reading`` reads 50,000 nodes of three kinds instead. Each number of ranks is a
process of its own, whose peak memory is told.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import triosim
from triosim.chakra.nodes import CollectiveType, Node, NodeType
from triosim.chakra.reading import EtReader
from triosim.chakra.workload import read_workload
from triosim.chakra.writing import write_et
from triosim.engine.astra_sim.run import Settings
from triosim.engine.astra_sim.study import StudyFiles, read_study, simulate_study

_TENSOR = 8
_SYSTEM = {
    "scheduling-policy": "LIFO",
    "preferred-dataset-splits": 1,
    "collective-optimization": "localBWAware",
    "local-mem-bw": 2000,
    **{
        f"{kind}-implementation": ["ring", "ring"]
        for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    },
}


def nodes_of(count: int, rank: int, ranks: int) -> list[Node]:
    """Return the graph of a rank: of every five nodes, three compute, one is of the tensor group and one of the data group."""
    tensor, data = 1 + rank // _TENSOR, 1 + ranks // _TENSOR + rank % _TENSOR
    found: list[Node] = []
    for number in range(count):
        step = number % 5
        parents = (number - 1,) if step not in (0, 4) else (max(number - 2, 0),) if number else ()
        if step < 3:
            attributes = {"is_cpu_op": False, "num_ops": 1000 * step, "tensor_size": 4096}
            found.append(Node(number, f"mm{step}", NodeType.COMP, (), parents, 0, 20 + step, attributes))
        else:
            group = str(tensor if step == 3 else data)
            kind = int(CollectiveType.ALL_REDUCE)
            asked = {"is_cpu_op": False, "comm_type": kind, "comm_size": 1 << 20, "pg_name": group}
            found.append(Node(number, "ar", NodeType.COMM_COLL, (), parents, 0, 0, asked))
    return found


def write(folder: Path, ranks: int, count: int) -> float:
    """Write the graphs and ASTRA-sim's files; return nodes a second."""
    began = time.perf_counter()
    for rank in range(ranks):
        write_et(folder / f"w.{rank}.et", nodes_of(count, rank, ranks))
    took = time.perf_counter() - began
    groups = [list(range(first, first + _TENSOR)) for first in range(0, ranks, _TENSOR)]
    groups += [list(range(place, ranks, _TENSOR)) for place in range(_TENSOR)]
    numbered = {str(number): members for number, members in enumerate(groups, start=1)}
    (folder / "groups.json").write_text(json.dumps(numbered), encoding="utf-8")
    (folder / "system.json").write_text(json.dumps(_SYSTEM), encoding="utf-8")
    (folder / "network.yml").write_text(
        f"topology: [ Switch, Switch ]\nnpus_count: [ {_TENSOR}, {ranks // _TENSOR} ]\n"
        "bandwidth: [ 400, 50 ]\nlatency: [ 500, 1000 ]\n",
        encoding="utf-8",
    )
    return ranks * count / took


def kinds_of_nodes(count: int) -> dict[str, list[Node]]:
    """Return nodes as simple as can be, with the attributes of PyTorch's converter, and with fifty dependencies each."""
    plain = [Node(n, "mm", NodeType.COMP, (), (n - 1,) if n else (), 0, 20, {"is_cpu_op": False}) for n in range(count)]
    same = {
        "is_cpu_op": True,
        "fw_parent": 0,
        "scope": 0,
        "tid": 1,
        "op_schema": "aten::mm(Tensor self, Tensor mat2) -> Tensor",
    }
    return {
        "one attribute": plain,
        "eight attributes, three of which differ": [
            one._replace(attributes={**same, "rf_id": one.id, "seq_id": one.id // 3, "fw_tid": one.id // 7})
            for one in plain
        ],
        "fifty dependencies": [one._replace(data_deps=tuple(range(max(0, one.id - 50), one.id))) for one in plain],
    }


def print_reading(count: int) -> None:
    """Print nodes a second of each kind: the best of three times."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "w.0.et"
        for kind, nodes in kinds_of_nodes(count).items():
            write_et(path, nodes)
            took = []
            for _ in range(3):
                began = time.perf_counter()
                EtReader().nodes(path)
                took.append(time.perf_counter() - began)
            print(f"{kind}: {count / min(took):,.0f} nodes a second")


def measured(ranks: int, count: int, *, rules: bool) -> str:
    """Return a row of the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        written = write(folder, ranks, count)
        began = time.perf_counter()
        read_workload(folder, ranks)
        read = ranks * count / (time.perf_counter() - began)
        began = time.perf_counter()
        network, groups = folder / "network.yml", folder / "groups.json"
        if rules:
            study = read_study(StudyFiles(folder, network, folder / "system.json", groups=groups))
            end = max(rank.cycles for rank in simulate_study(study, Settings()).ranks.values()) / 1e9
        else:
            end = triosim.simulate(str(folder), topology=str(network), groups=str(groups)).step_time_s
        took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"| {ranks} | {written:,.0f} | {read:,.0f} | {took:.1f} | {peak:,.0f} | {end * 1e3:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--reading", action="store_true")
    options = parser.parse_args()
    if options.reading:
        print_reading(50_000)
        return
    if len(options.ranks) == 1:
        print(measured(options.ranks[0], options.nodes, rules=options.rules))
        return
    print(
        "| ranks | written, nodes/s | read, nodes/s | simulated (s) | peak (MB) | step (ms) |\n|--:|--:|--:|--:|--:|--:|"
    )
    for ranks in options.ranks:
        command = [sys.executable, "-m", "benchmarks.chakra", "--ranks", str(ranks), "--nodes", str(options.nodes)]
        subprocess.run([*command, *(["--rules"] if options.rules else [])], check=True)


if __name__ == "__main__":
    main()
