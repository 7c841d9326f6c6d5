"""Print what HolisticTraceAnalysis finds in a folder of profiles, as JSON.

Runs in an environment that has it (``pip install HolisticTraceAnalysis "pandas<3"``), which need not have triosim:

    python hta_figures.py FOLDER
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from typing import Any

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # it would cut each kernel to whole microseconds

from hta.trace_analysis import TraceAnalysis


def figures(folder: str) -> dict[str, Any]:
    """Return the figures of every analysis, in microseconds."""
    analysis = TraceAnalysis(trace_dir=folder, include_last_profiler_step=True)
    ranks = sorted(analysis.t.traces)
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, duration_ratio=1.0, num_kernels=10**6)
    idle, _ = analysis.get_idle_time_breakdown(ranks=ranks, visualize=False)
    queues = analysis.get_queue_length_time_series(ranks)
    return {
        "temporal": analysis.get_temporal_breakdown(visualize=False).to_dict("records"),
        "overlap": analysis.get_comm_comp_overlap(visualize=False).to_dict("records"),
        "kinds": kinds.to_dict("records"),
        "kernels": kernels[["name", "sum (us)", "kernel_type", "rank"]].to_dict("records"),
        "idle": idle.to_dict("records"),
        "queue": {str(rank): int(rows["queue_length"].max()) for rank, rows in queues.items()},
        "critical_path": {str(rank): _critical_path(analysis, rank) for rank in ranks},
    }


def _critical_path(analysis: Any, rank: int) -> dict[str, float]:
    graph, found = analysis.critical_path_analysis(rank=rank, annotation="ProfilerStep", instance_id=0)
    rows = graph.get_critical_path_breakdown()
    by_bound = rows.groupby("bound_by")["duration"].sum().to_dict()
    return {
        "found": float(found),
        "total": float(rows["duration"].sum()),
        **{str(k): float(v) for k, v in by_bound.items()},
    }


def main() -> int:
    """Print the figures of the folder that is named."""
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(sys.stderr):
        found = figures(sys.argv[1])
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
