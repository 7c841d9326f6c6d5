"""Peak memory of Llama 70B on 64 and 128 ranks, captured as one rank without a GPU, against TorchSim's tables 20 and 21.

``python -m validation.sharded_memory [--table 20] [--layers 4]`` captures all 80 layers, under FSDP2 over 64 ranks and under
FSDP2 over 32 times tensor and sequence parallelism over 4, by the scripts of ``examples/train`` with the operators of
torchtitan's Llama (``scripts/torchtitan_llama.py``), and prints their figures and ours; each takes minutes. What the tables do
not say is in the public logs of these runs of October 2024 (github.com/sanketpurandare/torchtitan: ``llama_70b_fsdp_64.txt``,
``llama_70b_fsdp_tp_128_real.txt``, ``outputs/llama3_70b/llama3_70B_1D_64_0.txt``): 4-way tensor parallelism, the loss divided
by vocabulary, AdamW of several kernels, the last layer kept gathered; *selective* keeps attention and every second product.
Measured is the peak of active bytes: in table 20 on 64 GPUs, in table 21 in one process whose collectives move nothing.
``active`` and ``reserved`` are from the logs.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from triosim.memory import analyse
from validation.report import DataAbsent, Row, relative

#: An hour, with PyTorch: ``python -m validation`` runs this only where it is asked for.
TAKES_LONG = True

GIB = 2**30
SCRIPT = Path(__file__).parent / "scripts" / "torchtitan_llama.py"

#: The largest error that is claimed for the allocated bytes.
CLAIM = 0.02


@dataclass(frozen=True, slots=True)
class Case:
    """A row of a table: ``estimated`` and ``measured`` are GiB as printed, ``active`` and ``reserved`` GiB of the logs."""

    table: str
    batch: int
    length: int
    checkpoint: str
    estimated: float
    measured: float
    active: float
    reserved: float


@dataclass(frozen=True, slots=True)
class Found:
    """What a captured step needs, in GiB: its tensors, what the allocator hands out for them, and what it reserves."""

    tensors: float
    allocated: float
    reserved: float


CASES = [
    Case("20", 2, 64, "selective", 30.10, 30.20, 32_454_990_848 / GIB, 48_597_303_296 / GIB),
    Case("20", 2, 256, "selective", 30.65, 30.97, 32_672_773_120 / GIB, 52_758_052_864 / GIB),
    Case("20", 2, 1024, "full", 30.50, 30.70, 32_914_487_296 / GIB, 44_455_428_096 / GIB),
    Case("20", 1, 4096, "full", 32.15, 32.28, 34_692_388_864 / GIB, 47_557_115_904 / GIB),
    Case("20", 1, 8192, "full", 40.13, 40.18, 43_100_869_632 / GIB, 58_634_272_768 / GIB),
    Case("21", 2, 64, "selective", 12.87, 12.98, 12.969976, 17.744141),
    Case("21", 2, 256, "selective", 12.87, 12.98, 12.974072, 17.455078),
    Case("21", 2, 1024, "full", 12.88, 12.98, 12.971897, 17.107422),
    Case("21", 1, 4096, "full", 12.88, 12.99, 12.979740, 18.142578),
    Case("21", 1, 8192, "full", 13.10, 14.27, 14.248875, 19.296875),
]

#: The script of each table, its own options, and the ranks.
RUNS = {
    "20": ("fsdp2.py", [], 64),
    "21": ("tensor_parallel.py", ["--tensor-parallel", "4", "--sequence-parallel", "--loss-parallel"], 128),
}


def rows() -> list[Row]:
    """The longest sequence of each table, with all layers."""
    if importlib.util.find_spec("torch") is None:
        raise DataAbsent("torch is not installed")
    longest = [case for case in CASES if case.length == 8192]
    error = max(relative(capture(case).allocated, case.measured) for case in longest)
    return [Row("peak memory of Llama 70B, FSDP2 and FSDP2 x TP", "TorchSim tables 20, 21, H100", 2, error, CLAIM)]


def capture(case: Case, layers: int = 80) -> Found:
    """Capture the case's second step as rank 0, in a process of its own, and return its memory on an H100."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        return alone.submit(_capture, case, layers).result()


def _capture(case: Case, layers: int) -> Found:
    from triosim.tracer.fake_device import FakeDevice
    from triosim.tracer.script_runner import run_script

    arguments, world = arguments_of(case, layers)
    with FakeDevice("H100-SXM", world=world) as device:
        run_script(SCRIPT, arguments, device, skip=1)
    report = analyse(device.traces[0], "H100-SXM")
    tensors = report.peak_live - report.usage.at_peak().get("workspace", 0)
    return Found(tensors / GIB, report.peak_allocated / GIB, report.peak_reserved / GIB)


def arguments_of(case: Case, layers: int) -> tuple[list[str], int]:
    """Return the arguments of the case's script, and its ranks."""
    script, options, world = RUNS[case.table]
    sizes = {"--layers": layers, "--batch-size": case.batch, "--sequence": case.length, "--checkpoint": case.checkpoint}
    given = [str(one) for pair in sizes.items() for one in pair]
    return [script, "--model", "70b", *given, "--keep", "last", "--foreach", *options], world


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m validation.sharded_memory", description=__doc__)
    parser.add_argument("--table", choices=sorted(RUNS), help="one of TorchSim's tables, not both")
    parser.add_argument("--length", type=int, help="the rows of one sequence length alone")
    parser.add_argument("--layers", type=int, default=80, help="fewer layers than the 80 that were measured")
    options = parser.parse_args(given)
    print(
        "| table | batch | sequence | checkpointing | measured GiB | in the log | TorchSim | tensors | ours | off "
        "| reserved, in the log | ours | off | s |\n|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    found = []
    for case in CASES:
        if options.table in (None, case.table) and options.length in (None, case.length):
            began = time.perf_counter()
            ours = capture(case, options.layers)
            found.append((case, ours))
            print(line(case, ours, time.perf_counter() - began), flush=True)
    for table in sorted({case.table for case, _ in found}):
        mine = [(case, ours) for case, ours in found if case.table == table]
        allocated = fmean(relative(ours.allocated, case.measured) for case, ours in mine)
        theirs = fmean(relative(case.estimated, case.measured) for case, _ in mine)
        reserved = fmean(relative(ours.reserved, case.reserved) for case, ours in mine)
        print(
            f"table {table}, mean error: {100 * allocated:.2f}% (TorchSim {100 * theirs:.2f}%), "
            f"reserved {100 * reserved:.1f}%"
        )


def line(case: Case, ours: Found, seconds: float) -> str:
    """A case as a row of a table; sizes in GiB."""
    return (
        f"| {case.table} | {case.batch} | {case.length} | {case.checkpoint} "
        f"| {case.measured:.2f} | {case.active:.2f} | {case.estimated:.2f} "
        f"| {ours.tensors:.2f} | {ours.allocated:.2f} | {100 * (ours.allocated / case.measured - 1):+.1f}% "
        f"| {case.reserved:.2f} | {ours.reserved:.2f} | {100 * (ours.reserved / case.reserved - 1):+.1f}% | {seconds:.0f} |"
    )


if __name__ == "__main__":
    main()
