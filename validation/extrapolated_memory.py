"""Peak memory of ranks that nobody captured: a description, made many GPUs, against what torchtitan and TorchSim measured.

``python -m validation.extrapolated_memory [--table torchtitan|20|21] [--length 8192]`` prints every row. Llama 3.1 8B under
FSDP2 is from torchtitan's benchmarks of December 2024, whose memory is the most that the allocator reserved
(``max_memory_reserved``); Llama 70B under FSDP2, and under FSDP2 over 32 times tensor parallelism over 4, from TorchSim's
tables 20 and 21, whose memory is the peak of active bytes. All train with parameters, gradients and AdamW's states in single
precision, sharded, and compute in bf16. Selective checkpoints keep attention and every second product. Nothing is fitted.
Rows that were compiled, or computed in eight bits, are left out.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import triosim
from triosim.memory.extrapolated import WorldMemory
from triosim.memory.settings import AllocatorSettings
from validation.report import Row, data, relative
from validation.sharded_memory import CASES

GIB = 2**30
#: torchtitan's H100s have 96 GB.
CAPACITY = 96e9
RECOMPUTE = {"selective": "save=mm/2,attention", "full": "checkpoint", "no": "none", "none": "none"}

#: The mean errors that are claimed, by table.
CLAIMS = {"torchtitan": 0.04, "20": 0.03, "21": 0.03}


@dataclass(frozen=True, slots=True)
class Case:
    """A row of a table; ``measured`` is GiB, of which ``counted`` says how they were counted."""

    table: str
    model: str
    parallel: str
    batch: int
    length: int
    checkpoint: str
    measured: float
    counted: Literal["allocated", "reserved"]


def cases() -> list[Case]:
    """The rows of all tables."""
    found = []
    with data("end_to_end/torchtitan_llama3_h100.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["float8"] == "no" and row["compile"] == "no":
                found.append(
                    Case(
                        "torchtitan",
                        row["model"].replace("llama3.1", "llama3").lower(),
                        row["parallelism"],
                        int(row["local_batch"]),
                        int(row["sequence_length"]),
                        row["activation_checkpointing"],
                        float(row["memory_gib"]),
                        "reserved",
                    )
                )
    for one in CASES:
        parallel = "fsdp=64" if one.table == "20" else "fsdp=32,tp=4"
        sizes = (one.batch, one.length, one.checkpoint, one.measured)
        found.append(Case(one.table, "llama3-70b", parallel, *sizes, "allocated"))
    return found


def memory(case: Case) -> WorldMemory:
    """Return the memory of all ranks of a case."""
    return sharded_training(case.model, case.parallel, case.batch, case.length, checkpoint=case.checkpoint)


def sharded_training(
    model: str, parallel: str, batch: int, length: int, *, checkpoint: str = "selective"
) -> WorldMemory:
    """Return the memory of a model as torchtitan trains it; with ``tp`` in ``parallel``, by ``DTensor`` and by sequence."""
    trace = triosim.describe(
        model,
        batch=batch,
        sequence=length,
        dtype="bf16",
        optimizer="adamw",
        gpu="H100-SXM",
    )
    divided = "tp=" in parallel
    return triosim.rank_memory(
        trace,
        parallel,
        recompute=RECOMPUTE[checkpoint],
        gradient_dtype="float32",
        tp_style="megatron" if divided else "gather",
        sequence_parallel=divided,
        options={"shard_dtype": "float32"} | ({"embedding_gradient": "whole"} if divided else {}),
    )


def peak_gib(
    memory: WorldMemory, counted: str = "reserved", *, capacity: float = CAPACITY, expandable: bool = False
) -> float:
    """Return the peak of the fullest rank in GiB: of ``live`` tensors, or what is ``allocated`` or ``reserved`` for them."""
    report = memory.report(capacity=capacity, settings=AllocatorSettings(expandable_segments=expandable))
    return float(getattr(report, f"peak_{counted}")) / GIB


def rows() -> list[Row]:
    """The mean error of each table; of TorchSim's, the longest sequences."""
    tables: dict[str, list[Case]] = {}
    for case in cases():
        if case.table == "torchtitan" or case.length == 8192:
            tables.setdefault(case.table, []).append(case)
    found = []
    for table, some in tables.items():
        error = fmean(relative(peak_gib(memory(case), case.counted), case.measured) for case in some)
        whose = "torchtitan, H100" if table == "torchtitan" else f"TorchSim table {table}, H100"
        found.append(Row("peak memory of a described Llama, mean error", whose, len(some), error, CLAIMS[table]))
    return found


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m validation.extrapolated_memory", description=__doc__)
    parser.add_argument("--table", choices=sorted(CLAIMS), help="the rows of one table alone")
    parser.add_argument("--length", type=int, help="the rows of one sequence length alone")
    options = parser.parse_args(given)
    print("| table | run | measured GiB | predicted | off | when | live | s |\n|---|---|--:|--:|--:|---|--:|--:|")
    errors: dict[str, list[float]] = {}
    for case in cases():
        if options.table not in (None, case.table) or options.length not in (None, case.length):
            continue
        began = time.perf_counter()
        found = memory(case)
        ours = peak_gib(found, case.counted)
        errors.setdefault(case.table, []).append(relative(ours, case.measured))
        how = f"{case.parallel}, batch {case.batch} x {case.length:,}, {case.checkpoint}"
        print(
            f"| {case.table} | {how} | {case.measured:.2f} {case.counted} | {ours:.2f} "
            f"| {100 * (ours / case.measured - 1):+.1f}% | {found.fullest.action} {found.fullest.layer} "
            f"| {found.fullest.peak_bytes / GIB:.2f} | {time.perf_counter() - began:.0f} |",
            flush=True,
        )
    for table, some in errors.items():
        print(f"{table}: mean error {fmean(some):.2%}, largest {max(some):.2%}")


if __name__ == "__main__":
    main()
