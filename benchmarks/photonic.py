"""The time of a study of a wafer of 84 GPUs: ``ddp`` on its mesh of links and on its circuits, in both forms.

Each row is a trace of ``examples/traces`` on one network: the step that is predicted, how much of it is exposed
communication, and how long predicting it took (in a process that is already started), by the clock and of the processor.

    python benchmarks/photonic.py [--quick]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import triosim
from triosim.trace.formats import read

TRACES = Path(__file__).parents[1] / "examples" / "traces"
GPUS = 84


def main() -> None:
    paths = sorted(TRACES.glob("*.json.gz"))[: 1 if "--quick" in sys.argv else None]
    print(
        f"{'trace':34}{'network':10}{'form':11}{'step, ms':>10}{'exposed':>9}{'circuits':>10}{'seconds':>9}{'of CPU':>8}"
    )
    for path in paths:
        trace = read(path)
        for network in ("packet", "photonic"):
            for form in ("pipelined", "steps"):
                began, busy = time.perf_counter(), time.process_time()
                result = triosim.simulate(
                    trace, "ddp", gpus=GPUS, topology="wafer-84", network=network, collective_form=form
                )
                seconds, busy = time.perf_counter() - began, time.process_time() - busy
                exposed = result.data.ranks[0].exposed_communication_s / result.step_time_s
                made = (result.data.network_figures or {}).get("circuits_made", 0)
                step = 1e3 * result.step_time_s
                print(
                    f"{path.name.partition('.')[0]:34}{network:10}{form:11}{step:10.1f}{exposed:9.1%}{made:10}"
                    f"{seconds:9.2f}{busy:8.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
