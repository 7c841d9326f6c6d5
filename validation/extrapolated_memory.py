"""Peak memory of ranks that nobody captured: a description, made many GPUs, against what torchtitan and TorchSim measured.

``python -m validation.extrapolated_memory [--table torchtitan|20|21] [--length 8192]`` prints every row, and where the peak is.
Llama 3.1 8B under FSDP2 is from torchtitan's benchmarks of December 2024, whose memory is the most that the allocator reserved
(``max_memory_reserved``); Llama 70B under FSDP2, and under FSDP2 over 32 times tensor parallelism over 4, from TorchSim's
tables 20 and 21, whose memory is the peak of active bytes. All train with parameters, gradients and AdamW's states in single
precision, sharded, and compute in bf16 (``validation.steps.titan_step``). Selective checkpoints keep attention and every second
product. Nothing is fitted. ``validation/end_to_end.py`` predicts the same rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from validation.report import Row, data, relative
from validation.steps import formats
from validation.steps.titan_step import Step, peak_gib, step_memory

GIB = 2**30

#: The mean errors that are claimed, by table.
CLAIMS = {"torchtitan": 0.04, "20": 0.03, "21": 0.03}


@dataclass(frozen=True, slots=True)
class Case:
    """A row of a table; ``measured`` is GiB, of which ``counted`` says how they were counted."""

    table: str
    step: Step
    measured: float
    counted: Literal["allocated", "reserved"]


def cases() -> list[Case]:
    """The rows of all tables."""
    titan = formats.read(data("end_to_end/torchtitan_llama3_h100.csv"))[1]
    found = [Case("torchtitan", one.case[0], one.measured, "reserved") for row in titan for one in row.also]
    for row in formats.named("torchsim-memory").built_in():
        table = "21" if dict(row.case.axes).get("tp") else "20"
        found.append(Case(table, row.case, row.measured, "allocated"))
    return found


def rows() -> list[Row]:
    """The mean error of each table; of TorchSim's, the longest sequences."""
    tables: dict[str, list[Case]] = {}
    for case in cases():
        if case.table == "torchtitan" or case.step.sequence == 8192:
            tables.setdefault(case.table, []).append(case)
    found = []
    for table, some in tables.items():
        error = fmean(
            relative(peak_gib(step_memory(case.step), case.counted, case.step.nodes.memory), case.measured)
            for case in some
        )
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
        if options.table not in (None, case.table) or options.length not in (None, case.step.sequence):
            continue
        began = time.perf_counter()
        found = step_memory(case.step)
        ours = peak_gib(found, case.counted, case.step.nodes.memory)
        errors.setdefault(case.table, []).append(relative(ours, case.measured))
        print(
            f"| {case.table} | {case.step.label} | {case.measured:.2f} {case.counted} | {ours:.2f} "
            f"| {100 * (ours / case.measured - 1):+.1f}% | {found.fullest.action} {found.fullest.layer} "
            f"| {found.fullest.peak_bytes / GIB:.2f} | {time.perf_counter() - began:.0f} |",
            flush=True,
        )
    for table, some in errors.items():
        print(f"{table}: mean error {fmean(some):.2%}, largest {max(some):.2%}")


if __name__ == "__main__":
    main()
