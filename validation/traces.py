"""Raw profiler files of a step of VGG-13 on an H100, batch 512: operators against the GPU's kernels, and parameters.

The GPU-busy time is the union of the intervals of all kernels, copies and memory sets in the profiler's file. VGG-13 with
1,000 classes has 133,047,848 parameters (Simonyan and Zisserman 2015, table 2: 133 million).
"""

from __future__ import annotations

import gzip
import json

import triosim
from validation.report import Row, data, relative

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
PARAMETERS = 133_047_848


def rows() -> list[Row]:
    folder = data("traces/h100_vgg13_bs512_raw")
    trace = triosim.load_trace(folder)
    with gzip.open(folder / "profiler.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    work = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") in GPU_WORK)
    busy = end = 0.0
    for start, stop in work:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    elements = sum(tensor.numel for tensor in trace.parameters.values())
    return [
        Row("VGG-13, batch 512: sum of operator times", "GPU-busy time", 1, relative(trace.seconds, busy * 1e-6), 2e-2),
        Row("VGG-13, batch 512: parameters found", "the network's", 1, relative(elements, PARAMETERS), 0.0),
    ]
