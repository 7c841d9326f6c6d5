"""Steps of all parallelisms, written as Chakra graphs and read again: the same step time, to a nanosecond a node."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import triosim
from triosim.chakra.workload import read_workload
from triosim.config import RunConfig
from triosim.pipeline.graph_writing import write_step
from validation.report import Row

_NS = 1e-9
_SWITCH = "switch(8, bandwidth=100 GB/s, latency=1 us)"

#: A model, and the options of its step.
STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gpt2", {"parallel": "ddp=4", "topology": _SWITCH}),
    ("gpt2", {"parallel": "ddp=4", "topology": _SWITCH, "host_overhead": "none"}),
    ("gpt2", {"parallel": "dp=4", "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "zero1=4", "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "zero2=8", "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "fsdp=8", "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "fsdp=16", "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "ddp=4", "topology": "dgx-a100", "micro_batches": 3}),
    ("gpt2", {"parallel": "tp=4", "topology": _SWITCH}),
    ("gpt2", {"parallel": "tp=4", "tp_style": "megatron", "sequence_parallel": True, "topology": _SWITCH}),
    ("gpt2", {"parallel": "cp=4", "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "pp=4", "micro_batches": 4, "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "pp=4", "micro_batches": 8, "schedule": "1f1b", "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "pp=2", "micro_batches": 4, "schedule": "interleaved", "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "pp=4", "micro_batches": 8, "schedule": "zero-bubble", "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "dp=2,tp=2,pp=2", "micro_batches": 4, "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "fsdp=4,tp=2", "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "local-sgd=4", "topology": "dgx-a100"}),
    ("gpt2", {"parallel": "parameter-server", "gpus": 4, "topology": "dgx-a100"}),
    ("mixtral-8x7b", {"parallel": "dp=8,ep=8", "layers": 2, "topology": "dgx-a100"}),
    ("resnet50", {"parallel": "ddp=4", "batch_size": 16, "topology": "dgx-a100", "copy_input": True}),
)


def rows() -> list[Row]:
    found = []
    for model, options in STEPS:
        off, nodes = difference(model, {"gpu": "A100", **options})
        found.append(
            Row(f"{model}, {options['parallel']}: step time", "the graphs read again", nodes, off, nodes * _NS)
        )
    return found


def difference(model: str, options: dict[str, Any]) -> tuple[float, int]:
    """Return the seconds by which a step differs from its graphs, and the nodes of a rank."""
    before = triosim.simulate(model, **options).step_time_s
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "graphs"
        write_step(model, RunConfig.of(**options), folder)
        nodes = max(len(graph.nodes) for graph in read_workload(folder))
        files = {"groups": str(folder / "comm_group.json"), "memory": str(folder / "remote_memory.json")}
        after = triosim.simulate(str(folder), topology=options["topology"], **files).step_time_s
    return abs(after - before), nodes
