"""Figure 16 of TrioSim: what one backup worker gains on 8 A100s whose links are slower by chance, by a factor of 1 to 10.

    python examples/hop_backup_workers.py TRACE [--batch-size 128] [--bandwidth "5 GB/s"] [--order serial]

Each edge of the communication graph is a link of its own. The paper gives neither the bandwidth, nor the seeds, nor whether
parameters are sent beside the computation: here a link has 5 GB/s, the eight groups are the seeds 1 to 8, and parameters are
sent beside it (``--order parallel``) unless it is told otherwise. The figure is the time of an iteration until the last worker
has ended its last, without a backup worker and with one, and what that gains.
``examples/notebooks/hop_backup_workers.ipynb`` draws it.
"""

from __future__ import annotations

import argparse
from typing import Any

import triosim
from triosim.extrapolators.data.hop_graph import load

GPUS = 8
GRAPHS = ("ring-based", "double-ring")


def system(graph: str, bandwidth: str) -> dict[str, Any]:
    """A topology with a link for each edge of a communication graph."""
    edges = [(a, b) for a, others in load(graph, GPUS).destinations.items() for b in others if a < b]
    return {
        "name": graph,
        "nodes": [f"gpu{gpu}" for gpu in range(GPUS)],
        "links": [{"from": f"gpu{a}", "to": f"gpu{b}", "bandwidth": bandwidth, "latency": "1 us"} for a, b in edges],
    }


def seconds(
    trace: triosim.Trace,
    graph: str,
    seed: int,
    backup: int,
    *,
    bandwidth: str = "5 GB/s",
    batch_size: int | None = None,
    iterations: int = 20,
    order: str = "parallel",
) -> float:
    """Return how long all iterations take; ``backup`` is the number of backup workers."""
    result = triosim.simulate(
        trace,
        "hop",
        gpus=GPUS,
        topology=system(graph, bandwidth),
        batch_size=batch_size,
        iterations=iterations,
        conditions={"slow_links": {"distribution": "uniform", "spread": 9, "seed": seed}},
        options={"graph": graph, "backup": str(backup), "order": order},
    )
    return result.data.iterations[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--bandwidth", default="5 GB/s")
    parser.add_argument("--order", choices=("parallel", "serial"), default="parallel")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--groups", type=int, default=8)
    given = parser.parse_args()
    trace = triosim.load_trace(given.trace)
    how = {name: getattr(given, name) for name in ("bandwidth", "batch_size", "iterations", "order")}
    print("group   " + "   ".join(f"{graph:>30}" for graph in GRAPHS))
    for seed in range(1, given.groups + 1):
        cells = []
        for graph in GRAPHS:
            without, with_one = (seconds(trace, graph, seed, backup, **how) for backup in (0, 1))
            scale = 1e3 / given.iterations
            cells.append(f"{without * scale:7.1f} ms {with_one * scale:7.1f} ms {without / with_one:6.2f} x")
        print(f"{seed:5}   " + "   ".join(f"{cell:>30}" for cell in cells))


if __name__ == "__main__":
    main()
